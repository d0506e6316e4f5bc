#!/bin/bash
# nfs-rdma.sh -- mounts of the kernel's client over RDMA. Data moves in chunks and no byte goes over
# TCP. Direct I/O of all sizes is verified by this machine and by another. The server recalls a
# delegation over the RDMA connection, and frees the state of unmounted machines. The other nfs
# tests do the same over RDMA as over TCP when LAB_TRANSPORT says so.
export LAB_TRANSPORT=${LAB_TRANSPORT:-siw}
source "$(dirname "$0")/../nfs.sh"

command -v fio >/dev/null || skip "no fio; try: scripts/setup.sh lab"
[[ $transport != tcp ]] || fail "LAB_TRANSPORT must be siw or rxe"

MOUNTS=5
FIO_MIB=${LAB_FIO_MIB:-2}
[[ ! ${DAFS_TEST_LONG:-} ]] || FIO_MIB=16

# Functions for the guests, from the counters of the kernel's client for its connection (the line of
# `xprt` in mountstats) and for the first mount: `chunks read` of calls, `chunks write` and `chunks
# reply`; `chunks bad` are replies that it rejected.
words='
    chunks() {
        local line
        while read -r line; do
            [[ $line != "xprt: rdma "* ]] || break
        done < <(tr "\t" " " </proc/self/mountstats)
        local counts=(${line#*rdma})
        case $1 in
        read) echo ${counts[10]} ;; write) echo ${counts[11]} ;; reply) echo ${counts[12]} ;;
        bad) echo $((counts[7] + counts[19])) ;;
        esac
    }
    # TCP connections to the ports of NFS and MOUNT that are up.
    tcp_connections() { grep -cE "[0-9]+: [0-9A-F:]+ [0-9A-F]+:(0801|4E50) 01 " /proc/net/tcp || true; }'

# sockets -- the number of sockets of the server on the host.
sockets() { find "/proc/$server/fd" -lname 'socket:*' 2>/dev/null | wc -l; }

serve
[[ $server_guest ]] || sockets_before=$(sockets)
boot 1 2
for number in 1 2; do guest "$number" "$words"; done

for version in "${versions[@]}"; do
    step "NFSv$version: chunks"
    guest 1 "version=$version"'
        nfs_mount $version a
        [[ $(grep " /mnt/a " /proc/mounts) == *proto=rdma,* ]]
        mkdir -p /mnt/a/$version
        cd /mnt/a/$version
        head -c 3000001 /dev/urandom >/tmp/large
        cp /tmp/large large
        long=$(printf "%01000d" 0)
        ln -s $long link
        for ((i = 0; i < 300; i++)); do : >a-file-whose-name-is-long-enough-for-a-reply-chunk-$i; done
        cd /
        echo "$(chunks read) read chunks"
        [[ $(chunks read) -gt 0 && $(chunks bad) == 0 ]]
        umount /mnt/a
        nfs_mount $version a
        cd /mnt/a/$version
        cmp /tmp/large large
        [[ $(readlink link) == $long ]]
        [[ $(ls | wc -l) == 302 ]]
        cd /
        echo "$(chunks write) write chunks and $(chunks reply) reply chunks"
        [[ $(chunks write) -gt 0 && $(chunks reply) -gt 0 ]]
        [[ $(chunks bad) == 0 && $(tcp_connections) == 0 ]]
        umount /mnt/a'
    [[ $(in_export "sha256sum <$version/large") == "$(guest 1 "sha256sum </tmp/large")" ]] ||
        fail "the server's folder has other data"
done

step "fio with direct I/O and verification"
{
    cat <<END
[global]
thread
ioengine=psync
directory=/mnt/a/fio
size=${FIO_MIB}m
direct=1
verify=crc32c
verify_fatal=1
do_verify=1
verify_state_save=0
END
    for kib in 4 16 64 256 1024; do
        printf '[random-%sk]\nrw=randwrite\nbs=%sk\n' $kib $kib
    done
    printf '[sequential]\nrw=write\nbs=1m\n'
} >"$work/out/jobs"
for version in "${versions[@]}"; do
    guest 1 "nfs_mount $version a"'
        rm -rf /mnt/a/fio
        mkdir /mnt/a/fio
        on_host fio --output=/tmp/said /tmp/out/jobs || { cat /tmp/said; false; }
        [[ $(chunks bad) == 0 ]]
        umount /mnt/a'
    guest 2 "nfs_mount $version a"'
        on_host fio --output=/tmp/said --verify_only=1 /tmp/out/jobs || { cat /tmp/said; false; }
        umount /mnt/a'
done

for version in "${versions[@]}"; do
    [[ $version != 3 ]] || continue
    step "NFSv$version: the recall of a delegation"
    for number in 1 2; do guest "$number" "nfs_mount $version a"; done
    guest 1 "shared=/mnt/a/shared-$version"'
        opens() { echo $(($(calls a OPEN) + $(calls a OPEN_NOATTR))); }
        echo one >$shared
        read -r -t 1 -u 3 || true
        cat $shared >/dev/null
        before=$(opens)
        for i in 1 2 3 4 5; do [[ $(<$shared) == one ]]; done
        [[ $(opens) == "$before" ]]
        returned=$(calls a DELEGRETURN)'
    guest 2 "echo two >/mnt/a/shared-$version; "'[[ $(tcp_connections) == 0 ]]'
    guest 1 '
        has_sent a DELEGRETURN "$returned"
        [[ $(<$shared) == two ]]
        [[ $(tcp_connections) == 0 && $(chunks bad) == 0 ]]'
    for number in 1 2; do guest "$number" 'umount /mnt/a'; done
done

step "$MOUNTS mounts of each version by two machines at once"
for number in 1 2; do
    begin "$number" "versions='${versions[*]}' mounts=$MOUNTS"'
        for ((i = 0; i < mounts; i++)); do
            for version in $versions; do
                nfs_mount $version a
                dd if=/dev/zero of=/mnt/a/$guest-$i bs=100k count=3 status=none
                umount /mnt/a
            done
        done'
done
end 1
end 2

if [[ ! $server_guest ]]; then
    step "nothing is left of them"
    are_gone() { (($(sockets) <= sockets_before)); }
    eventually 10 are_gone
fi
