#!/bin/bash
# kernel-sweep.sh guest|host ROUNDS MILLISECONDS BLOCK... -- direct reads and writes in order by Linux's NFS
# client, of a file in the memory of `dafs serve`, for so long with each block. `dafs-bench papers` runs
# this script and reads the lines that begin with `sample`: operation, block, bytes, bytes that the kernel
# counted for the mount, and the microseconds that passed, of the client's processor and of the server's.
#
# `guest` mounts in a guest of the lab. With LAB_SERVER=guest or LAB_TRANSPORT=rxe the server runs in
# another one. `host` mounts on this machine as root: over TCP, or over RDMA (LAB_TRANSPORT=rdma) by a
# device that is there already. Other variables of the laboratory would change what is measured, so the
# script takes none but those about its place.
#
# Invariants
# * The script ends at the end of its input, so that guests, mounts and namespaces go with its caller.
# * Over RDMA a sample counts only if the kernel has counted a chunk for each call.
set -euo pipefail
place=$1 rounds=$2 milliseconds=$3
for variable in "${!LAB_@}"; do
    [[ $variable =~ ^LAB_(TRANSPORT|SERVER|NET|CACHE|KERNEL_SOURCE)$ ]] || unset "$variable"
done
if [[ $place == host && ! ${LAB_NET:-} ]]; then
    [[ $(id -u) == 0 ]] || { echo "this host mounts NFS only for root"; exit 77; }
    said=$(unshare --mount --pid --fork --mount-proc true 2>&1) ||
        { echo "this host lets nobody mount: $said"; exit 77; }
    LAB_NET=host exec unshare --mount --pid --fork --kill-child --mount-proc "$0" "$@"
fi
source "$(dirname "$0")/nfs.sh"
blocks=("${@:4}")
file_bytes=$((32 << 20))
hertz=$(getconf CLK_TCK)

exec 7<&0
{
    read -r -u 7 _ || true
    kill -TERM $$
} &
started+=("$!")

# crossed OPERATION -- the bytes that the kernel has read from the server of the mount or written to it,
# and the chunks for data over RDMA.
crossed() {
    awk -v place="${file%/*}" -v operation="$1" '
        BEGIN { bytes = chunks = 0 }
        $1 == "device" { inside = $5 == place }
        inside && $1 == "bytes:" { bytes = operation == "read" ? $6 : $7 }
        inside && $1 == "xprt:" && $2 == "rdma" { chunks = operation == "read" ? $14 : $13 }
        END { print bytes, chunks }' /proc/self/mountstats
}
# pass OPERATION BLOCK -- moves blocks for so long; prints the bytes, those that crossed, the chunks and
# the microseconds by dd's own clock, without the start of dd.
pass() {
    local count=$((file_bytes / $2)) from=/dev/zero to=$file how=(oflag=direct conv=notrunc)
    local said='' one bytes=0 end counted chunks counted_before chunks_before
    [[ $1 != read ]] || { from=$file to=/dev/null how=(iflag=direct); }
    ((count <= 1024)) || count=1024
    read -r counted_before chunks_before < <(crossed "$1")
    end=$((${EPOCHREALTIME/[.,]/} + milliseconds * 1000))
    until ((${EPOCHREALTIME/[.,]/} >= end)); do
        one=$(LC_ALL=C dd if="$from" of="$to" bs="$2" count="$count" "${how[@]}" 2>&1) ||
            { echo "$one"; return 1; }
        said+=$one$'\n' bytes=$((bytes + count * $2))
    done
    read -r counted chunks < <(crossed "$1")
    echo "$bytes $((counted - counted_before)) $((chunks - chunks_before))" \
        "$(awk '/copied,/ { sum += $(NF - 3) } END { printf "%d", sum * 1000000 }' <<<"$said")"
}
# Makes the file.
fill() { dd if=/dev/zero of="$file" bs=1M count=$((file_bytes >> 20)) conv=fsync status=none; }

# ticks PROCESS -- the processor time of a process and of all below it.
ticks() {
    { cat /proc/[0-9]*/stat || true; } 2>/dev/null | awk -v root="$1" '
        { pid = $1; sub(/^.*\) /, ""); parent[pid] = $2; used[pid] = $12 + $13 + $14 + $15 }
        END {
            for (pid in used) {
                for (at = pid; at in parent && at != root; at = parent[at]) continue
                if (at == root) sum += used[pid]
            }
            print sum + 0
        }'
}
# used -- the ticks of client and server. On the host the kernel works for the client outside of its
# process, so all busy time but the server's is the client's.
used() {
    local of_server user nice system idle iowait irq softirq
    of_server=$(ticks "${guests[100]:-$server}")
    if [[ $place == guest ]]; then
        echo "$(ticks "${guests[1]}") $of_server"
    else
        read -r _ user nice system idle iowait irq softirq _ </proc/stat
        echo "$((user + nice + system + irq + softirq - of_server)) $of_server"
    fi
}

