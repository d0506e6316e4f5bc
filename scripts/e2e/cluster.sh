#!/bin/bash
# Files striped over data servers in separate processes: content goes there and back, a data server
# killed under writes loses no data, waiting requests go on when it is back, wrong data servers are
# refused, and the secret of all changes without a stop.
source "$(dirname "$0")/lib.sh"

mkdir "$work"/{names,other}
[[ $(id -u) != 0 ]] || chmod 777 "$work/names"
expect 0 'was made' "$dafs" cluster init --secret "$work/secret"
expect 1 'exists already' "$dafs" cluster init --secret "$work/secret"
"$dafs" cluster init --secret "$work/other/secret"

for number in 1 2 3; do data "$number"; done
cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
state_directory = "state"
lease_time_seconds = 5
[nfs]
listen = ["127.0.0.1:0"]
rdma_listen = ["127.0.0.1:0"]
grace_time_seconds = 0
[cluster]
secret = "secret"
[[export]]
name = "wide"
path = "names"
squash = "none"
unprivileged_ports = true
stripe_bytes = 65536
$(for number in 1 2 3; do
    printf '[[export.node]]\nnumber = %s\ncontrol = "%s"\n' "$number" "${control[number]}"
done)
END
serve --config "$work/dafs.toml"
nfs=$(sed -n 's/.*listening for NFS *address=//p' "$log" | head -n 1)
status=("$dafs" cluster status --state-directory "$work/state")
all_there() { "${status[@]}"; }
eventually all_there
expect 0 '"connected":true' "${status[@]}" --json

step "there and back"
head -c 20000000 /dev/urandom >"$work/wanted"
"$dafs" put "$work/wanted" "$url/wide/one"
"$dafs" get "nfs://$nfs/wide/one" "$work/back"
same "$work/wanted" "$work/back" "what NFS reads and what DAFS wrote"
"$dafs" put "$work/wanted" "nfs://$nfs/wide/two"
"$dafs" get "$url/wide/two" "$work/back.2"
same "$work/wanted" "$work/back.2" "what DAFS reads and what NFS wrote"
each_has_served() {
    [[ $("${status[@]}" --json | grep -cE '"read_bytes":[1-9][0-9]+,"written_bytes":[1-9][0-9]+,"indirect_bytes":0') == 3 ]]
}
eventually each_has_served
for number in 1 2 3; do
    [[ $(du -sk "$work/data$number" | cut -f1) -ge 12000 ]] || fail "data$number has too little"
done
[[ $(du -sk "$work/names" | cut -f1) -lt 1000 ]] || fail "content is with the names"

step "there and back over RDMA, to the data servers too"
rdma=$(sed -n 's/.*listening for NFS over RDMA.* address=//p' "$log" | head -n 1)
# The number of RDMA calls to the data servers.
rdma_calls() {
    local number all=0
    for number in 1 2 3; do all=$((all + $(counted "${data_log[number]}" dafs_data_rdma_calls_total))); done
    echo "$all"
}
[[ $(rdma_calls) == 0 ]] || fail "a client over TCP has come over RDMA"
"$dafs" put "$work/wanted" "nfs+rdma://$rdma/wide/iwarp?transport=iwarp"
"$dafs" get "nfs+rdma://$rdma/wide/iwarp?transport=iwarp" "$work/back.iwarp"
same "$work/wanted" "$work/back.iwarp" "what was written and what came back by iWARP"
# At least one for each stripe of 64 KiB and each direction, except for the first, which the server
# has.
[[ $(rdma_calls) -ge 600 ]] || fail "only $(rdma_calls) calls came over RDMA"
"$dafs" rm "$url/wide/iwarp"
expect 2 'name the one address' "$dafs" serve --role data --control 127.0.0.1:0 --nfs 127.0.0.1:0 \
    --nfs-rdma 0.0.0.0:0 --cluster-secret "$work/secret" "$work/other"
expect 2 'name the port' "$dafs" serve --role data --control 127.0.0.1:0 --nfs 127.0.0.1:0 \
    --nfs-verbs 127.0.0.1:0 --cluster-secret "$work/secret" "$work/other"
