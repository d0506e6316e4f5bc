#!/bin/bash
# The view of administrators on requests: bytes and operations by export, client and user, the access log of all
# front ends, and rules and a dashboard for Prometheus.
source "$(dirname "$0")/lib.sh"

mkdir -p "$work/one" "$work/two" "$work/logs"
chmod 777 "$work/one" "$work/two"
cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
metrics_listen = "127.0.0.1:0"
state_directory = "state"
[access_log]
file = "logs/access.log"
format = "json"
[nfs]
listen = ["127.0.0.1:0"]
[[export]]
name = "one"
path = "one"
networks = ["127.0.0.0/8"]
unprivileged_ports = true
[[export]]
name = "two"
path = "two"
networks = ["127.0.0.0/8"]
unprivileged_ports = true
END
serve --config "$work/dafs.toml"
access=$work/logs/access.log

step "bytes by export, client and user"
head -c 3000000 /dev/urandom >"$work/file"
"$dafs" put "$work/file" "$url/one/file"
"$dafs" get "$url/one/file" "$work/back"
cmp "$work/file" "$work/back"
[[ $(counted "$log" 'dafs_export_written_bytes_total{export="/one"}') == 3000000 ]] || fail "the bytes written"
[[ $(counted "$log" 'dafs_export_read_bytes_total{export="/one"}') == 3000000 ]] || fail "the bytes read"
[[ $(counted "$log" 'dafs_export_read_bytes_total{export="/two"}') == 0 ]] || fail "the other export"
[[ $(counted "$log" dafs_client_read_bytes_total) == 3000000 ]] || fail "the bytes of clients"
[[ $(counted "$log" "dafs_user_read_bytes_total{user=\"$(id -u)\"}") == 3000000 ]] || fail "the bytes of the user"
[[ $(counted "$log" 'dafs_export_operations_total{export="/one",class="read"}') -ge 1 ]] || fail "no reads"
[[ $(counted "$log" 'dafs_export_request_duration_seconds_count{export="/one",class="write"}') -ge 1 ]] || fail "no latency"
nfs=$(sed -n 's/.*listening for NFS *address=//p' "$log" | head -n 1)
"$dafs" put "$work/file" "nfs://$nfs/two/file"
[[ $(counted "$log" 'dafs_export_written_bytes_total{export="/two"}') == 3000000 ]] || fail "the bytes written by NFS"

step "each metric is listed"
metrics=$(sed -n 's|.*metrics at http://\([^/]*\)/.*|\1|p' "$log")
exec 3<>"/dev/tcp/${metrics%:*}/${metrics##*:}"
printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
tr -d '\r' <&3 >"$work/metrics"
exec 3>&-
while read -r name kind; do
    [[ $kind != counter ]] || name+=_total
    grep -qF "| \`$name\` | $kind |" "docs/metrics.md" || fail "docs/metrics.md has no $kind $name"
done < <(sed -n 's/^# TYPE //p' "$work/metrics")
grep -q '^dafs_build_info{version="[0-9.]*",commit="' "$work/metrics" || fail "no version"

step "the access log"
is_logged() { grep -q "$1" "$access"; }
eventually is_logged '"front_end":"dafs".*"export":"one","ok":true.*"written_bytes":[1-9]'
eventually is_logged '"front_end":"nfs4".*"export":"two"'
python3 - "$access" <<'END'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
read = sum(line["read_bytes"] for line in lines if line["front_end"] == "dafs")
assert read == 3000000, read
END
mv "$access" "$access.moved"
kill -HUP "$server"
is_there() { [[ -e $access ]]; }
eventually is_there
"$dafs" cat "$url/one/file" >/dev/null
eventually is_logged '"front_end":"dafs"'
[[ $(counted "$log" dafs_log_lost_requests_total) == 0 ]] || fail "lines are missing"
stop_server

step "a log of JSON objects"
sed -i '1i slow_operation_ms = 1' "$work/dafs.toml"
"$dafs" serve --log-format json --config "$work/dafs.toml" >"$work/json.out" 2>"$work/json.log" &
json=$!
started+=("$json")
has_started() { grep -q '^ready ' "$work/json.out"; }
eventually has_started
kill "$json"
wait "$json" || fail "status $?"
python3 - "$work/json.log" <<'END'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
assert any(line["level"] == "INFO" for line in lines), lines
END

step "rules and dashboard for Prometheus"
python3 -c 'import json, sys; json.load(open(sys.argv[1]))' "packaging/prometheus/dashboard.json"
command -v promtool >/dev/null || skip "promtool is missing: scripts/setup.sh test installs it"
promtool check rules packaging/prometheus/alerts.yml
promtool check config packaging/prometheus/prometheus.yml
