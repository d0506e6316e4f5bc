#!/bin/bash
# SQLite's own test of concurrent writers (mptest), from Debian's source of the installed library:
# under `dafs run`, and on a mount where possible. Five processes change tables of one database; in
# some scripts one of them crashes in a transaction, which the others roll back.
source "$(dirname "$0")/lib.sh"

if is_root && [[ -c /dev/fuse ]] && unshare -m true 2>/dev/null; then in_own_mounts; fi
needs_preload

for program in cc sqlite3; do
    command -v "$program" >/dev/null || skip "there is no $program; run: scripts/setup.sh build test"
done
source=$(scripts/source.sh libsqlite3-dev 2>"$work/said") || skip "$(tail -n 1 "$work/said")"
# The speed of the machine must not count: the test waits ten seconds for locks and for its
# processes, and two at its end for one that has yet to crash.
sed -e 's/^#define DEFAULT_TIMEOUT .*/#define DEFAULT_TIMEOUT 120000/' -e 's/waitForClient(0, 2000,/waitForClient(0, 120000,/' \
    "$source/mptest/mptest.c" >"$work/mptest.c"
[[ $(grep -c 120000 "$work/mptest.c") == 2 ]] || fail "SQLite's test has its times elsewhere now"
cc -w -O1 -DHAVE_USLEEP -o "$work/mptest" "$work/mptest.c" -lsqlite3 || fail "SQLite's test does not compile"
for script in "$source"/mptest/*.*test; do
    sed 's/^--wait \([a-z0-9]*\)$/& 120000/' "$script" >"$work/$(basename "$script")"
done

mkdir -m 777 "$work/tree" "$work/point"
serve "$work/tree" ${squash[@]+"${squash[@]}"}

# Its processes may outlive the summarising one.
all_ended() { ! pgrep -f "^$work/mptest " >/dev/null; }

# concurrent DIRECTORY MODE SCRIPT COMMAND... -- runs it, and checks the database afterwards.
concurrent() {
    local directory=$1 mode=$2 script=$3 name="$2-$3.db" status=0
    shift 3
    timeout -k 5 300 "$@" "$work/mptest" "$directory/$name" --journalmode "$mode" --sync --quiet \
        "$work/$script.test" >"$work/said" 2>&1 </dev/null || status=$?
    [[ $status == 0 ]] || {
        tail -n 30 "$work/said"
        fail "$script, $mode: status $status: $(grep -m 3 -E 'ERROR|errcode|rror:|imeout' "$work/said" || true)"
    }
    grep '^Summary: 0 errors out of [1-9]' "$work/said" || fail "$script, $mode: $(cat "$work/said")"
    # Their locks do not exist for a reader that bypasses the server.
    eventually all_ended
    [[ $(sqlite3 "$work/tree/$name" 'pragma integrity_check') == ok ]] ||
        fail "$script, $mode: SQLite finds faults"
}

# Mapped memory of its configurations, and the write-ahead log, are not supported there.
step "under dafs run"
for mode in delete truncate persist; do
    concurrent /data "$mode" multiwrite01 "$dafs" run --at "/data=$url"
done
concurrent /data delete crash01 "$dafs" run --at "/data=$url"

if [[ ${DAFS_E2E_MOUNTS:-} ]]; then
    step "on a mount"
    undo+=("umount -l '$work/point' 2>/dev/null")
    "$dafs" mount "$url/" "$work/point"
    started+=("$(pgrep -f -- "^[^ ]* mount .*$work/point")")
    # The configurations set other journals than the write-ahead log, at which they fail on any file
    # system.
    for script in multiwrite01 crash01 config01; do
        concurrent "$work/point" delete "$script"
    done
    for script in multiwrite01 ${DAFS_TEST_LONG:+crash01}; do
        concurrent "$work/point" wal "$script"
    done
    "$dafs" umount "$work/point"
else
    echo "no mount: that needs root here, and /dev/fuse"
fi
stop_server