expect 2 'give --verbs the address and port of --listen' "$dafs" serve --role data \
    --control 127.0.0.1:0 --nfs 127.0.0.1:0 --listen 127.0.0.1:0 --verbs 127.0.0.1:20490 \
    --cluster-secret "$work/secret" "$work/other"

step "a data server is killed under writes"
size_of() { du -sk "$work/data2" | cut -f1; }
is_missed() { ("${status[@]}" || true) | grep " $1 missing " >/dev/null; }
while read -r place; do
    before=$(size_of)
    "$dafs" put "$work/wanted" "$place" >"$work/put" 2>&1 &
    writer=$!
    started+=("$writer")
    has_grown() { [[ $(size_of) -gt $before ]]; }
    eventually has_grown
    kill_data 2
    eventually is_missed 2
    data 2
    # A client that waits and keeps unstable data has sent it again; any other got an error.
    wait "$writer" || {
        eventually all_there
        grep -qE 'write it again|DELAY' "$work/put" || { cat "$work/put"; fail "a write was not carried on"; }
        "$dafs" put "$work/wanted" "$place"
    }
    "$dafs" get "$url/wide/${place##*/}" "$work/back.${place##*/}"
    same "$work/wanted" "$work/back.${place##*/}" "what was written and what came back"
done <<END
nfs://$nfs/wide/three
$url/wide/five
END
eventually all_there

step "removal goes on without a data server, and a new content when it is back"
kill_data 3
eventually is_missed 3
"$dafs" layout --state-directory "$work/state" /wide/three >"$work/drawn"
[[ $(grep '^missing: ' "$work/drawn") == "missing: node 3 at ${control[3]}: "* ]] ||
    { cat "$work/drawn"; fail "it does not say which node is missing"; }
"$dafs" rm "$url/wide/one" "$url/wide/two" "$url/wide/five"
[[ ! -e $work/names/one ]] || fail "the name is still there"
echo short >"$work/short"
"$dafs" put "$work/short" "nfs://$nfs/wide/three" --deadline 0 >"$work/put" 2>&1 &
writer=$!
started+=("$writer")
data 3
wait "$writer" || { cat "$work/put"; fail "a change of size was not carried on"; }
expect 0 short "$dafs" cat "$url/wide/three"
few_left() { [[ $(find "$work"/data? -type f -size +1k ! -name node ! -name incarnation | wc -l) -le 3 ]]; }
eventually few_left

step "what is not the data server that it should be"
says() { ("${status[@]}" 2>&1 || true) | grep -F -e "$1" >/dev/null; }
kill_data 1
data 1 --cluster-secret "$work/other/secret" "$work/data1"
eventually says 'another cluster secret'
kill_data 1
mkdir "$work/empty"
data 1 --cluster-secret "$work/secret" "$work/empty"
eventually says 'is empty'
[[ ! $(ls -A "$work/empty") ]] || fail "an empty directory was taken for the node's"
kill_data 1
kill_data 2
data 1 --cluster-secret "$work/secret" "$work/data2"
eventually says 'another node'
kill_data 1
expect 1 'not empty' "$dafs" serve --role data --control 127.0.0.1:0 --nfs 127.0.0.1:0 \
    --cluster-secret "$work/secret" "$work/names"
data 1
data 2
eventually all_there
# With an older state of its directory.
kill_data 2
cp -a "$work/data2" "$work/older"
data 2
eventually all_there
"$dafs" put "$work/wanted" "$url/wide/six"
kill_data 2
mv "$work/data2" "$work/newest"
mv "$work/older" "$work/data2"
data 2
eventually says 'has gone back in time'
is_missed 2 || fail "it is let in"
kill_data 2
rm -r "$work/data2"
mv "$work/newest" "$work/data2"
data 2
eventually all_there
"$dafs" get "$url/wide/six" "$work/back.6"
same "$work/wanted" "$work/back.6" "what was written and what came back"
"$dafs" put "$work/wanted" "$url/wide/four"
"$dafs" get "$url/wide/four" "$work/back.4"
same "$work/wanted" "$work/back.4" "what was written and what came back"

