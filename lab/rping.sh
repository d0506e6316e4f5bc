# shellcheck shell=bash
# Sourced by lab tests that run our own rping (an example of dafs-dat) and capture what it does.

# Where cargo puts the example, as scripts/test.sh says or by default.
target=${CARGO_TARGET_DIR:-$(dirname "${BASH_SOURCE[0]}")/../target}
rping=${DAFS_TARGET:-$target/debug}/examples/rping
[[ -x $rping ]] || { echo "build it first: cargo build -p dafs-dat --examples"; exit 1; }

# our_rping server|client ADDRESS PORT ROUNDS SIZE on|off [OPTION]... -- the CRC is what we ask for.
our_rping() {
    local role=-s options=("${@:7}")
    [[ $1 == server ]] || role=-c
    [[ $6 == off ]] || options+=(--crc)
    timeout 60 "$rping" "$role" -a "$2" -p "$3" -C "$4" -S "$5" "${options[@]}"
}

# Waits until somebody listens on TCP port $1; process $2 should.
wait_for_listener() {
    local wanted
    printf -v wanted ':%04X 00000000:0000 0A' "$1"
    until [[ $(</proc/net/tcp) == *"$wanted"* ]]; do
        kill -0 "$2" 2>/dev/null || return 0
        sleep 0.02
    done
}

# start_capture INTERFACE FILE, stop_capture: all TCP traffic, complete or an error. Not by tcpdump,
# which wants to be a user that does not exist where an ordinary user is root.
start_capture() {
    dumpcap -q -i "$1" -B 64 -f tcp -w "$2" 2>"$2.log" &
    capture_process=$! capture_log=$2.log
    until grep -q '^File: ' "$capture_log"; do
        kill -0 "$capture_process" || { cat "$capture_log"; exit 1; }
        sleep 0.05
    done
}
stop_capture() {
    # What has not been read from the kernel yet would be lost.
    sleep 1
    kill -INT "$capture_process"
    wait "$capture_process" || true
    grep -q '^Packets received/dropped on interface .*: [1-9][0-9]*/0 ' "$capture_log" ||
        { cat "$capture_log"; exit 1; }
}
