#!/bin/bash
# A server is taken over by another process while clients copy and measure, by DAFS over TCP and shared memory
# and by NFS: nothing fails and nothing is lost. A next server that cannot start leaves the present one.
source "$(dirname "$0")/lib.sh"

mkdir "$work/export" "$work/tree" "$work/none"
! is_root || chmod 777 "$work/export"
for number in $(seq 1 40); do head -c 3M /dev/urandom >"$work/tree/$number"; done
printf '%s\n' 'listen = ["127.0.0.1:0"]' 'state_directory = "state"' 'lease_time_seconds = 4' \
    '[nfs]' 'listen = ["127.0.0.1:0"]' '[[export]]' 'name = ""' 'path = "export"' 'unprivileged_ports = true' \
    'durable_replies = "crash"' >"$work/dafs.toml"
cp "$work/dafs.toml" "$work/good.toml"
serve --config "$work/dafs.toml" "${squash[@]}"
first_url=$url
nfs=$(sed -n 's/.*listening for NFS *address=//p' "$log" | head -n 1)
[[ $nfs ]] || { cat "$log"; fail "the log does not say where NFS is served"; }

# next -- another server takes over.
next() {
    local former=$server
    serve --config "$work/dafs.toml" "${squash[@]}" --take-over
    wait "$former" || fail "the former server ended with status $?"
    forget_process "$former"
    [[ $url == "$first_url" ]] || fail "the next server is at $url, not at $first_url"
    grep -q "listening for NFS *address=$nfs" "$log" || { cat "$log"; fail "NFS is elsewhere"; }
}

step "taken over twice while clients copy and measure"
began=$SECONDS
clients=()
begin() {
    local name=$1
    shift
    "$@" >"$work/said-$name" 2>&1 &
    clients+=("$name $!")
    started+=("$!")
}
copy=(sync --bwlimit 12m "$work/tree")
begin iwarp "$dafs" --transport iwarp "${copy[@]}" "$url/iwarp"
begin shm "$dafs" --transport shm "${copy[@]}" "$url/shm"
begin nfs "$dafs" "${copy[@]}" "nfs://$nfs/nfs"
measure=(--size 4m --seconds 12 --run randwrite --json)
begin iwarp-load "$dafs" --transport iwarp bench "$url" "${measure[@]}"
begin shm-load "$dafs" --transport shm bench "$url" "${measure[@]}"
begin nfs-load "$dafs" bench "nfs://$nfs" "${measure[@]}"
is_busy() { [[ $(find "$work/export" -path "*/iwarp/*" -o -path "*/shm/*" -o -path "*/nfs/*" | wc -l) -gt 9 ]]; }
eventually is_busy
next
sleep 3
next
for name in iwarp shm nfs; do
    [[ $(find "$work/export/$name" -type f ! -name '.dafs-*' | wc -l) -lt 40 ]] || fail "$name was over too early"
done
for client in "${clients[@]}"; do
    read -r name process <<<"$client"
    status=0
    wait "$process" || status=$?
    [[ $status == 0 ]] || { cat "$work/said-$name"; fail "$name: status $status"; }
    forget_process "$process"
done
no_parts "$work/export"
for name in iwarp shm nfs; do
    same <(contents "$work/tree") <(contents "$work/export/$name") "the files of $name"
    slowest=$(sed -n 's/.*"max":\([0-9]*\).*/\1/p' "$work/said-$name-load")
    [[ $slowest ]] || { cat "$work/said-$name-load"; fail "no measurement of $name"; }
    echo "$name: slowest operation $((slowest / 1000)) ms"
    [[ $slowest -lt 10000000 ]] || fail "an operation took too long"
done
echo "all in $((SECONDS - began)) s"

step "a next server that cannot start"
present=$server present_log=$log
stays() {
    kill -0 "$present" || fail "the server has ended"
    echo "$1" >"$work/note"
    "$dafs" put "$work/note" "$url/note"
    [[ $(cat "$work/export/note") == "$1" ]] || fail "the server does not serve"
}
echo 'nonsense = 1' >"$work/dafs.toml"
expect 2 'nonsense' "$dafs" serve --config "$work/dafs.toml" --take-over
stays before
cp "$work/good.toml" "$work/dafs.toml"
expect 3 'no server to take over' "$dafs" serve --config "$work/dafs.toml" --state-directory "$work/none" --take-over

step "one that fails when the former has ended"
# The port for metrics is known to be taken only then.
expect 1 'metrics' "$dafs" serve --config "$work/dafs.toml" --metrics "${url#dafs://}" --take-over
eventually grep 'this one goes on' "$present_log"
eventually grep 'serving again' "$present_log"
stays after
# It cannot say that it is ready.
status=0
"$dafs" serve --config "$work/dafs.toml" --take-over >/dev/full 2>"$work/said" || status=$?
[[ $status == 1 ]] && grep -q 'standard output' "$work/said" || fail "status $status: $(cat "$work/said")"
is_back() { [[ $(grep -c 'serving again' "$present_log") == 2 ]]; }
eventually is_back
stays afterwards
server=$present log=$present_log
next

if command -v python3 >/dev/null; then
    step "two at a time"
    # The first one has the sockets, and does not go on.
    python3 - "$work/state/admin.sock" >"$work/held" <<'END' &
import socket, sys, time
other = socket.socket(socket.AF_UNIX)
other.connect(sys.argv[1])
other.sendall(b'"hand_over"\n')
assert other.recv(65536).startswith(b"sockets ")
print("held", flush=True)
time.sleep(60)
END
    first=$!
    started+=("$first")
    eventually grep held "$work/held"
    expect 1 'another process is taking it over' "$dafs" serve --config "$work/dafs.toml" --take-over
    present=$server
    stays between
    kill "$first"
    wait "$first" 2>/dev/null || true
    forget_process "$first"
    next
fi

if is_root && command -v setpriv >/dev/null; then
    step "another user"
    needs_users
    chmod 644 "$work/dafs.toml"
    status=0
    "${as_other[@]}" "$dafs" serve --config "$work/dafs.toml" --take-over >"$work/said" 2>&1 || status=$?
    [[ $status != 0 ]] || fail "another user has taken it over"
    present=$server
    stays last
fi
stop_server
