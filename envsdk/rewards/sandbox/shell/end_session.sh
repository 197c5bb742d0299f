# Kills the session whose number is in the file $2. All are stopped before any is killed, so that none can fork
# away.
session=$(cat "$2") || exit 0
rm -f "$2"
for step in "STOP [TtZ]" "KILL Z"; do
    for ((look = 0, left = 1; left && look < 1000; look++)); do
        left=0
        for stat in /proc/[0-9]*/stat; do
            read -r process rest < "$stat" || continue
            set -- ${rest##*) }
            [[ $4 = "$session" && $1 != ${step#* } ]] && kill -${step% *} "$process" && left=1
        done
    done
done 2>/dev/null
exit $left
