# Unpacks standard input: into the folder $1; or of an archive of one file, $2 of mode $3, at the place $1.
umask 022
target=$1
if [ "$2" ]; then
    [ -d "$target" ] && target=${target%/}/$2
    mkdir -p -- "$(dirname -- "$target")" && rm -f -- "$target" || exit
    tar -xOf - > "$target" && chmod "$3" -- "$target"
else
    mkdir -p -- "$target" && tar -xpf - -C "$target" --no-same-owner --keep-directory-symlink
fi
