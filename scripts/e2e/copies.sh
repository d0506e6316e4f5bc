#!/bin/bash
# Files with two copies on three data servers. A data server killed under writes delays no client,
# gets its missing data when it is back, and then any other one can fail. The same holds when the
# metadata server dies. A node is drained, and one that has lost its disk gets its copies again.
source "$(dirname "$0")/lib.sh"

mkdir "$work/names"
[[ $(id -u) != 0 ]] || chmod 777 "$work/names"
"$dafs" cluster init --secret "$work/secret"
for number in 1 2 3; do data "$number"; done
cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
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
status=("$dafs" cluster status --state-directory "$work/state")
all_there() { "${status[@]}"; }
metadata() {
    serve --config "$work/dafs.toml"
    nfs=$(sed -n 's/.*listening for NFS *address=//p' "$log" | head -n 1)
    eventually all_there
}
is_missed() { ("${status[@]}" || true) | grep " $1 missing " >/dev/null; }
says() { ("${status[@]}" || true) | grep -F -e "$1" >/dev/null; }
is_mended() { all_there && ! says 'copies to repair'; }
# Compares each file with the written content, by either protocol.
check() {
    local name
    for name in "${names[@]}"; do
        rm -f "$work/back"
        "$dafs" get "$url/safe/$name" "$work/back"
        same "$work/$name.wanted" "$work/back" "$1: $name, by DAFS"
        rm -f "$work/back"
        "$dafs" get "nfs://$nfs/safe/$name" "$work/back"
        same "$work/$name.wanted" "$work/back" "$1: $name, by NFS"
    done
}
# make NAME PLACE -- writes a new file, and registers it for check.
names=()
make() {
    head -c 6000000 /dev/urandom >"$work/$1.wanted"
    "$dafs" put "$work/$1.wanted" "$2/safe/$1"
    names+=("$1")
}

metadata
started_at=$SECONDS
step "there and back, on two of the three"
for number in 1 2 3 4; do
    make "dafs$number" "$url"
    make "nfs$number" "nfs://$nfs"
done
check "all are there"
held=$(du -sck "$work"/data? | sed -n 's/\ttotal$//p')
((held > 8 * 6000 * 2 - 4000 && held < 8 * 6000 * 2 + 4000)) || fail "$held KiB are not two copies"
"$dafs" layout --state-directory "$work/state" /safe/dafs1 | tee "$work/drawn"
grep -q 'in 2 copies' "$work/drawn" || fail "two copies are not told"
[[ $(grep -c '\[####\]' "$work/drawn") == 2 ]] || fail "both are up to date"

step "a data server is killed under writes, and nobody waits for it"
# Waits until the authorisations of clients have expired.
while ((SECONDS - started_at < 9)); do sleep 0.2; done
head -c 40000000 /dev/urandom >"$work/long1.wanted"
cp "$work/long1.wanted" "$work/long2.wanted"
cp "$work/long1.wanted" "$work/long3.wanted"
# Chance decides which two of them have a file. The first that grows is `dead`.
kept() { du -sk "$work/data$1" | cut -f1; }
grows() {
    for dead in 1 2 3; do
        [[ $(kept "$dead") -le ${before[dead]} ]] || return 0
    done
    return 1
}
before=()
for number in 1 2 3; do before[number]=$(kept "$number"); done
writers=()
for number in 1 2 3; do
    place=$url
    [[ $number == 1 ]] || place=nfs://$nfs
    "$dafs" put "$work/long$number.wanted" "$place/safe/long$number" >"$work/put$number" 2>&1 &
    writers[number]=$!
    started+=("$!")
done
eventually grows
kill_data "$dead"
for number in 1 2 3; do
    wait "${writers[number]}" || { cat "$work/put$number"; fail "a write was not carried on"; }
    names+=("long$number")
done
eventually is_missed "$dead"
check "one is dead"
make late "$url"
head -c 100 "$work/late.wanted" >"$work/short"
"$dafs" put "$work/short" "$url/safe/dafs2"
cp "$work/short" "$work/dafs2.wanted"
check "one is dead, and others were changed"

step "it is mended, and each other one can go"
! is_mended || fail "a dead one is not mended"
data "$dead"
eventually is_mended
for number in 1 2 3; do
    [[ $number != "$dead" ]] || continue
    kill_data "$number"
    eventually is_missed "$number"
    check "$number is dead"
    data "$number"
    eventually is_mended
