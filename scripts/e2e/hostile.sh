#!/bin/bash
# A soak: several hosts flood the server, one kind of flood after the other, while clients of
# another host work by every protocol. The server never refuses these, none waits five times as long
# as before, and memory and descriptors are freed afterwards. With DAFS_TEST_LONG each flood lasts a
# minute, and times are judged; otherwise a few seconds.
source "$(dirname "$0")/lib.sh"

is_root || skip "needs root, to be several hosts"
command -v python3 >/dev/null || skip "there is no python3"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || skip "the Python package needs Python 3.11"
command -v prlimit >/dev/null || skip "there is no prlimit (util-linux)"
library=${DAFS_TARGET:-$PWD/target/debug}/lib_dafs.so
[[ -f $library ]] || library=$PWD/target/debug/lib_dafs.so
[[ -f $library ]] || fail "there is no $library; build it with: cargo build --workspace --lib"
if [[ ! ${DAFS_E2E_NETWORK:-} ]]; then
    unshare -n -m true 2>/dev/null || skip "this user may not make a network"
    rm -rf "$work"
    DAFS_E2E_NETWORK=1 exec unshare -n -m "$0" "$@"
fi
floods=("$@")
[[ $# != 0 ]] || floods=(strangers dead guesses silent clients unread)
# Freed memory returns to the system after some seconds, so a short run allows more. The allocator keeps some
# 60 MiB of what clients took, however often the flood is repeated.
quiet_seconds=1 flood_seconds=2 is_long=0 memory_slack_kib=262144
[[ ! ${DAFS_TEST_LONG:-} ]] || quiet_seconds=10 flood_seconds=60 is_long=1 memory_slack_kib=131072
# An eighth of all opens, which are a sixth of the descriptors, is kept for clients that are
# disconnected, with two descriptors each.
descriptors_slack=200

# network NAME ADDRESS PREFIX -- another host, behind a link of that name; sets `elsewhere`.
network() {
    other_network
    ip link add "$1" type veth peer name own netns "$elsewhere"
    ip link set "$1" up
    nsenter -t "$elsewhere" -n ip link set lo up
    nsenter -t "$elsewhere" -n ip link set own up
}
ip link set lo up
network good
ip addr add 198.51.100.1/24 dev good
nsenter -t "$elsewhere" -n ip addr add 198.51.100.2/24 dev own
at_good=(nsenter -t "$elsewhere" -n)
network bad
ip addr add 192.0.2.1/24 dev bad
# Other hosts have processors of their own.
at_bad=(nsenter -t "$elsewhere" -n nice -n 15)
for last in 2 3 4 5 102 103; do
    ip addr add "203.0.113.$last/32" dev bad
    "${at_bad[@]}" ip addr add "192.0.2.$last/24" dev own
    "${at_bad[@]}" ip route add "203.0.113.$last/32" dev own src "192.0.2.$last"
done
# The nodes' network.
"${at_bad[@]}" ip route add 198.51.100.1/32 dev own

mkdir "$work/site"
cp -r crates/dafs-python/python/dafs "$work/site/dafs"
cp "$library" "$work/site/dafs/_dafs.abi3.so"
export PYTHONPATH=$work/site PYTHONDONTWRITEBYTECODE=1 HOSTILE_WORK=$work
mkdir -m 777 "$work/data" "$work/names" "$work/disk1" "$work/disk2"
chmod 755 "$work"/disk*
# The kernel divides the time of a disk among all who write to it. The server cannot choose, so the
# files that are written are not on the disk of its state.
mount -t tmpfs -o size=4g,mode=777 tmpfs "$work/data" 2>/dev/null ||
    skip "this machine does not let root mount a tmpfs"
undo+=("umount -l '$work/data'")
head -c 32M /dev/zero | tr '\0' 'x' >"$work/large"
echo secret | "$dafs" passwd "$work/users" anna --uid 0 --gid 0
echo hers | "$dafs" passwd "$work/users" mallory --uid 1234 --gid 1234
metrics=9469
{
    cat <<END
listen = ["0.0.0.0:20490"]
password_file = "users"
danger_allow_dafs_passwords_in_clear = "anyone on the network between can read these passwords"
state_directory = "state"
lease_time_seconds = 3
metrics_listen = "0.0.0.0:$metrics"
[nfs]
listen = ["0.0.0.0:2049"]
rdma_listen = ["0.0.0.0:20049"]
grace_time_seconds = 0
[[export]]
name = "data"
path = "data"
squash = "none"
networks = ["198.51.100.0/24", "192.0.2.0/27"]
unprivileged_ports = true
[[export]]
name = "wide"
path = "names"
squash = "none"
networks = ["198.51.100.0/24", "192.0.2.0/27"]
unprivileged_ports = true
END
    for number in 1 2; do
        printf '[[export.node]]\nnumber = %d\npath = "disk%d"\nlisten = "198.51.100.1:205%d"\n' $number $number $number
    done
} >"$work/dafs.toml"
# So few that the resulting bounds are reached in a second.
as=(prlimit --nofile=4096:4096)
serve --config "$work/dafs.toml"
ulimit -n 8192

memory_kib() { sed -n 's/^VmRSS:[^0-9]*\([0-9]*\) kB/\1/p' "/proc/$server/status"; }
# Without those of the cache of objects (O_PATH), which has a bound of its own and prevents no
# removal.
descriptors() { { grep -sLE '^flags:.01[0-7]{7}$' "/proc/$server"/fdinfo/* || true; } | wc -l; }

step "an honest host comes"
declare -A honest=()
for protocol in dafs nfs4 nfs3 arrivals idle; do
    "${at_good[@]}" python3 scripts/e2e/honest.py $protocol 198.51.100.1 20490 2049 $metrics \
        >"$work/$protocol" 2>"$work/$protocol.said" &
    honest[$protocol]=$!
    started+=($!)
done
all_work() {
    local protocol
    for protocol in "${!honest[@]}"; do
        kill -0 "${honest[$protocol]}" 2>/dev/null && [[ ! -s $work/$protocol.said ]] ||
            fail "the honest host: $(cat "$work/$protocol.said")"
    done
}
# True when all kinds have run a few times, or some cannot.
is_warm() {
    cat "$work"/*.said | grep . || [[ $(grep -c scrape "$work/arrivals") -ge 2 && $(wc -l <"$work/dafs") -ge 100 ]]
}
eventually is_warm
all_work
first_kib=$(memory_kib) first_descriptors=$(descriptors)
echo "memory $first_kib KiB, descriptors $first_descriptors"

has_memory() { [[ $(memory_kib) -lt $((first_kib + memory_slack_kib)) ]]; }
has_descriptors() { [[ $(descriptors) -lt $((first_descriptors + descriptors_slack)) ]]; }
failures=0
complain() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

# flood NAME -- checks a flood. A machine that does something else for a moment delays the honest host, too, so a
# measurement that says "too long" is repeated twice.
flood() {
    local turn
    for turn in 1 2 3; do
        measure_flood "$1"
        [[ $is_slow ]] || return 0
        echo "measurement $turn of 3: the honest host waited too long"
    done
    complain "the honest host waited too long during the flood of $1, each time"
}

# measure_flood NAME -- runs the flood, and checks its effect on the server. Sets is_slow if the honest host waited too
# long.
measure_flood() {
    local before=$EPOCHREALTIME start end process most_kib=0 most_descriptors=0 now status=0
    step "$1"
    sleep "$quiet_seconds"
    now=$(memory_kib)
    echo "before: memory $now KiB, descriptors $(descriptors)"
    # A check of a password takes some memory for a moment, so the least value seen in a quiet time
    # counts.
    [[ $now -gt $first_kib ]] || first_kib=$now
    start=$EPOCHREALTIME
    "${at_bad[@]}" python3 scripts/e2e/hostile.py "$1" "$flood_seconds" "$dafs" 20490 2049 20049 $metrics 2051 2052 \
        >"$work/$1" 2>&1 &
    process=$!
    started+=("$process")
    while kill -0 "$process" 2>/dev/null; do
        all_work
        now=$(memory_kib)
        [[ $now -lt $most_kib ]] || most_kib=$now
        now=$(descriptors)
        [[ $now -lt $most_descriptors ]] || most_descriptors=$now
        sleep 0.2
    done
    end=$EPOCHREALTIME
    wait "$process" || status=$?
    cat "$work/$1"
    [[ $status == 0 ]] || fail "the flood was none"
    echo "during: memory $most_kib KiB, descriptors $most_descriptors"
    is_slow=''
    python3 scripts/e2e/honest.py judge $is_long "$before" "$start" "$end" "$work"/{dafs,nfs4,nfs3,arrivals,idle} || is_slow=1
    all_work
    # A minute, and then it is over. As before the flood, the least value counts.
    local is_back=''
    for _ in $(seq 120); do
        ! { has_memory && has_descriptors; } || { is_back=1; break; }
        sleep 0.5
        all_work
    done
    echo "after $((${EPOCHREALTIME%.*} - ${end%.*})) s: memory $(memory_kib) KiB, descriptors $(descriptors)"
    [[ $is_back ]] || complain "$1: memory $first_kib KiB and $first_descriptors descriptors at first," \
        "now $(memory_kib) KiB and $(descriptors)"
}
for name in "${floods[@]}"; do flood "$name"; done

step "the log tells of the floods in few lines"
echo "$(wc -c <"$log") bytes"
[[ $(wc -c <"$log") -lt 4194304 ]] || complain "the log has $(wc -c <"$log") bytes"
[[ $failures == 0 ]] || exit 1
for protocol in "${!honest[@]}"; do kill "${honest[$protocol]}"; done
stop_server
