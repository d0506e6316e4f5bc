#!/bin/bash
# Files that are not in the page cache are read by io_uring where the kernel offers it, also in a sandbox, and
# by the pool of threads where it does not. Both ways give the same bytes, by DAFS and by NFS.
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
# Reads the file by each transport and each version of NFS. Sets `ring` and `pool` to the DAFS reads of each
# way, and `nfs_ring` and `nfs_pool` to the NFS reads. NFS reads of more than 64 KiB are on the pool.
read_cold() {
    local transport way name scheme wish address
    for transport in shm iwarp; do
        drop_pages
        "$dafs" --transport "$transport" cat "$url/file" >"$work/read" || fail "cannot read by $transport"
        same "$file" "$work/read" "the bytes by $transport"
    done
    for way in 'NFS:nfs:vers=3' 'NFS:nfs:vers=4.2' \
        'NFS over RDMA (iWARP in software):nfs+rdma:transport=iwarp'; do
        IFS=: read -r name scheme wish <<<"$way"
        address=$(sed -n "s/.*listening for $name *address=//p" "$log" | head -n 1)
        drop_pages
        "$dafs" cat "$scheme://$address/file?rsize=64k&$wish" >"$work/read" || fail "cannot read by $scheme, $wish"
        same "$file" "$work/read" "the bytes by $scheme, $wish"
    done
    ring=$(counted "$log" dafs_disk_reads_ring_total) pool=$(counted "$log" dafs_disk_reads_pool_total)
    nfs_ring=$(counted "$log" dafs_nfs_disk_reads_ring_total)
    nfs_pool=$(counted "$log" dafs_nfs_disk_reads_pool_total)
    [[ $((ring + pool)) -gt 0 ]] || echo "the file system keeps everything in memory, so nothing was read from a disk"
}
options=(${squash[@]+"${squash[@]}"} --metrics 127.0.0.1:0 --nfs 127.0.0.1:0 --nfs-rdma 127.0.0.1:0
    --nfs-unprivileged-ports)

step "as the kernel offers it"
serve "$work/export" "${options[@]}"
read_cold
if grep -q 'reads from disks go by io_uring' "$log"; then
    [[ $pool == 0 || $ring != 0 ]] || fail "the pool has read $pool times"
    [[ $ring == 0 || $nfs_ring != 0 ]] || fail "io_uring has read nothing for NFS, the pool $nfs_pool times"
else
    grep -q 'reads from disks go by a pool of threads' "$log" || fail "the log does not tell the way"
    [[ $((ring + nfs_ring)) == 0 ]] || fail "io_uring has read $ring and $nfs_ring times"
fi
was=$ring nfs_was=$nfs_ring
stop_server

step "in a sandbox"
serve "$work/export" "${options[@]}" --sandbox if-possible
read_cold
[[ $was == 0 || $ring != 0 ]] || fail "the sandbox has taken the rings away"
[[ $nfs_was == 0 || $nfs_ring != 0 ]] || fail "the sandbox has taken the rings of NFS away"
! grep -q 'has no io_uring' "$log" || fail "a reactor has lost its ring"
stop_server

step "where io_uring is forbidden"
as=(python3 scripts/e2e/no_io_uring.py)
serve "$work/export" "${options[@]}"
grep -q 'reads from disks go by a pool of threads' "$log" || fail "the log does not tell the way"
read_cold
[[ $((ring + nfs_ring)) == 0 ]] || fail "io_uring has read $ring and $nfs_ring times"
[[ $pool == 0 || $nfs_pool != 0 ]] || fail "the pool has read nothing for NFS"
stop_server
