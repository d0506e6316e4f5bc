#!/bin/bash
# siw-order.sh -- the promises of an RDMA device about completions that Linux siw breaks, and rxe keeps, by a
# program of plain libibverbs and librdmacm between two guests. Our verbs provider relies on none of the broken
# ones. A kernel that mends one of them makes this test fail: then the words about siw need a look.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
[[ ${LAB_NET:-} ]] || exec ../lab.sh net "$PWD/${BASH_SOURCE[0]##*/}" "$@"

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/host"
gcc -O2 -Wall -Wextra -Werror -o "$tmp/host/siw_order" guest/siw_order.c -lrdmacm -libverbs

# kept KIND PROMISE, broken KIND PROMISE -- checks what the program has found.
kept() { grep -q "^kept   $2: " "$tmp/$1/found" || { echo "FAILED  $1 breaks: $2"; failed=1; }; }
broken() { grep -q "^BROKEN $2: " "$tmp/$1/found" || { echo "FAILED  $1 now keeps: $2"; failed=1; }; }

failed=0
for kind in rxe siw; do
    echo "--- $kind"
    mkdir "$tmp/$kind"
    guests=()
    for number in 1 2; do
        ../lab.sh run -n "$number" -t 120 -s "$tmp/host" -w "$tmp/$kind" -k "$tmp/kernel-$number.log" \
            guest/siw-order "$number" "$kind" "10.0.2.$((17 - number))" &
        guests+=($!)
    done
    for guest in "${guests[@]}"; do wait "$guest" || failed=1; done
    cat "$tmp/$kind/found"
    kept $kind "order, read then fenced send"
    kept $kind "reads by their numbers"
    kept $kind "reuse, write signalled"
    kept $kind "reuse, write signalled, 6 segments"
    kept $kind "reuse, write not signalled, 2 KiB"
    kept $kind "short write across pages, 2 segments"
done
for promise in "order, read then send" "order, read then write" "reuse, write not signalled" \
    "reuse, write not signalled, 6 segments" "short write across pages"; do
    kept rxe "$promise"
done
# The others are broken on siw in few of the rounds, if at all.
for promise in "order, read then send" "order, read then write" "short write across pages"; do
    broken siw "$promise"
done
exit "$failed"
