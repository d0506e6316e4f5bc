#!/bin/bash
# The server of a mount is killed and restarted while files are written, and loses its unstable
# data: no program on the mount gets an error, all data is there in the end, and the log of the mount tells of it.
source "$(dirname "$0")/lib.sh"

needs_mounts

export=$work/export
point=$work/point
mkdir -m 777 "$export" "$point"
undo+=("umount -l '$point' 2>/dev/null")
serve "$export" --no-root-squash --durable-replies crash
address=${url#dafs://}
"$dafs" mount --log-file "$work/mount.log" "$url/" "$point"
keeper=$(pgrep -f -- "^[^ ]* mount .*$point")
started+=("$keeper")

step "whatever was written, and however"
# It requests actions on the server, and waits for an answer.
coproc writer { exec scripts/e2e/mount_restarts.py "$point" "$export" "$keeper"; }
# The descriptors of a coprocess, and its number, are gone as soon as it ends.
process=$writer_PID
started+=("$process")
exec 6<&"${writer[0]}" 7>&"${writer[1]}"
while read -r wish <&6; do
    case $wish in
        kill)
            kill_server
            ;;
        start) serve "$export" --no-root-squash --durable-replies crash --listen "$address" 6<&- 7>&- ;;
        *)
            echo "$wish"
            continue
            ;;
    esac
    echo "done" >&7
done
wait "$process" || fail "status $?"
exec 6<&- 7>&-

"$dafs" umount "$point"
is_gone() { ! kill -0 "$keeper" 2>/dev/null; }
eventually is_gone
stop_server

step "the log of the mount"
for line in 'mounted ' 'connection lost, making another' 'session recovered' 'counts .* connections_lost=[1-9]'; do
    grep -q "INFO .*$line" "$work/mount.log" || { cat "$work/mount.log"; fail "the log of the mount lacks: $line"; }
done
