#!/bin/bash
# nfs-cluster.sh -- files striped over three data servers in separate processes: the kernel's client
# uses each of them directly, goes on when one is killed under writes and restarted, and uses it
# again for later requests.
#
# With LAB_TRANSPORT=siw all of it goes over RDMA, to the data servers too. LAB_SECURITY and LAB_XPRTSEC hold at the
# data servers as well: each has the keys and the certificate.
source "$(dirname "$0")/../nfs.sh"

[[ $transport != rxe && ! ${LAB_SERVER:-} ]] || skip "only over TCP or siw, and only this server"
ports=false
[[ $transport == tcp ]] || ports=true

proofs=()
[[ $security == sys ]] || proofs+=(--keytab "$work/out/realm/server.keytab" --keytab-host host.test.dafs)
[[ $xprtsec == none ]] || proofs+=(--certificate "$work/out/pki/host.test.dafs.pem"
    --key "$work/out/pki/host.test.dafs-key.pem" --authorities "$work/out/pki/ca.pem")

dafs=${DAFS:-$lab/../target/debug/dafs}
[[ -x $dafs ]] || fail "there is no $dafs; build it with: cargo build"
"$dafs" cluster init --secret "$work/secret"
mkdir "$work"/disk{1,2,3}
data_server=()
# Starts data server $1.
data() {
    local rdma=()
    [[ $transport == tcp ]] || rdma=(--nfs-rdma "$address:2105$1" --nfs-unprivileged-ports)
    "$dafs" serve --role data --cluster-secret "$work/secret" --control "127.0.0.1:710$1" \
        --nfs "$address:205$1" --nfs-network 10.0.2.0/24 --metrics "127.0.0.1:930$1" \
        --lease "$lease_seconds" --log "${LAB_LOG:-info}" ${rdma[@]+"${rdma[@]}"} ${proofs[@]+"${proofs[@]}"} \
        "$work/disk$1" \
        >>"$work/data-$1.out" 2>>"$work/server.log" &
    data_server[$1]=$!
    started+=("${data_server[$1]}")
}
serve_dafs() {
    local number
    cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
metrics_listen = "127.0.0.1:9300"
lease_time_seconds = $lease_seconds
state_directory = "state"
[nfs]
listen = ["$address:2049"]
[cluster]
secret = "secret"
$([[ $security == sys ]] || kerberos_rules)
$([[ $xprtsec == none ]] || tls_files)
[[export]]
name = "data"
path = "export"
squash = "none"
networks = ["10.0.2.0/24"]
unprivileged_ports = $ports
sec = [$flavours]
transport_security = "$xprtsec"
stripe_bytes = 65536
END
    for number in 1 2 3; do
        cat >>"$work/dafs.toml" <<END
[[export.node]]
number = $number
control = "127.0.0.1:710$number"
END
    done
    "$dafs" serve --config "$work/dafs.toml" --log "${LAB_LOG:-info}" \
        >>"$work/server.out" 2>>"$work/server.log" &
    server=$!
    started+=("$server")
}
all_there() { "$dafs" cluster status --state-directory "$work/state" >/dev/null 2>&1; }

# by_rdma WAY -- true if each data server, except restarted ones, has moved data in RDMA chunks.
by_rdma() {
    local counter=dafs_data_rdma_written_bytes_total number
    [[ $1 == read ]] || counter=dafs_data_rdma_read_bytes_total
    for number in 1 3; do
        at_least "$number" "$counter" 5000000 || fail "data server $number was not reached by RDMA"
    done
}
# directly WAY -- 16 MiB since `look`: each data server has moved its third.
directly() {
    moved "$1" $((16 << 20)) 5000000
    [[ $(at_data_servers dafs_data_indirect_bytes_total) == 0 ]] || fail "stripes came to the wrong one"
    [[ $transport == tcp ]] || by_rdma "$1"
}

for number in 1 2 3; do data "$number"; done
serve
eventually 30 all_there
boot 1 2
guest 1 'nfs_mount 4.1 a'
guest 2 'nfs_mount 3 a'

step "writing to three data servers"
look
guest 1 'dd if=/dev/urandom of=/out/wanted bs=1M count=16 status=none
    dd if=/out/wanted of=/mnt/a/file bs=1M conv=fsync status=none'
directly written
[[ $(stat -c %s "$work/export/file") == $((16 << 20)) ]] || fail "the server does not know the size"

step "reading from them"
look
guest 1 'echo 3 >/proc/sys/vm/drop_caches; cmp /out/wanted /mnt/a/file'
directly read
guest 2 'cmp /out/wanted /mnt/a/file'

step "a data server is killed under writes"
written=$(counted 2 dafs_export_written_bytes_total)
begin 1 'dd if=/out/wanted of=/mnt/a/second bs=64k oflag=sync status=none'
eventually 60 at_least 2 dafs_export_written_bytes_total $((written + 500000))
kill -9 "${data_server[2]}"
wait "${data_server[2]}" 2>/dev/null || true
busy 1 || fail "the writer was done before"
is_missed() { ! all_there; }
eventually 30 is_missed
data 2
eventually 30 all_there
end 1 || fail "the writer was told of an error"
guest 1 'echo 3 >/proc/sys/vm/drop_caches; cmp /out/wanted /mnt/a/second'
guest 2 'cmp /out/wanted /mnt/a/second; cmp /out/wanted /mnt/a/file'

step "what comes next goes to all data servers again"
look
guest 1 'dd if=/out/wanted of=/mnt/a/third bs=1M conv=fsync status=none
    echo 3 >/proc/sys/vm/drop_caches; cmp /out/wanted /mnt/a/third'
directly written
directly read
# Data written and read before, too.
look
guest 1 'echo 3 >/proc/sys/vm/drop_caches; cmp /out/wanted /mnt/a/file'
directly read
guest 2 'cmp /out/wanted /mnt/a/third'

lose_the_server

step "a data server goes and comes back: what is removed then is gone there too"
kill -9 "${data_server[3]}"
wait "${data_server[3]}" 2>/dev/null || true
eventually 30 is_missed
data 3
eventually 30 all_there
guest 1 'rm /mnt/a/file /mnt/a/second'
[[ ! -e $work/export/file ]] || fail "the name is still there"
guest 1 'truncate -s 200000 /mnt/a/third
    head -c 200000 /out/wanted | cmp - /mnt/a/third
    rm /mnt/a/third'
removed() { [[ ! $(find "$work"/disk? -type f ! -name node ! -name incarnation) ]]; }
eventually 60 removed
stop_server
