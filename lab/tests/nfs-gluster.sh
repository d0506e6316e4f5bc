#!/bin/bash
# nfs-gluster.sh -- files of a GlusterFS volume over three bricks, each with a data server in a
# process of its own. The kernel's client uses the data servers directly with version 4.1, and the
# metadata server with version 3. Both see the same bytes as a client of GlusterFS. When a data
# server is killed, the kernel's client falls back to the metadata server, and returns when it is
# back.
source "$(dirname "$0")/../nfs.sh"

[[ $transport == tcp && ! ${LAB_SERVER:-} ]] || skip "only over TCP, and only this server"
for program in glusterd glusterfsd gluster; do
    command -v "$program" >/dev/null || skip "$program is not installed"
done
[[ $(</proc/self/uid_map) =~ 4294967295$ ]] || skip "bricks need root"

source "$lab/apart.sh"
files=24 whole=$((24 << 20))

step "starting GlusterFS"
cluster=$work/gluster
gluster_server=$("$lab/engines/glusterfs.sh" start "$cluster")
net=${gluster_server%.1}

# native CODE -- runs code with a client of GlusterFS by its own library; `call` reports errors.
native() {
    timeout 60 /usr/bin/python3 - "$gluster_server" <<END
import ctypes, os, sys
api = ctypes.CDLL("libgfapi.so.0", use_errno=True)
for name in ("glfs_new", "glfs_open", "glfs_creat"):
    getattr(api, name).restype = ctypes.c_void_p
for name in ("glfs_read", "glfs_write", "glfs_lseek"):
    getattr(api, name).restype = ctypes.c_ssize_t
def call(name, *arguments):
    answer = getattr(api, name)(*arguments)
    if answer is None or name not in ("glfs_new", "glfs_open", "glfs_creat") and answer < 0:
        raise OSError(ctypes.get_errno(), name)
    return answer
fs = ctypes.c_void_p(call("glfs_new", b"dist"))
call("glfs_set_volfile_server", fs, b"tcp", sys.argv[1].encode(), 24007)
call("glfs_set_logging", fs, b"/dev/null", 0)
call("glfs_init", fs)
def opened(path, flags):
    return ctypes.c_void_p(call("glfs_open", fs, path.encode(), flags))
def read(path):
    fd, parts = opened(path, os.O_RDONLY), []
    while True:
        buffer = ctypes.create_string_buffer(1 << 20)
        count = call("glfs_read", fd, buffer, ctypes.c_size_t(1 << 20), 0)
        if not count:
            call("glfs_close", fd)
            return b"".join(parts)
        parts.append(buffer.raw[:count])
def write(path, at, data):
    fd = opened(path, os.O_RDWR)
    call("glfs_lseek", fd, ctypes.c_long(at), os.SEEK_SET)
    assert call("glfs_write", fd, data, ctypes.c_size_t(len(data)), 0) == len(data)
    call("glfs_close", fd)
$1
sys.stdout.flush()
# To give the volume back takes ten seconds.
os._exit(0)
END
}
native 'call("glfs_mkdir", fs, b"/a", 0o777)
call("glfs_chmod", fs, b"/a", 0o777)'

# Each data server has an address of its own, so that one of them can be cut off.
for number in 1 2 3; do ip address add "10.0.2.20$number/24" dev lab; done

door() { echo "10.0.2.20$1:2051"; }
brick() { echo "brick = \"$net.$1:$cluster/$1/brick\""; }
engine() {
    printf '[gluster]\nvolume = "dist"\nservers = ["%s"]\n' "$gluster_server"
    brick "$1"
}
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
store = "glusterfs"
squash = "none"
networks = ["10.0.2.0/24"]
[export.gluster]
volume = "dist"
servers = ["$gluster_server"]
root = "/a"
END
    for number in 1 2 3; do
        echo '[[export.gluster.data_server]]'
        far "$number"
        brick "$number"
    done >>"$work/dafs.toml"
    "$dafs" serve --config "$work/dafs.toml" --log "${LAB_LOG:-info}" \
        >>"$work/server.out" 2>>"$work/server.log" &
    server=$!
    started+=("$server")
}

step "starting the servers"
data 1 2 3
serve
eventually 30 all_there
boot 1 2
guest 1 'nfs_mount 4.1 a'
guest 2 'nfs_mount 3 a'

step "writing past the server"
look
guest 1 "dd if=/dev/urandom of=/out/wanted bs=1M count=$files status=none
    for ((n = 0; n < $files; n++)); do
        dd if=/out/wanted of=/mnt/a/file\$n bs=1M count=1 skip=\$n conv=fsync status=none
        [[ \$(stat -c %s /mnt/a/file\$n) == $((1 << 20)) ]]
    done"
moved written "$whole" $((1 << 20))
for number in 1 2 3; do
    got=$(find "$cluster/$number/brick/a" -type f -size +0 | wc -l)
    echo "brick $number has $got files"
    [[ $got -ge 2 ]] || fail "brick $number has only $got files"
done

step "reading past the server"
# compare GUEST -- compares all files there with those at their server.
compare() {
    guest "$1" "echo 3 >/proc/sys/vm/drop_caches
        for ((n = 0; n < $files; n++)); do cat /mnt/a/file\$n; done | cmp /out/wanted -"
}
look
compare 1
moved read "$whole" $((1 << 20))
indirect=$(at_data_servers dafs_data_indirect_bytes_total)
[[ $indirect == 0 ]] || fail "$indirect bytes came to the wrong data server"

