#!/bin/bash
# A mount is handed over to a new process while it is in use: no operation fails, is lost or done
# twice, and all state of the mount survives.
source "$(dirname "$0")/lib.sh"

needs_mounts

export=$work/export
mkdir "$export" "$work/point" "$work/other"
undo+=("umount -l '$work/point' '$work/other' 2>/dev/null")
is_gone() { ! kill -0 "$1" 2>/dev/null; }
keepers() { pgrep -f -- "^[^ ]* mount .*$work/point" || true; }
serve "$export" --no-root-squash
"$dafs" mount "$url/" "$work/point"
"$dafs" mount "$url/" "$work/other"
first=$(keepers)

step "what cannot be taken over stays as it is"
expect 1 'is no mount of dafs' "$dafs" mount --take-over "$url/" "$work"
mkdir "$export/below"
expect 1 "it is mounted from $url" "$dafs" mount --take-over "$url/below" "$work/point"
expect 2 'threads' "$dafs" mount --take-over --threads 0 "$url/" "$work/point"
[[ $(keepers) == "$first" && -d $work/point/below ]] || fail "the mount is not as it was"
rmdir "$work/point/below"

step "handed over while it is in use"
count=3
[[ ! ${DAFS_TEST_LONG:-} ]] || count=30
scripts/e2e/mount_handover.py "$work/point" "$work/other" "$count" \
    "$dafs" mount --take-over "$url/" "$work/point" || fail "something was lost"
eventually is_gone "$first"
last=$(keepers)
[[ $last =~ ^[0-9]+$ && $last != "$first" ]] || fail "not one process serves the mount: $last"

step "handed over to a program that was installed beside"
cp "$dafs" "$work/newer"
exec 8<>"$work/point/locked"
flock 8
"$work/newer" mount --take-over "$url/" "$work/point" 8>&-
eventually is_gone "$last"
last=$(keepers)
[[ $(readlink "/proc/$last/exe") == "$work/newer" ]] || fail "not the new program serves the mount: $last"
flock -n "$work/other/locked" true && fail "a lock was lost"

step "a program that does it in another way is refused, and the mount is served as before"
python3 - "$work/point" <<'PY' || fail "it is not told what is spoken"
import os, socket, struct, sys

device = os.stat(sys.argv[1]).st_dev
mine = b"dafs mount handover 0"
with socket.socket(socket.AF_UNIX) as other:
    other.settimeout(60)
    other.connect(f"\0dafs-mount-{os.major(device)}:{os.minor(device)}")
    other.sendall(struct.pack("=Q", len(mine)) + mine)
    said = other.makefile("rb").read()
# With that it can say what is wrong; it is given nothing else.
assert said[8:].startswith(mine[:-1]) and said[8:] != mine and len(said) < 40, said
PY
[[ $(keepers) == "$last" ]] || fail "somebody else serves the mount: $(keepers)"
echo served >"$work/point/locked"
# The other mount caches the known size for a second.
is_served() { [[ $(cat "$work/other/locked") == served ]]; }
eventually is_served
flock -n "$work/other/locked" true && fail "a lock was lost"
exec 8>&-

step "the server restarts after that"
port=${url##*:}
exec 8<>"$work/point/locked"
flock 8
kill_server
serve "$export" --no-root-squash --listen "127.0.0.1:$port" 8>&-
flock -n "$work/other/locked" true && fail "a lock was lost"
exec 8>&-

step "the new process is killed before it has the mount"
# It stops right after its start, and so in the middle of the handover.
for pause in 0.01 0.03 0.05 0.1; do
    "$dafs" mount --foreground --take-over "$url/" "$work/point" &
    taker=$!
    sleep "$pause"
    kill -9 "$taker" 2>/dev/null || true
    wait "$taker" 2>/dev/null || true
    [[ $(keepers) ]] || { "$dafs" umount "$work/point"; "$dafs" mount "$url/" "$work/point"; }
    ls "$work/point" >/dev/null || fail "nobody serves the mount"
done

step "unmounting"
last=$(keepers)
"$dafs" umount "$work/point" "$work/other"
eventually is_gone "$last"
stop_server
