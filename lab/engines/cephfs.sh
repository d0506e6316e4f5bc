#!/bin/bash
# cephfs.sh -- a small CephFS on loopback, for tests: one monitor, three storage daemons with their
# objects in memory, one metadata server, no manager, no authentication, one copy of everything.
#
#   cephfs.sh hold [NODES] makes a cluster in a fresh directory, writes the path of its configuration
#                          to standard output, and takes everything away when standard input ends
#   cephfs.sh start DIR    makes a cluster in DIR, which must not be there
#   cephfs.sh stop DIR     ends the daemons of that cluster and removes DIR
#
# NODES is a file that spreads the cluster over network namespaces. Its first line is the address of the
# monitor and the metadata server, in the namespace that this script is started in; each further line
# is a storage daemon: its address and the path of its namespace.
#
# Needs Debian's ceph-mon, ceph-osd, ceph-mds and ceph-common; known to work with 16.2.15. Uses some
# 150 MB of memory and is up in two to four seconds on an idle machine.
#
# Invariants
# * A process is ended only if its command line names this cluster's configuration.
# * Every wait has a timeout.
# * The fill level of the disk does not matter, as long as free_mib_min are free.
# * If the cluster does not start, the logs of the daemons are shown before they are removed.
set -euo pipefail

die() { printf 'cephfs.sh: %s\n' "$*" >&2; exit 1; }

readonly start_seconds_max=90 free_mib_min=256
address=127.0.0.1 osds=3 osd_addresses=() osd_networks=()

read_nodes() {
    local node network
    [[ -r $1 ]] || die "there is no $1"
    while read -r node network; do
        if [[ $network ]]; then osd_addresses+=("$node") osd_networks+=("$network"); else address=$node; fi
    done <"$1"
    osds=${#osd_networks[@]}
    ((osds > 0)) || die "$1 names no storage daemons"
}

# at_node ID COMMAND... -- runs the command in the namespace of a storage daemon.
at_node() {
    local id=$1
    shift
    if [[ ${osd_networks[id]-} ]]; then
        set -- nsenter "--net=${osd_networks[id]}" -- "$@"
    fi
    "$@"
}

# A free port for the monitor; the other daemons look for their own.
free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("'"$address"'", 0)); print(s.getsockname()[1])'
}

# The running daemons of this cluster. A zombie has no command line any more.
own_pids() {
    local pid
    # The monitor, storage daemons and the metadata server. A name has 15 characters at most, and so
    # has a pattern for it.
    for pid in $(pgrep -x 'ceph-(m..|osd)' || true); do
        if tr '\0' '\n' 2>/dev/null <"/proc/$pid/cmdline" | grep -qxF -- "$config"; then
            echo "$pid"
        fi
    done
}

write_config() {
    cat >"$config" <<EOT
[global]
fsid = $fsid
mon_host = v2:$address:$port/0
public_network = ${address%.*}.0/24
public_addr = $address
cluster_addr = $address
ms_bind_ipv6 = false
ms_bind_port_min = 41000
ms_bind_port_max = 42999
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
run_dir = $dir/run
pid_file = $dir/run/\$name.pid
log_file = $dir/log/\$name.log
mon_cluster_log_file = $dir/log/cluster.log
crash_dir = $dir/run
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_warn_on_pool_no_redundancy = false
mon_max_pg_per_osd = 1000

[client]
# Clients keep no log and no socket.
log_file =
admin_socket =

[mon]
admin_socket = $dir/run/\$name.asok
mon_data = $dir/mon
# The store uses some megabytes, independent of the disk's size. At these percentages of free space,
# or fewer, the monitor would end itself with status 28; space reserved for root does not count as
# free.
mon_data_avail_warn = -1
mon_data_avail_crit = -1
# A start waits for changes of the maps.
paxos_propose_interval = 0.05

[mds]
admin_socket = $dir/run/\$name.asok
mds_data = $dir/mds
mds_cache_memory_limit = 67108864

[osd]
admin_socket = $dir/run/\$name.asok
osd_data = $dir/osd.\$id
osd_objectstore = memstore
memstore_device_bytes = 4294967296
memstore_page_set = false
osd_op_num_shards = 2
osd_op_num_threads_per_shard = 1
osd_class_update_on_start = false
EOT
    local id
    for id in "${!osd_addresses[@]}"; do
        cat >>"$config" <<EOT

[osd.$id]
public_addr = ${osd_addresses[id]}
cluster_addr = ${osd_addresses[id]}
EOT
    done
}

