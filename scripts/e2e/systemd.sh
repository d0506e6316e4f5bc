#!/bin/bash
# The units: systemd understands them and finds them closed enough, and the programs that they start tell a service
# manager when they are ready and when they end, also from a sandbox.
source "$(dirname "$0")/lib.sh"

command -v python3 >/dev/null || skip "there is no python3; install it with: scripts/setup.sh test"
# listen NAME LOG -- a manager's socket, whose messages go to a log.
listen() {
    python3 -u - "$1" "$2" <<'END' &
import socket, sys
name, log = sys.argv[1:]
manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
manager.bind("\0" + name[1:] if name.startswith("@") else name)
with open(log, "a") as out:
    print("listening", file=out, flush=True)
    while True:
        print(manager.recv(4096).decode().replace("\n", " "), file=out, flush=True)
END
    started+=("$!")
    listening() { grep -s listening "$2"; }
    eventually listening "$@"
}
told() { grep -s "$1" "$2"; }

mkdir "$work/export" "$work/data"
for name in "$work/notify" "@dafs-test-$$"; do
    for sandbox in off if-possible; do
        step "a server that tells $name, sandbox $sandbox"
        heard=$work/heard-$sandbox-${name##*/}
        rm -f "$work/notify"
        listen "$name" "$heard"
        receiver=$!
        as=(env NOTIFY_SOCKET="$name")
        serve "$work/export" --sandbox $sandbox
        eventually told "READY=1 STATUS=serving $url" "$heard"
        stop_server
        eventually told 'STOPPING=1' "$heard"
        as=()
        kill "$receiver"
        wait "$receiver" 2>/dev/null || true
        forget_process "$receiver"
    done
done

step "a server that takes over is the main process"
rm -f "$work/notify"
listen "$work/notify" "$work/heard-next"
receiver=$!
as=(env NOTIFY_SOCKET="$work/notify")
serve "$work/export"
former=$server
serve "$work/export" --listen "${url#dafs://}" --take-over
wait "$former" || fail "the former server ended with status $?"
forget_process "$former"
eventually told "MAINPID=$server" "$work/heard-next"
both_ready() { [[ $(grep -c 'READY=1' "$work/heard-next") == 2 ]]; }
eventually both_ready
! grep STOPPING "$work/heard-next" || fail "the service seems to end"
as=()
stop_server
kill "$receiver"
wait "$receiver" 2>/dev/null || true
forget_process "$receiver"

step "a data server"
"$dafs" cluster init --secret "$work/secret"
rm -f "$work/notify"
listen "$work/notify" "$work/heard"
NOTIFY_SOCKET=$work/notify data 1
eventually told "READY=1 STATUS=a data server at ${control[1]}" "$work/heard"
kill -TERM "${data_server[1]}"
wait "${data_server[1]}" || fail "the data server ended with status $?"
forget_process "${data_server[1]}"
eventually told 'STOPPING=1' "$work/heard"

step "a manager that is not there"
as=(env NOTIFY_SOCKET="$work/nowhere")
serve "$work/export"
as=()
"$dafs" ls "$url" >/dev/null || fail "the server does not serve"
stop_server
grep 'service manager' "$log" >/dev/null || fail "the log does not tell it"

step "units"
command -v systemd-analyze >/dev/null || skip "all but the units has passed: there is no systemd-analyze (systemd)"
mkdir "$work/units"
for unit in packaging/*.service packaging/*.socket; do
    name=${unit##*/}
    sed "s|/usr/local/bin/dafs|$(realpath "$dafs")|" "$unit" >"$work/units/${name/@./@one.}"
done
systemd-analyze verify --man=no "$work"/units/*.service "$work"/units/*.socket >"$work/said" 2>&1 ||
    { cat "$work/said"; fail "systemd does not take the units"; }
# Debian 12 has an older one, which leaves these two out.
grep -F "$work/units" "$work/said" | grep -vE "Unknown key .Restart(Steps|MaxDelaySec)" >"$work/warnings" || true
[[ ! -s $work/warnings ]] || { cat "$work/warnings"; fail "systemd warns about the units"; }
for unit in dafs.service dafs-data@one.service; do
    systemd-analyze security --offline=true --threshold=50 "$work/units/$unit" >"$work/said" 2>&1 ||
        { tail -n 3 "$work/said"; fail "$unit is too open"; }
done
