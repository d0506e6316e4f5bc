#!/bin/bash
# A third-party client reads and writes by NFSv3: Debian's libnfs. A DAFS client sees its writes,
# and the other way round. Unauthorised clients are refused.
source "$(dirname "$0")/lib.sh"

for tool in nfs-ls nfs-cat nfs-cp; do
    command -v "$tool" >/dev/null || skip "there is no $tool; run: scripts/setup.sh test"
done
mkdir -p "$work/export/sub"
[[ ! $(id -u) == 0 ]] || chmod 777 "$work/export" "$work/export/sub"
serve "$work/export" --nfs 127.0.0.1:0 --no-root-squash
port=$(sed -n 's/.*listening for NFS.*:\([0-9]*\).*/\1/p' "$log" | head -n 1)
[[ $port ]] || { cat "$log"; fail "the log does not say where NFS is served"; }
at() { echo "nfs://127.0.0.1/$1?version=3&nfsport=$port&mountport=$port"; }

step "what libnfs writes, dafs reads"
head -c 3000001 /dev/urandom >"$work/data"
nfs-cp "$work/data" "$(at sub/by-nfs)" >/dev/null
"$dafs" get "$url/sub/by-nfs" "$work/back"
same "$work/data" "$work/back" "the files"

step "what dafs writes, libnfs reads"
"$dafs" put "$work/data" "$url/sub/by-dafs"
nfs-cat "$(at sub/by-dafs)" >"$work/back"
same "$work/data" "$work/back" "the files"

step "a directory of many names"
mkdir "$work/export/many"
(cd "$work/export/many" && seq 1 5000 | xargs touch)
nfs-ls "$(at many)" | awk '{ print $NF }' | grep -v '^\.\.*$' | sort -n >"$work/names"
same <(seq 1 5000) "$work/names" "the names"


step "a path that leads nowhere, and one that only begins like an export"
refused() {
    ! nfs-ls "$(at "$1")" >"$work/said" 2>&1 || { cat "$work/said"; fail "$1 was shown"; }
    grep -q "$2" "$work/said" || { cat "$work/said"; fail "$1 was refused for another reason"; }
}
refused nowhere NOENT
stop_server

step "an export for another network"
cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
state_directory = "state"
[nfs]
listen = ["127.0.0.1:0"]
[[export]]
name = "far"
path = "export"
networks = ["192.0.2.0/24"]
[[export]]
name = "farther"
path = "export"
END
serve --config "$work/dafs.toml"
port=$(sed -n 's/.*listening for NFS.*:\([0-9]*\).*/\1/p' "$log" | head -n 1)
refused far ACCES
refused fart NOENT
nfs-ls "$(at farther)" >/dev/null || fail "an export for this host does not let it in"
stop_server

step "rpcbind knows"
command -v rpcbind >/dev/null || skip "there is no rpcbind; run: scripts/setup.sh test"
[[ $(id -u) == 0 ]] || { echo "not root, so no rpcbind of our own"; exit 0; }
unshare --net --mount --pid --fork --kill-child --mount-proc true 2>/dev/null ||
    skip "the rest passed; for rpcbind this user may not make name spaces, as in a chroot"
sed -i 's/^\[nfs\]$/[nfs]\nregister_with_rpcbind = true/' "$work/dafs.toml"
# rpcbind has one port and one folder per host: it gets a network and a /run of its own.
cat >"$work/inside.sh" <<END
set -e
ip link set lo up
mount -t tmpfs run /run
rpcbind -w -f &
until rpcinfo -p 127.0.0.1 >/dev/null 2>&1; do sleep 0.05; done
"$dafs" serve --config "$work/dafs.toml" >"$work/out" 2>"$work/inside.log" &
server=\$!
until grep -q '^ready' "$work/out"; do sleep 0.05; done
rpcinfo -p 127.0.0.1
rpcinfo -t 127.0.0.1 nfs 3
rpcinfo -t 127.0.0.1 mountd 3
rpcinfo -t 127.0.0.1 100021 4
rpcinfo -t 127.0.0.1 100227 3
rpcinfo -t 127.0.0.1 100024 1
rpcinfo -u 127.0.0.1 100024 1
kill -TERM \$server
wait \$server
! rpcinfo -p 127.0.0.1 | grep -E 'nfs|100021|100024|100227' >/dev/null
END
timeout 60 unshare --net --mount --pid --fork --kill-child --mount-proc bash "$work/inside.sh" \
    >"$work/said" 2>&1 || { cat "$work/said" "$work/inside.log"; fail "rpcbind does not lead here"; }
grep -q 'program 100003 version 3 ready and waiting' "$work/said" ||
    { cat "$work/said"; fail "rpcbind does not lead to NFS"; }
