#!/bin/bash
# `dafs top` on a full screen: keys, sizes, signals, terminals that can only print or go away, and one JSON object
# for programs, also from another machine's port.
source "$(dirname "$0")/lib.sh"
command -v python3 >/dev/null || skip "there is no python3"

mkdir "$work/export"
chmod 777 "$work/export"
cat >"$work/dafs.toml" <<'END'
listen = ["127.0.0.1:0"]
admin_listen = "127.0.0.1:0"
state_directory = "state"
[[export]]
name = "data"
path = "export"
squash = "none"
END
serve --config "$work/dafs.toml"
head -c 65536 /dev/zero >"$work/file"
"$dafs" put "$work/file" "$url/data/file"
work_on() { while "$dafs" cat "$url/data/file"; do :; done >/dev/null 2>&1; }

step "one object for programs"
work_on &
worker=$!
started+=("$worker")
admin=$(sed -n 's/.*administration at //p' "$log")
one_object() {
    "$dafs" top "$@" --seconds 2 --once --json >"$work/top"
    python3 - "$work/top" <<'PYTHON' || { cat "$work/top"; fail "not so with $*"; }
import json, sys

[line] = open(sys.argv[1]).readlines()
top = json.loads(line)
server, [export] = top["server"], top["exports"]
assert export["name"] == "data" and server["dafs_clients"] >= 1, "no export, or no client"
for work in (server, export):
    assert work["requests"] > 0 and work["read_bytes"] > 0, "no work"
    assert 0 < work["latency_mean_seconds"] < 1, "no mean"
    assert 0 < work["latency_p99_seconds"] < 2, "no quantile"
assert server["cpu_percent"] > 0 and server["credits"] >= server["in_flight"], "no load"
assert all(client["client"] and client["transport"] for client in top["clients"]), "no clients"
assert top["nodes"] == [] and top["optimistic"]["files"] == 0, "something else"
PYTHON
}
one_object --state-directory "$work/state"
one_object --server "$admin" --token-file "$work/state/admin-token"
kill "$worker"
wait "$worker" 2>/dev/null || true
forget_process "$worker"
expect 2 'cannot be used with' "$dafs" top --once --count 2

step "the screen"
python3 scripts/e2e/top.py "$server" "$dafs" top --state-directory "$work/state" --seconds 1 ||
    { tail "$log"; fail "another screen"; }
# The last check has ended the server.
wait "$server" || { tail "$log"; fail "the server ended with another status"; }
forget_process "$server"
