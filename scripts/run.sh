#!/bin/bash
# run.sh -- a demonstration: serves a tree of real files, copies it in and out over both transports,
# compares every byte, and measures the same copy by other programs. `make run` calls it.
#
# cp copies without a server. rsync, by its own protocol and over ssh, and NFS-Ganesha have servers on loopback, as dafs
# has. The script starts those that this machine has, and names the others.
#
# Invariants
# * It ends by itself and leaves only the built program behind.
# * Only a fault of dafs fails the run. Another program that does not work here is named and left out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/env.sh
source scripts/env.sh
# Servers of other programs are there, also for users who have no such PATH.
PATH=$PATH:/usr/sbin:/sbin

FILES_MAX=6000
BYTES_MAX=$((128 << 20))
BIG_FILES=3
BIG_BYTES=$((64 << 20))
READ_SECONDS=2
GANESHA_PORT=12049

# A test has built the program already. The profile is quicker than that of a release, whose optimisation across crates
# uses one processor for minutes.
if [[ ! ${DAFS:-} ]]; then
    cargo build --profile demo --locked -p dafs
    DAFS=${CARGO_TARGET_DIR:-target}/demo/dafs
fi
dafs=$(realpath "$DAFS")
clock_ticks=$(getconf CLK_TCK)

work=$(mktemp -d "${TMPDIR:-/tmp}/dafs-run.XXXXXX")
# The server of dafs, and those of other programs.
server='' others=()
cleanup() {
    local pid
    [[ -z $server ]] || kill "$server" 2>/dev/null || true
    for pid in ${others[@]+"${others[@]}"} $(cat "$work/rpcbind.pid" 2>/dev/null); do
        kill -KILL "$pid" 2>/dev/null || true
    done
    wait 2>/dev/null || true
    chmod -R u+rwX "$work" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

free_kib=$(df -Pk "$work" | awk 'NR == 2 { print $4 }')
if [[ $free_kib -lt $((4 << 20)) ]]; then
    echo "there are less than 4 GiB free in $work; set TMPDIR to a place with more"
    exit 1
fi

# Some thousands of this machine's files, up to a limit, and some big ones.
make_tree() {
    local from
    mkdir "$work/tree" "$work/tree/big"
    for from in /usr/share /usr/lib /usr/include; do
        [[ -d $from ]] || continue
        (
            cd "$from"
            find . -xdev \( -type f -size -4M -readable -o -type l \) -printf '%s %p\0' 2>/dev/null |
                awk -v RS='\0' -v ORS='\0' -v files="$((FILES_MAX / 3))" \
                    -v bytes="$((BYTES_MAX / 3))" '
                    { size = $1; sub(/^[0-9]+ /, "") }
                    count < files && sum + size <= bytes { count++; sum += size; print }' |
                tar -c --null --no-recursion -T - 2>/dev/null
        ) | (mkdir -p "$work/tree$from" && cd "$work/tree$from" && tar -x --no-same-owner)
    done
    for from in $(seq "$BIG_FILES"); do
        head -c "$BIG_BYTES" /dev/urandom >"$work/tree/big/$from"
    done
    # rsync leaves the time of a directory that was made within the same second.
    find "$work/tree" -type d -exec touch -d '2004-03-02 01:02:03.456789012' {} +
}

# The compared attributes: one line for each object.
listing() {
    (
        cd "$1"
        find . \( -type d -printf '%y %m %T@ %P\0' \) -o -printf '%y %m %s %T@ %l %P\0'
    ) | LC_ALL=C sort -z
}

# differs COPY -- print how it differs from the tree, if it does.
differs() {
    diff -r --no-dereference "$work/tree" "$1" 2>&1 ||
        return 0
    cmp -s <(listing "$work/tree") <(listing "$1") || echo 'other permissions, times or symlinks'
}

# CPU that process $1 and its ended children have used, in clock ticks.
ticks() {
    local tries=100
    [[ $1 ]] || { echo 0; return; }
    # A server with a process for each connection counts it when that has ended.
    while [[ $(cat "/proc/$1/task/$1/children" 2>/dev/null) && $tries -gt 0 ]]; do
        tries=$((tries - 1))
        sleep 0.01
    done
    # The name of the program, in parentheses, may hold any character, so counting begins after it.
    sed 's/.*) //' "/proc/$1/stat" | awk '{ print $12 + $13 + $14 + $15 }'
}

# measure LABEL SERVER COPY COMMAND... -- run the command and print its row of the table. Fails, with the reason in
# `why`, if the command does, or if COPY is not a copy of the tree then. SERVER is a process, or empty.
measure() {
    local label=$1 pid=$2 copy=$3 before after seconds user system
    shift 3
    rm -rf "$work/copy"
    before=$(ticks "$pid")
    TIMEFORMAT='%R %U %S'
    { time "$@" >"$work/said" 2>&1 || { why=$(tail -n 3 "$work/said"); return 1; }; } 2>"$work/time"
    after=$(ticks "$pid")
    why=$(differs "$copy" | head -n 5)
    [[ ! $why ]] || { why="the copy differs: $why"; return 1; }
    read -r seconds user system < <(tail -n 1 "$work/time")
    awk -v label="$label" -v bytes="$bytes" -v objects="$objects" -v seconds="$seconds" -v pid="$pid" \
        -v client="$user $system" -v server="$((after - before))" -v ticks="$clock_ticks" 'BEGIN {
            split(client, cpu, " ")
            if (seconds < 0.001) seconds = 0.001
            printf "%-28s %8.2f %10.1f %10.0f %10.2f %10s\n", label, seconds, bytes / seconds / 1048576,
                objects / seconds, cpu[1] + cpu[2], pid == "" ? "-" : sprintf("%.2f", server / ticks)
        }'
}

