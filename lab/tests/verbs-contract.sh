#!/bin/bash
# verbs-contract.sh -- our verbs provider on the kernel's software devices, in guests: it runs the
# contract tests of the transport trait with both sides on one device, rxe and then siw; it runs
# rping with rdma-core's over rxe, each in both roles; and with our iwarp provider over siw,
# likewise.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
[[ ${LAB_NET:-} ]] || exec ../lab.sh net "$PWD/${BASH_SOURCE[0]##*/}" "$@"
source ../rping.sh

ROUNDS=20
contract=${rping%/*}/verbs_contract
[[ -x $contract ]] || { echo "build it first: cargo build -p dafs-dat --examples"; exit 1; }

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/host" "$tmp/out"
cp "$contract" "$rping" "$tmp/host/"
failed=0

for kind in rxe siw; do
    echo "--- the contract on $kind, then for a thread whose credentials have changed, then without memory windows"
    ../lab.sh run -t 240 -s "$tmp/host" -k "$tmp/kernel.log" \
        guest/verbs-contract "$kind" /host/verbs_contract || failed=1
done

# guest NUMBER KIND PEER -- starts a guest that runs the cases.
guest() {
    ../lab.sh run -n "$1" -t 240 -s "$tmp/host" -w "$tmp/out" -k "$tmp/kernel-$1.log" \
        guest/verbs-rping "$1" "$2" "$ROUNDS" "$3" >"$tmp/guest-$1.log" 2>&1 &
    guests[$1]=$!
}
# Waits until the file is not empty, as long as all guests live.
await() {
    local number
    until [[ -s $tmp/out/$1 ]]; do
        for number in "${!guests[@]}"; do
            kill -0 "${guests[$number]}" 2>/dev/null || {
                echo "guest $number has ended:"
                cat "$tmp/guest-$number.log"
                exit 1
            }
        done
        sleep 0.05
    done
}
# judge NAME NUMBER PROGRAM -- checks the result of this side of a case.
judge() {
    local status
    await "$1.$2.status"
    status=$(<"$tmp/out/$1.$2.status")
    if [[ $status == 0 ]] && ! grep -qi mismatch "$tmp/out/$1.$2.log"; then
        case $3 in
        ours) ! grep -qx "$ROUNDS rounds, data right" "$tmp/out/$1.$2.log" || return 0 ;;
        theirs) ! grep -q "ping data: rdma-ping-$((ROUNDS - 1)):" "$tmp/out/$1.$2.log" || return 0 ;;
        esac
    fi
    echo "FAILED  $1: number $2 ($3) ended with $status"
    sed 's/^/    /' "$tmp/out/$1.$2.log"
    return 1
}

echo "--- rping over rxe, between two guests"
for size in 64 65000; do
    echo "rxe-ours-theirs-$size 1 ours theirs $size"
    echo "rxe-theirs-ours-$size 1 theirs ours $size"
done >"$tmp/host/cases"
echo "rxe-ours-ours 1 ours ours 3000000" >>"$tmp/host/cases"
guests=()
guest 1 rxe 10.0.2.16
guest 2 rxe 10.0.2.15
while read -r name _ program other _ <&3; do
    if judge "$name" 1 "$program" && judge "$name" 2 "$other"; then
        echo "ok      $name"
    else
        failed=1
    fi
done 3<"$tmp/host/cases"
wait "${guests[@]}" || failed=1

echo "--- rping over siw, with our iwarp provider on the host"
for size in 64 65000 3000000; do
    echo "siw-verbs-listens-$size 1 ours ours $size"
    echo "siw-iwarp-listens-$size 0 ours ours $size"
done >"$tmp/host/cases"
guests=()
guest 1 siw 10.0.2.2
port=7200
while read -r name listener _ _ size <&3; do
    port=$((port + 1))
    log=$tmp/out/$name.0.log status=0
    if [[ $listener == 0 ]]; then
        our_rping server 10.0.2.2 "$port" "$ROUNDS" "$size" off >"$log" 2>&1 &
        wait_for_listener "$port" $!
        echo up >"$tmp/out/$name.up"
        wait $! || status=$?
    else
        await "$name.up"
        our_rping client 10.0.2.15 "$port" "$ROUNDS" "$size" off >"$log" 2>&1 || status=$?
    fi
    echo "$status" >"$tmp/out/$name.0.status"
    if judge "$name" 0 ours && judge "$name" 1 ours; then
        echo "ok      $name"
    else
        failed=1
    fi
done 3<"$tmp/host/cases"
wait "${guests[@]}" || failed=1
exit "$failed"
