# Unpacks standard input in the folder $1, in place of what is there but for the patterns $2 ..., which are bound
# and cannot be changed.
mkdir -p -- "$1" || exit
spared=()
for pattern in "${@:2}"; do spared+=(-path "$pattern" -prune -o); done
find "$1" -mindepth 1 "${spared[@]}" ! -type d -exec rm -f {} + || exit
find "$1" -mindepth 1 -depth -type d -exec rmdir {} + 2>/dev/null
tar -x -C "$1" --no-same-owner
