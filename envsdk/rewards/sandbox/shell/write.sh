# Stores standard input in the file SANDBOX_PATH.
exec 2>/dev/null
[ ! -e "$SANDBOX_PATH" ] || [ -f "$SANDBOX_PATH" ] || exit $NOT_A_FILE
mkdir -p -- "$(dirname -- "$SANDBOX_PATH")" || exit $FAILED
cat > "$SANDBOX_PATH" || exit $FAILED