step "nodes come and go under load"
add=("$dafs" cluster add --state-directory "$work/state")
drain=("$dafs" cluster drain --state-directory "$work/state")
expect 1 'names no other nodes' "${add[@]}"
for number in 1 2 3 4; do "$dafs" put "$work/wanted" "$url/wide/old$number"; done
head -c 3000000 /dev/urandom >"$work/some"
# Writes and reads with both protocols, and compares, until told to stop.
load() {
    local turn=0 place
    while [[ ! -e $work/enough ]]; do
        turn=$((turn + 1))
        for place in "$url/wide/by-dafs$((turn % 3))" "nfs://$nfs/wide/by-nfs$((turn % 3))"; do
            "$dafs" put "$work/some" "$place" && "$dafs" get "$place" "$work/load" || return 1
            cmp "$work/some" "$work/load" || return 1
            "$dafs" get "$url/wide/old$((turn % 4 + 1))" "$work/load" || return 1
            cmp "$work/wanted" "$work/load" || return 1
            rm "$work/load"
        done
        echo "$turn" >"$work/turns"
    done
}
load >"$work/load.log" 2>&1 &
loader=$!
started+=("$loader")
data 4
cp "$work/dafs.toml" "$work/dafs.before"
printf '[[export.node]]\nnumber = 4\ncontrol = "%s"\n' "${control[4]}" >>"$work/dafs.toml"
expect 0 'node 4 of "wide" is in use' "${add[@]}"
eventually all_there
expect 1 'there is no node 9' "${drain[@]}" 9
expect 0 'files are moved off node 2' "${drain[@]}" 2
expect 0 'draining' "${status[@]}"
expect 0 'takes files again' "${drain[@]}" 2 --undo
timeout 300 "${drain[@]}" 2 --wait || { "${status[@]}"; fail "the node does not become empty"; }
touch "$work/enough"
wait "$loader" || { cat "$work/load.log"; fail "something went wrong meanwhile"; }
nothing_on() { [[ ! $(find "$work/data$1" -type f ! -name node ! -name incarnation) ]]; }
nothing_on 2 || fail "there is something left on node 2"
! nothing_on 4 || fail "nothing came to node 4"
kill_data 2
is_empty() { "${status[@]}" | grep ' 2 empty ' >/dev/null; }
eventually is_empty
sed -i '/^number = 2$/,/^control/d' "$work/dafs.toml"
# Remove the rest of the entry.
awk '/^\[\[export.node\]\]$/ { held = $0; next } held && /^number/ { print held } { held = ""; print }' \
    "$work/dafs.toml" >"$work/dafs.new"
cat "$work/dafs.new" >"$work/dafs.toml"
expect 0 'node 2 of "wide" is left out' "${add[@]}"
all_there || fail "a node that was left out is missed"

step "a metadata server that is killed while files are moved goes on with it"
expect 0 'files are moved off node 4' "${drain[@]}" 4
kill_server
serve --config "$work/dafs.toml"
nfs=$(sed -n 's/.*listening for NFS *address=//p' "$log" | head -n 1)
timeout 300 "${drain[@]}" 4 --wait || { "${status[@]}"; fail "the node does not become empty"; }
nothing_on 4 || fail "there is something left on node 4"
for number in 1 2 3 4; do
    "$dafs" get "nfs://$nfs/wide/old$number" "$work/moved$number"
    same "$work/wanted" "$work/moved$number" "what was written and what was moved"
done

