# shellcheck shell=bash
# Sourced by lab tests that run our own rping (an example of dafs-dat) and capture its traffic.

# The place of the example: as scripts/test.sh sets it, or cargo's default.
target=${CARGO_TARGET_DIR:-$(dirname "${BASH_SOURCE[0]}")/../target}
rping=${DAFS_TARGET:-$target/debug}/examples/rping
[[ -x $rping ]] || { echo "build it first: cargo build -p dafs-dat --examples"; exit 1; }

# our_rping server|client ADDRESS PORT ROUNDS SIZE on|off [OPTION]... -- on|off is the CRC that our
# side requests.
our_rping() {
    local role=-s options=("${@:7}")
    [[ $1 == server ]] || role=-c
    [[ $6 == off ]] || options+=(--crc)
    timeout 60 "$rping" "$role" -a "$2" -p "$3" -C "$4" -S "$5" "${options[@]}"
}

# Waits for a listener on TCP port $1; process $2 should be it.
wait_for_listener() {
    local wanted
    printf -v wanted ':%04X 00000000:0000 0A' "$1"
    until [[ $(</proc/net/tcp) == *"$wanted"* ]]; do
        kill -0 "$2" 2>/dev/null || return 0
        sleep 0.02
    done
}

# start_capture INTERFACE FILE ADDRESS, stop_capture CONNECTIONS: captures all TCP traffic of that
# many connections, complete or an error. A host at ADDRESS is behind INTERFACE. It does not use
# tcpdump, which switches to a user that does not exist where an ordinary user is root.
start_capture() {
    local attempt
    capture=$2
    # On a busy machine dumpcap sometimes captures no packet, so this checks that it works.
    for attempt in 1 2 3 4 5; do
        dumpcap -q -i "$1" -B 64 -f tcp -w "$capture" 2>"$capture.log" &
        capture_process=$!
        ! capture_sees "$3" || return 0
        echo "capture: attempt $attempt saw nothing"
        kill -INT "$capture_process"
        wait "$capture_process" || true
    done
    cat "$capture.log"
    exit 1
}
# True if a connection to port 1 of $1, which is closed, soon shows in the capture.
capture_sees() {
    local tries
    for ((tries = 0; tries < 20; tries++)); do
        sleep 0.2
        kill -0 "$capture_process" 2>/dev/null || return 1
        (exec 3<>"/dev/tcp/$1/1") 2>/dev/null || true
        [[ -z $(tshark -n -r "$capture" -c 1 -Y 'tcp.port == 1' 2>/dev/null) ]] || return 0
    done
    return 1
}
stop_capture() {
    local tries
    # On a busy machine packets reach the file seconds later, and an early stop would lose them.
    for ((tries = 0; tries < 40; tries++)); do
        sleep 0.5
        (($(ended_connections) < $1)) || break
    done
    sleep 0.5
    kill -INT "$capture_process"
    wait "$capture_process" || true
    grep -q '^Packets received/dropped on interface .*: [1-9][0-9]*/0 ' "$capture.log" ||
        { cat "$capture.log"; exit 1; }
    (($(ended_connections) >= $1)) || { echo "the capture misses the end of connections"; exit 1; }
}
ended_connections() {
    tshark -n -r "$capture" \
        -Y 'tcp.port != 1 && (tcp.flags.fin == 1 || tcp.flags.reset == 1)' \
        -T fields -e tcp.stream 2>/dev/null | sort -u | wc -l
}
