#!/bin/bash
# Locks of NFSv3 clients (NLM) and of DAFS clients exclude each other. A client of a few lines stands for the
# lock managers of two hosts. Garbage and requests out of all bounds change nothing.
source "$(dirname "$0")/lib.sh"

# Modules leave nothing in the source tree.
export PYTHONDONTWRITEBYTECODE=1
nlm=$(cd "$(dirname "$0")" && pwd)/nlm.py
mkdir -p "$work/export"
echo content >"$work/export/file"
chmod 777 "$work/export"
chmod 666 "$work/export/file"
serve "$work/export" --nfs 127.0.0.1:0 --no-root-squash
port=$(sed -n 's/.*listening for NFS.*:\([0-9]*\).*/\1/p' "$log" | head -n 1)
[[ $port ]] || { cat "$log"; fail "the log does not say where NFS is served"; }
locks() { python3 "$nlm" "$port" "$@" || fail "the lock manager was answered otherwise"; }
# hold STATUS -- a DAFS client that locks the file for a moment ends with this status.
hold() {
    local status=0
    "$dafs" lock hold "$url/file" --timeout 0 -- true >"$work/said" 2>&1 || status=$?
    [[ $status == "$1" ]] || { cat "$work/said"; fail "the DAFS client ended with $status, not $1"; }
}

step "two hosts and a DAFS client exclude each other"
hold 0
locks lock,a,0,10=granted lock,b,9,1=denied test,b,0,0=denied lock,b,10,0=granted lock,a,0,10=granted
hold 4
locks unlock,a,0,0=granted unlock,b,0,0=granted unlock,b,0,0=granted test,b,0,0=granted
hold 0

step "a host that waits behind a DAFS client gives up"
"$dafs" lock hold "$url/file" -- \
    sh -c ": >'$work/begun'; until [ -e '$work/go' ]; do sleep 0.05; done" &
holder=$!
started+=("$holder")
eventually test -e "$work/begun"
locks lock,a,0,1=denied block,a,0,1=blocked block,a,0,1=blocked cancel,a,0,1=granted cancel,a,0,1=denied
: >"$work/go"
wait "$holder" || fail "the DAFS client has lost its lock"
locks lock,a,0,1=granted

step "the locks of a host end when it restarts, and no others"
locks lock,b,5,1=granted notify,c,5,0= test,b,0,1=denied notify,a,3,0= test,b,0,1=denied notify,a,5,0=
eventually python3 "$nlm" "$port" test,b,0,1=granted
locks test,a,5,1=denied unlock,b,0,0=granted

step "garbage, and requests out of all bounds"
locks garbage=garbage lock,a,9223372036854775808,1=fbig lock,a,0,18446744073709551615=fbig
locks "lock,$(printf '%1000s' '' | tr ' ' a),0,1=granted" "unlock,$(printf '%1000s' '' | tr ' ' a),0,1=granted"
locks test,a,0,0=granted
hold 0
