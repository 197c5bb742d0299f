# Prints the patch from the commit of REPOSITORY to the work tree in SANDBOX_WORKDIR; see `diff_script`.
exec 2>/dev/null
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1 HOME=$SCRATCH
base=$(git --git-dir="$REPOSITORY" rev-parse --verify 'HEAD^{commit}') || exit $FAILED
export GIT_DIR=$SCRATCH/repository GIT_WORK_TREE="$SANDBOX_WORKDIR"
mkdir -p "$GIT_DIR/objects/info" "$GIT_DIR/refs" "$GIT_DIR/info" || exit $FAILED
echo "$REPOSITORY/objects" > "$GIT_DIR/objects/info/alternates"
echo "$base" > "$GIT_DIR/HEAD"
echo '* !diff' > "$GIT_DIR/info/attributes"
printf '%s\n' '[core]' 'repositoryformatversion = 0' 'bare = false' 'bigFileThreshold = 16m' \
    > "$GIT_DIR/config"
cd -- "$SANDBOX_WORKDIR" || exit $FAILED
git read-tree "$base" || exit $FAILED
git add --update --ignore-errors -- . "${SPARED[@]}" >/dev/null

# New files that are no leftovers, by the rules of `envs.swe.evaluator.leftovers`, are added to the index.
type -P sort stat xargs >/dev/null || exit $FAILED
git ls-files -z --others --exclude-standard -- . "${SPARED[@]}" > "$GIT_DIR/new" || exit $FAILED
declare -A environments in_folder
while IFS= read -r -d '' path; do
    [[ $path == */$ENVIRONMENT_FILE ]] && environments[_${path%/*}]=1
done < "$GIT_DIR/new"
while IFS= read -r -d '' path; do
    [[ $path != */ && ( -r $path || -L $path ) ]] || continue
    [[ /$path == $INSTALLED ]] && continue
    if (( ${#environments[@]} )); then
        folder=$path
        while [[ $folder == */* ]]; do
            folder=${folder%/*}
            [[ -n ${environments[_$folder]} ]] && continue 2
        done
    fi
    top=/; [[ $path == */* ]] && top=${path%%/*}
    in_folder[_$top]=$(( ${in_folder[_$top]:-0} + 1 ))
    printf '%s\0' "$path"
done < "$GIT_DIR/new" > "$GIT_DIR/candidates"
xargs -0 --no-run-if-empty stat --printf '%s %n\0' -- < "$GIT_DIR/candidates" |
while IFS= read -r -d '' entry; do
    path=${entry#* }
    top=/ bulk=0 other=1
    [[ $path == */* ]] && top=${path%%/*}
    (( ${in_folder[_$top]} > BULK_FILES )) && bulk=1
    [[ $path == *.py ]] && other=0
    printf '%s %s %s\0' $bulk $other "$entry"
done | LC_ALL=C sort -z -k1,1n -k2,2n -k3,3n -k4 |
{
    files=0 bytes=0
    while IFS= read -r -d '' entry; do
        entry=${entry#* * }
        size=${entry%% *} path=${entry#* }
        (( files < MAX_ADDED_FILES && bytes + size <= MAX_ADDED_BYTES )) || continue
        files=$(( files + 1 )) bytes=$(( bytes + size ))
        printf '%s\0' "$path"
    done
} | git update-index --add -z --stdin

git diff --cached --binary --full-index --no-ext-diff --no-textconv --no-renames --no-color \
    --src-prefix=a/ --dst-prefix=b/ "$base" || exit $FAILED
