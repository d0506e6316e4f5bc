#!/bin/bash
# What a mount keeps of files by right of delegations: reading again costs the server nothing, and whoever
# changes a file is seen at once by those who had kept it.
source "$(dirname "$0")/lib.sh"

needs_mounts

export=$work/export
one=$work/one
two=$work/two
mkdir -m 777 "$export" "$one" "$two"
undo+=("umount -l '$one' '$two' 2>/dev/null")
serve "$export" --no-root-squash --metrics 127.0.0.1:0
metrics=$(sed -n 's|.*metrics at http://\([^/]*\)/.*|\1|p' "$log")

# operations -- how often the server was asked for each operation: lines of NAME COUNT.
operations() {
    exec 3<>"/dev/tcp/${metrics%:*}/${metrics##*:}"
    printf 'GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n' >&3
    awk -F '[" ]' '/^dafs_operation_duration_seconds_count\{door="dafs"/ { print $4, $NF }' <&3
    exec 3>&-
}
# asked_at_most MAX COMMAND... -- the server is asked no more than so often while the command runs. A kernel that
# wants memory drops some pages of its own accord, even single ones; who reads these opens the file, reads and
# closes it, and that is not counted for up to a fifth of the 200 files.
asked_at_most() {
    local max=$1 all
    shift
    for _ in 1 2 3; do
        operations >"$work/before"
        "$@"
        operations >"$work/after"
        grep -q ^OPEN "$work/after" || fail "the server counts nothing"
        all=$(awk '
            FNR == NR { before[$1] = $2; next }
            $1 ~ /^(OPEN|CLOSE)$/ { of[$1] = $2 - before[$1]; next }
            $1 ~ /^READ_/ { of["READ"] += $2 - before[$1]; next }
            { all += $2 - before[$1] }
            END {
                dropped = of["OPEN"] <= 40 && of["CLOSE"] <= 40 && of["READ"] <= 80
                print all + (dropped ? 0 : of["OPEN"] + of["CLOSE"] + of["READ"])
            }' "$work/before" "$work/after")
        [[ $all -gt $max ]] || return 0
        diff "$work/before" "$work/after" || true
    done
    fail "the server was asked $all times for what is kept"
}
mounted() {
    "$dafs" mount "$@"
    local point=${*: -1}
    started+=("$(pgrep -f -- "^[^ ]* mount .*$point\$")")
}

for transport in shm iwarp; do
    step "$transport: reading again costs the server nothing"
    rm -rf "${export:?}"/*
    mkdir "$export/tree"
    for number in $(seq 200); do head -c 5000 /dev/urandom >"$export/tree/$number"; done
    # So that names and attributes are asked for each time.
    mounted --transport "$transport" --belief 0 "$url/tree" "$one"
    # The first time they are read, the second time their names are told once more.
    cat "$one"/* >"$work/first"
    cat "$one"/* >"$work/second"
    again() {
        for number in $(seq 200); do cat "$one/$number"; done >"$work/third"
        stat "$one/7" "$one/8" >/dev/null
    }
    # The kernel asks for the attributes of the root before it looks into it; no delegation is for that.
    asked_at_most 210 again
    for number in $(seq 200); do cat "$export/tree/$number"; done >"$work/wanted"
    same "$work/wanted" "$work/third" "what is kept and what there is"
    "$dafs" umount "$one"
    mounted --transport "$transport" --belief 60 "$url/tree" "$one"
    # The second time the kernel asks once more for the attributes, because reading may have changed them.
    cat "$one"/* "$one"/* >/dev/null
    cat "$one"/* >/dev/null
    # Signs of life are all that is left.
    asked_at_most 5 again
    same "$work/wanted" "$work/third" "what is kept and believed and what there is"

    step "$transport: who writes is seen at once, also by who has the file open"
    mounted --transport "$transport" --belief 60 "$url/tree" "$two"
    scripts/e2e/mount_cached.py "$one" "$two" "$export/tree" || fail "two mounts do not agree"

    "$dafs" umount "$one" "$two"

    step "$transport: two mounts that do one thing at a time do not wait for each other"
    mounted --transport "$transport" --belief 60 --threads 1 "$url/tree" "$one"
    mounted --transport "$transport" --belief 60 --threads 1 "$url/tree" "$two"
    # Less than a lease, after which the server does not wait any more.
    timeout 20 scripts/e2e/mount_cached.py "$one" "$two" "$export/tree" both ||
        fail "two mounts wait for each other"

    step "$transport: what is changed while no server runs is seen after that, also by who has it open"
    echo before >"$export/tree/restarted"
    for _ in 1 2 3; do cat "$one/restarted" "$two/restarted" >/dev/null; done
    exec 8<"$one/restarted" 9<"$two/restarted"
    kill_server
    echo after! >"$export/tree/restarted"
    serve "$export" --no-root-squash --metrics 127.0.0.1:0 --listen "127.0.0.1:${url##*:}" 8<&- 9<&-
    metrics=$(sed -n 's|.*metrics at http://\([^/]*\)/.*|\1|p' "$log")
    # Nobody could ask the mounts, and what was promised to them is good for some seconds after the server's
    # last answer. They hear that it is another run of it when they have connected again: they try that by
    # themselves, after a small part of the time that it was away, and nothing that is looked at here waits for it.
    is_after() { [[ $(cat "$1/restarted") == after! ]]; }
    for point in "$one" "$two"; do
        eventually is_after "$point"
    done
    # Nobody asks the server for these, so they are dropped by whoever looks after the promises.
    is_seen() { python3 -c "import os; assert os.pread($1, 10, 0) == b'after!\n'"; }
    eventually is_seen 8
    eventually is_seen 9
    exec 8<&- 9<&-

    step "$transport: what another client writes after a restart is seen when it is written, also by who has it open"
    echo before >"$export/tree/rewritten"
    for _ in 1 2 3; do cat "$one/rewritten" >/dev/null; done
    exec 8<"$one/rewritten"
    kill_server
    serve "$export" --no-root-squash --metrics 127.0.0.1:0 --listen "127.0.0.1:${url##*:}" 8<&-
    metrics=$(sed -n 's|.*metrics at http://\([^/]*\)/.*|\1|p' "$log")
    # The server lets nobody write before all are back that it had promised something, or cannot come any more.
    echo write! >"$two/rewritten"
    [[ $(cat "$one/rewritten") == write! ]] || fail "old content after a write"
    python3 -c "import os; assert os.pread(8, 10, 0) == b'write!\n'" || fail "old content in an open file after a write"
    exec 8<&-
    "$dafs" umount "$one" "$two"

    step "$transport: unmounting while the server does not answer"
    mounted --transport "$transport" "$url/tree" "$one"
    keeper=${started[-1]}
    cat "$one"/* >/dev/null
    kill -STOP "$server"
    timeout 60 "$dafs" umount "$one" || { kill -CONT "$server"; fail "not unmounted"; }
    is_gone() { ! kill -0 "$keeper" 2>/dev/null; }
    eventually is_gone
    kill -CONT "$server"
done

step "a page that nobody sends keeps few threads that drop what was kept, however long that lasts"
stop_server
serve "$export" --no-root-squash --lease 6 --state-directory "$work/other"
mkdir -p "$export/tree"
head -c 64M /dev/urandom >"$export/tree/long"
mounted --belief 60 "$url/tree" "$one"
keeper=${started[-1]}
for _ in 1 2 3; do stat "$one/long" && head -c 10 "$one/long"; done >/dev/null
exec 8<"$one/long"
cat >"$work/hangs.py" <<'PY'
import os, signal, sys, threading, time

keeper, server = int(sys.argv[1]), int(sys.argv[2])


def dropping():
    names = []
    for task in os.listdir(f"/proc/{keeper}/task"):
        try:
            with open(f"/proc/{keeper}/task/{task}/comm") as comm:
                names.append(comm.read().strip())
        except OSError:
            pass
    return names.count("dafs-dropping")


read = []
os.pread(8, 10, 0)
os.kill(server, signal.SIGSTOP)
try:
    reader = threading.Thread(target=lambda: read.append(os.pread(8, 10, 50 << 20)))
    reader.start()
    until = time.monotonic() + 60
    while not dropping() and time.monotonic() < until:
        time.sleep(0.1)
    # Until what hangs is divided no more; then the promises are looked at some times.
    time.sleep(3)
    some = dropping()
    time.sleep(5)
    more = dropping()
finally:
    os.kill(server, signal.SIGCONT)
reader.join()
assert some, "nothing was being dropped: the page was not waited for"
assert more <= some + 3, f"{some} threads dropped what was kept, and {more} some seconds later"
assert len(read[0]) == 10
PY
timeout 120 python3 "$work/hangs.py" "$keeper" "$server" || fail "dropping goes wrong"
exec 8<&-
"$dafs" umount "$one"
