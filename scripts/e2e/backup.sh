#!/bin/bash
# The state of a server is copied while clients use it, as docs/operating.md says, and a server goes on with the copy:
# handles, fences and files are there. With the key alone, handles are.
source "$(dirname "$0")/lib.sh"
handle=${DAFS_TARGET:-$(dirname "$dafs")}/examples/handle
[[ -x $handle ]] || fail "there is no $handle; build it with: cargo build --examples"

grep -q 'kill --signal=STOP dafs' docs/operating.md || fail "docs/operating.md says something else"
one_export 'name = "data"' 'path = "export"' 'durable_replies = "crash"' 'squash = "none"'
state=$work/state
begin() { serve --config "$work/dafs.toml" --state-directory "$state"; }
begin
head -c 100000 /dev/urandom >"$work/file"
"$dafs" put "$work/file" "$url/data/file"
"$dafs" put "$work/file" "$url/data/fenced"
"$dafs" fence set "$url/data/fenced" n1
known=$("$handle" "$url/data/file")

step "a copy, while clients write"
load() {
    local number=0
    while [[ ! -e $work/stop ]]; do
        "$dafs" put "$work/file" "$url/data/load-$number" || { touch "$work/failed"; return; }
        number=$((number + 1))
        echo "$number" >"$work/count"
    done
}
load >"$work/load" 2>&1 &
writer=$!
started+=("$writer")
count() { cat "$work/count" 2>/dev/null || echo 0; }
has_written() { [[ $(count) -ge $1 || -e $work/failed ]]; }
eventually has_written 3
kill -STOP "$server"
cp -a "$state" "$work/copy"
kill -CONT "$server"
eventually has_written $(($(count) + 5))
touch "$work/stop"
wait "$writer" || true
forget_process "$writer"
[[ ! -e $work/failed ]] || { cat "$work/load"; fail "a client noticed the copy"; }
kill_server

step "restored after a loss"
rm -rf "$state"
cp -a "$work/copy" "$state"
begin
[[ $("$handle" "$url" "$known") == 'file of 100000 bytes' ]] || fail "the handle means nothing"
[[ $("$dafs" fence get "$url/data/fenced" --fence-id n1) == n1 ]] || fail "the fence is forgotten"
expect 1 'FENCED' "$dafs" cat "$url/data/fenced"
for ((number = 0; number < $(count); number++)); do
    cmp -s "$work/file" "$work/export/load-$number" || fail "load-$number is not whole"
done
"$dafs" put "$work/file" "$url/data/after" || fail "the server does not go on"
kill_server
begin
"$dafs" get "$url/data/after" "$work/back" && cmp -s "$work/file" "$work/back" || fail "the server has not gone on"
stop_server

step "the key alone"
rm -rf "$state"
mkdir -m 700 "$state"
cp -p "$work/copy/handle-key" "$state/"
begin
[[ $("$handle" "$url" "$known") == 'file of 100000 bytes' ]] || fail "the handle means nothing"
"$dafs" put "$work/file" "$url/data/again" || fail "the server does not go on"
stop_server
