# Puts an archive of pack.sh, on standard input, in place of SANDBOX_WORKDIR and /tmp.
exec 2>/dev/null
find "$SANDBOX_WORKDIR" /tmp -mindepth 1 -delete  # what is bound there stays
errors=$(tar --extract --gzip --directory=/ --preserve-permissions --no-overwrite-dir 2>&1) && exit
# Folders can be nested deeper than a path reaches; what lies there is given up.
grep --quiet --invert-match -e 'File name too long' -e 'due to previous errors' <<< "$errors" && exit $FAILED
exit 0
