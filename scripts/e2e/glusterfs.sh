#!/bin/bash
# A GlusterFS volume as an export: errors of its setup are reported with the remedy. Files go there
# and back, also over a restart of the server.
source "$(dirname "$0")/lib.sh"

for program in glusterd glusterfsd gluster; do
    command -v "$program" >/dev/null || skip "$program is not installed"
done
is_root || skip "bricks need root"

configure() {
    cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
state_directory = "state"
[nfs]
listen = ["127.0.0.1:0"]
[[export]]
name = "g"
store = "glusterfs"
squash = "none"
[export.gluster]
volume = "$1"
servers = ["$2"]
${3:-}
END
}
refused() { expect 1 "$1" timeout 100 "$dafs" serve --config "$work/dafs.toml"; }

step "no library"
configure dist 127.0.0.1
mkdir "$work/broken"
: >"$work/broken/libgfapi.so.0"
LD_LIBRARY_PATH=$work/broken refused 'apt install libgfapi0'

step "starting GlusterFS"
undo+=("lab/engines/glusterfs.sh stop $work/gluster >/dev/null 2>&1")
gluster_server=$(lab/engines/glusterfs.sh start "$work/gluster")
net=${gluster_server%.1}
admin() { lab/engines/glusterfs.sh admin "$work/gluster" "$@" >/dev/null; }

step "no such volume"
configure dost "$gluster_server"
refused 'gluster volume'

step "no such directory"
configure dist "$gluster_server" 'root = "/not/there"'
refused 'no such file or directory'

step "data servers that cannot be"
door() { printf '[[export.gluster.data_server]]\nlisten = "127.0.0.1:0"\nbrick = "%s"\n' "$1"; }
configure dist "$gluster_server" "$(door "$net.9:$work/gluster/9/brick")"
refused "it has $net.1:$work/gluster/1/brick"
admin volume create copies replica 3 "$net.1:$work/gluster/1/copy" "$net.2:$work/gluster/2/copy" \
    "$net.3:$work/gluster/3/copy" force
admin volume start copies
configure copies "$gluster_server" "$(door "$net.1:$work/gluster/1/copy")"
refused 'cluster/replicate: leave the data servers out'

step "files"
configure dist "$gluster_server" "$(door "$net.1:$work/gluster/1/brick")"
serve --config "$work/dafs.toml"
mkdir "$work/files"
for number in {1..9}; do head -c "$((number * 50000))" /dev/urandom >"$work/files/$number"; done
"$dafs" put "$work/files" "$url/g"
"$dafs" get "$url/g/files" "$work/back"
diff -r "$work/files" "$work/back"
[[ $(cat "$work"/gluster/?/brick/files/? | wc -c) == $(cat "$work"/files/? | wc -c) ]] ||
    fail "the bricks do not have the files"
stop_server
serve --config "$work/dafs.toml"
"$dafs" get "$url/g/files" "$work/again"
diff -r "$work/files" "$work/again"
"$dafs" rm -r "$url/g/files"
stop_server

step "a volume with copies is served without data servers"
configure copies "$gluster_server"
serve --config "$work/dafs.toml"
"$dafs" put "$work/files/9" "$url/g"
[[ $(cat "$work"/gluster/?/copy/9 | wc -c) == $((3 * 450000)) ]] || fail "there are no three copies"
stop_server
