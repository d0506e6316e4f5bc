#!/bin/bash
# The server reports when it is ready, answers signals, and ends in order.
source "$(dirname "$0")/lib.sh"

mkdir "$work/export"
echo hello >"$work/export/file"

step "one line on standard output, and a free port"
serve "$work/export"
[[ $(cat "$log.out") == "ready $url/" ]] || fail "it said: $(cat "$log.out")"
[[ $url =~ ^dafs://127\.0\.0\.1:[1-9][0-9]*$ ]] || fail "no URL with a port: $url"
for transport in auto shm iwarp; do
    [[ $("$dafs" --transport $transport cat "$url/file") == hello ]] || fail "no file by $transport"
done
expect 0 'transport shm: the server runs on this host' "$dafs" -v ls "$url"
[[ $("$dafs" ping -c 3 --json "$url") == *'"round_trips":3'* ]] || fail "no round trips"

step "SIGUSR1 says what it holds"
[[ $(count connections) == 0 && $(count sessions) == 0 ]] || fail "it holds: $(counts)"
grep -q 'copied bytes:' "$log" || fail "no copy counters"

step "a port in use"
port=${url##*:}
expect 1 'choose one with --listen' "$dafs" serve "$work/export" --listen "127.0.0.1:$port" \
    --state-directory "$work/other"
step "a state directory in use"
expect 1 "another server uses $work/state; give each its own with --state-directory" \
    "$dafs" serve "$work/export" --listen 127.0.0.1:0 --state-directory "$work/state"

step "SIGTERM and SIGINT end it with status 0, and clients find nobody"
stop_server
expect 3 'check that the server runs' "$dafs" --transport iwarp ls "$url"
expect 3 'cannot connect' "$dafs" ls "$url"
serve "$work/export"
kill -INT "$server"
wait "$server" || fail "status $? after SIGINT"

step "a second signal ends it at once"
# With a state directory of its own: the next server on it would wait for the lost client.
serve "$work/export" --state-directory "$work/abrupt"
# A client that keeps its connection, so that an orderly end takes a while.
mkfifo "$work/pipe"
truncate -s 1G "$work/export/big"
"$dafs" cat "$url/big" >"$work/pipe" &
client=$!
started+=("$client")
exec 7<"$work/pipe"
has_session() { [[ $(count sessions) == 1 ]]; }
eventually has_session
kill -TERM "$server"
kill -TERM "$server" 2>/dev/null || true
status=0
wait "$server" || status=$?
[[ $status == 0 || $status == 143 ]] || fail "status $status after two signals"
exec 7<&-
wait "$client" || true

step "the names of several exports"
mkdir "$work/a" "$work/b"
cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
[[export]]
name = "first"
path = "a"
[[export]]
name = "second"
path = "b"
read_only = true
END
serve --config "$work/dafs.toml"
[[ $("$dafs" ls "$url" | tr '\n' ' ') == 'first second ' ]] || fail "exports: $("$dafs" ls "$url")"
stop_server

step "a directory in place of the exports of a file"
serve "$work/export" --config "$work/dafs.toml"
[[ $("$dafs" cat "$url/file") == hello ]] || fail "the directory is not the root"
stop_server
