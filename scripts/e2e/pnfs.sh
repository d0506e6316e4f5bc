#!/bin/bash
# The comparison of Direct-pNFS with other ways to the same storage nodes, as short as possible: it
# runs, and counters show that bytes took the path of each architecture. Times are not checked.
source "$(dirname "$0")/lib.sh"

bench=${DAFS_TARGET:-$PWD/target/debug}/dafs-bench
[[ -x $bench ]] || fail "there is no $bench; build it with: cargo build --workspace"

step "three storage nodes, two clients"
timeout 600 "$bench" pnfs --storage-nodes 3 --clients 2 --megabytes 4 --megabits 400 --blocks 2048,8 \
    --patterns atlas,btio,oltp,postmark,unpack,configure,build --kernel-clients none --results "$work/results" | tee "$work/out"
reason=$(sed -n 's/^pnfs: SKIPPED, //p' "$work/out")
[[ ! $reason ]] || skip "$reason"

step "table and figure"
for name in Direct-pNFS CephFS 2-tier 3-tier NFSv4; do
    [[ $(grep -c "^| $name | [0-9.]* ([0-9]*[.][0-9]*) |$" "$work/out") == 8 ]] || fail "$name is missing in a table"
    [[ $(grep -c "^| $name | [0-9.]* ([0-9]*) |$" "$work/out") == 7 ]] || fail "$name is missing among patterns"
    grep -q ">$name<" "$work/results/pnfs.svg" || fail "$name is missing in the figure"
done
[[ $(grep -c "^| DAFS layouts | [0-9.]* ([0-9]*[.][0-9]*) |$" "$work/out") == 8 ]] || fail "DAFS layouts are missing"
[[ $(grep -c '"megabytes_per_second"' "$work/results/pnfs.json") == 83 ]] || fail "cells are missing"
for panel in 'atlas (MB/s)' 'btio (MB/s)' {oltp,postmark,unpack,configure,build}' (transactions/s)'; do
    grep -qF ">$panel<" "$work/results/pnfs.svg" || fail "$panel is missing in the figure"
done
grep -q '^open, read and close of a file of 4 KiB: [0-9]* us, with LAYOUTGET [0-9]* us' "$work/out" ||
    fail "what LAYOUTGET adds is missing"
