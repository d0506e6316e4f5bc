#!/bin/bash
# The demonstration of `make run`, with the build of the tests: the rows of its tables, and nothing left behind.
source "$(dirname "$0")/lib.sh"

free_kib=$(df -Pk "$work" | awk 'NR == 2 { print $4 }')
[[ $free_kib -ge $((4 << 20)) ]] || skip "there are less than 4 GiB free in $work"
DAFS=$dafs TMPDIR=$work timeout 600 scripts/run.sh >"$work/said" 2>&1 || { cat "$work/said"; fail "the demonstration failed"; }
cat "$work/said"
rows=('cp -a, without a server' 'dafs put over shm' 'dafs get over iwarp' 'dafs over shm' 'dafs over iwarp')
! command -v rsync >/dev/null || rows+=('rsync from its daemon')
for row in "${rows[@]}"; do
    grep -Eq "^$row +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.-]+$" "$work/said" || fail "no row of $row"
done
grep -q '^all copies were compared' "$work/said" || fail "the copies were not compared"
! compgen -G "$work/dafs-run.*" || fail "a folder was left behind"