done

step "the metadata server is killed under writes"
"$dafs" put "$work/long2.wanted" "$url/safe/torn" >"$work/put" 2>&1 &
writer=$!
started+=("$writer")
torn() { find "$work/names" -name '*.part' -size +2M | grep .; }
eventually torn
torn=$(basename "$(torn)")
kill -9 "$server"
wait "$server" 2>/dev/null || true
kill "$writer" 2>/dev/null || true
wait "$writer" 2>/dev/null || true
metadata
check "another run"
# The rest of the file that was being written is the same on both copies, in any state.
digest() { "$dafs" cat "$url/safe/$torn" | sha256sum; }
rest=$(digest)
calm() { "$dafs" layout --state-directory "$work/state" "/safe/$torn" | grep -c '\[####\]' | grep -x 2 >/dev/null; }
eventually calm
for number in 1 2 3; do
    kill_data "$number"
    eventually is_missed "$number"
    [[ $(digest) == "$rest" ]] || fail "copies differ after a crash"
    data "$number"
    eventually is_mended
done

step "a node is emptied while its files are in use"
drain=("$dafs" cluster drain --state-directory "$work/state")
# Writes and reads with both protocols, and compares, until told to stop.
load() {
    local turn=0 place
    while [[ ! -e $work/enough ]]; do
        turn=$((turn + 1))
        for place in "$url/safe/load$((turn % 3))" "nfs://$nfs/safe/load$((turn % 3 + 3))"; do
            "$dafs" put "$work/late.wanted" "$place" && "$dafs" get "$place" "$work/loaded" || return 1
            cmp "$work/late.wanted" "$work/loaded" || return 1
            "$dafs" get "$url/safe/dafs$((turn % 4 + 1))" "$work/loaded" || return 1
            cmp "$work/dafs$((turn % 4 + 1)).wanted" "$work/loaded" || return 1
            rm "$work/loaded"
        done
    done
}
load >"$work/load.log" 2>&1 &
loader=$!
started+=("$loader")
expect 0 'files are moved off node 3' "${drain[@]}" 3
expect 1 'node 2 is needed' "${drain[@]}" 2
timeout 300 "${drain[@]}" 3 --wait || { "${status[@]}"; fail "the node does not become empty"; }
touch "$work/enough"
wait "$loader" || { cat "$work/load.log"; fail "something went wrong meanwhile"; }
held=$(find "$work/data3" -type f ! -name node ! -name incarnation)
[[ ! $held ]] || fail "there is something left on node 3"
kill_data 3
check "node 3 is empty, and gone"
for number in 1 2; do
    kill_data "$number"
    eventually is_missed "$number"
    check "of the other two, $number is dead"
    data "$number"
    eventually says " $number ready "
done
data 3
expect 0 'takes files again' "${drain[@]}" 3 --undo
eventually is_mended

step "a data server with an older state of its directory"
replace=("$dafs" cluster replace --state-directory "$work/state")
kill_data 2
cp -a "$work/data2" "$work/older"
data 2
eventually is_mended
make newer "$url"
"$dafs" put "$work/late.wanted" "$url/safe/nfs1"
cp "$work/late.wanted" "$work/nfs1.wanted"
kill_data 2
mv "$work/data2" "$work/newest"
cp -a "$work/older" "$work/data2"
data 2
eventually says 'has gone back in time'
check "one has gone back in time"
kill_data 2
rm -r "$work/data2"
mv "$work/newest" "$work/data2"
data 2
eventually is_mended
check "the newest state is back"
# If it is lost, the older one replaces it.
kill_data 2
rm -r "$work/data2"
mv "$work/older" "$work/data2"
data 2
eventually says 'has gone back in time'
expect 0 'given up' "${replace[@]}" 2
eventually all_there
eventually is_mended
kill_data 1
eventually is_missed 1
check "what an older state lacked was written"
data 1
eventually is_mended

step "a data server whose disk is lost"
expect 1 'node 2 is there' "${replace[@]}" 2
kill_data 2
rm -r "$work/data2"
data 2
eventually says 'the directory there is empty'
[[ ! $(ls -A "$work/data2") ]] || fail "an empty directory was taken for the node's"
check "a disk is lost"
expect 0 'given up' "${replace[@]}" 2
eventually all_there
make new "$url"
eventually is_mended
kill_data 1
eventually is_missed 1
check "what was on the disk that was lost is on the new one"