# must LABEL ... -- the same for a program that must work.
must() {
    measure "$@" || { echo "$1: $why"; exit 1; }
}

# may LABEL SERVER ... -- the same for one that need not, if it has its SERVER.
may() {
    [[ $2 ]] || return 0
    measure "$@" || echo "$1: left out, it does not work here: $why"
}

free_port() {
    local port
    while port=$((20000 + RANDOM % 12000)) && (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
    echo "$port"
}

# await PROCESS COMMAND... -- wait until the command succeeds, or 10 s, or the process has ended.
await() {
    local pid=$1 tries=200
    shift
    until "$@" 2>/dev/null; do
        tries=$((tries - 1))
        kill -0 "$pid" 2>/dev/null && [[ $tries -gt 0 ]] || return 1
        sleep 0.05
    done
}
connects() { (exec 3<>"/dev/tcp/127.0.0.1/$1"); }
in_network_of() { nsenter --net="/proc/$1/ns/net" "${@:2}"; }

# The programs that nothing can be compared with here.
absent=()

# has PROGRAM... -- does this machine have all of them? Notes the first that it lacks.
has() {
    local program
    for program in "$@"; do
        command -v "$program" >/dev/null || { absent+=("$program"); return 1; }
    done
}

# Starts rsync's daemon; sets `rsync` to its process and `rsync_port`. Other users of this machine reach it, so that of
# root follows no symlink out of the tree.
start_rsync() {
    has rsync || return 0
    rsync_port=$(free_port)
    cat >"$work/rsyncd.conf" <<END
address = 127.0.0.1
port = $rsync_port
log file = $work/rsyncd.log
munge symlinks = no
$(if [[ $(id -u) == 0 ]]; then printf 'uid = 0\ngid = 0\nuse chroot = yes'; else echo 'use chroot = no'; fi)
[tree]
path = $work/tree
END
    rsync --daemon --no-detach --config="$work/rsyncd.conf" </dev/null >"$work/rsyncd.said" 2>&1 &
    others+=("$!")
    if await "$!" connects "$rsync_port"; then rsync=$!; else absent+=('a daemon of rsync that starts'); fi
}

# Starts a daemon of ssh with keys of its own; sets `sshd` to its process, and `remote_shell` to what reaches it.
start_sshd() {
    local port key=$work/user-key
    has rsync ssh ssh-keygen sshd || return 0
    port=$(free_port)
    ssh-keygen -q -t ed25519 -N '' -f "$key" && ssh-keygen -q -t ed25519 -N '' -f "$work/host-key" || return 0
    cat >"$work/sshd.conf" <<END
ListenAddress 127.0.0.1
Port $port
HostKey $work/host-key
AuthorizedKeysFile $key.pub
StrictModes no
UsePAM no
PidFile none
END
    "$(command -v sshd)" -D -e -f "$work/sshd.conf" </dev/null >"$work/sshd.said" 2>&1 &
    others+=("$!")
    remote_shell="ssh -F none -p $port -i $key -o IdentitiesOnly=yes -o BatchMode=yes -o StrictHostKeyChecking=no
        -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    remote_shell=$(xargs <<<"$remote_shell")
    if await "$!" connects "$port"; then sshd=$!; else absent+=('an sshd that starts'); fi
}

# Starts NFS-Ganesha and the rpcbind that it needs, with a network and a /run of their own; sets `ganesha` to its
# process. It opens files by handle, for which it must be root.
start_ganesha() {
    has ganesha.nfsd rpcbind ip unshare nsenter || return 0
    [[ $(id -u) == 0 ]] || { absent+=('root for ganesha.nfsd'); return 0; }
    cat >"$work/ganesha.conf" <<END
NFS_CORE_PARAM { Protocols = 4; NFS_Port = $GANESHA_PORT; Enable_NLM = false; Enable_RQUOTA = false; }
NFSv4 { Graceless = true; }
EXPORT { Export_Id = 1; Path = $work/tree; Pseudo = /tree; Access_Type = RW; Squash = No_Root_Squash;
    SecType = sys; Protocols = 4; Transports = TCP; FSAL { Name = VFS; } }
LOG { Default_Log_Level = WARN; }
END
    # Each exec keeps the process, so that of unshare becomes that of the server.
    unshare --net --mount --propagation private bash -euc '
        mount -t tmpfs none /run
        mkdir /run/ganesha
        ip link set lo up
        # No child of the server.
        (rpcbind -w -f & echo "$!" >"$1/rpcbind.pid")
        sleep 0.5
        exec ganesha.nfsd -F -f "$1/ganesha.conf" -L "$1/ganesha.log" -p "$1/ganesha.pid"' \
        ganesha "$work" </dev/null >"$work/ganesha.said" 2>&1 &
    others+=("$!")
    await "$!" in_network_of "$!" bash -c "exec 3<>/dev/tcp/127.0.0.1/$GANESHA_PORT" ||
        { absent+=('a ganesha.nfsd that starts'); return 0; }
    # It listens some time before it serves.
    sleep 2
    ganesha=$!
}

# value KEY -- the number of that name in what dafs bench said.
value() { sed -n "s/.*\"$1\":\([0-9.]*\).*/\1/p" "$work/said"; }

# reads LABEL SERVER COMMAND... -- print the row of a load of reads, which the command, dafs bench, measures.
reads() {
    local label=$1 pid=$2 before after
    shift 2
    before=$(ticks "$pid")
    "$@" --run randread --depth 1 --seconds "$READ_SECONDS" --json >"$work/said" 2>&1 ||
        { why=$(tail -n 3 "$work/said"); return 1; }
    after=$(ticks "$pid")
    awk -v label="$label" -v rate="$(value operations_per_second)" -v seconds="$(value seconds)" \
        -v p50="$(value p50)" -v p99="$(value p99)" -v client="$(value client_cpu_seconds)" \
        -v server="$((after - before))" -v ticks="$clock_ticks" 'BEGIN {
            count = rate * seconds
            if (count < 1) count = 1
            printf "%-28s %8.0f %10.1f %10.1f %10.2f %10.2f\n", label, rate, p50, p99, client / count * 1e6,
                server / ticks / count * 1e6
        }'
}

