# Prints an archive of SANDBOX_WORKDIR alone.
tar --create --gzip --directory="$SANDBOX_WORKDIR" . 2>/dev/null || exit $FAILED
