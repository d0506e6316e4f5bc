#!/bin/bash
# NFS and DAFS over RDMA: mistakes of an administrator at the start of the server, and of a user.
source "$(dirname "$0")/lib.sh"

mkdir "$work/export"
here=$work/export
state=(--state-directory "$work/state")

step "wrong addresses"
expect 2 '127.0.0.1:20049' "$dafs" serve "$here" --nfs-rdma nowhere
expect 2 '127.0.0.1:20049' "$dafs" serve "$here" --nfs-verbs nowhere
expect 2 '127.0.0.1:20490' "$dafs" serve "$here" --verbs nowhere
expect 2 'name the port' "$dafs" serve "$here" --verbs 192.0.2.1:0
expect 2 'can be reached by other hosts' "$dafs" serve "$here" "${state[@]}" --verbs 192.0.2.1:20490
# Without devices or their libraries this reports the missing part; with them, that there is no
# device.
expect 1 'RDMA device' \
    timeout 20 "$dafs" serve "$here" "${state[@]}" --listen 127.0.0.1:0 --nfs-verbs 192.0.2.1:20049
expect 1 'RDMA device for DAFS at 127.0.0.1:20490' \
    timeout 20 "$dafs" serve "$here" "${state[@]}" --listen 127.0.0.1:0 --verbs 127.0.0.1:20490
expect 1 'this host has no such address' \
    timeout 20 "$dafs" serve "$here" "${state[@]}" --listen 127.0.0.1:0 --nfs-rdma 192.0.2.1:20049
expect 3 'was not reached by an RDMA device' \
    timeout 20 "$dafs" ping 'dafs://127.0.0.1:1/?transport=verbs&connect-timeout=5'

step "a port that somebody has"
serve "$here" --nfs 127.0.0.1:0 --nfs-rdma 127.0.0.1:0
port_of() { sed -nE "s/.*$1.*address=[0-9.]*:([0-9]+).*/\1/p" "$log" | head -n 1; }
rdma=$(port_of 'NFS over RDMA')
tcp=$(port_of 'listening for NFS ')
[[ $rdma && $tcp ]] || { cat "$log"; fail "the log does not say where it listens"; }
expect 1 'choose another with --nfs-rdma' timeout 20 "$dafs" serve "$here" \
    --state-directory "$work/other" --listen 127.0.0.1:0 --nfs-rdma "127.0.0.1:$rdma"
grep -qF "mount -t nfs -o vers=4.2,proto=rdma,port=$rdma" "$log" || fail "no line to mount with"

# says PORT BYTES TEXT -- the server logs the text when it gets these bytes at the port.
says() {
    local port=$1 text=$3
    exec 3<>"/dev/tcp/127.0.0.1/$port"
    printf '%b' "$2" >&3
    has_said() { grep -qF "$text" "$log"; }
    eventually has_said
    exec 3>&-
}

step "a client of NFS over TCP at the port for RDMA"
zeros='\0\0\0\0'
says "$rdma" "\200\0\0\050\0\0\0\1$zeros\0\0\0\2\0\1\206\243\0\0\0\4$zeros$zeros$zeros$zeros$zeros" \
    'it should mount with proto=rdma'

step "a client of NFS over RDMA at the port for TCP"
says "$tcp" 'MPA ID Req Frame\100\2\0\0' 'an RDMA client on the port of plain TCP'
stop_server

step "a client from a network that is not let in"
cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
[nfs]
listen = ["127.0.0.1:0"]
rdma_listen = ["127.0.0.1:0"]
[[export]]
name = "data"
path = "export"
networks = ["192.0.2.0/24"]
END
serve --config "$work/dafs.toml"
grep -qF 'proto=rdma' "$log" || fail "the configured address for RDMA is not used"
says "$(port_of 'listening for NFS ')" \
    "\200\0\0\060\0\0\0\1$zeros\0\0\0\2\0\1\206\245\0\0\0\3\0\0\0\1$zeros$zeros$zeros$zeros\0\0\0\1/\0\0\0" \
    "none of the export's networks"
stop_server
