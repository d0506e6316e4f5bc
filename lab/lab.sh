#!/bin/bash
# lab.sh -- run a script in a throw-away Linux guest that has the kernel's NFS client and server and
# software RDMA (siw, rxe). See `lab.sh help` and README.md.
#
# Invariants
# * Guests, interfaces and processes started under `net` end with it, in all cases: they live in
#   namespaces of its own.
# * The machine is never changed: no module, no package, no mount, no address outside of those.
set -euo pipefail

usage() {
    cat <<'END'
usage: lab.sh net COMMAND [ARG]...
           run COMMAND in a network of its own, where it is 10.0.2.2 and guest N is
           10.0.2.(14+N); what it leaves running is killed. There is no way out of
           this network
       lab.sh run [OPTION]... SCRIPT [ARG]...
           under `net`: boot a guest, run SCRIPT in it as root, power off; prints
           the script's output and exits with its status (124: time limit, 125: no
           result)
             -n N        guest number, 1 (default) to 200
             -t SECONDS  time limit (default 120)
             -m MIB      memory (default 512)
             -s DIR      show DIR to the guest as /host, read-only
             -w DIR      show DIR to the guest as /out, writable
             -k FILE     keep the guest kernel's log in FILE
       lab.sh build
           make the guest, or do nothing if there is one (net does this, too)
       lab.sh check
           exit with 0 if guests can run on this machine, else say why not
       lab.sh ready
           the same, and the guest must be there; nothing is built
       lab.sh program
           print the path of a C program's source, an archive that is made with the guest
       lab.sh clean
           delete the guest

The guest has rdma-up, knfsd-up, rping, the ibv tools, rpcdebug and busybox.

environment: LAB_CACHE          where the guest is kept (default ~/.cache/dafs-lab)
             LAB_KERNEL_SOURCE  Debian package to build its kernel from
                                (default linux-source-6.12)
END
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${LAB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/dafs-lab}

die() { echo "lab: $*" >&2; exit 125; }

build() {
    mkdir -p "$cache"
    flock "$cache/lock" "$here/image.sh" "$cache" || exit 125
}

check() {
    local tool said
    [[ $(uname -m) == x86_64 ]] || die "guests are built for x86_64 only"
    for tool in ip unshare setpriv timeout; do
        command -v "$tool" >/dev/null || die "no $tool; try: scripts/setup.sh lab"
    done
    said=$(in_namespaces true 2>&1) ||
        die "no namespaces for this user here, perhaps for root: $said"
    in_namespaces bash -c 'ip tuntap add labcheck mode tap' 2>/dev/null ||
        die "no tap devices: /dev/net/tun is missing or may not be opened"
}

ready() {
    check
    # A build holds the lock, and each test for a moment. In a network of its own the script builds nothing.
    flock -w 10 "$cache/lock" env LAB_NET=1 "$here/image.sh" "$cache" >/dev/null 2>&1 ||
        die "it is not built, or not from these sources; run: lab/lab.sh build"
}

# Runs a command in fresh namespaces, in which an ordinary user is root. The command dies with this
# script, and so do all other processes in there with the command.
in_namespaces() {
    local user=()
    [[ $(id -u) == 0 ]] || user=(--user --map-root-user)
    LAB_NET=1 setpriv --pdeathsig KILL \
        unshare "${user[@]}" --net --pid --fork --kill-child --mount-proc "$@"
}

net() {
    build
    # A guest's memory is a file in /dev/shm, which is too small in most containers.
    in_namespaces bash -c '
        mount -t tmpfs -o mode=1777,size=100% lab /dev/shm
        ip link set lo up
        ip link add lab type bridge
        ip addr add 10.0.2.2/24 dev lab
        ip link set lab up
        "$@"' - "$@"
}

cleanup() {
    ip link del "$tap" 2>/dev/null || true
    rm -rf "$job"
}

run() {
    local number=1 limit_seconds=120 memory_mib=512 share='' out='' log='' opt status=0 address mac
    while getopts n:t:m:s:w:k: opt; do
        case $opt in
        n) number=$OPTARG ;; t) limit_seconds=$OPTARG ;; m) memory_mib=$OPTARG ;;
        s) share=$OPTARG ;; w) out=$OPTARG ;; k) log=$OPTARG ;;
        *) usage >&2; exit 125 ;;
        esac
    done
    shift $((OPTIND - 1))
    [[ ${LAB_NET:-} ]] || die "guests run only under \`lab.sh net\`"
    [[ $# -gt 0 && -f $1 ]] || die "no script ${1:-}"
    build

    tap=lab$number
    address=10.0.2.$((number + 14)) mac=52:54:00:00:02:$(printf %02x $((number + 14)))
    ip tuntap add "$tap" mode tap || die "guest $number is running already"
    job=$(mktemp -d "$cache/job.XXXXXX")
    trap cleanup EXIT
    ip link set "$tap" master lab up

    cp -r "$here/guest/bin" "$job/"
    install "$1" "$job/script"
    shift
    : >"${log:=$job/log}"
    {
        echo "hostname lab$number"
        echo "ip addr add $address/24 dev eth0"
        echo "ip link set eth0 up"
        [[ -z $share ]] ||
            printf 'busybox mount -t hostfs -o ro,%q none /host\n' "$(realpath "$share")"
        [[ -z $out ]] || printf 'busybox mount -t hostfs -o %q none /out\n' "$(realpath "$out")"
        printf 'exec /job/script'
        [[ $# == 0 ]] || printf ' %q' "$@"
    } >"$job/start"

    # Through `cat`, because the guest changes the mode of its standard output.
    setpriv --pdeathsig TERM timeout --foreground -k 5 "$limit_seconds" \
        "$cache/kernel" "mem=${memory_mib}M" "initrd=$cache/initrd" panic=-1 \
        "uml_dir=$job" con=null ssl=null con0=null,fd:2 ssl0=null,fd:1 \
        "vec0:transport=tap,ifname=$tap,mac=$mac,depth=64,gro=1" "lab_job=$job" \
        </dev/null 2>>"$log" | cat || status=$?
    [[ ! -s $job/status ]] || exit "$(<"$job/status")"
    tail -n 25 "$log" >&2
    [[ $status != 124 ]] || { echo "lab: time limit of ${limit_seconds} s" >&2; exit 124; }
    die "the guest ended without a result"
}

command=${1:-help}
[[ $# == 0 ]] || shift
case $command in
build) build ;;
check) check ;;
ready) ready ;;
program) build; echo "$cache/program.tar.gz" ;;
clean) rm -rf "$cache" ;;
help|-h|--help) usage ;;
net) net "$@" ;;
run) run "$@" ;;
*) usage >&2; exit 125 ;;
esac
