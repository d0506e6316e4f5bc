#!/bin/bash
# siw-rping.sh -- the kernel's software iWARP (siw, in a guest) and our iwarp provider run rping
# with each other: each in both roles, with small and large messages, CRC off and, at our request,
# on. Each round is two sends either way, an RDMA read and an RDMA write, all by the listening side,
# so the two roles cover both directions of each operation. Both rpings compare the data.
#
# The traffic is captured and checked by tshark's dissectors (../dissect.sh).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
[[ ${LAB_NET:-} ]] || exec ../lab.sh net "$PWD/${BASH_SOURCE[0]##*/}" "$@"
source ../rping.sh

ROUNDS=20
SIZES=(64 4096 65000)

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/host" "$tmp/out"

port=18600
for role in server client; do
    for crc in off on; do
        for size in "${SIZES[@]}"; do
            echo "kernel-$role-crc-$crc-$size $role $port $size $crc"
            port=$((port + 1))
        done
    done
done >"$tmp/host/cases"

../lab.sh run -t 240 -s "$tmp/host" -w "$tmp/out" -k "$tmp/kernel.log" \
    guest/siw-rping "$ROUNDS" >"$tmp/guest.log" 2>&1 &
guest=$!

guest_wrote() { [[ -s $tmp/out/$1 ]]; }
guest_must_live() {
    kill -0 "$guest" 2>/dev/null || { echo "the guest has ended:"; cat "$tmp/guest.log"; exit 1; }
}

# The guest is up when it serves the first case; captures are possible from then on.
until guest_wrote "$(head -n 1 "$tmp/host/cases" | cut -d ' ' -f 1).up"; do
    guest_must_live
    sleep 0.05
done
start_capture lab "$tmp/capture" 10.0.2.15

failed=0
while read -r name role port size crc <&3; do
    if [[ $role == server ]]; then
        until guest_wrote "$name.up"; do guest_must_live; sleep 0.05; done
        our_rping client 10.0.2.15 "$port" "$ROUNDS" "$size" "$crc" >"$tmp/ours" 2>&1 &
        ours=$!
    else
        our_rping server 10.0.2.2 "$port" "$ROUNDS" "$size" "$crc" >"$tmp/ours" 2>&1 &
        ours=$!
        wait_for_listener "$port" "$ours"
        touch "$tmp/out/$name.up"
    fi
    ours_status=0
    wait "$ours" || ours_status=$?
    until guest_wrote "$name.status"; do guest_must_live; sleep 0.05; done
    status=$(<"$tmp/out/$name.status")
    if [[ $status == 0 && $ours_status == 0 ]] &&
        grep -q "ping data: rdma-ping-$((ROUNDS - 1)):" "$tmp/out/$name.log" &&
        ! grep -qi mismatch "$tmp/out/$name.log"; then
        echo "ok      $name: $ROUNDS rounds"
    else
        failed=1
        echo "FAILED  $name: our status $ours_status, the kernel's $status"
        sed 's/^/    ours: /' "$tmp/ours"
        sed 's/^/    kernel: /' "$tmp/out/$name.log"
    fi
done 3<"$tmp/host/cases"
wait "$guest" || { failed=1; cat "$tmp/guest.log"; tail "$tmp/kernel.log"; }
stop_capture "$(wc -l <"$tmp/host/cases")"

while read -r name _ port size crc <&3; do
    echo "tshark  $name"
    ../dissect.sh "$tmp/capture" "$port" "$crc" "$ROUNDS" "$size" || failed=1
done 3<"$tmp/host/cases"
exit "$failed"
