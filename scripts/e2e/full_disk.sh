#!/bin/bash
# A full disk, on either side: the file that does not fit gets a clear error and leaves no rest, the
# others go on.
source "$(dirname "$0")/lib.sh"

is_root || skip "needs root to mount a small file system"
mkdir "$work/small" "$work/back" "$work/source"
mount -t tmpfs -o size=16m,mode=777 tmpfs "$work/small" 2>/dev/null ||
    skip "this machine does not let root mount a tmpfs"
undo+=("umount -l '$work/small'")
head -c 30M /dev/urandom >"$work/source/too-big"
echo small >"$work/source/zz-small"

step "on the server"
serve "$work/small" --lease 1
for transport in shm iwarp; do
    expect 1 'the file system is full (NOSPC); free some space on the server' \
        "$dafs" --transport $transport put "$work/source" "$url/"
    grep -q "$url/source/too-big" "$work/said" || fail "does not name the file: $(cat "$work/said")"
    [[ $(ls -A "$work/small/source") == zz-small ]] || fail "left: $(ls -A "$work/small/source")"
    [[ $("$dafs" --transport $transport cat "$url/source/zz-small") == small ]] || fail "no small file"
    "$dafs" rm -r "$url/source"
done
step "space comes back when files are removed"
head -c 10M /dev/urandom >"$work/source/fits"
for _ in 1 2 3; do
    "$dafs" put "$work/source/fits" "$url/"
    cmp "$work/source/fits" "$work/small/fits"
    "$dafs" rm "$url/fits"
done
stop_server

step "on this host"
serve "$work/source"
for transport in shm iwarp; do
    expect 1 'No space left on device' "$dafs" --transport $transport get "$url/too-big" "$work/small/"
    [[ ! $(ls -A "$work/small") ]] || fail "left: $(ls -A "$work/small")"
done
stop_server
