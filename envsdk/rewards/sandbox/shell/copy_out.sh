# Archives the files $1 ... and of folders their content, with the options $mode, as $copied; prints the mode
# where there is one file and nothing else.
shopt -s dotglob nullglob
IFS= chosen=() files=() follow=()
for source in "$@"; do
    found=($source)
    [ -e "${found[0]}" ] || { echo "there is no $source"; exit 1; }
    for place in "${found[@]}"; do
        if [ -d "$place" ]; then
            chosen+=(-C "$place" .)
        else
            chosen+=(-C "${place%/*}/" "${place##*/}") files+=("$place")
            [ ! -L "$place" ] || follow=(--dereference)
        fi
    done
done
tar -cf "$copied" $mode "${follow[@]}" --hard-dereference "${chosen[@]}" || exit
[ "${#chosen[@]} ${#files[@]}" != "3 1" ] || stat -Lc %a -- "$files"
