# Puts an archive of pack_tree.sh, on standard input, in place of SANDBOX_WORKDIR.
find "$SANDBOX_WORKDIR" -mindepth 1 -delete && tar --extract --gzip --directory="$SANDBOX_WORKDIR" && exit
exit $FAILED