step "another secret, under load"
turns() { cat "$work/turns" 2>/dev/null || echo 0; }
goes_on() { [[ $(turns) -gt $before ]] || ! kill -0 "$loader" 2>/dev/null; }
has_read() { [[ $(grep -c 'secret of the cluster was read again' "${data_log[$1]}") == "$2" ]]; }
# All servers have read the file of the step with this number, and the load has gone on since.
taken() {
    expect 0 'applied: the file of cluster.secret' "$dafs" reload --state-directory "$work/state"
    for number in 1 3 4; do kill -HUP "${data_server[number]}"; done
    for number in 1 3 4; do eventually has_read "$number" "$1"; done
    before=$(turns)
    eventually goes_on
    eventually all_there
}
lost=$(grep -c 'a node was lost' "$log" || true)
rm -f "$work/enough" "$work/turns"
load >"$work/load.log" 2>&1 &
loader=$!
started+=("$loader")
cp -p "$work/secret" "$work/secret.old"
"$dafs" cluster init --secret "$work/secret.new"
cat "$work/secret.old" "$work/secret.new" >"$work/secret"
taken 1
cat "$work/secret.new" "$work/secret.old" >"$work/secret"
taken 2
cat "$work/secret.new" >"$work/secret"
taken 3
touch "$work/enough"
wait "$loader" || { cat "$work/load.log"; fail "something went wrong meanwhile"; }
[[ $(grep -c 'a node was lost' "$log" || true) == "$lost" ]] || fail "a connection between servers was lost"
cat "$work/secret.new" "$work/secret.new" >"$work/secret"
expect 1 'the same secret twice' "$dafs" reload --state-directory "$work/state"
expect 2 'the same secret twice' "$dafs" config check "$work/dafs.toml"
cat "$work/secret.new" >"$work/secret"
"$dafs" put "$work/some" "nfs://$nfs/wide/new"
"$dafs" get "$url/wide/new" "$work/secret.some"
same "$work/some" "$work/secret.some" "what was written and what came back"
kill_data 1
data 1 --cluster-secret "$work/secret.old" "$work/data1"
eventually says 'another cluster secret'
kill_data 1
data 1
eventually all_there

step "wrong command lines"
chmod 644 "$work/other/secret"
data=("$dafs" serve --role data "$work/data1" --control 127.0.0.1:0)
expect 2 'chmod 600' "${data[@]}" --nfs 127.0.0.1:0 --cluster-secret "$work/other/secret"
expect 2 'dafs cluster init' "${data[@]}" --nfs 127.0.0.1:0
expect 2 'the one address' "${data[@]}" --nfs 0.0.0.0:0 --cluster-secret "$work/secret"
expect 2 'means nothing to a data server' "${data[@]}" --no-root-squash
expect 2 'are for data servers' "$dafs" serve "$work/names" --control 127.0.0.1:0
stop_server

step "the demo"
"$dafs" cluster demo "$work/demo" --listen 127.0.0.1:0 --nfs 127.0.0.1:0 \
    >"$work/demo.out" 2>"$work/demo.log" &
demo=$!
started+=("$demo")
is_demo_ready() { grep -q '^ready ' "$work/demo.out"; }
eventually is_demo_ready
url=$(sed -n 's/^ready //p' "$work/demo.out")
"$dafs" put "$work/wanted" "${url}file"
"$dafs" get "${url}file" "$work/back.5"
same "$work/wanted" "$work/back.5" "what was written and what came back"
for number in 1 2 3; do
    [[ $(du -sk "$work/demo/data$number" | cut -f1) -ge 6000 ]] || fail "data server $number of the demo has too little"
done
# The printed suggestion, word for word, except for the mount, which our client replaces.
mkdir "$work"/{bin,tried}
ln -s "$(realpath "$dafs")" "$work/bin/dafs"
tried() { (cd "$work/tried" && PATH=$work/bin:$PATH bash -euc "$(sed -n "s/^$1: *//p" "$work/demo.out")"); }
cp "$work/wanted" "$work/tried/FILE"
tried try
[[ $(tried and | grep -c ' ready ') == 3 ]] || fail "the demo's status does not show three data servers"
read -r port place < <(sed -nE 's/^or: *mount -t nfs -o .*port=([0-9]+)[^ ]* [^:]*:([^ ]*) .*/\1 \2/p' "$work/demo.out")
"$dafs" get "nfs://127.0.0.1:$port${place%/}/FILE" "$work/back.6"
same "$work/wanted" "$work/back.6" "what was tried and what NFS reads"
kill -TERM "$demo"
wait "$demo" || fail "the demo ended with status $?"