step "the same for a client of GlusterFS"
native 'wanted = open("'"$work"'/out/wanted", "rb").read()
assert b"".join(read(f"/a/file{n}") for n in range('"$files"')) == wanted
write("/a/file0", 100000, b"native")
fd = ctypes.c_void_p(call("glfs_creat", fs, b"/a/other", os.O_WRONLY, 0o666))
text = b"made by a client of GlusterFS\n"
assert call("glfs_write", fd, text, ctypes.c_size_t(len(text)), 0) == len(text)
call("glfs_close", fd)'
guest 1 'echo 3 >/proc/sys/vm/drop_caches
    [[ $(dd if=/mnt/a/file0 bs=1 skip=100000 count=6 status=none) == native ]]
    grep -qx "made by a client of GlusterFS" /mnt/a/other'

step "the same through the server"
guest 2 '[[ $(dd if=/mnt/a/file0 bs=1 skip=100000 count=6 status=none) == native ]]
    printf changed | dd of=/mnt/a/file0 bs=1 seek=70000 conv=notrunc status=none
    truncate -s 200000 /mnt/a/file0'
guest 1 'echo 3 >/proc/sys/vm/drop_caches
    [[ $(stat -c %s /mnt/a/file0) == 200000 ]]
    [[ $(dd if=/mnt/a/file0 bs=1 skip=70000 count=7 status=none) == changed ]]
    head -c 70000 /mnt/a/file0 | cmp - <(head -c 70000 /out/wanted)
    rm /mnt/a/file0'
native 'try:
    read("/a/file0")
    raise SystemExit("the file is still there")
except FileNotFoundError:
    pass'
guest 1 'head -c 1M /out/wanted >/mnt/a/file0'

go_without_one
guest 1 'rm /mnt/a/during* /mnt/a/without* /mnt/a/again*'

lose_the_server

step "moving files to other bricks under a client"
# New names hash to other bricks, and a rebalance moves the files there.
native 'for n in range('"$files"'):
    call("glfs_rename", fs, f"/a/file{n}".encode(), f"/a/moved{n}".encode())'
guest 1 "for ((n = 0; n < $files; n++)); do
        eval \"exec \$((20 + n))<>/mnt/a/moved\$n\"
        head -c 4096 /mnt/a/moved\$n >/dev/null
    done"
"$lab/engines/glusterfs.sh" admin "$cluster" volume rebalance dist start force >/dev/null
is_balanced() {
    "$lab/engines/glusterfs.sh" admin "$cluster" volume rebalance dist status >"$work/rebalance" &&
        ! grep -q 'in progress' "$work/rebalance" && grep -q completed "$work/rebalance"
}
round=0
while ! is_balanced; do
    [[ $round -lt 60 ]] || fail "the rebalance does not end: $(<"$work/rebalance")"
    round=$((round + 1))
    guest 1 "for ((n = 0; n < $files; n++)); do
            dd if=/out/wanted of=/mnt/a/moved\$n bs=1M count=1 skip=\$n conv=notrunc,fsync status=none
        done"
done
cat "$work/rebalance"
guest 1 "for ((n = 0; n < $files; n++)); do
        dd if=/out/wanted of=/mnt/a/moved\$n bs=1M count=1 skip=\$n conv=notrunc,fsync status=none
        eval \"exec \$((20 + n))>&-\"
    done"
native 'wanted = open("'"$work"'/out/wanted", "rb").read()
assert b"".join(read(f"/a/moved{n}") for n in range('"$files"')) == wanted'
is_direct_again() {
    local before
    before=$(at_data_servers dafs_data_indirect_bytes_total)
    look
    guest 1 "for ((n = 0; n < $files; n++)); do
            dd if=/out/wanted of=/mnt/a/moved\$n bs=1M count=1 skip=\$n conv=notrunc,fsync status=none
        done
        echo 3 >/proc/sys/vm/drop_caches
        for ((n = 0; n < $files; n++)); do cat /mnt/a/moved\$n; done | cmp /out/wanted -" || return 1
    (
        moved written "$whole" $((1 << 20))
        moved read "$whole" $((1 << 20))
        [[ $(at_data_servers dafs_data_indirect_bytes_total) == "$before" ]] || fail "it came to the wrong data servers"
    ) >"$work/moved"
}
began=$SECONDS
# A kernel that got no layout meanwhile asks for one again after 120 seconds.
(eventually 150 is_direct_again) || fail "it does not become direct: $(<"$work/moved")"
echo "$(<"$work/moved"), $((SECONDS - began)) s later"
echo "$(at_data_servers dafs_data_indirect_bytes_total) bytes astray meanwhile"

step "going without a data server"
guest 2 'umount /mnt/a; ip route add unreachable 10.0.2.202; nfs_mount 4.1 a'
look
guest 2 "for ((n = 0; n < $files; n++)); do
        dd if=/out/wanted of=/mnt/a/again\$n bs=1M count=1 skip=\$n conv=fsync status=none
    done
    echo 3 >/proc/sys/vm/drop_caches
    for ((n = 0; n < $files; n++)); do cat /mnt/a/again\$n; done | cmp /out/wanted -"
direct=$(($(since 1 written) + $(since 2 written) + $(since 3 written)))
echo "$(since 0 written) bytes written through the server, $direct at data servers"
[[ $(since 0 written) -ge $((1 << 20)) && $direct -ge $((1 << 20)) ]] || fail "they did not go both ways"
guest 1 "for ((n = 0; n < $files; n++)); do cat /mnt/a/again\$n; done | cmp /out/wanted -"

guest 1 'umount /mnt/a'
guest 2 'umount /mnt/a'
stop_server
"$lab/engines/glusterfs.sh" stop "$cluster"
