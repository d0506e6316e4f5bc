#!/bin/bash
# The findings of `dafs doctor`, here and in a process with too low limits.
source "$(dirname "$0")/lib.sh"

step "this host"
# A device of this host may have a problem of its own; the transports have none.
status=0
"$dafs" doctor >"$work/said" || status=$?
[[ $status == 0 || $status == 1 ]] || fail "status $status"
for transport in shm iwarp; do
    grep -Eq "^ok +transport +$transport .* works: round trip [0-9.]+ us" "$work/said" ||
        { cat "$work/said"; fail "$transport does not work"; }
done
problems=$(grep -c '^PROBLEM' "$work/said" || true)
[[ $((problems > 0)) == "$status" ]] || { cat "$work/said"; fail "status $status with $problems problems"; }

step "only what is not in order"
"$dafs" doctor --quiet >"$work/said" || true
! grep -q '^ok ' "$work/said" || fail "something in order is shown"
"$dafs" doctor --json >"$work/said" || true
grep -q '"findings":\[.*"round_trip_microseconds":[0-9]' "$work/said" || fail "no measurement"
grep -q "\"problems\":$problems" "$work/said" || fail "not the same number of problems"

step "too few descriptors"
expect 1 'does not work' bash -c "ulimit -n 8; exec '$dafs' doctor"
expect 1 '"level":"problem"' bash -c "ulimit -n 8; exec '$dafs' doctor --json"

step "command lines"
expect 2 'means nothing to doctor' "$dafs" doctor --transport shm
expect 2 'unexpected argument' "$dafs" doctor dafs://localhost
