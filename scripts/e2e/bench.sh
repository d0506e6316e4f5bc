#!/bin/bash
# Rows of `make bench` with their targets and verdicts, as short as possible. Times are not checked.
source "$(dirname "$0")/lib.sh"

bench=${DAFS_TARGET:-$PWD/target/debug}/dafs-bench
[[ -x $bench ]] || fail "there is no $bench; build it with: cargo build --workspace"

# measure NAME ARGUMENTS... -- measures for a moment, with results in files of that name.
measure() {
    local name=$1
    shift
    timeout 200 "$bench" --rounds 1 --milliseconds 20 --scale 1 --json "$work/$name.json" --figures "$work" "$@" |
        tee "$work/$name.out"
}

step "a row with its target, its verdict, and the list at the end"
measure file --group file --wake adaptive --only 'depth 1'
grep -Eq '^  iwarp read 4 KiB depth 1 .* at most 1\.15: (met|not met)$' "$work/file.out" || fail "no verdict"
grep -Eq '^1 targets: [01] met, [01] not met, 0 cannot be shown here$' "$work/file.out" || fail "no list"
python3 - "$work/file.json" <<'PYTHON' || fail "the verdicts in the file"
import json
import sys

results = json.load(open(sys.argv[1]))
[target] = results["targets"]
[row] = [row for row in results["rows"] if row["target"]]
assert row["target"] == target and row["case"] == "iwarp read 4 KiB depth 1", results
assert target["verdict"] == ("met" if row["ratio"] <= 1.15 else "not met"), target
PYTHON

step "a row without its floor"
measure floor --group file --wake adaptive --only 'iwarp read 4 KiB depth 1'
grep -q '^1 targets: 0 met, 0 not met, 1 cannot be shown here$' "$work/floor.out" || fail "a verdict without a value"

step "rows that cannot be measured are told at the end"
measure nfs --group nfs --only memfs
grep -q '^  skipped: create depth 32, files in memory, against chimera' "$work/nfs.out" || fail "a row is missing silently"

step "copies of small files"
measure copies --group fronts --only 'copy of small files'
reason=$(sed -n 's/^fronts: SKIPPED, //p' "$work/copies.out")
if [[ $reason ]]; then
    echo "$reason"
else
    [[ $(grep -Ec '^  (met|not met) .*copy of small files, dafs put, (shm|iwarp)$' "$work/copies.out") == 2 ]] ||
        fail "no verdict on copies"
fi
