#!/bin/bash
# nfs-ceph.sh -- files of a CephFS with three storage daemons, each with a data server in a process
# of its own. The kernel's client uses the data servers directly with version 4.1, and the metadata
# server with version 3. Both see the same bytes as a client of CephFS. When a data server is
# killed, the kernel's client falls back to the metadata server, and returns when it is back.
source "$(dirname "$0")/../nfs.sh"

[[ $transport == tcp && ! ${LAB_SERVER:-} ]] || skip "only over TCP, and only this server"
for program in ceph-mon ceph-osd ceph-mds ceph; do
    command -v "$program" >/dev/null || skip "$program is not installed"
done
/usr/bin/python3 -c 'import cephfs' 2>/dev/null || skip "python3-cephfs is not installed"

source "$lab/apart.sh"
files=16 whole=$((16 << 20))

step "starting CephFS"
config=$("$lab/engines/cephfs.sh" start "$work/ceph")

# native CODE -- runs code with a client of CephFS, mounted as `fs`.
native() {
    timeout 60 /usr/bin/python3 - "$config" <<END
import cephfs, os, sys
fs = cephfs.LibCephFS(conffile=sys.argv[1])
fs.mount()
$1
fs.shutdown()
END
}
# Small units, so that a file soon lies on all nodes.
native 'fs.mkdir("/a", 0o777)
fs.setxattr("/a", "ceph.dir.layout",
    b"stripe_unit=65536 stripe_count=1 object_size=65536 pool=data", 0)'

door() { echo "$address:205$1"; }
engine() { printf '[ceph]\nconf = "%s"\nroot = "/a"\nosds = [%d]\n' "$config" $(($1 - 1)); }
serve_dafs() {
    local number
    cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
metrics_listen = "127.0.0.1:9300"
lease_time_seconds = $lease_seconds
state_directory = "state"
[cluster]
secret = "secret"
[nfs]
listen = ["$address:2049"]
[[export]]
name = "data"
store = "cephfs"
squash = "none"
networks = ["10.0.2.0/24"]
[export.ceph]
conf = "$config"
root = "/a"
END
    for number in 1 2 3; do
        echo '[[export.ceph.data_server]]'
        far "$number"
        echo "osds = [$((number - 1))]"
    done >>"$work/dafs.toml"
    "$dafs" serve --config "$work/dafs.toml" --log "${LAB_LOG:-info}" \
        >>"$work/server.out" 2>>"$work/server.log" &
    server=$!
    started+=("$server")
}

# daemon_bytes OSD -- the bytes written to a storage daemon.
daemon_bytes() {
    timeout 30 ceph --admin-daemon "$work/ceph/run/osd.$1.asok" perf dump osd op_w_in_bytes |
        tr -dc '0-9\n' | grep -m 1 .
}

step "starting the servers"
data 1 2 3
serve
eventually 30 all_there
boot 1 2
guest 1 'nfs_mount 4.1 a'
guest 2 'nfs_mount 3 a'

step "writing past the server"
before=()
for osd in 0 1 2; do before[osd]=$(daemon_bytes "$osd"); done
look
guest 1 'dd if=/dev/urandom of=/out/wanted bs=1M count=16 status=none
    dd if=/out/wanted of=/mnt/a/file bs=1M conv=fsync status=none
    [[ $(stat -c %s /mnt/a/file) == $((16 << 20)) ]]'
moved written "$whole" $((1 << 20))
for osd in 0 1 2; do
    got=$(($(daemon_bytes "$osd") - before[osd]))
    [[ $got -ge $((1 << 20)) ]] || fail "storage daemon $osd got $got bytes"
    echo "storage daemon $osd got $got bytes"
done

step "reading past the server"
look
guest 1 'echo 3 >/proc/sys/vm/drop_caches; cmp /out/wanted /mnt/a/file'
moved read "$whole" $((1 << 20))
indirect=$(at_data_servers dafs_data_indirect_bytes_total)
[[ $indirect == 0 ]] || fail "$indirect bytes came to the wrong data server"