admin() { timeout 30 ceph -c "$config" --connect-timeout 20 "$@" >>"$dir/log/admin.out" 2>&1; }

start_osd() {
    local uuid=$1 id=$2
    mkdir "$dir/osd.$id"
    at_node "$id" ceph-osd -c "$config" -i "$id" --mkfs --osd-uuid "$uuid" >"$dir/log/osd.$id.out" 2>&1
    at_node "$id" ceph-osd -c "$config" -i "$id" >>"$dir/log/osd.$id.out" 2>&1
}

is_active() { timeout 30 ceph -c "$config" --connect-timeout 20 mds stat 2>/dev/null | grep -q up:active; }

# The space on the directory's disk that this user may still write: for root, all free space.
look_for_room() {
    local free=%a mib
    [[ $(id -u) != 0 ]] || free=%f
    mib=$(($(stat -f -c "$free * %S" "$dir") >> 20))
    ((mib >= free_mib_min)) ||
        die "the disk of $dir is too full: $mib MiB are free, and it takes $free_mib_min"
}

# Ends the rest of a cluster; after a failure it prints the last log lines of the daemons.
end() {
    local status=$1 file
    trap - EXIT
    wait
    if [[ $status != 0 ]]; then
        echo "cephfs.sh: the cluster is given up, with status $status; its daemons have said last:" >&2
        for file in "$dir"/log/*; do
            [[ -s $file ]] || continue
            echo "--- the end of ${file##*/}"
            tail -n 15 "$file"
        done >&2
    fi
    stop
    exit "$status"
}

# The directory must exist and be empty.
start() {
    local id uuid job jobs=() deadline
    look_for_room
    mkdir "$dir"/{mon,mds,run,log}
    fsid=$(</proc/sys/kernel/random/uuid)
    port=$(free_port)
    write_config
    monmaptool --create --fsid "$fsid" --addv a "[v2:$address:$port]" "$dir/monmap" >/dev/null
    ceph-mon -c "$config" --mkfs -i a --monmap "$dir/monmap" >"$dir/log/mon.out" 2>&1
    ceph-mon -c "$config" -i a >>"$dir/log/mon.out" 2>&1
    for ((id = 0; id < osds; id++)); do
        uuid=$(</proc/sys/kernel/random/uuid)
        # Numbers are given out in order.
        admin osd new "$uuid" "$id" || die "the monitor does not take a storage daemon: $dir/log"
        start_osd "$uuid" "$id" &
        jobs+=($!)
    done
    for job in "${jobs[@]}"; do
        wait "$job" || die "a storage daemon does not start: $dir/log"
    done
    if ! { admin osd pool create meta 8 && admin osd pool create data 32 &&
        admin fs new cephfs meta data; }; then
        die "the file system cannot be made: $dir/log"
    fi
    ceph-mds -c "$config" -i a >"$dir/log/mds.out" 2>&1
    deadline=$((SECONDS + start_seconds_max))
    until is_active; do
        ((SECONDS < deadline)) || die "no metadata server is active after $start_seconds_max s: $dir/log"
        sleep 0.1
    done
}

# No data is kept, so the daemons need no orderly shutdown.
stop() {
    local pid round
    for ((round = 0; round < 100; round++)); do
        [[ $(own_pids) ]] || break
        for pid in $(own_pids); do kill -KILL "$pid" 2>/dev/null || true; done
        sleep 0.1
    done
    [[ ! $(own_pids) ]] || die "some daemons of $dir do not end"
    rm -rf -- "${dir:?}"
}

case ${1-} in
hold)
    [[ ! ${2-} ]] || read_nodes "$2"
    dir=$(mktemp -d "${TMPDIR:-/tmp}/dafs-ceph.XXXXXX") config=$dir/ceph.conf
    trap 'end $?' EXIT
    trap '' INT HUP
    start
    printf '%s\n' "$config"
    cat >/dev/null
    ;;
start)
    [[ ${2-} == /* && ! -e $2 ]] || die "start needs the absolute path of a directory that is not there"
    dir=$2 config=$2/ceph.conf
    mkdir -p "$dir"
    trap 'end $?' EXIT
    start
    trap - EXIT
    printf '%s\n' "$config"
    ;;
stop)
    [[ ${2-} == /* && -f $2/ceph.conf && -f $2/monmap ]] || die "stop needs the directory of a cluster"
    dir=$2 config=$2/ceph.conf
    stop
    ;;
*) die "usage: cephfs.sh hold [NODES] | start DIR | stop DIR" ;;
esac