echo 'collecting files of this machine ...'
make_tree
bytes=$(find "$work/tree" -type f -printf '%s\n' | awk '{ sum += $1 } END { printf "%.0f", sum }')
objects=$(find "$work/tree" | wc -l)

mkdir "$work/export"
cp "$work/tree/big/1" "$work/export/reads"
options=()
[[ $(id -u) != 0 ]] || options=(--no-root-squash)
"$dafs" serve "$work/export" --listen 127.0.0.1:0 --state-directory "$work/state" --log warn \
    ${options[@]+"${options[@]}"} >"$work/ready" &
server=$!
await "$server" grep -q '^ready ' "$work/ready" || { echo 'the server did not get ready within 10 s'; exit 1; }
url=$(sed -n 's/^ready //p' "$work/ready")
rsync='' sshd='' ganesha=''
start_rsync
start_sshd
start_ganesha

printf '\n%d objects, %d MiB, server at %s\n\n' "$objects" "$((bytes >> 20))" "$url"
printf '%-28s %8s %10s %10s %10s %10s\n' copy seconds MiB/s objects/s 'CPU s' 'server CPU'
must 'cp -a, without a server' '' "$work/copy" cp -a "$work/tree" "$work/copy"
may 'rsync from its daemon' "$rsync" "$work/copy" \
    rsync -a "rsync://127.0.0.1:${rsync_port:-}/tree/" "$work/copy"
