#!/bin/bash
# A server does not start over state that is lost, damaged, older than it was or another server's:
# it reports the file, the lost state and the remedy. A persistent lock is never forgotten silently.
# The administrator can accept the loss.
source "$(dirname "$0")/lib.sh"

one_export 'name = "data"' 'path = "export"' 'durable_replies = "power"' 'squash = "none"'
state=$work/state
begin() { serve --config "$work/dafs.toml"; }
# Persistent locks. Locks with recovery are listed too when their holder has not come back.
locks() { "$dafs" lock list --state-directory "$state" --json | grep -vc '"auto_recover":true' || true; }
# The lock and the fence are unchanged, and the undo log is not forgotten.
is_whole() {
    [[ $(locks) == 1 && $("$dafs" fence get "$url/data/file" --fence-id n1) == n1 && -e $state/undo/0.undo ]]
}
# hold NAME OPTION -- locks a file until `release`.
holders=()
hold() {
    rm -f "$work/held"
    "$dafs" lock hold "$url/data/$1" "$2" --fence-id n1 >"$work/held" 2>&1 &
    holders+=($!)
    started+=($!)
    eventually grep -q '^locked$' "$work/held"
}

serve --config "$work/dafs.toml" --state-directory "$work/other"
echo half >"$work/file"
"$dafs" put "$work/file" "$url/data/file"
"$dafs" put "$work/file" "$url/data/undone"
kill_server
begin
kill_server
begin
cp -a "$state" "$work/before"
"$dafs" fence set "$url/data/file" n1
hold file --persist
kill_server
cp -a "$state" "$work/locked"
begin
hold undone --auto-recover
kill_server
kill -9 "${holders[@]}"
wait "${holders[@]}" 2>/dev/null || true
begin
is_whole || fail "the locks or the fence are forgotten"
kill_server
cp -a "$state" "$work/whole"

# restore [NAME] -- restores the state of the last end, or that saved under the name.
restore() {
    rm -rf "$state"
    cp -a "$work/${1:-whole}" "$state"
}
# refused NAME [TEXT] -- the server does not start, names the file and the remedy, also at a second
# attempt.
refused() {
    expect 1 "accept-loss $1 --state-directory $state" timeout 30 "$dafs" serve --config "$work/dafs.toml"
    expect 1 "${2:-}" timeout 30 "$dafs" serve --config "$work/dafs.toml"
    restore
}

step "it is found again as it was left, with the socket of administrators in place of a symlink"
restore
echo precious >"$work/victim"
ln -sf "$work/victim" "$state/admin.sock"
begin
is_whole || fail "the locks or the fence are forgotten"
[[ -S $state/admin.sock && ! -L $state/admin.sock && $(<"$work/victim") == precious ]] || fail "a symlink was followed"
kill_server
restore

step "a bit of the database, right after the lock was had"
# In the pages written by its last commit.
for at in 4096 4160 4288 4416; do
    restore locked
    flip "$state/clients.redb" "$at"
    if starts; then
        [[ $(locks) == 1 ]] || fail "byte $at: the lock is forgotten"
        kill_server
    else
        tells_remedy "$state/clients.redb" || fail "byte $at: not named, or without a remedy"
    fi
done
restore

# These prevent the start. Each other one does too, or has no effect on the restored state.
must_stop=' removed emptied zeroed first other symlink '
step "each file of state with each damage"
mapfile -t segments < <(cd "$state" && ls journal/segment-*)
[[ ${#segments[@]} -ge 2 ]] || fail "the journal has ${#segments[@]} segments"
for name in clients.redb fences.redb handle-key inventory undo.index undo/0.undo journal/key "${segments[@]}"; do
    for how in removed emptied zeroed cut first middle last older other symlink; do
        [[ $how != older || -e $work/before/$name ]] || continue
        [[ $how != other || -e $work/other/$name ]] || continue
        damage "$how" "$state/$name" "$work/before/$name" "$work/other/$name"
        if starts; then
            # The last segment is empty: it was allocated in advance.
            [[ $must_stop != *" $how "* || $name$how == "${segments[-1]}"[rz]* ]] ||
                fail "$name $how, and the server starts"
            is_whole || fail "$name $how, and something is forgotten"
            kill_server
        else
            tells_remedy "$state/${name%%/*}" || fail "$name $how: not named, or without a remedy"
        fi
        is_untouched || fail "$name: a symlink was followed"
        restore
    done
done
for name in handle-key clients.redb fences.redb undo.index; do
    damage other "$state/$name" '' "$work/other/$name"
    refused "$name" "it is another one"
done
# A commit slot, and a page: the database itself would return to the commit before.
for at in 85 213 345; do
    flip "$state/clients.redb" "$at"
    refused clients.redb "it is damaged"
done
damage older "$state/clients.redb" "$work/before/clients.redb"
refused clients.redb "it is an older state"

# A file that the server does not know yet, and that is no database.
"$dafs" accept-loss clients.redb --state-directory "$state"
head -c 4096 /dev/zero | tr '\0' x >"$state/clients.redb"
refused clients.redb "it is damaged: Not a redb database"

step "the journal, and what is to be undone"
rm -r "$state/journal"
refused journal "it is missing"
rm "$state/journal"/segment-*
refused journal "its segments are missing"
flip "$state/journal/key" 3
refused journal "its key is another one"
damage older "$state/undo.index" "$work/before/undo.index"
expect 1 'older copy' timeout 30 "$dafs" serve --config "$work/dafs.toml"
restore

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
expect 0 'or makes a new one' "$dafs" accept-loss clients.redb --state-directory "$state"
begin
[[ $(locks) == 0 ]] || fail "the lock is known"
expect 1 'another server uses' "$dafs" accept-loss fences.redb --state-directory "$state"
kill_server
restore
cp -p "$work/before/clients.redb" "$state/clients.redb"
"$dafs" accept-loss clients.redb --state-directory "$state"
begin
[[ $(locks) == 0 ]] || fail "the older state is not used"
kill_server
restore
rm "$state/inventory"
"$dafs" accept-loss inventory --state-directory "$state"
begin
is_whole || fail "what is there is not used"
stop_server

step "the state of an earlier version is taken over"
rm "$state/inventory"
for name in clients.redb fences.redb; do
    dd if=/dev/zero of="$state/$name" bs=1 seek=320 count=192 conv=notrunc status=none
done
begin
is_whole || fail "the locks or the fence are forgotten"
stop_server
grep -q '^clients.redb ' "$state/inventory" || fail "it is not in the inventory"
