#!/bin/bash
# nfs3-locks.sh -- locks of the kernel's NFSv3 client, which it takes by NLM: it mounts without
# options, because rpcbind leads it. Two machines exclude each other, NFSv4 and DAFS clients. A machine
# that waits is told when its lock is free. Locks are reclaimed after the server was killed, and end
# when a machine says that it has restarted.
source "$(dirname "$0")/../nfs.sh"

[[ $transport == tcp && ! $layouts && ${LAB_SERVER:-dafs} == dafs ]] || skip "this test is for TCP"
dafs=${DAFS:-$lab/../target/debug/dafs}
# A client learns of a restart and reclaims within it.
lease_seconds=8
nfs_settings='register_with_rpcbind = true'

# rpcbind has one port and one folder per host. The network is this test's own.
command -v rpcbind >/dev/null || skip "there is no rpcbind; run: scripts/setup.sh test"
mount -t tmpfs run /run
mkdir /run/rpcbind
rpcbind -w -f >"$work/rpcbind.log" 2>&1 &
rpcbind=$!
started+=("$rpcbind")
rpcbind_is_up() { rpcinfo -p 127.0.0.1 >/dev/null 2>&1 || ! kill -0 "$rpcbind" 2>/dev/null; }
eventually 10 rpcbind_is_up
kill -0 "$rpcbind" 2>/dev/null || skip "rpcbind does not start here: $(<"$work/rpcbind.log")"
rpcinfo -p 127.0.0.1 >/dev/null || skip "rpcbind does not answer here"

serve
rpcinfo -p 127.0.0.1 >"$work/programs"
for entry in '100003 *3 *tcp *2049' '100005 *3 *tcp *2049' '100021 *4 *tcp *2049' \
    '100024 *1 *tcp *2049' '100024 *1 *udp *2049' '100227 *3 *tcp *2049'; do
    grep -q "$entry" "$work/programs" || { cat "$work/programs"; fail "rpcbind does not know $entry"; }
done
place=$(sed -n 's/.*listening address=\(127[^ ]*\).*/\1/p' "$work/server.log")
[[ $place ]] || fail "the server did not say where it listens"
boot 1 2

# wait_for TEXT FILE SECONDS, in a guest
wait_for='wait_for() {
    local until=$((SECONDS + $3))
    until grep -q "$1" "$2" 2>/dev/null; do
        [[ $SECONDS -lt $until ]] || { echo "no $1 after $3 s"; return 1; }
        read -r -t 0.05 -u 3 || true
    done
}'
# denied N FILE KIND START LENGTH, granted the same: the lock of guest N.
denied() {
    guest "$1" "agrees=0; fileop try ${*:2} >/dev/null || agrees=\$?; [[ \$agrees == 3 ]]"
}
granted() { guest "$1" "fileop try ${*:2}"; }
is_granted() { granted "$@" >/dev/null; }
hold() {
    guest "$1" "$wait_for
        : >/tmp/held
        fileop lock /mnt/a/file ${*:2} >/tmp/held & holder=\$!
        wait_for locked /tmp/held 10"
}
release() { guest "$1" 'kill $holder; wait $holder'; }
dafs_status() {
    local status=0
    "$dafs" lock hold "dafs://$place/data/file" --timeout 0 -- true >"$work/said" 2>&1 || status=$?
    [[ $status == "$1" ]]
}

step "a mount without options"
for number in 1 2; do
    guest "$number" '
        rpcbind -w
        rpc.statd --no-notify
        mkdir -p /mnt/a
        mount -t nfs -o vers=3 "$server:$export" /mnt/a
        grep " /mnt/a nfs .*vers=3" /proc/mounts
        fails grep " /mnt/a nfs .*local_lock=all" /proc/mounts'
done
guest 2 'nfs_mount 4.2 b'
guest 1 'echo 0 >/mnt/a/file; echo 0 >/mnt/a/number; chmod 666 /mnt/a/file'

step "two machines exclude each other"
hold 1 w 10 10
denied 2 /mnt/a/file r 15 1
granted 2 /mnt/a/file w 0 10
[[ $(guest 2 'fileop holder /mnt/a/file w 0 0') == *'w 10 10'* ]] || fail "the holder is not named"
release 1
granted 2 /mnt/a/file w 0 0
begin 1 'fileop count /mnt/a/number fcntl 20'
guest 2 'fileop count /mnt/a/number fcntl 20'
end 1
[[ $(<"$work/export/number") == 40 ]] || fail "a lock did not exclude: $(<"$work/export/number")"

step "a machine that waits is told"
hold 1 w 0 0
guest 2 'fileop lock-wait /mnt/a/file w 0 0 >/tmp/waited & waiter=$!'
sleep 2
guest 2 '[[ ! -s /tmp/waited ]]'
release 1
# By itself the client asks again after half a minute.
guest 2 "$wait_for"'
    wait_for locked /tmp/waited 10
    kill $waiter
    wait $waiter'
granted 1 /mnt/a/file w 0 0

step "other protocols"
hold 1 w 0 0
denied 2 /mnt/b/file w 0 0
dafs_status 4 || fail "a DAFS client got the lock of an NFSv3 client: $(<"$work/said")"
release 1
guest 2 "$wait_for"'
    : >/tmp/held
    fileop lock /mnt/b/file w 0 0 >/tmp/held & holder=$!
    wait_for locked /tmp/held 10'
denied 1 /mnt/a/file r 0 0
release 2
"$dafs" lock hold "dafs://$place/data/file" >"$work/held" 2>&1 &
holder=$!
started+=("$holder")
eventually 10 grep -q '^locked$' "$work/held"
denied 1 /mnt/a/file w 0 0
kill "$holder"
wait "$holder" 2>/dev/null || true
eventually 10 is_granted 1 /mnt/a/file w 0 0
dafs_status 0 || fail "a lock stays: $(<"$work/said")"

step "a server that is killed"
hold 1 w 0 10
kill_server
serve
# Grace is over after twice its time at most.
sleep $((2 * lease_seconds + 3))
denied 2 /mnt/a/file w 0 10
granted 2 /mnt/a/file w 10 10
release 1
granted 2 /mnt/a/file w 0 0

step "a machine that restarts"
hold 1 w 0 0
denied 2 /mnt/a/file w 0 0
guest 1 'sm-notify -f'
eventually 30 is_granted 2 /mnt/a/file w 0 0
release 1