may 'rsync over ssh' "$sshd" "$work/copy" \
    rsync -a -e "${remote_shell:-}" "127.0.0.1:$work/tree/" "$work/copy"
may 'dafs get from NFS-Ganesha' "$ganesha" "$work/copy" \
    in_network_of "$ganesha" "$dafs" get "nfs://127.0.0.1:$GANESHA_PORT/tree" "$work/copy"
for transport in shm iwarp; do
    must "dafs put over $transport" "$server" "$work/export/$transport" \
        "$dafs" --transport "$transport" put "$work/tree" "${url}$transport"
    must "dafs get over $transport" "$server" "$work/copy" \
        "$dafs" --transport "$transport" get "${url}$transport" "$work/copy"
    rm -rf "$work/export/${transport:?}"
done

printf '\n%-28s %8s %10s %10s %10s %10s\n' '4 KiB reads, one at a time' reads/s 'p50 us' 'p99 us' 'CPU us' 'server us'
if [[ $ganesha ]]; then
    reads 'dafs from NFS-Ganesha' "$ganesha" \
        in_network_of "$ganesha" "$dafs" bench "nfs://127.0.0.1:$GANESHA_PORT/tree/big/1" ||
        echo "NFS-Ganesha: left out, it does not work here: $why"
fi
for transport in shm iwarp; do
    reads "dafs over $transport" "$server" "$dafs" --transport "$transport" bench "${url}reads" ||
        { echo "dafs bench: $why"; exit 1; }
done

printf '\nall copies were compared: every byte, permission, time and symlink is the same\n'
[[ ${#absent[@]} == 0 ]] ||
    echo "more is compared where there is: $(printf '%s\n' "${absent[@]}" | sort -u | paste -sd, | sed 's/,/, /g')"
echo 'this is a quick build; make build optimises more'

kill -TERM "$server"
wait "$server" || { status=$?; server=''; echo "the server ended with status $status"; exit 1; }
server=''
cat <<END

Try next, the first in one terminal and the others in another:
    $dafs serve crates --read-only
    $dafs ls -l dafs://localhost/dafs
    $dafs get dafs://localhost/dafs copy-of-dafs
END
