#!/bin/bash
# Locks: a killed holder leaves a broken lock, also across a killed server. The next client is told,
# no client reads or writes the locked bytes, and a repair frees it.
source "$(dirname "$0")/lib.sh"

mkdir -p "$work/data"
chmod 777 "$work/data"
cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
state_directory = "state"
lease_time_seconds = 2
[[export]]
name = "data"
path = "data"
END
start() { serve --config "$work/dafs.toml"; }
start
place=(--state-directory "$work/state")
echo half >"$work/half"
file() { echo "$url/data/file"; }
"$dafs" put "$work/half" "$(file)"

# hold NAME OPTIONS... -- holds a lock in the background; its process is $holder.
hold() {
    local name=$1
    shift
    "$dafs" lock hold "$(file)" "$@" >"$work/$name" 2>&1 &
    holder=$!
    eventually grep -q '^locked$' "$work/$name"
}

is() { "$dafs" lock list "${place[@]}" --json | grep "\"state\":\"$1\"" >/dev/null; }
# ends STATUS COMMAND...
ends() {
    local wanted=$1 status=0
    shift
    "$@" >/dev/null 2>&1 || status=$?
    ((status == wanted))
}

step "a lock keeps others out, and is given back"
expect 0 'free' "$dafs" lock test "$(file)"
hold first
expect 4 'locked by client' "$dafs" lock test "$(file)"
expect 4 'locked by client' "$dafs" lock hold "$(file)" --timeout 0 -- true
expect 4 '"state":"held"' "$dafs" lock test "$(file)" --shared --json
expect 0 '"state":"held"' "$dafs" lock list "${place[@]}" --json
kill "$holder"
wait "$holder" || fail "the holder did not end in order"
expect 0 'free' "$dafs" lock test "$(file)"
expect 0 'inside' "$dafs" lock hold "$(file)" --persist -- echo inside
expect 7 '' "$dafs" lock hold "$(file)" --offset 3 --length 4 -- sh -c 'exit 7'

step "with auto-recovery nobody has to repair"
hold recovering --auto-recover
expect 0 '"auto_recover":true' "$dafs" lock list "${place[@]}" --json
expect 0 'recover' "$dafs" lock list "${place[@]}"
expect 4 'locked by client' "$dafs" lock hold "$(file)" --timeout 0 -- true
kill -9 "$holder"
wait "$holder" 2>/dev/null || true
expect 0 'mine' "$dafs" lock hold "$(file)" --auto-recover --timeout 30 -- echo mine
expect 7 '' "$dafs" lock hold "$(file)" --auto-recover -- sh -c 'exit 7'
expect 1 'No such file' "$dafs" lock hold "$(file)" --auto-recover -- /nonexistent/program
expect 0 'free' "$dafs" lock test "$(file)"
expect 0 'half' "$dafs" cat "$(file)"
hold ended --auto-recover
kill "$holder"
wait "$holder" || fail "the holder did not end in order"
[[ -z $(ls "$work/state/undo") ]] || fail "a log is left"

step "wrong input"
expect 2 'cannot be used with' "$dafs" lock hold "$(file)" --auto-recover --shared
expect 2 'cannot be used with' "$dafs" lock hold "$(file)" --auto-recover --offset 3
expect 2 'is not in' "$dafs" lock hold "$(file)" --length 0
expect 2 '' "$dafs" lock hold nfs://127.0.0.1/data/file
expect 1 'NOENT' "$dafs" lock hold "$url/data/nothing"
expect 1 'not broken' "$dafs" lock repair "$(file)"
expect 1 'INVAL' "$dafs" lock hold "$(file)" --offset 18446744073709551615 --length 2

step "a holder that is killed leaves a broken lock"
hold killed --persist
kill -9 "$holder"
wait "$holder" 2>/dev/null || true
# Until the lease is over, the holder may come back.
eventually ends 5 "$dafs" lock hold "$(file)" --timeout 0 -- true
expect 5 'half changed' "$dafs" lock hold "$(file)" -- true
expect 5 '"state":"broken"' "$dafs" lock test "$(file)" --json
is broken || fail "not listed as broken"
expect 0 '/data inode' "$dafs" lock list "${place[@]}"
expect 1 '' "$dafs" cat "$(file)"

step "also over a server that is killed"
kill_server
start
is broken || fail "forgotten"
eventually ends 5 "$dafs" lock hold "$(file)" --timeout 0 -- true
expect 5 'has failed' "$dafs" lock hold "$(file)" -- true
expect 1 '' "$dafs" cat "$(file)"

step "repaired, then free"
expect 0 '' "$dafs" lock repair "$(file)" -- "$dafs" cat "$(file)"
expect 0 'free' "$dafs" lock test "$(file)"
expect 0 'half' "$dafs" cat "$(file)"
expect 0 'inside' "$dafs" lock hold "$(file)" -- echo inside
[[ -z $("$dafs" lock list "${place[@]}" --json) ]] || fail "something is left"

step "repaired by the first who comes"
hold another --persist
kill -9 "$holder"
wait "$holder" 2>/dev/null || true
eventually ends 0 "$dafs" lock repair "$(file)"
expect 0 'free' "$dafs" lock test "$(file)"

step "a server that is killed under a living holder"
hold living --persist
kill_server
listen=${url#dafs://}
sed -i "s/127.0.0.1:0/${listen%/}/" "$work/dafs.toml"
start
eventually is held
eventually ends 4 "$dafs" lock hold "$(file)" --timeout 0 -- true
kill "$holder"
wait "$holder" || fail "the holder did not end in order: $(cat "$work/living")"
expect 0 'free' "$dafs" lock test "$(file)"
