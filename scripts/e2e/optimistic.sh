#!/bin/bash
# Optimistic reads of a program under `dafs run`, over shared memory and over iWARP: they cost the server no
# request, and find no bytes older than the last finished change, while another client writes or cuts the
# file, and when the server is killed. On a mount over shared memory, too, while another client writes.
source "$(dirname "$0")/lib.sh"

# Only the steps on a mount need root and FUSE.
can_mount() { is_root && [[ -c /dev/fuse ]] && unshare -m true 2>/dev/null; }
! can_mount || in_own_mounts

command -v python3 >/dev/null || skip "there is no python3"
needs_preload

program=$PWD/scripts/e2e/optimistic.py
mkdir "$work/export"
file=$work/export/file state=$work/stamps
options=(${squash[@]+"${squash[@]}"} --optimistic=remote --metrics 127.0.0.1:0 --lease 4)
serve "$work/export" "${options[@]}"
python3 "$program" make "$file" "$state"

transport=shm
optimistically() { timeout 300 "$dafs" run --at "/data=$url/?optimistic=yes&transport=$transport" "$@"; }
# read_blocks READS -- a program reads so many blocks, on the mount if there is one.
point=
read_blocks() {
    if [[ $point ]]; then
        timeout 300 python3 "$program" direct "$point/file" "$state" "$1"
    else
        optimistically python3 "$program" read /data/file "$state" "$1"
    fi
}
# Starts a reader in the background that reads until it is stopped. Sets reader.
start_reader() {
    read_blocks 0 >"$work/reader" 2>&1 &
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
# Reads, of which most are no requests. A server that is held up for a second is asked.
read_without_requests() {
    local reads=20000 try before asked
    for ((try = 0; ; try++)); do
        before=$(read_requests)
        read_blocks $reads || fail "a reader found something else"
        asked=$(($(read_requests) - before))
        [[ $asked -ge $((reads / 4)) ]] || break
        [[ $try -lt 10 ]] || fail "the server was asked $asked times for $reads reads"
    done
}
# Opens, reads and closes small files, which the client reads without a request from the third or fourth time on.
read_small_files() {
    local files=50 rounds=40 before asked
    mkdir "$work/export/small"
    python3 "$program" fill "$work/export/small" $files
    before=$(read_requests)
    optimistically python3 "$program" look /data/small $rounds || fail "a reader found something else"
    asked=$(($(read_requests) - before))
    [[ $asked -lt $((files * rounds / 2)) ]] || fail "the server was asked $asked times"
}
# change_under_a_reader CHANGE... -- another client writes or cuts the file under a reader.
change_under_a_reader() {
    local change
    for change in "$@"; do
        start_reader
        # shellcheck disable=SC2086 # two words
        writer $change || fail "the writer failed"
        await_reads 2000
        stop_reader
    done
}
# The server is killed under a reader, and the file changes before it comes back.
kill_under_a_reader() {
    local change
    start_reader
    for change in write cut write; do
        kill_server
        python3 "$program" "$change" "$file" "$state" 300
        serve "$work/export" "${options[@]}" --listen "$place"
        await_reads 3000
    done
    stop_reader
}

step "most reads cost the server no request"
read_without_requests
[[ $(counted "$log" dafs_exposed_published_total) -ge 256 ]] || fail "not all blocks were shown"
is_taken_back() { [[ $(counted "$log" dafs_exposed_files) == 0 ]]; }
eventually is_taken_back

if [[ ${#squash[@]} -gt 0 ]]; then
    step "small files that are opened, read and closed again cost few"
    read_small_files
    eventually is_taken_back
fi

step "without the option all are requests"
before=$(read_requests)
timeout 300 "$dafs" run --at "/data=$url/?transport=shm" python3 "$program" read /data/file "$state" 2000 ||
    fail "a reader found something else"
[[ $(($(read_requests) - before)) -ge 2000 ]] || fail "only $(($(read_requests) - before)) requests"

step "another client writes, and cuts the file and writes it again"
change_under_a_reader "write 1000" "cut 50"

step "a copy"
"$dafs" get "$url/file?optimistic=yes" "$work/back"
same "$file" "$work/back" "a file and its copy"

step "the server is killed, and the file changes before it comes back"
place=${url#dafs://}
kill_under_a_reader

if can_mount; then
    step "reads on a mount over shared memory, while another client writes"
    point=$work/point
    mkdir "$point"
    undo+=("umount -l '$work/point' 2>/dev/null")
    "$dafs" mount --log-file "$work/mount.log" "$url/?optimistic=yes&transport=shm" "$point"
    read_without_requests
    # The kernel believes the size of a file for a moment, so the file is not cut.
    change_under_a_reader "write 1000"
    "$dafs" umount "$point"
    tells_hits() { grep -qE 'counts .*optimistic_hits=[1-9]' "$work/mount.log"; }
    eventually tells_hits
    point=
else
    step "no mount, which needs root and /dev/fuse"
fi

step "the same by RDMA over iWARP"
transport=iwarp
read_without_requests
was_read_by_rdma() { [[ $(counted "$log" dafs_exposed_remote_reads_total) -ge 10000 ]]; }
eventually was_read_by_rdma
change_under_a_reader "write 1000" "cut 50"
kill_under_a_reader

step "an export that does not say so shows other hosts nothing"
stop_server
options=("${options[@]/--optimistic=remote/--optimistic}")
serve "$work/export" "${options[@]}" --listen "$place"
before=$(read_requests)
read_blocks 2000 || fail "a reader found something else"
[[ $(($(read_requests) - before)) -ge 2000 ]] || fail "only $(($(read_requests) - before)) requests"
stop_server
