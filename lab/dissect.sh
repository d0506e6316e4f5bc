#!/bin/bash
# dissect.sh CAPTURE PORT on|off COUNT SIZE -- check one rping run on TCP port PORT with tshark's
# iWARP dissectors: COUNT rounds of SIZE bytes, with CRC on or off.
#
# The dissectors must have seen all traffic, not just some: the number of messages and the bytes
# that RDMA moved are known from the run. tshark itself checks each CRC if it is on.
set -euo pipefail
capture=$1 port=$2 crc=$3 count=$4 size=$5

# Payloads are arbitrary bytes, which heuristic dissectors would misread. Packets that two
# processors send at once are sometimes captured in the wrong order.
export LC_ALL=C
tshark -n -r "$capture" -Y "tcp.port == $port" -V \
    -o tcp.try_heuristic_first:TRUE -o tcp.reassemble_out_of_order:TRUE \
    --disable-protocol rpcordma --disable-protocol smb_direct 2>/dev/null |
awk -v port="$port" -v crc="$crc" -v count="$count" -v size="$size" '
    /^Frame [0-9]+:/ { frame = $2 + 0 }
    /ID Req frame: / { requests++ }
    /ID Rep frame: / { replies++ }
    /Marker flag: True/ { fail("frame " frame " asks for markers") }
    /CRC flag: True/ { crc_flags++ }
    /^ +ULPDU length: / { fpdus++; bytes = $3; if (bytes > fpdu_max) fpdu_max = bytes }
    /^ +CRC check: / { checked++; if (!/Good CRC32/) fail("frame " frame ":" $0) }
    / = OpCode: Write / { writes++; write_bytes += bytes - 14 }
    / = OpCode: Read Request / { reads++ }
    / = OpCode: Read Response / { responses++; response_bytes += bytes - 14 }
    / = OpCode: Send/ { sends++ }
    / = OpCode: Terminate / { fail("frame " frame " is a Terminate") }
    # The dissector knows MPA revision 1 (RFC 5044), not the enhanced connection setup of RFC 6581.
    # Its warnings about TCP sequence numbers do not matter here.
    /Expert Info \((Warn|Warning|Error)\// && !/\/Sequence\)/ &&
        !/(Res field is NOT set to zero|Rev field is NOT set to one) as required by RFC 5044/ {
        fail("frame " frame ":" $0) }
    /Malformed|Unreassembled/ { fail("frame " frame ":" $0) }

    function fail(what) { bad = 1; if (++said <= 20) print "    " what }
    function want(what, found, wanted) {
        if (found + 0 != wanted) fail(what ": " found + 0 " instead of " wanted)
    }
    END {
        printf "%5d FPDUs up to %5d bytes: %3d sends, %3d reads, %4d responses, %4d writes, ",
            fpdus, fpdu_max, sends, reads, responses, writes
        printf "%d CRCs good\n", checked
        want("MPA requests", requests, 1)
        want("MPA replies", replies, 1)
        want("sends", sends, 4 * count)
        want("bytes of RDMA reads", response_bytes, count * size)
        want("bytes of RDMA writes", write_bytes, count * size)
        if (reads < count) fail("only " reads + 0 " read requests in " count " rounds")
        want("CRCs checked", checked, crc == "on" ? fpdus : 0)
        if (crc == "on" && !crc_flags) fail("nobody asked for CRC")
        exit bad
    }'
