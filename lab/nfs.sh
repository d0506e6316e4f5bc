# shellcheck shell=bash
# Sourced by the lab tests that mount a dafs server with the kernel's NFS client. It starts a server
# on the host's side of the network with a fresh state directory and export, and guests that run
# shell text. When a test fails it prints the logs of all.
#
#     source "$(dirname "$0")/../nfs.sh"
#     serve
#     boot 1 2
#     guest 1 'nfs_mount 4.2 a; echo hello >/mnt/a/file'
#
# Shell text stops at its first error. tests/guest/agent defines more commands for it, and
# tests/guest/fileop.c the program `fileop`.
#
# LAB_TRANSPORT=siw mounts over RDMA: software iWARP in the guests' kernels, our own on the host.
# LAB_TRANSPORT=rxe is RDMA among guests: the server runs in guest 100 with its verbs provider.
# LAB_LAYOUTS=stripes, cephfs or glusterfs spreads the files of /data over three data servers
# (spread.sh). Mounts of 4.1 and 4.2 use these directly, and a test that passes without them fails.
# With LAB_TRANSPORT=siw they use RDMA.
# LAB_SECURITY=krb5, krb5i or krb5p mounts with Kerberos: there is a realm (realm.sh), root of a guest acts by the key
# of its machine, which the server knows as root, and user 1000 has a ticket as anna.
# LAB_XPRTSEC=tls or mtls mounts with RPC-with-TLS; there is a small authority (dafs pki).
# LAB_SERVER=ganesha or knfsd runs a test against another server, to find out which side has a bug.
# LAB_SERVER=guest runs our server in guest 100, whose kernel has TLS: the server must use it then.
# A test may set nfs_settings, further lines of the table [nfs], before `serve`.
# A test that sets durable_replies before `serve` gets no /memory. It may name more folders of $work
# in more_exports.
# LAB_CAPTURE=FILE captures all packets. LAB_LOG is the log filter of the server.
#
# Invariants
# * All processes of a test are in the namespaces of `lab.sh net` and end with them.
# * A mount over RDMA reaches the server only by RDMA, except for the MOUNT protocol of NFSv3.
set -euo pipefail
lab=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
script=$(cd "$(dirname "$0")" && pwd)/${0##*/}
[[ ${LAB_NET:-} ]] || exec "$lab/lab.sh" net "$script" "$@"
cd "$lab/.."

transport=${LAB_TRANSPORT:-tcp}
address=10.0.2.2 export_path=/data nfs_port=2049 mount_port=2049
[[ $transport == tcp ]] || nfs_port=20049
# True if the server runs in a guest, with its export there.
server_guest='' server_log=server.log
if [[ $transport == rxe || ${LAB_SERVER:-} =~ ^(knfsd|guest)$ ]]; then
    server_guest=100 address=10.0.2.114 server_log=out/server.log
fi
[[ ${LAB_SERVER:-} != knfsd ]] || export_path=/ mount_port=20048
versions=(4.2 4.1 3)
# Over RDMA, 4.2 does the same as 4.1.
[[ $transport == tcp || ${DAFS_TEST_LONG:-} ]] || versions=(4.1 3)
layouts=${LAB_LAYOUTS:-}
# shellcheck source=lab/spread.sh
source "$lab/spread.sh"
# shellcheck source=lab/ways.sh
source "$lab/ways.sh"
# shellcheck source=lab/realm.sh
source "$lab/realm.sh"
if [[ $layouts ]]; then
    [[ $layouts =~ ^(stripes|cephfs|glusterfs)$ && $transport != rxe && ! ${LAB_SERVER:-} ]] ||
        { echo "LAB_LAYOUTS is stripes, cephfs or glusterfs, over TCP or siw, and this server's"; exit 1; }
    # Version 3 has no layouts, and those of 4.2 are the same as those of 4.1.
    versions=(4.1 4.2)
    [[ ${DAFS_TEST_LONG:-} ]] || versions=(4.1)
fi
[[ ! ${LAB_VERSIONS:-} ]] || read -r -a versions <<<"$LAB_VERSIONS"
security=${LAB_SECURITY:-sys} xprtsec=${LAB_XPRTSEC:-none}
# The flavours of the exports, and of those in more_exports if they are others.
flavours="\"$security\"" more_flavours=
lease_seconds=${LAB_LEASE_SECONDS:-6}
# Timeout of one piece of work.
patience_seconds=${LAB_PATIENCE_SECONDS:-90}

work=$(mktemp -d "${TMPDIR:-/tmp}/dafs-lab.XXXXXX")
chmod 755 "$work"
mkdir "$work"/{export,state,out,tests}
finish() {
    local status=$? file
    trap - EXIT
    [[ $status != 0 || ! $layouts ]] || went_past_the_server || status=1
    [[ $status != 0 || ${LAB_SERVER:-} != guest || $xprtsec == none ]] || kernel_protects || status=1
    if [[ $status != 0 && $status != 77 ]]; then
        echo "--- the end of the server's log"
        grep -a -m 3 ' ERROR ' "$work/$server_log" 2>/dev/null || true
        tail -n 30 "$work/$server_log" 2>/dev/null || true
        [[ ! -s $work/status ]] || cat "$work/status"
        for file in "$work"/guest-*.log; do
            [[ -e $file ]] || continue
            echo "--- ${file##*/}, after the boot"
            sed '1,/uml-vector.*: tap: /d' "$file" | tail -n 30
        done
    fi
    [[ ! -s $work/server.pid ]] || kill -9 "$(<"$work/server.pid")" 2>/dev/null || true
    kill_all
    stop_cluster
    for file in ${images[@]+"${images[@]}"}; do umount -l "$work/$file" || true; done
    rm -rf "$work"
    exit "$status"
}
trap finish EXIT

# image KIND [OPTION]... -- makes a file system of that kind with mkfs and these options, and mounts
# it as $work/KIND.
images=()
image() {
    local kind=$1
    shift
    command -v "mkfs.$kind" >/dev/null || skip "there is no mkfs.$kind; try: scripts/setup.sh test"
    truncate -s 512M "$work/$kind.image"
    "mkfs.$kind" -q "$@" "$work/$kind.image"
    mkdir "$work/$kind"
    mount -o loop "$work/$kind.image" "$work/$kind" ||
        skip "this machine does not let this user mount a $kind image"
    images+=("$kind")
}

started=() guests=()
kill_all() {
    local pid
    # Guests clean up when asked to end.
    for pid in ${guests[@]+"${guests[@]}"}; do kill -TERM "$pid" 2>/dev/null || true; done
    for pid in ${started[@]+"${started[@]}"}; do kill -9 "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
}

[[ ! ${LAB_CAPTURE:-} ]] || {
    dumpcap -q -i lab -w "$LAB_CAPTURE" 2>/dev/null &
    started+=("$!")
}

# Clients silently fall back to the server.
went_past_the_server() {
    local to from astray through
    if [[ $transport == tcp ]]; then
        to=$(counted 0 dafs_data_received_bytes_total) from=$(counted 0 dafs_data_sent_bytes_total)
    else
        to=$(counted 0 dafs_data_rdma_read_bytes_total) from=$(counted 0 dafs_data_rdma_written_bytes_total)
    fi
    astray=$(counted 0 dafs_data_indirect_bytes_total)
    through="$(counted 0 dafs_export_written_bytes_total) written and $(counted 0 dafs_export_read_bytes_total) read"
    echo "$to bytes went to data servers by $transport and $from came from them, $astray astray;" \
        "$through through the server"
    [[ $to -ge ${layouts_bytes_min:-100000} && $astray == 0 ]] &&
        [[ ! ${layouts_alone:-} || $through == '0 written and 0 read' ]] && return
    echo "FAILED: the test has not gone to data servers"
    return 1
}

# Every connection with TLS is protected by the server's kernel, but for those that their client has ended
# meanwhile: it may give a connection up whose handshake was slow.
kernel_protects() {
    local all by_kernel ended
    all=$(grep -c 'TLS is on' "$work/$server_log") by_kernel=$(grep -c 'TLS is on.*by="kernel"' "$work/$server_log")
    ended=$(grep -c 'TLS is on.*the peer has ended the connection already' "$work/$server_log" || true)
    all=$((all - ended))
    echo "the kernel protected $by_kernel of $all connections with TLS"
    [[ $all -gt 0 && $by_kernel == "$all" ]] && return
    echo "FAILED: the test has not used the kernel's TLS"
    return 1
}

fail() { printf 'FAILED: %s\n' "$*"; exit 1; }
skip() { echo "$*"; exit 77; }
step() { echo "--- after $SECONDS s: $*"; }

# eventually SECONDS COMMAND... -- waits until the command succeeds.
eventually() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@"; do
        [[ $SECONDS -lt $deadline ]] || fail "never came true: $*"
        sleep 0.02
    done
}

