#!/bin/bash
# Every user of a host may bind names for shared memory. A user who has bound one gets no data of
# clients, keeps none of them from their server, and does not keep the server from starting.
source "$(dirname "$0")/lib.sh"

is_root || skip "needs root, to be several users"
command -v python3 >/dev/null || skip "there is no python3"
# Abstract names belong to a network namespace: this gets one of its own.
if [[ ! ${DAFS_E2E_NETWORK:-} ]]; then
    unshare -n true 2>/dev/null || skip "this user may not make a network"
    rm -rf "$work"
    DAFS_E2E_NETWORK=1 exec unshare -n "$0"
fi
ip link set lo up

mkdir -m 755 "$work/export"
echo hello >"$work/export/file"
echo secret | "$dafs" passwd "$work/users" anna --uid 1 --gid 1
cat >"$work/dafs.toml" <<END
listen = ["0.0.0.0:20490"]
password_file = "users"
state_directory = "state"
[nfs]
listen = ["0.0.0.0:2049"]
rdma_listen = ["0.0.0.0:20049"]
[[export]]
name = "data"
path = "export"
squash = "none"
END
cat >"$work/squat.py" <<'END'
# squat.py USER WAY NAME... -- as that user, has these names, and says nothing (silent), takes every connection and tells what it
# was sent (accept), takes none (full), or does not even listen (bound).
import os, socket, sys, time
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
way, names = sys.argv[2], sys.argv[3:]
held = []
for name in names:
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # The kernel may close what a server had a while after the server has ended.
    for attempt in range(100):
        try:
            s.bind("\0" + name)
            break
        except OSError:
            time.sleep(0.1)
    held.append(s)
    if way == "bound":
        continue
    s.listen(0 if way == "full" else 64)
    while way == "full":
        c = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        c.setblocking(False)
        held.append(c)
        try:
            c.connect("\0" + name)
        except BlockingIOError:
            break
print("ready", flush=True)
while way == "accept":
    connection, _ = held[0].accept()
    sent = connection.recv(256)
    print("sent", sent, flush=True)
    try:
        connection.send(b"\x02DAFSSHM\x01")
        held.append(connection)
    except OSError:
        pass
time.sleep(1000)
END

# squat USER WAY NAME... -- binds these names as the user.
squat() {
    # Else the word of the last one may be taken for that of this one, which opens the file when it gets to.
    : >"$work/squatted"
    python3 "$work/squat.py" "$@" >"$work/squatted" &
    squatter=$!
    started+=("$squatter")
    eventually grep -q ready "$work/squatted"
}
leave() {
    kill -9 "$squatter"
    wait "$squatter" 2>/dev/null || true
}

serve --config "$work/dafs.toml"
dafs_url=dafs://127.0.0.1:20490/data/file
nfs_url=nfs+rdma://127.0.0.1:20049/data/file

for way in silent accept full; do
    step "another user has the names that clients try first: $way"
    for name in dafs-127.0.0.1:20490 dafs-127.0.0.1:20049; do
        squat 1234 $way "$name"
        for transport in auto shm; do
            if [[ $name == *:20490 ]]; then
                expect 0 hello "$dafs" --transport $transport cat "$dafs_url"
            elif [[ $transport == shm ]]; then
                expect 0 hello "$dafs" cat "$nfs_url?transport=shm"
            else
                expect 0 hello "$dafs" cat "$nfs_url"
            fi
        done
        # The process reports earlier connections first.
        if [[ $way == accept ]]; then
            python3 -c 'import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect("\0" + sys.argv[1])
s.send(b"the last")' "$name"
            eventually grep -q "^sent b'the last'$" "$work/squatted"
        fi
        ! grep -vF "sent b'the last'" "$work/squatted" | grep -E "^sent b['\"].+['\"]$" ||
            fail "the other user was sent something"
        leave
    done
done
stop_server

for way in silent full bound; do
    step "another user has the server's own names: $way"
    squat 1234 $way 'dafs-*:20490' 'dafs-*:20049'
    serve --config "$work/dafs.toml"
    grep -q 'ERROR.*no shared memory.*dafs-\*:20490' "$log" || { cat "$log"; fail "nothing is said of the name"; }
    [[ $way != silent ]] || grep -q 'ERROR.*user 1234' "$log" || { cat "$log"; fail "the user is not named"; }
    expect 0 hello "$dafs" cat "$dafs_url"
    expect 0 hello "$dafs" cat "$nfs_url"
    "$dafs" doctor --quiet >"$work/said" || true
    grep -q 'PROBLEM.*dafs-\*:20490' "$work/said" || { cat "$work/said"; fail "doctor does not tell"; }
    stop_server
    leave
done

step "a server of root's that has the name is told, and its port is not blamed"
serve --config "$work/dafs.toml"
"$dafs" doctor --quiet >"$work/said" || true
! grep -q 'dafs-\*' "$work/said" || { cat "$work/said"; fail "doctor blames the server"; }
stop_server
squat 0 silent 'dafs-*:20490'
expect 1 "process $squatter of user 0" timeout 20 "$dafs" serve --config "$work/dafs.toml"
! grep -q 'that port' "$work/said" || { cat "$work/said"; fail "the port is blamed"; }
leave