step "the same for a client of CephFS"
native 'wanted = open("'"$work"'/out/wanted", "rb").read()
assert fs.stat("/a/file").st_size == len(wanted)
fd = fs.open("/a/file", "r+")
assert fs.read(fd, 0, len(wanted)) == wanted
assert fs.write(fd, b"native", 100000) == 6
fs.close(fd)
fd = fs.open("/a/other", os.O_CREAT | os.O_WRONLY, 0o666)
fs.write(fd, b"made by a client of CephFS\n", 0)
fs.close(fd)'
guest 1 'echo 3 >/proc/sys/vm/drop_caches
    [[ $(dd if=/mnt/a/file bs=1 skip=100000 count=6 status=none) == native ]]
    grep -qx "made by a client of CephFS" /mnt/a/other'

step "the same through the server"
guest 2 '[[ $(dd if=/mnt/a/file bs=1 skip=100000 count=6 status=none) == native ]]
    printf changed | dd of=/mnt/a/file bs=1 seek=70000 conv=notrunc status=none
    truncate -s 200000 /mnt/a/file'
guest 1 'echo 3 >/proc/sys/vm/drop_caches
    [[ $(stat -c %s /mnt/a/file) == 200000 ]]
    [[ $(dd if=/mnt/a/file bs=1 skip=70000 count=7 status=none) == changed ]]
    head -c 70000 /mnt/a/file | cmp - <(head -c 70000 /out/wanted)
    rm /mnt/a/file'
native 'try:
    fs.stat("/a/file")
    raise SystemExit("the file is still there")
except cephfs.ObjectNotFound:
    pass'

go_without_one

lose_the_server

step "moving what one storage daemon has to the others"
part=$((4 << 20))
# is_direct N... -- true if a part of the file is written and read back through exactly these data
# servers.
is_direct() {
    local before number
    before=$(at_data_servers dafs_data_indirect_bytes_total)
    look
    guest 1 "dd if=/out/wanted of=/mnt/a/file bs=1M count=4 conv=notrunc,fsync status=none
        echo 3 >/proc/sys/vm/drop_caches
        cmp -n $part /out/wanted /mnt/a/file" || return 1
    (
        moved written "$part" $((part / 8)) "$@"
        moved read "$part" $((part / 8)) "$@"
        for number in 1 2 3; do
            [[ " $* " == *" $number "* || $(since "$number" written) == 0 && $(since "$number" read) == 0 ]] ||
                fail "data server $number was asked, too"
        done
        [[ $(at_data_servers dafs_data_indirect_bytes_total) == "$before" ]] || fail "it came to the wrong data servers"
    ) >"$work/moved"
}
# Counted at the server: clients do not count those that they request with an OPEN.
layouts_got() { counted 0 'dafs_operation_duration_seconds_count{front_end="nfs4",operation="LAYOUTGET"}'; }
# The file is held open, so that its layout is used from then on until it is recalled.
guest 1 'cp /out/wanted /mnt/a/file; exec 8<>/mnt/a/file'
is_direct 1 2 3 || fail "it is not direct: $(<"$work/moved")"
got=$(layouts_got)
is_direct 1 2 3 || fail "it is not direct: $(<"$work/moved")"
[[ $(layouts_got) == "$got" ]] || fail "the layout is not kept"
timeout 30 ceph -c "$config" osd out 2 2>/dev/null
# In one process, because each start takes long.
is_empty() {
    timeout 60 /usr/bin/python3 - "$config" <<END
import json, rados, sys
with rados.Rados(conffile=sys.argv[1]) as cluster:
    for group in range(32):
        command = {"prefix": "pg map", "pgid": f"2.{group:x}", "format": "json"}
        status, said, why = cluster.mon_command(json.dumps(command), b"")
        assert status == 0, why
        if json.loads(said)["acting"] == [2]:
            sys.exit(1)
END
}
began=$SECONDS
# Ceph moves the data in its own time.
eventually 300 is_empty
echo "its data was moved within $((SECONDS - began)) s"
began=$SECONDS
# A kernel that got no layout meanwhile asks for one again after 120 seconds.
(eventually 150 is_direct 1 2) || fail "it does not become direct: $(<"$work/moved")"
echo "$(<"$work/moved"), $((SECONDS - began)) s later"
[[ $(layouts_got) -gt $got ]] || fail "the layout was not recalled"
guest 1 'exec 8<&-; cmp /out/wanted /mnt/a/file; umount /mnt/a'
guest 2 'umount /mnt/a'
stop_server
