#!/bin/bash
# Servers and clients killed at any moment, and power failures, under renames, creates, appends,
# locks and writes: no operation is lost or done twice, every broken lock is reported.
#
# crashes.sh [SECONDS] -- length of each of the three rounds (20; `make crashes` takes 600)

# Mounts go into a mount namespace of their own: mounts of others would otherwise keep the file
# systems alive after they have been unmounted here.
if [[ ${1:-} == --own-mounts ]]; then
    shift
elif unshare --mount true 2>/dev/null; then
    exec unshare --mount "$0" --own-mounts "$@"
fi
source "$(dirname "$0")/lib.sh"

seconds=${1:-${CRASH_SECONDS:-20}}
load=${DAFS_TARGET:-${dafs%/*}}/examples/crash_load
[[ -x $load ]] || { echo "there is no $load; build it with: cargo build --examples"; exit 1; }
clients=4
lease_seconds=2
# A lock holder that cannot go on loses its lock after the lease, so no outage may last longer.

# The same seed makes the same decisions; the timing of the machine differs.
RANDOM=${CRASH_SEED:-$$}

# Prepares $work/disk, a file system of its own of kind $1, or a plain directory.
make_disk() {
    disk=$work/disk
    mkdir -p "$disk"
    kind=$1
    case $kind in
    directory) ;;
    *)
        truncate -s 1G "$work/image"
        "mkfs.$kind" -q "$work/image"
        mount_disk || return 1
        ;;
    esac
    mkdir -p "$disk/export"/{names,shared,own} "$work/histories"
    chmod -R 777 "$disk/export"
    sync -f "$disk"
}
mount_disk() { mount -o loop "$work/image" "$disk"; }
remove_disk() {
    [[ $kind == directory ]] || umount "$disk"
    rm -rf "$disk" "$work/image" "$work/histories"
}

# A boot id of the kernel identifies a run of the system. After a simulated power failure the server
# must see another one, as after a real one.
next_boot() {
    cat /proc/sys/kernel/random/uuid >"$work/boot_id"
}
start_server() {
    [[ $crash != cut_power ]] || as=(unshare --mount bash -c \
        'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"' "$work/boot_id")
    serve "$disk/export" --no-root-squash --listen "127.0.0.1:$port" \
        --state-directory "$disk/state" --lease $lease_seconds --grace $lease_seconds \
        --durable-replies "$durable"
}
cut_power() {
    # Stopped first, all threads of it, so that it cannot report a failed sync.
    kill -STOP "$server"
    has_stopped() { ! sed 's/.*) \(.\).*/\1/' "/proc/$server/task/"*/stat | grep '[RS]' >/dev/null; }
    eventually has_stopped
    "$load" cut "$disk"
    kill_server
    umount "$disk"
    # The server's own mount namespace releases the file system a moment later; until then a mount
    # would return the one that is shut down.
    is_detached() { [[ -z $(losetup -j "$work/image") ]]; }
    eventually is_detached
    mount_disk
    next_boot
}

start_client() {
    local number=$1
    lives[number]=$((${lives[number]:-0} + 1))
    "$load" load "$url" "$work/histories" "$number" "${lives[number]}" "$left" \
        >"$work/client-$number.log" 2>&1 &
    workers[number]=$!
    started+=("$!")
}
# A client that has ended without being killed has reported an error.
check_client() {
    local number=$1 status=0
    kill -0 "${workers[number]}" 2>/dev/null && return
    wait "${workers[number]}" || status=$?
    [[ $status == 0 ]] || {
        cat "$work/client-$number.log"
        tail -n 20 "$log"
        fail "client $number ended with status $status"
    }
}
kill_client() {
    local number=$1
    check_client "$number"
    kill -9 "${workers[number]}" 2>/dev/null || true
    wait "${workers[number]}" 2>/dev/null || true
    forget_process "${workers[number]}"
    start_client "$number"
}

# round KIND DURABLE CRASH -- SECONDS of work with crashes every second or so.
round() {
    local kind_wanted=$1 crash=$3 number pause ended found
    durable=$2
    step "$kind_wanted, replies that survive: $durable, $crash"
    next_boot
    make_disk "$kind_wanted" || skip "this machine does not let root mount a $kind_wanted image"
    lives=() workers=() crashes=0 kills=0
    port=0
    start_server
    port=${url##*:}
    ended=$((SECONDS + seconds))
    left=$seconds
    for ((number = 0; number < clients; number++)); do start_client $number; done
    while [[ $SECONDS -lt $ended ]]; do
        left=$((ended - SECONDS))
        printf -v pause '%d.%03d' $((RANDOM % 2)) $((RANDOM % 900 + 50))
        sleep "$pause"
        case $((RANDOM % 5)) in
        0)
            crashes=$((crashes + 1))
            "$crash"
            start_server
            ;;
        *)
            kills=$((kills + 1))
            kill_client $((RANDOM % clients))
            ;;
        esac
        for ((number = 0; number < clients; number++)); do check_client $number; done
    done
    for ((number = 0; number < clients; number++)); do
        wait "${workers[number]}" || { cat "$work/client-$number.log"; fail "client $number failed"; }
    done
    timeout 60 "$load" settle "$url" "$work/histories"
    stop_server
    found=$("$load" check "$disk/export" "$work/histories") || exit 1
    echo "$found server_crashes=$crashes client_kills=$kills"
    [[ $found =~ operations=([0-9]+) && ${BASH_REMATCH[1]} -gt $((seconds * 10)) ]] ||
        fail "too little was done to say anything"
    remove_disk
}

round directory crash kill_server
is_root || skip "the rest needs root, to mount file systems of its own"
for kind in ext4 xfs; do
    command -v "mkfs.$kind" >/dev/null || skip "there is no mkfs.$kind; run: scripts/setup.sh test"
done
undo+=("umount -l '$work/disk' 2>/dev/null")
round ext4 power cut_power
round xfs power cut_power
