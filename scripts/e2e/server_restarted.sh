#!/bin/bash
# A copy waits for a server that is killed in the middle of it and restarted: it ends right, and
# leaves no trace of the interruption. A client that only reads holds nobody up afterwards.
source "$(dirname "$0")/lib.sh"

mkdir "$work/export" "$work/back"
head -c 400M /dev/urandom >"$work/wide"

# Restarts the killed server at the same address.
serve_again() {
    local place=${url#dafs://}
    serve "$work/export" --no-root-squash --lease 2 --listen "$place"
}
size() { stat -c %s "$1"; }
part() { find "$1" -name '.dafs-*.part' -size +"$2"; }

for transport in shm iwarp; do
    serve "$work/export" --no-root-squash --lease 2
    for way in put get; do
        step "$way over $transport"
        if [[ $way == put ]]; then
            "$dafs" --transport $transport put "$work/wide" "$url/" >"$work/said" 2>&1 &
            target=$work/export
        else
            "$dafs" --transport $transport get "$url/wide" "$work/back/" >"$work/said" 2>&1 &
            target=$work/back
        fi
        client=$!
        started+=("$client")
        # Three times, each further on.
        for megabytes in 10 60 110; do
            has_part() { [[ $(part "$target" ${megabytes}M) ]] || ! kill -0 "$client"; }
            eventually has_part
            kill_server
            serve_again
        done
        status=0
        wait "$client" || status=$?
        [[ $status == 0 ]] || { cat "$work/said"; fail "status $status"; }
        cmp "$work/wide" "$target/wide" || fail "the copy is another file"
        no_parts "$target"
        [[ ! -s $work/said ]] || { cat "$work/said"; fail "it said something"; }
    done
    rm "$work/back/wide" "$work/export/wide"
    stop_server
done

# A reader asks the server for nothing new. Without the word that it has reclaimed its open, the server would grant no
# lock for an hour.
ln "$work/wide" "$work/export/wide"
echo content >"$work/export/other"
mkfifo "$work/pipe"
serve_long() {
    serve "$work/export" --no-root-squash --lease 15 --grace 3600 --state-directory "$work/long" "$@"
}
for transport in shm iwarp; do
    step "a lock beside a reader over $transport"
    rm -rf "$work/long"
    serve_long
    "$dafs" --transport $transport cat "$url/wide" >"$work/pipe" 2>"$work/said" &
    reader=$!
    started+=("$reader")
    # It stands still when the pipe is full.
    exec 4<"$work/pipe"
    is_reading() { [[ $(count opens) == 1 ]]; }
    eventually is_reading
    kill_server
    serve_long --listen "${url#dafs://}"
    can_lock() { "$dafs" lock hold "$url/other" -- true; }
    eventually can_lock
    kill -0 "$reader" || { cat "$work/said"; fail "the reader has ended"; }
    eventually is_reading
    cat <&4 >"$work/back/wide"
    exec 4<&-
    status=0
    wait "$reader" || status=$?
    [[ $status == 0 ]] || { cat "$work/said"; fail "status $status"; }
    cmp "$work/wide" "$work/back/wide" || fail "the reader got something else"
    stop_server
done