listens() {
    (exec 3<>"/dev/tcp/$address/2049") 2>/dev/null || return 1
    # A server with software iWARP complains about a connection without data.
    [[ $server_guest || $transport == tcp || $(</proc/net/tcp) == *":4E51 00000000:0000 0A"* ]]
}
server_ended() {
    if [[ $server_guest ]]; then
        ! guest "$server_guest" 'kill -0 "$server" 2>/dev/null' >/dev/null
    else
        ! kill -0 "$server" 2>/dev/null
    fi
}

# in_export TEXT -- runs shell text in the exported folder, bypassing the server. The content of
# striped files is not there, so a machine without pNFS runs it then.
in_export() {
    if [[ $layouts ]]; then
        if [[ ! ${guests[99]:-} ]]; then
            boot 99
            guest 99 'nfs_mount 3 export noac'
        fi
        guest 99 "cd /mnt/export; $1
            cd /"
    elif [[ $server_guest ]]; then
        guest "$server_guest" "cd /tmp/export; $1"
    else
        (cd "$work/export" && PATH=$work/out:$PATH bash -euc "$1")
    fi
}

# serve [held] -- starts the server, or restarts it with the same state, and waits until it listens.
# With `held` its listening sockets outlive it, as with systemd, for `restart_server`.
# shellcheck disable=SC2120
serve() {
    "serve_${LAB_SERVER:-dafs}" "${1:-}"
    is_serving() { listens || server_ended; }
    eventually 30 is_serving
    ! server_ended || fail "the server did not start"
}

