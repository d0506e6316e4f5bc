#!/bin/bash
# A server does not start over state that is lost, damaged, older than it was or another server's: it
# says which file, what is lost with it and what can be done. A persistent lock is never forgotten
# without a word. The administrator can accept the loss.
source "$(dirname "$0")/lib.sh"

mkdir "$work/export"
cat >"$work/dafs.toml" <<CONFIG
listen = ["127.0.0.1:0"]
state_directory = "state"
[[export]]
name = "data"
path = "export"
durable_replies = "power"
squash = "none"
CONFIG
state=$work/state
begin() { serve --config "$work/dafs.toml"; }
locks() { "$dafs" lock list --state-directory "$state" --json | wc -l; }

serve --config "$work/dafs.toml" --state-directory "$work/other"
stop_server
begin
echo half >"$work/file"
"$dafs" put "$work/file" "$url/data/file"
"$dafs" lock hold "$url/data/file" --persist >"$work/held" 2>&1 &
holder=$!
started+=("$holder")
eventually grep -q '^locked$' "$work/held"
kill_server
kill -9 "$holder"
wait "$holder" 2>/dev/null || true
cp -a "$state" "$work/before"
begin
[[ $(locks) == 1 ]] || fail "the lock is forgotten"
kill_server
cp -a "$state" "$work/whole"

restore() {
    rm -rf "$state"
    cp -a "$work/whole" "$state"
}
# refused NAME [TEXT] -- the server does not start, names the file and says what can be done, also when it
# is tried again.
refused() {
    expect 1 "accept-loss $1 --state-directory $state" timeout 30 "$dafs" serve --config "$work/dafs.toml"
    expect 1 "${2:-}" timeout 30 "$dafs" serve --config "$work/dafs.toml"
    restore
}
flip() {
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    printf "\\x$(printf %02x $((byte ^ 4)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

step "it is found again as it was left"
restore
begin
[[ $(locks) == 1 ]] || fail "the lock is forgotten"
kill_server
restore

for name in handle-key clients.redb fences.redb; do
    step "$name"
    rm "$state/$name"
    refused "$name" "it is missing"
    truncate -s 0 "$state/$name"
    refused "$name"
    head -c "$(stat -c %s "$state/$name")" /dev/zero >"$work/zero"
    cp "$work/zero" "$state/$name"
    refused "$name"
    cp -p "$work/other/$name" "$state/$name"
    refused "$name" "it is another one"
    flip "$state/$name" 9
    refused "$name"
done
# A slot of a commit, and a page: the database itself would go back to the commit before.
for at in 85 213 345; do
    flip "$state/clients.redb" "$at"
    refused clients.redb "it is damaged"
done
cp -p "$work/before/clients.redb" "$state/clients.redb"
refused clients.redb "it is an older state"

step "the journal, and what is to be undone"
rm -r "$state/journal"
refused journal "it is missing"
rm "$state/journal"/segment-*
refused journal "its segments are missing"
flip "$state/journal/key" 3
refused journal "its key is another one"
rm "$state/undo.index"
refused undo.index "it is missing"
truncate -s 100 "$state/undo.index"
refused undo.index "it is missing or damaged"
flip "$state/undo.index" 600
expect 1 'or move it away and say `dafs accept-loss undo.index`' \
    timeout 30 "$dafs" serve --config "$work/dafs.toml"
restore
cp -p "$work/other/undo.index" "$state"
refused undo.index "it is another one"

step "the inventory"
rm "$state/inventory"
refused inventory
truncate -s 0 "$state/inventory"
refused inventory
flip "$state/inventory" 40
refused inventory

step "a loss is accepted by name"
expect 1 'there are: clients.redb, fences.redb, handle-key, journal, undo.index, inventory' \
    "$dafs" accept-loss passwords --state-directory "$state"
rm "$state/clients.redb"
expect 0 'or with a new one' "$dafs" accept-loss clients.redb --state-directory "$state"
begin
[[ $(locks) == 0 ]] || fail "the lock is known"
expect 1 'another server uses' "$dafs" accept-loss fences.redb --state-directory "$state"
kill_server
restore
cp -p "$work/before/clients.redb" "$state/clients.redb"
"$dafs" accept-loss clients.redb --state-directory "$state"
begin
[[ $(locks) == 1 ]] || fail "the older state is not used"
kill_server
rm "$state/inventory"
"$dafs" accept-loss inventory --state-directory "$state"
begin
[[ $(locks) == 1 ]] || fail "what is there is not used"
stop_server

step "the state of an earlier version is taken over"
rm "$state/inventory"
for name in clients.redb fences.redb; do
    dd if=/dev/zero of="$state/$name" bs=1 seek=320 count=192 conv=notrunc status=none
done
begin
[[ $(locks) == 1 ]] || fail "the lock is forgotten"
stop_server
grep -q '^clients.redb ' "$state/inventory" || fail "it is not in the inventory"
