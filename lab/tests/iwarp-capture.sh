#!/bin/bash
# iwarp-capture.sh -- two of our own iwarp adapters run rping with each other, with messages of many
# segments and, because both are ours, FPDUs larger than a TCP segment, CRC off and on. tshark's
# dissectors must find no fault in the capture (../dissect.sh). No guest is needed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
[[ ${LAB_NET:-} ]] || exec ../lab.sh net "$PWD/${BASH_SOURCE[0]##*/}" "$@"
source ../rping.sh

ROUNDS=10
# Longer than any FPDU to a foreign peer on this network.
LARGE_FPDU_BYTES=32768

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failed=0 port=18700
# The usual loopback carries an FPDU in one packet; with the MTU of an Ethernet it takes many.
for mtu in 65536 1500; do
    ip link set lo mtu "$mtu"
    for crc in off on; do
        for size in 64 65000 1000003; do
            name="mtu-$mtu-crc-$crc-$size"
            start_capture lo "$tmp/capture" 127.0.0.1
            our_rping server 127.0.0.1 "$port" "$ROUNDS" "$size" "$crc" >"$tmp/server" 2>&1 &
            server=$!
            wait_for_listener "$port" "$server"
            status=0
            our_rping client 127.0.0.1 "$port" "$ROUNDS" "$size" "$crc" >"$tmp/client" 2>&1 ||
                status=$?
            wait "$server" || status=$?
            stop_capture 1
            if [[ $status != 0 ]]; then
                failed=1
                echo "FAILED  $name: status $status"
                cat "$tmp/server" "$tmp/client"
            fi
            echo "tshark  $name"
            ../dissect.sh "$tmp/capture" "$port" "$crc" "$ROUNDS" "$size" | tee "$tmp/found" ||
                failed=1
            largest=$(sed -n 's/.* FPDUs up to *\([0-9]*\) bytes.*/\1/p' "$tmp/found")
            if ((size > LARGE_FPDU_BYTES && largest <= LARGE_FPDU_BYTES)); then
                failed=1
                echo "FAILED  $name: no large FPDU between two of our own"
            fi
            port=$((port + 1))
        done
    done
done
exit "$failed"
