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
# They are copied together, so some of them meet the disk that the large ones have filled.
for n in $(seq 100 100 400); do head -c 30M /dev/urandom >"$work/source/$n-big"; done
for n in $(seq 100 499); do echo "$n" >"$work/source/$n-small"; done

small=("$work/source/"*-small)
small=("${small[@]##*/}")
# has_small DIRECTORY -- true if it has the small files and nothing else.
has_small() { diff <(printf '%s\n' "${small[@]}") <(ls -A "$1"); }

step "on the server"
serve "$work/small" --lease 1
for transport in shm iwarp; do
    expect 1 'the file system is full (NOSPC); free some space on the server' \
        "$dafs" --transport $transport put "$work/source" "$url/"
    grep -q "$url/source/too-big" "$work/said" || fail "does not name the file: $(cat "$work/said")"
    [[ $(grep -c NOSPC "$work/said") == 5 ]] || fail "other errors: $(cat "$work/said")"
    has_small "$work/small/source" || fail "not the small files"
    diff <(cat "$work/source/"*-small) <("$dafs" --transport $transport cat \
        "${small[@]/#/$url/source/}") || fail "the small files differ"
    "$dafs" rm -r "$url/source"
done
step "on the server, by sync, whose next run goes on when there is space"
for transport in shm iwarp; do
    sync=("$dafs" --transport "$transport" sync "$work/source" "$url/synced")
    expect 1 'the file system is full (NOSPC); free some space on the server' "${sync[@]}"
    has_small "$work/small/synced" || fail "not the small files"
    mount -o remount,size=256m "$work/small"
    "${sync[@]}" || fail "the next run fails"
    "$dafs" check "$work/source" "$url/synced" || fail "the trees differ"
    "$dafs" rm -r "$url/synced"
    eventually mount -o remount,size=16m "$work/small"
done
step "space comes back when files are removed"
head -c 10M /dev/urandom >"$work/fits"
for _ in 1 2 3; do
    "$dafs" put "$work/fits" "$url/"
    cmp "$work/fits" "$work/small/fits"
    "$dafs" rm "$url/fits"
done
stop_server

step "on this host"
serve "$work/source"
for transport in shm iwarp; do
    expect 1 'No space left on device' "$dafs" --transport $transport get "$url/too-big" "$work/small/"
    [[ ! $(ls -A "$work/small") ]] || fail "left: $(ls -A "$work/small")"
    expect 1 'No space left on device' "$dafs" --transport $transport get "$url/" "$work/small/"
    [[ $(grep -c 'No space left' "$work/said") == 5 ]] || fail "other errors: $(cat "$work/said")"
    has_small "$work/small" || fail "not the small files"
    diff <(cat "$work/source/"*-small) <(cat "$work/small/"*) || fail "the small files differ"
    rm "$work/small/"*
done
stop_server
