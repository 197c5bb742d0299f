# Prints the file SANDBOX_PATH of at most SANDBOX_MAX_BYTES.
exec 2>/dev/null
[ -e "$SANDBOX_PATH" ] || exit $NOT_THERE
[ -f "$SANDBOX_PATH" ] || exit $NOT_A_FILE
size=$(stat -Lc %s -- "$SANDBOX_PATH") || exit $FAILED
[ "$size" -le "$SANDBOX_MAX_BYTES" ] || exit $TOO_LARGE
cat -- "$SANDBOX_PATH" || exit $FAILED
