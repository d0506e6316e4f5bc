#!/bin/bash
# glusterfs.sh -- a small GlusterFS on loopback, for tests: three management daemons in one pool, with one
# brick each, and the volume "dist" over them, in which each file is whole on one brick.
#
#   glusterfs.sh hold          makes a cluster in a fresh directory, writes a line to standard output
#                              (directory, then address of the first daemon), and takes everything away
#                              when standard input ends
#   glusterfs.sh start DIR     makes a cluster in DIR, which must not be there
#   glusterfs.sh stop DIR      ends the daemons of that cluster and removes DIR
#   glusterfs.sh admin DIR ... the command gluster(8), for that cluster
#
# GLUSTER_NET is the network of the daemons, which listen at its addresses 1, 2 and 3; by default a
# free network of 127/8. The brick of daemon N is DIR/N/brick; trusted attributes need root, and a
# file system that supports them.
#
# Needs Debian's glusterfs-server; known to work with 10.3. Uses some 110 MB of memory and is up in two to
# nine seconds on an idle machine.
#
# Invariants
# * A process is ended only if its command line names this cluster's directory.
# * Every wait has a timeout.
# * The fill level of the disk does not matter, as long as free_mib_min are free.
# * If the cluster does not start, the logs of the daemons are shown before they are removed.
set -euo pipefail

die() { printf 'glusterfs.sh: %s\n' "$*" >&2; exit 1; }

readonly start_seconds_max=90 free_mib_min=512

# The management daemons have one port, so each cluster has addresses of its own. Its caller holds the
# lock on glusterd until the first daemon listens: two clusters that start at once would take the same.
free_net() {
    local third
    for third in $(shuf -i 2-250); do
        if ! (exec 3<>"/dev/tcp/127.1.$third.1/24007") 2>/dev/null; then
            echo "127.1.$third"
            return
        fi
    done
    die "no free addresses"
}

# The running daemons of this cluster. A zombie has no command line any more.
own_pids() {
    local pid
    for pid in $(pgrep -x 'gluster.*' || true); do
        if tr '\0' '\n' 2>/dev/null <"/proc/$pid/cmdline" | grep -qF -- "$dir/"; then
            echo "$pid"
        fi
    done
}

# admin_at NUMBER ... -- gluster(8) at one of the daemons.
admin_at() {
    timeout 60 gluster --mode=script --wignore --glusterd-sock="$dir/$1/run/glusterd.sock" \
        --log-file="$dir/$1/log/cli.log" "${@:2}"
}

admin() { admin_at 1 "$@"; }

# The options keep a daemon's state, sockets, logs and address apart from those of others.
start_daemon() {
    local own=$dir/$1
    mkdir -p "$own"/{state,run,log,brick}
    glusterd \
        --xlator-option "management.working-directory=$own/state" \
        --xlator-option "management.transport.socket.bind-address=$net.$1" \
        --xlator-option "management.run-directory=$own/run" \
        --xlator-option "management.glusterd-sockfile=$own/run/glusterd.sock" \
        --xlator-option "management.cluster-test-mode=$own/log" \
        -l "$own/log/glusterd.log" -p "$own/run/glusterd.pid" >>"$own/log/out" 2>&1 9<&- ||
        die "a management daemon does not start: $own/log"
}

# Each daemon must know both others: a volume is refused by one that does not.
is_pool() {
    local number
    for number in 1 2 3; do
        [[ $(admin_at "$number" peer status 2>/dev/null | grep -c 'Peer in Cluster (Connected)') == 2 ]] || return
    done
}

# Ends the rest of a cluster; after a failure it prints the last log lines of the daemons.
end() {
    local status=$1 file
    trap - EXIT
    wait
    if [[ $status != 0 ]]; then
        echo "glusterfs.sh: the cluster is given up, with status $status; its daemons have said last:" >&2
        for file in "$dir"/admin.out "$dir"/*/log/*; do
            [[ -f $file && -s $file ]] || continue
            echo "--- the end of ${file#"$dir"/}"
            tail -n 15 "$file"
        done >&2
    fi
    stop
    exit "$status"
}

start() {
    local deadline number mib bricks=()
    [[ $(id -u) == 0 ]] || die "bricks need root"
    mib=$(($(stat -f -c '%f * %S' "$dir") >> 20))
    ((mib >= free_mib_min)) ||
        die "the disk of $dir is too full: $mib MiB are free, and it takes $free_mib_min"
    exec 9<"$(command -v glusterd)"
    flock -w "$start_seconds_max" 9 || die "other clusters start for too long"
    net=${GLUSTER_NET:-$(free_net)}
    echo "$net" >"$dir/net"
    for number in 1 2 3; do
        start_daemon "$number"
        [[ $number != 1 ]] || exec 9<&-
        bricks+=("$net.$number:$dir/$number/brick")
    done
    for number in 2 3; do
        admin peer probe "$net.$number" >>"$dir/admin.out" 2>&1 || die "no pool: $dir/admin.out"
    done
    deadline=$((SECONDS + start_seconds_max))
    until is_pool; do
        ((SECONDS < deadline)) || die "the daemons do not find each other: $dir/*/log"
        sleep 0.1
    done
    # The bricks share this machine's disk. With less than a tenth of it free, or a twentieth of its
    # inodes, GlusterFS would make all files on one brick, and move none to another. It would also
    # reserve a hundredth of the disk. All are set to zero, because it does not count space reserved
    # for root.
    if ! {
        admin volume create dist "${bricks[@]}" force &&
            admin volume set dist cluster.min-free-disk 0 &&
            admin volume set dist cluster.min-free-inodes 0 &&
            admin volume set dist storage.reserve 0 &&
            admin volume start dist
    } >>"$dir/admin.out" 2>&1; then
        die "the volume cannot be made: $dir/admin.out"
    fi
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

is_cluster() { [[ ${1-} == /* && -d $1/1/brick && -f $1/net ]]; }

case ${1-} in
hold)
    dir=$(mktemp -d "${TMPDIR:-/tmp}/dafs-gluster.XXXXXX")
    trap 'end $?' EXIT
    trap '' INT HUP
    start
    printf '%s %s\n' "$dir" "$net.1"
    cat >/dev/null
    ;;
start)
    [[ ${2-} == /* && ! -e $2 ]] || die "start needs the absolute path of a directory that is not there"
    dir=$2
    mkdir -p "$dir"
    trap 'end $?' EXIT
    start
    trap - EXIT
    printf '%s\n' "$net.1"
    ;;
stop)
    is_cluster "${2-}" || die "stop needs the directory of a cluster"
    dir=$2
    stop
    ;;
admin)
    is_cluster "${2-}" || die "admin needs the directory of a cluster"
    dir=$2
    shift 2
    admin "$@"
    ;;
*) die "usage: glusterfs.sh hold | start DIR | stop DIR | admin DIR ARGUMENT..." ;;
esac
