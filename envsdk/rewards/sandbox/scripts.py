"""Shell scripts that read, write and compare files inside a sandbox, with the system's own tools."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from envsdk.rewards.sandbox.contract import (
    BULK_FILES,
    ENVIRONMENT_FILE,
    INSTALLED_FOLDERS,
    MAX_ADDED_BYTES,
    MAX_ADDED_FILES,
)

NOT_THERE, NOT_A_FILE, TOO_LARGE, FAILED = 61, 62, 63, 64
"""Exit codes of the scripts."""

PROBLEMS = {
    NOT_THERE: "there is no such file",
    NOT_A_FILE: "it is not a regular file",
    TOO_LARGE: "it is too large",
    FAILED: "it cannot be opened, or a limit was reached",
}

READ = f"""\
exec 2>/dev/null
[ -e "$SANDBOX_PATH" ] || exit {NOT_THERE}
[ -f "$SANDBOX_PATH" ] || exit {NOT_A_FILE}
size=$(stat -Lc %s -- "$SANDBOX_PATH") || exit {FAILED}
[ "$size" -le "$SANDBOX_MAX_BYTES" ] || exit {TOO_LARGE}
cat -- "$SANDBOX_PATH" || exit {FAILED}
"""
"""Prints the file SANDBOX_PATH of at most SANDBOX_MAX_BYTES."""

WRITE = f"""\
exec 2>/dev/null
[ ! -e "$SANDBOX_PATH" ] || [ -f "$SANDBOX_PATH" ] || exit {NOT_A_FILE}
mkdir -p -- "$(dirname -- "$SANDBOX_PATH")" || exit {FAILED}
cat > "$SANDBOX_PATH" || exit {FAILED}
"""
"""Stores standard input in the file SANDBOX_PATH."""


PACK = f"""\
exec 2>/dev/null
# What is bound below these folders is not the episode's.
others=()
while read -r _ _ _ _ point _; do
    case $point in /tmp/*|"$SANDBOX_WORKDIR"/*) others+=("--exclude=.$point") ;; esac
done < /proc/self/mountinfo
tar --create --directory=/ --sparse --ignore-failed-read --anchored --no-wildcards \\
    "${{others[@]}}" ".$SANDBOX_WORKDIR" ./tmp | gzip -1
case ${{PIPESTATUS[*]}} in "0 0" | "1 0") ;; *) exit {FAILED} ;; esac
"""
"""Prints an archive of SANDBOX_WORKDIR and /tmp."""

UNPACK = f"""\
exec 2>/dev/null
find "$SANDBOX_WORKDIR" /tmp -mindepth 1 -delete  # what is bound there stays
errors=$(tar --extract --gzip --directory=/ --preserve-permissions --no-overwrite-dir 2>&1) && exit
# Folders can be nested deeper than a path reaches; what lies there is given up.
grep --quiet --invert-match -e 'File name too long' -e 'due to previous errors' <<< "$errors" && exit {FAILED}
exit 0
"""
"""Puts an archive of PACK, on standard input, in place of SANDBOX_WORKDIR and /tmp."""

PACK_TREE = f"""\
tar --create --gzip --directory="$SANDBOX_WORKDIR" . 2>/dev/null || exit {FAILED}
"""
"""Prints an archive of SANDBOX_WORKDIR alone."""

UNPACK_TREE = f"""\
find "$SANDBOX_WORKDIR" -mindepth 1 -delete && tar --extract --gzip --directory="$SANDBOX_WORKDIR" && exit
exit {FAILED}
"""
"""Puts an archive of PACK_TREE, on standard input, in place of SANDBOX_WORKDIR."""

_ADDED = f"""\
type -P sort stat xargs >/dev/null || exit {FAILED}
git ls-files -z --others --exclude-standard -- . $SPARED > "$GIT_DIR/new" || exit {FAILED}
declare -A environments in_folder
while IFS= read -r -d '' path; do
    [[ $path == */{ENVIRONMENT_FILE} ]] && environments[_${{path%/*}}]=1
done < "$GIT_DIR/new"
while IFS= read -r -d '' path; do
    [[ $path != */ && ( -r $path || -L $path ) ]] || continue
    case /$path in {" | ".join(f"*/{folder}/*" for folder in INSTALLED_FOLDERS)}) continue ;; esac
    if (( ${{#environments[@]}} )); then
        folder=$path
        while [[ $folder == */* ]]; do
            folder=${{folder%/*}}
            [[ -n ${{environments[_$folder]}} ]] && continue 2
        done
    fi
    top=/; [[ $path == */* ]] && top=${{path%%/*}}
    in_folder[_$top]=$(( ${{in_folder[_$top]:-0}} + 1 ))
    printf '%s\\0' "$path"
done < "$GIT_DIR/new" > "$GIT_DIR/candidates"
xargs -0 --no-run-if-empty stat --printf '%s %n\\0' -- < "$GIT_DIR/candidates" |
while IFS= read -r -d '' entry; do
    path=${{entry#* }}
    top=/ bulk=0 other=1
    [[ $path == */* ]] && top=${{path%%/*}}
    (( ${{in_folder[_$top]}} > {BULK_FILES} )) && bulk=1
    [[ $path == *.py ]] && other=0
    printf '%s %s %s\\0' $bulk $other "$entry"
done | LC_ALL=C sort -z -k1,1n -k2,2n -k3,3n -k4 |
{{
    files=0 bytes=0
    while IFS= read -r -d '' entry; do
        entry=${{entry#* * }}
        size=${{entry%% *}} path=${{entry#* }}
        (( files < {MAX_ADDED_FILES} && bytes + size <= {MAX_ADDED_BYTES} )) || continue
        files=$(( files + 1 )) bytes=$(( bytes + size ))
        printf '%s\\0' "$path"
    done
}} | git update-index --add -z --stdin
"""
"""Adds to the index the new files that are no leftovers, by the rules of `envs.swe.evaluator.leftovers`."""


def diff_script(repository: str, scratch: str, hidden: Iterable[str] = ()) -> str:
    """Prints the patch from the commit of `repository` to the work tree in SANDBOX_WORKDIR.

    The index and new objects live in `scratch`, next to a configuration that names no command; nothing below
    the work tree's own `.git` is read. What lies in a repository nested in the tree is left out, and so are
    leftovers.

    Args:
        hidden: Paths in the tree that something else is laid over; they count as unchanged.
    """
    spared = " ".join(shlex.quote(f":(exclude,literal){path}") for path in hidden)
    return f"""\
exec 2>/dev/null
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1 HOME={scratch}
base=$(git --git-dir={repository} rev-parse --verify 'HEAD^{{commit}}') || exit {FAILED}
export GIT_DIR={scratch}/repository GIT_WORK_TREE="$SANDBOX_WORKDIR"
mkdir -p "$GIT_DIR/objects/info" "$GIT_DIR/refs" "$GIT_DIR/info" || exit {FAILED}
echo {repository}/objects > "$GIT_DIR/objects/info/alternates"
echo "$base" > "$GIT_DIR/HEAD"
echo '* !diff' > "$GIT_DIR/info/attributes"
printf '%s\\n' '[core]' 'repositoryformatversion = 0' 'bare = false' 'bigFileThreshold = 16m' \\
    > "$GIT_DIR/config"
cd -- "$SANDBOX_WORKDIR" || exit {FAILED}
git read-tree "$base" || exit {FAILED}
git add --update --ignore-errors -- . {spared} >/dev/null
{_ADDED.replace("$SPARED", spared)}
git diff --cached --binary --full-index --no-ext-diff --no-textconv --no-renames --no-color \\
    --src-prefix=a/ --dst-prefix=b/ "$base" || exit {FAILED}
"""
