#!/bin/bash
# Files that are not in the page cache are read by io_uring where the kernel offers it, also in a sandbox, and
# by the pool of threads where it does not. Both ways give the same bytes.
source "$(dirname "$0")/lib.sh"

command -v python3 >/dev/null || skip "there is no python3"

mkdir "$work/export"
file=$work/export/file
head -c 8000001 /dev/urandom >"$file"
drop_pages() {
    python3 -c '
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
os.fsync(fd)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)' "$file"
}
# Reads the file by each transport, and sets `ring` and `pool` to the reads of each way.
read_cold() {
    for transport in shm iwarp; do
        drop_pages
        "$dafs" --transport "$transport" cat "$url/file" >"$work/read" || fail "cannot read by $transport"
        same "$file" "$work/read" "the bytes by $transport"
    done
    ring=$(counted "$log" dafs_disk_reads_ring_total) pool=$(counted "$log" dafs_disk_reads_pool_total)
    [[ $((ring + pool)) -gt 0 ]] || echo "the file system keeps everything in memory, so nothing was read from a disk"
}
options=(${squash[@]+"${squash[@]}"} --metrics 127.0.0.1:0)

step "as the kernel offers it"
serve "$work/export" "${options[@]}"
read_cold
if grep -q 'DAFS reads from disks by io_uring' "$log"; then
    [[ $pool == 0 || $ring != 0 ]] || fail "the pool has read $pool times"
else
    grep -q 'DAFS reads from disks by a pool of threads' "$log" || fail "the log does not tell the way"
    [[ $ring == 0 ]] || fail "io_uring has read $ring times"
fi
was=$ring
stop_server

step "in a sandbox"
serve "$work/export" "${options[@]}" --sandbox if-possible
read_cold
[[ $was == 0 || $ring != 0 ]] || fail "the sandbox has taken the rings away"
! grep -q 'has no io_uring' "$log" || fail "a reactor has lost its ring"
stop_server

step "where io_uring is forbidden"
as=(python3 scripts/e2e/no_io_uring.py)
serve "$work/export" "${options[@]}"
grep -q 'DAFS reads from disks by a pool of threads' "$log" || fail "the log does not tell the way"
read_cold
[[ $ring == 0 ]] || fail "io_uring has read $ring times"
stop_server