# measure OPERATION BLOCK
measure() {
    local said bytes counted chunks took client server_ticks client_before server_before
    read -r client_before server_before <<<"$(used)"
    said=$(here "pass $1 $2") || fail "$said"
    read -r client server_ticks <<<"$(used)"
    # The clocks of the machine and of the server disagree by some ticks.
    ((client > client_before)) || client=$client_before
    read -r bytes counted chunks took <<<"$said"
    [[ $transport == tcp ]] || ((chunks >= bytes / $2)) ||
        fail "$1 of $2 bytes: $chunks chunks for $((bytes / $2)) calls"
    echo "sample $1 $2 $bytes $counted $took" \
        "$(((client - client_before) * 1000000 / hertz)) $(((server_ticks - server_before) * 1000000 / hertz))"
}

# find_device -- sets the device and the address: those of the first active RDMA device with an address.
find_device() {
    local link interface
    while read -r link interface; do
        device=${link%/*}
        address=$(ip -4 -o addr show dev "$interface" | awk '{ sub("/.*", "", $4); print $4; exit }')
        [[ ! $address ]] || return 0
    done < <(rdma link show | awk '/ state ACTIVE / && / netdev / { print $2, $NF }')
    return 1
}
# port WORDS -- of the address that the server's log tells with these words.
port() { sed -n "s/.*listening for NFS$1 *address=.*:\([0-9]*\).*/\1/p" "$work/server.log" | head -n 1; }

# lacks MODULE FUNCTION -- true if the kernel certainly lacks a module: no file has it, and the kernel's list
# of functions, where it is to be read, has none whose name begins so.
lacks() {
    ! modprobe -q "$1" 2>/dev/null && grep ' nfs_' /proc/kallsyms >/dev/null 2>&1 &&
        ! grep " $2" /proc/kallsyms >/dev/null
}

# Serves and mounts on this machine.
mount_here() {
    local own='' said rdma_port='' options
    PATH+=:/usr/sbin:/sbin
    command -v mount.nfs >/dev/null || skip "there is no mount.nfs; install nfs-common"
    grep -w nfs /proc/filesystems >/dev/null || modprobe -q nfs 2>/dev/null ||
        skip "this host has a kernel without an NFS client"
    ! lacks nfsv3 nfs3_proc_ || skip "this host has a kernel without a client of NFSv3"
    address=127.0.0.1
    if [[ $transport != tcp ]]; then
        ! lacks rpcrdma xprt_rdma_ || skip "this host has a kernel without NFS over RDMA"
        find_device 2>/dev/null ||
            skip "there is no active RDMA device with an IPv4 address; one in software: rdma link add rxe0 type rxe netdev DEVICE"
        own="rdma_verbs_listen = [\"$address:20049\"]"
        # Our iWARP in software talks to any iWARP adapter.
        ! grep RNIC "/sys/class/infiniband/$device/node_type" >/dev/null || own="rdma_listen = [\"$address:0\"]"
    fi
    serve_dafs() {
        cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
state_directory = "state"
[nfs]
listen = ["$address:0"]
$own
[[export]]
name = "memory"
memory_bytes = 67108864
squash = "none"
networks = ["$address/32"]
unprivileged_ports = true
END
        "${DAFS:-$lab/../target/debug/dafs}" serve --config "$work/dafs.toml" --log info >>"$work/server.out" 2>>"$work/server.log" &
        server=$!
        started+=("$server")
    }
    listens() {
        nfs_port=$(port '') rdma_port=$(port ' over RDMA (.*)')
        [[ $nfs_port && ($transport == tcp || $rdma_port) ]]
    }
    serve
    mkdir "$work/mnt"
    images+=(mnt)
    options=vers=3,proto=$transport,port=${rdma_port:-$nfs_port},mountport=$nfs_port,mountproto=tcp,nolock,soft
    said=$(timeout 60 mount -t nfs -o "$options" "$address:/memory" "$work/mnt" 2>&1) || {
        [[ $said != *'not permitted'* ]] || skip "this host does not mount NFS: ${said##*$'\n'}"
        fail "cannot mount: $said"
    }
}

if [[ $place == host ]]; then
    here() { eval "$1"; }
    mount_here
    file=$work/mnt/file
else
    for program in gcc strip; do
        command -v "$program" >/dev/null || skip "there is no $program; try: scripts/setup.sh lab"
    done
    here() { guest 1 "$1"; }
    serve
    boot 1
    file=/mnt/a/file
    guest 1 "$(declare -f crossed pass fill)
        file=$file file_bytes=$file_bytes milliseconds=$milliseconds
        nfs_mount 3 a '' /memory"
fi
here fill
for ((round = 1; round <= rounds; round++)); do
    step "round $round"
    for operation in read write; do
        for block in "${blocks[@]}"; do measure "$operation" "$block"; done
    done
done
here "umount '${file%/*}'"
images=()
stop_server
