#!/bin/bash
# Optimistic reads of a program under `dafs run`: they cost the server no request, and find no bytes older
# than the last finished change, while another client writes or cuts the file, and when the server is killed.
source "$(dirname "$0")/lib.sh"

command -v python3 >/dev/null || skip "there is no python3"
needs_preload

program=$PWD/scripts/e2e/optimistic.py
mkdir "$work/export"
file=$work/export/file state=$work/stamps
options=(${squash[@]+"${squash[@]}"} --optimistic --metrics 127.0.0.1:0 --lease 2)
serve "$work/export" "${options[@]}"
python3 "$program" make "$file" "$state"

optimistically() { timeout 300 "$dafs" run --at "/data=$url/?optimistic=yes&transport=shm" "$@"; }
# Starts a reader in the background that reads until it is stopped. Sets reader.
start_reader() {
    optimistically python3 "$program" read /data/file "$state" 0 >"$work/reader" 2>&1 &
    reader=$!
    started+=("$reader")
    await_reads 2000
}
# await_reads COUNT -- waits until the reader has made so many more.
await_reads() {
    local before
    before=$(python3 "$program" reads "$state")
    has_read() { [[ $(python3 "$program" reads "$state") -ge $((before + $1)) ]] || ! kill -0 "$reader"; }
    eventually has_read "$1"
}
stop_reader() {
    local status=0
    python3 "$program" stop "$state"
    wait "$reader" || status=$?
    forget_process "$reader"
    [[ $status == 0 ]] || { cat "$work/reader"; fail "a reader ended with status $status"; }
}
# A reader that is left behind ends.
undo+=("python3 '$program' stop '$state'")
writer() { timeout 300 "$dafs" run --at "/data=$url" python3 "$program" "$1" /data/file "$state" "$2"; }
# The READ requests that the server has answered since its start.
requests() {
    local address
    address=$(sed -n 's|.*metrics at http://\([^/]*\)/.*|\1|p' "$log")
    exec 3<>"/dev/tcp/${address%:*}/${address##*:}"
    printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
    awk '/^dafs_operation_duration_seconds_count\{door="dafs",operation="READ_/ { sum += $2 }
        END { print sum + 0 }' <&3
    exec 3<&-
}

step "most reads cost the server no request"
reads=20000
# A server that is held up for a second is asked.
for ((try = 0; ; try++)); do
    before=$(requests)
    optimistically python3 "$program" read /data/file "$state" $reads || fail "a reader found something else"
    asked=$(($(requests) - before))
    [[ $asked -ge $((reads / 4)) ]] || break
    [[ $try -lt 10 ]] || fail "the server was asked $asked times for $reads reads"
done
[[ $(counted "$log" dafs_exposed_published) -ge 256 ]] || fail "not all blocks were shown"
is_taken_back() { [[ $(counted "$log" dafs_exposed_files) == 0 ]]; }
eventually is_taken_back

step "without the option all are requests"
before=$(requests)
timeout 300 "$dafs" run --at "/data=$url/?transport=shm" python3 "$program" read /data/file "$state" 2000 ||
    fail "a reader found something else"
[[ $(($(requests) - before)) -ge 2000 ]] || fail "only $(($(requests) - before)) requests"

step "another client writes"
start_reader
writer write 1000 || fail "the writer failed"
await_reads 2000
stop_reader

step "another client cuts the file and writes it again"
start_reader
writer cut 50 || fail "the writer failed"
await_reads 2000
stop_reader

step "a copy"
"$dafs" get "$url/file?optimistic=yes" "$work/back"
same "$file" "$work/back" "a file and its copy"

step "the server is killed, and the file changes before it comes back"
start_reader
place=${url#dafs://}
for change in write cut write; do
    kill_server
    python3 "$program" "$change" "$file" "$state" 300
    serve "$work/export" "${options[@]}" --listen "$place"
    await_reads 3000
done
stop_reader
stop_server