serve_dafs() {
    local dafs=${DAFS:-$lab/../target/debug/dafs} rdma=
    [[ -x $dafs ]] || fail "there is no $dafs; build it with: cargo build"
    [[ $transport != rxe ]] || rdma="rdma_verbs_listen = [\"$address:20049\"]"
    local ports=false
    [[ $transport == tcp ]] || ports=true
    local rights="squash = \"none\"
networks = [\"10.0.2.0/24\"]
unprivileged_ports = $ports
transport_security = \"$xprtsec\""
    local metrics='' source='path = "export"'
    if [[ $layouts ]]; then
        [[ $cluster || $layouts == stripes ]] || start_cluster
        metrics='metrics_listen = "127.0.0.1:9300"' source=$(spread_source)
    fi
    local proofs=''
    [[ $security == sys ]] || proofs+=$(kerberos_rules)$'\n'
    [[ $xprtsec == none ]] || proofs+=$(tls_files)$'\n'
    cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
$metrics
lease_time_seconds = $lease_seconds
state_directory = "state"
[nfs]
listen = ["$address:2049"]
$rdma
${nfs_settings:-}
$proofs
[[export]]
name = "data"
$source
$rights
sec = [$flavours]
durable_replies = "${durable_replies:-off}"
END
    [[ ! $layouts ]] || spread_parts >>"$work/dafs.toml"
    # Files in memory do not survive the server, nor do replies about them.
    [[ ${durable_replies:-off} != off ]] || cat >>"$work/dafs.toml" <<END
[[export]]
name = "memory"
memory_bytes = 67108864
$rights
sec = [$flavours]
END
    local folder
    for folder in ${more_exports:-}; do
        cat >>"$work/dafs.toml" <<END
[[export]]
name = "$folder"
path = "$folder"
$rights
sec = [${more_flavours:-$flavours}]
END
    done
    if [[ $server_guest ]]; then
        serve_dafs_in_guest "$dafs"
        return
    fi
    local command=("$dafs" serve --config "$work/dafs.toml" --log "${LAB_LOG:-info}")
    [[ ! $1 ]] || command=("$lab/hold-socket.pl" "$address" 2049,20049 "$work/server.pid" "${command[@]}")
    "${command[@]}" >>"$work/server.out" 2>>"$work/$server_log" &
    server=$!
    started+=("$server")
}

# Debugging information would take most of the guest's memory.
serve_dafs_in_guest() {
    cp "$work/dafs.toml" "$work/out/"
    [[ -e $work/out/dafs ]] || strip -o "$work/out/dafs" "$1"
    [[ ${guests[server_guest]:-} ]] || boot "$server_guest"
    guest "$server_guest" "log=${LAB_LOG:-info}"'
        mkdir -p /tmp/export /tmp/state
        cp /out/dafs.toml /tmp/
        /out/dafs serve --config /tmp/dafs.toml --log $log >/out/server.out 2>>/out/server.log &
        server=$!'
}

serve_guest() { serve_dafs "$@"; }

serve_ganesha() {
    cat >"$work/ganesha.conf" <<END
NFS_CORE_PARAM { Protocols = 4; Bind_addr = $address; NFS_Port = 2049; MNT_Port = 2049;
    Enable_NLM = false; Enable_RQUOTA = false; }
NFSV4 { Minor_Versions = 1,2; Lease_Lifetime = $lease_seconds; Grace_Period = $lease_seconds;
    RecoveryRoot = $work/state; Delegations = true; }
EXPORT_DEFAULTS { Access_Type = RW; Squash = No_Root_Squash; SecType = sys; }
EXPORT { Export_Id = 1; Path = $work/export; Pseudo = /data; FSAL { Name = VFS; } }
END
    ganesha.nfsd -F -f "$work/ganesha.conf" -L "$work/server.log" -p "$work/ganesha.pid" -N EVENT &
    server=$!
    started+=("$server")
}

# The kernel's own server, in a guest of its own.
serve_knfsd() {
    boot "$server_guest"
    guest "$server_guest" 'mkdir /tmp/export; server=$$; knfsd-up /tmp/export'
}

# Ends the server, in order or by a kill.
stop_server() {
    local status=0
    if [[ $server_guest ]]; then
        guest "$server_guest" 'kill -TERM "$server"; wait "$server"' || status=$?
    else
        kill -TERM "$server"
        wait "$server" || status=$?
    fi
    [[ $status == 0 ]] || fail "the server ended with status $status"
}
# Restarts a server that was started with `held`, as `systemctl restart` does.
restart_server() {
    local before
    if [[ ${LAB_SERVER:-dafs} != dafs || $server_guest ]]; then
        stop_server
        serve
        return
    fi
    before=$(<"$work/server.pid")
    kill -TERM "$before"
    is_another() { server_ended || [[ $(<"$work/server.pid") != "$before" ]]; }
    eventually 30 is_another
    ! server_ended || fail "the server did not end in order"
}
# Another process takes over from our server on this host, which was started without `held`.
take_over_server() {
    local former=$server status=0
    "${DAFS:-$lab/../target/debug/dafs}" serve --config "$work/dafs.toml" --log "${LAB_LOG:-info}" --take-over \
        >>"$work/server.out" 2>>"$work/$server_log" &
    server=$!
    started+=("$server")
    has_decided() { ! kill -0 "$former" 2>/dev/null || server_ended; }
    eventually 60 has_decided
    ! server_ended || fail "the next server did not start"
    wait "$former" || status=$?
    [[ $status == 0 ]] || fail "the former server ended with status $status"
}
kill_server() {
    if [[ $server_guest ]]; then
        guest "$server_guest" 'kill -9 "$server"; wait "$server" || true'
    else
        kill -9 "$server"
        wait "$server" 2>/dev/null || true
    fi
}

# boot N... -- starts guests and waits until they accept work.
boot() {
    local number
    build_fileop
    for number in "$@"; do
        "$lab/lab.sh" run -n "$number" -t 3600 -m "${LAB_MEMORY_MIB:-512}" -s / -w "$work/out" \
            -k "$work/guest-$number.log" "$lab/tests/guest/agent" "$address" "$export_path" \
            "$transport" "$nfs_port" "$mount_port" "$security" "$xprtsec" \
            >>"$work/guest-$number.log" 2>&1 &
        guests[number]=$!
        echo 0 >"$work/out/$number.last"
    done
    for number in "$@"; do
        guest_is_up() { [[ -s $work/out/$number.up ]] || ! kill -0 "${guests[number]}"; }
        eventually 60 guest_is_up
        guest "$number" 'cp /out/fileop /job/bin/'
        [[ $security == sys ]] || ticket anna "$number"
    done
}
build_fileop() {
    [[ ! -x $work/out/fileop ]] || return 0
    gcc -O1 -Wall -static -o "$work/out/fileop" "$lab/tests/guest/fileop.c"
}

# guest N TEXT -- runs shell text in guest N, prints its output, returns its status.
guest() {
    begin "$@"
    end "$1"
}
# begin N TEXT -- the same without waiting; `end N` waits for it.
begin() {
    local number=$1 last
    read -r last <"$work/out/$number.last"
    last=$((last + 1))
    echo "$last" >"$work/out/$number.last"
    printf '%s\n' "$2" >"$work/next-$number"
    mv "$work/next-$number" "$work/out/$number.$last"
}
end() {
    local number=$1 last deadline=$((SECONDS + patience_seconds)) status
    read -r last <"$work/out/$number.last"
    until [[ -s $work/out/$number.$last.status ]]; do
        if [[ $SECONDS -ge $deadline ]] || ! kill -0 "${guests[number]}" 2>/dev/null; then
            cat "$work/out/$number.$last.said" 2>/dev/null || true
            echo "guest $number gives no answer to: $(cat "$work/out/$number.$last")"
            return 1
        fi
        sleep 0.02
    done
    tail -n 60 "$work/out/$number.$last.said"
    read -r status <"$work/out/$number.$last.status"
    return "$status"
}
# True while the work of guest N goes on.
busy() { [[ ! -s $work/out/$1.$(<"$work/out/$1.last").status ]]; }

# Disconnects a machine without any packet: no FIN, no RST.
cut_off() { ip link set "lab$1" nomaster; }
reconnect() { ip link set "lab$1" master lab; }

[[ $security == sys ]] || start_realm
[[ $xprtsec == none ]] || make_certificates
