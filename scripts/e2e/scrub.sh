#!/bin/bash
# Copies of files that are damaged on the disks of data servers: `dafs cluster scrub` finds them, repairs
# those that are certainly wrong, and leaves others as they are until an administrator names the right
# one. `dafs cluster status --watch` shows the cluster meanwhile.
source "$(dirname "$0")/lib.sh"

mkdir "$work/names"
[[ $(id -u) != 0 ]] || chmod 777 "$work/names"
"$dafs" cluster init --secret "$work/secret"
for number in 1 2 3; do data "$number"; done
cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
admin_listen = "127.0.0.1:0"
state_directory = "state"
lease_time_seconds = 5
[nfs]
listen = ["127.0.0.1:0"]
grace_time_seconds = 0
[cluster]
secret = "secret"
[[export]]
name = "safe"
path = "names"
squash = "none"
unprivileged_ports = true
copies = 2
$(for number in 1 2 3; do
    printf '[[export.node]]\nnumber = %s\ncontrol = "%s"\n' "$number" "${control[number]}"
done)
END
serve --config "$work/dafs.toml"
status=("$dafs" cluster status --state-directory "$work/state")
scrub=("$dafs" cluster scrub --state-directory "$work/state")
all_there() { "${status[@]}"; }
eventually all_there

step "copies that are equal"
for bytes in 3000001 2000002; do
    head -c "$bytes" /dev/urandom >"$work/$bytes.wanted"
    "$dafs" put "$work/$bytes.wanted" "$url/safe/$bytes"
done
expect 0 '2 files compared, ' "${scrub[@]}"
expect 0 '"faulty_files":0,' "${scrub[@]}" --show --json

# Sets `copies` to the files on data servers with the content of a file.
copies_of() {
    local found
    found=$(find "$work"/data[0-9] -type f -size "$1c")
    mapfile -t copies <<<"$found"
    [[ ${#copies[@]} == 2 ]] || fail "$1 has ${#copies[@]} copies"
}
node_of() { local below=${1#"$work/data"}; echo "${below%%/*}"; }
are_equal() { cmp "${copies[0]}" "$work/$1.wanted" && cmp "${copies[1]}" "$work/$1.wanted"; }

step "a copy that has lost its content"
copies_of 3000001
node=$(node_of "${copies[1]}")
truncate -s 0 "${copies[1]}"
expect 1 "/safe/3000001: node $node: missing; node $(node_of "${copies[0]}") has a right copy" \
    "${scrub[@]}" --dry-run
[[ ! -s ${copies[1]} ]] || fail "a dry run has repaired it"
expect 0 "/safe/3000001: node $node: missing; is being repaired" "${scrub[@]}"
eventually are_equal 3000001

step "copies of which none is known to be right"
copies_of 2000002
flip "${copies[0]}" 1500000
cp "${copies[0]}" "$work/flipped"
right=$(node_of "${copies[1]}")
expect 1 "/safe/2000002: node $right: differs; it is not known which copy is right" "${scrub[@]}"
cmp "${copies[0]}" "$work/flipped" || fail "a copy was changed"
cmp "${copies[1]}" "$work/2000002.wanted" || fail "the other copy was changed"
repair=("$dafs" cluster repair --state-directory "$work/state")
expect 1 'no export is called so' "${repair[@]}" /nowhere/2000002 --from "$right"
expect 1 'or there is none' "${repair[@]}" /safe/2000002 --from 9
expect 0 "made like the one on node $right" "${repair[@]}" /safe/2000002 --from "$right"
eventually are_equal 2000002
"$dafs" get "$url/safe/2000002" "$work/back"
same "$work/2000002.wanted" "$work/back" "what was written and what came back"

step "a slow one is stopped, and goes on without its command"
"${scrub[@]}" --bwlimit 1k >"$work/slow" 2>&1 &
slow=$!
started+=("$slow")
is_running() { [[ $("$dafs" cluster scrub --state-directory "$work/state" --stop --json) == *'"stopped":true'* ]]; }
eventually is_running
! wait "$slow" || fail "a comparison that was stopped has compared all"
grep -q 'stopped before the end' "$work/slow" || { cat "$work/slow"; fail "the end is not told"; }

step "the status again and again, from another machine, too"
timeout 5 "${status[@]}" --watch --seconds 1 >"$work/watched" || [[ $? == 124 ]]
[[ $(grep -c '^3 nodes: 3 ready; .* free$' "$work/watched") -ge 2 ]] || { cat "$work/watched"; fail "it is not repeated"; }
admin=$(sed -n 's/.*administration at //p' "$log")
far=(--server "$admin" --token-file "$work/state/admin-token")
timeout 5 "$dafs" cluster status "${far[@]}" --watch >"$work/watched" || [[ $? == 124 ]]
grep -q '^3 nodes: 3 ready' "$work/watched" || { cat "$work/watched"; fail "another machine sees nothing"; }

step "a node that is missing"
kill_data "$right"
is_missed() { ("${status[@]}" || true) | grep -E " $right missing +- +- +- +- " >/dev/null; }
eventually is_missed
expect 1 'not compared because a node is missing' "${scrub[@]}"
expect 1 "node $right is missing: bring it back first" "${repair[@]}" /safe/2000002 --from "$right"
data "$right"
eventually all_there
expect 0 '2 files compared' "$dafs" cluster scrub "${far[@]}"
stop_server
