# Prints an archive of SANDBOX_WORKDIR and /tmp.
exec 2>/dev/null
# What is bound below these folders is not the episode's.
others=()
while read -r _ _ _ _ point _; do
    case $point in /tmp/*|"$SANDBOX_WORKDIR"/*) others+=("--exclude=.$point") ;; esac
done < /proc/self/mountinfo
tar --create --directory=/ --sparse --ignore-failed-read --anchored --no-wildcards \
    "${others[@]}" ".$SANDBOX_WORKDIR" ./tmp | gzip -1
case ${PIPESTATUS[*]} in "0 0" | "1 0") ;; *) exit $FAILED ;; esac
