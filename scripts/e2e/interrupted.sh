#!/bin/bash
# SIGINT and SIGTERM end a copy, and a measurement, in order: no unfinished file stays, here or on
# the server.
source "$(dirname "$0")/lib.sh"

mkdir "$work/export" "$work/back"
head -c 600M /dev/zero >"$work/wide"
ln "$work/wide" "$work/export/long"
serve "$work/export" --lease 1 --no-root-squash

for signal in INT TERM; do
    number=$([[ $signal == INT ]] && echo 2 || echo 15)
    step "get and SIG$signal"
    "$dafs" get "$url/long" "$work/back/" >"$work/said" 2>&1 &
    client=$!
    started+=("$client")
    is_reading() { [[ $(find "$work/back" -name '.dafs-*.part') && $(count opens) == 1 ]]; }
    eventually is_reading
    kill -$signal "$client"
    status=0
    wait "$client" || status=$?
    [[ $status == $((128 + number)) ]] || { cat "$work/said"; fail "status $status"; }
    [[ ! $(ls -A "$work/back") ]] || fail "left behind: $(ls -A "$work/back")"

    step "put and SIG$signal"
    "$dafs" put "$work/wide" "$url/" >"$work/said" 2>&1 &
    client=$!
    started+=("$client")
    is_writing() { [[ $(find "$work/export" -name '.dafs-*.part' -size +1M) ]]; }
    eventually is_writing
    kill -$signal "$client"
    status=0
    wait "$client" || status=$?
    [[ $status == $((128 + number)) ]] || { cat "$work/said"; fail "status $status"; }
    [[ $(ls -A "$work/export") == long ]] || fail "left behind: $(ls -A "$work/export")"

    for seconds in 1 60; do
        step "bench and SIG$signal $([[ $seconds == 1 ]] && echo while it fills || echo later)"
        # In the first round the file is never full.
        size=$([[ $seconds == 1 ]] && echo 100g || echo 1m)
        "$dafs" bench --size $size --seconds $seconds "$url/" >"$work/said" 2>&1 &
        client=$!
        started+=("$client")
        is_measuring() { [[ $(find "$work/export" -name '.dafs-bench-*' -size +1000k) ]]; }
        eventually is_measuring
        kill -$signal "$client"
        status=0
        wait "$client" || status=$?
        [[ $status == $((128 + number)) ]] || { cat "$work/said"; fail "status $status"; }
        [[ $(ls -A "$work/export") == long ]] || fail "left behind: $(ls -A "$work/export")"
    done
done
# A regression: a hole this long was read byte by byte for an hour, without a check for signals.
step "a long hole is verified at once"
truncate -s 8T "$work/export/hole"
printf end | dd of="$work/export/hole" bs=1 seek=4T conv=notrunc status=none
timeout 60 "$dafs" get --verify "$url/hole" "$work/back/" || fail "get --verify of a hole: $?"
[[ $(tail -c +$(((4 << 40) + 1)) "$work/back/hole" | head -c 3) == end ]] || fail "another content"
timeout 60 "$dafs" put --verify "$work/back/hole" "$url/again" || fail "put --verify of a hole: $?"
[[ $(stat -c '%s %b' "$work/export/again") == "$(stat -c '%s %b' "$work/export/hole")" ]] ||
    fail "another size: $(stat -c '%s %b' "$work/export/again")"
rm "$work/export/hole" "$work/export/again" "$work/back/hole"

is_closed() { [[ $(count opens) == 0 ]]; }
eventually is_closed
stop_server
