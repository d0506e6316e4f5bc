#!/bin/bash
# The administrator's view: metrics, clients, a client that is ended, exports that come and go
# without a restart.
source "$(dirname "$0")/lib.sh"

mkdir -p "$work/one" "$work/two"
chmod 777 "$work/one" "$work/two"
config() {
    cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
metrics_listen = "127.0.0.1:0"
state_directory = "state"
END
    local name
    for name in "$@"; do
        printf '[[export]]\nname = "%s"\npath = "%s"\n' "$name" "$name" >>"$work/dafs.toml"
    done
}
config one
serve --config "$work/dafs.toml"
place=(--state-directory "$work/state")

step "metrics"
address=$(sed -n 's|.*metrics at http://\([^/]*\)/.*|\1|p' "$log")
scrape() {
    exec 3<>"/dev/tcp/${address%:*}/${address##*:}"
    printf 'GET %s HTTP/1.1\r\nHost: here\r\n\r\n' "${1:-/metrics}" >&3
    cat <&3
    exec 3>&-
}
echo hello >"$work/file"
"$dafs" put "$work/file" "$url/one/file"
scrape >"$work/metrics"
grep -q '^dafs_operation_duration_seconds_count{front_end="dafs",operation="OPEN"} [1-9]' "$work/metrics" ||
    { cat "$work/metrics"; fail "no OPEN was counted"; }
for name in cpu_seconds_total resident_memory_bytes start_time_seconds; do
    grep -q "^dafs_process_$name [0-9.e+-]*[1-9]" "$work/metrics" || { cat "$work/metrics"; fail "no $name"; }
done
grep -q 'le="+Inf"' "$work/metrics" || fail "no histogram ends"
tail -n 1 "$work/metrics" | grep '^# EOF' >/dev/null || fail "the text does not end"
scrape /other | grep '404' >/dev/null || fail "another path was answered"

step "clients"
"$dafs" cat "$url/one/file" >/dev/null
"$dafs" clients "${place[@]}" --json >"$work/clients"
grep -q '"front_end":"dafs"' "$work/clients" || { cat "$work/clients"; fail "no client is shown"; }
# It has ended, and the server keeps its name for the lease.
is_marked() { "$dafs" clients "${place[@]}" | grep ' (disconnected)$' >/dev/null; }
eventually is_marked
"$dafs" --transport iwarp cat "$url/one/file" >/dev/null
has_address() { "$dafs" clients "${place[@]}" --json | grep '"front_end":"dafs".*"address":"127\.0\.0\.1:[0-9]' >/dev/null; }
eventually has_address

step "top"
"$dafs" top "${place[@]}" --seconds 1 --count 1 >"$work/top"
grep -q '^optimistic reads: 0 files' "$work/top" || { cat "$work/top"; fail "no optimistic reads"; }
grep -q 'requests/s' "$work/top" || { cat "$work/top"; fail "no clients"; }
"$dafs" top "${place[@]}" --seconds 1 --count 2 --json >"$work/top"
[[ $(grep -c '"optimistic":{"files":0' "$work/top") == 2 ]] || { cat "$work/top"; fail "not one object per interval"; }
expect 2 'invalid value' "$dafs" top "${place[@]}" --seconds 0

step "a client is ended"
key=$("$dafs" clients "${place[@]}" | awk '$2 == "dafs" { print $1; exit }')
"$dafs" clients "${place[@]}" --json | grep "\"client\":\"$key\"" >/dev/null || fail "another key as JSON"
"$dafs" expire "${place[@]}" "$key"
! "$dafs" clients "${place[@]}" | grep "^$key" >/dev/null || fail "it is still there"
expect 1 'no client' "$dafs" expire "${place[@]}" 0123456789abcdef

step "exports come and go"
expect 1 '' "$dafs" ls "$url/two"
config one two
"$dafs" reload "${place[@]}"
"$dafs" put "$work/file" "$url/two/file"
[[ -e $work/two/file ]] || fail "the new export is not the directory"
config two
kill -HUP "$server"
gone() { ! "$dafs" ls "$url/one"; }
eventually gone
"$dafs" cat "$url/two/file" >/dev/null || fail "the other export went, too"

step "a mistake changes nothing"
echo 'wake = "often"' >>"$work/dafs.toml"
expect 1 'line' "$dafs" reload "${place[@]}"
grep -q 'the configuration was not taken' "$log" || { cat "$log"; fail "the server does not log the mistake"; }
"$dafs" cat "$url/two/file" >/dev/null || fail "the export is gone"
stop_server
expect 3 'ask as its user or as root' "$dafs" clients "${place[@]}"
expect 3 'no server answers' "$dafs" top "${place[@]}"

step "a log of slow requests"
head -c 32M /dev/zero >"$work/large"
slow=("$dafs" put --sync "$work/large")
nfs_address() { sed -n 's/.*listening for NFS *address=//p' "$log" | head -n 1; }
config two
printf 'networks = ["127.0.0.0/8"]\nunprivileged_ports = true\n[nfs]\nlisten = ["127.0.0.1:0"]\n' >>"$work/dafs.toml"
serve --config "$work/dafs.toml"
"${slow[@]}" "nfs://$(nfs_address)/two/large"
stop_server
! grep 'slow operation' "$log" || fail "requests are logged that nobody asked for"
sed -i '1i slow_operation_ms = 1' "$work/dafs.toml"
serve --config "$work/dafs.toml"
is_logged() {
    "${slow[@]}" "nfs://$(nfs_address)/two/large"
    grep 'slow operation' "$log" | grep 'front_end="nfs4" operation="[A-Z]*" export="two" .*total_ms=[1-9]'
}
eventually is_logged
stop_server
