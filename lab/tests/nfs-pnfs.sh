#!/bin/bash
# nfs-pnfs.sh -- files striped over three directories: the kernel's client uses the data servers
# directly with version 4.1, and the server with version 3; both see the same bytes.
#
# With LAB_TRANSPORT=siw all of it goes over RDMA, to the data servers too.
source "$(dirname "$0")/../nfs.sh"

[[ $transport != rxe && ! ${LAB_SERVER:-} ]] || skip "only over TCP or siw, and only this server"
# The counters of file bytes: received and sent.
declare -A counter=([received]=dafs_data_received_bytes_total [sent]=dafs_data_sent_bytes_total)
ports=false
if [[ $transport == siw ]]; then
    counter=([received]=dafs_data_rdma_read_bytes_total [sent]=dafs_data_rdma_written_bytes_total) ports=true
fi

mkdir "$work"/disk{1,2,3}
serve_dafs() {
    local dafs=${DAFS:-$lab/../target/debug/dafs} number
    [[ -x $dafs ]] || fail "there is no $dafs; build it with: cargo build"
    cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
metrics_listen = "127.0.0.1:9300"
lease_time_seconds = $lease_seconds
state_directory = "state"
[nfs]
listen = ["$address:2049"]
[[export]]
name = "data"
path = "export"
squash = "none"
networks = ["10.0.2.0/24"]
unprivileged_ports = $ports
stripe_bytes = 65536
END
    for number in 1 2 3; do
        cat >>"$work/dafs.toml" <<END
[[export.node]]
number = $number
path = "disk$number"
listen = "$address:205$number"
END
        [[ $transport == tcp ]] || echo "rdma_listen = \"$address:2105$number\"" >>"$work/dafs.toml"
    done
    "$dafs" serve --config "$work/dafs.toml" --log "${LAB_LOG:-info}" \
        >>"$work/server.out" 2>>"$work/server.log" &
    server=$!
    started+=("$server")
}

# Data servers in the server's own process are counted together, including all overhead.
whole=$((16 << 20))
# begins -- resets the counts for `went received` and `went sent`.
begins() {
    look
    received=$(counted 0 "${counter[received]}") sent=$(counted 0 "${counter[sent]}")
}
went() {
    local bytes=$(($(counted 0 "${counter[$1]}") - $1))
    echo "data servers: $bytes bytes $1"
    [[ $bytes -ge $whole && $bytes -lt $((whole + whole / 4)) ]] || fail "that is not what was moved"
    [[ $(counted 0 dafs_data_indirect_bytes_total) == 0 ]] || fail "stripes came to the wrong data server"
    none_through
}

serve
boot 1 2
guest 1 'nfs_mount 4.1 a'
guest 2 'nfs_mount 3 a'

step "writing past the server"
begins
guest 1 'dd if=/dev/urandom of=/out/wanted bs=1M count=16 status=none
    dd if=/out/wanted of=/mnt/a/file bs=1M conv=fsync status=none'
went received
[[ $(stat -c %s "$work/export/file") == "$whole" ]] || fail "the server does not know the size"
for number in 1 2 3; do
    [[ $(du -sk "$work/disk$number" | cut -f1) -ge 5000 ]] || fail "disk$number has too little"
done

step "reading past the server"
begins
guest 1 'echo 3 >/proc/sys/vm/drop_caches; cmp /out/wanted /mnt/a/file'
went sent

step "the same through the server"
guest 2 'cmp /out/wanted /mnt/a/file
    printf changed | dd of=/mnt/a/file bs=1 seek=70000 conv=notrunc status=none
    truncate -s 200000 /mnt/a/file'
guest 1 'echo 3 >/proc/sys/vm/drop_caches
    [[ $(stat -c %s /mnt/a/file) == 200000 ]]
    [[ $(dd if=/mnt/a/file bs=1 skip=70000 count=7 status=none) == changed ]]
    head -c 70000 /mnt/a/file | cmp - <(head -c 70000 /out/wanted)
    rm /mnt/a/file'
removed() { [[ ! $(find "$work"/disk? -type f ! -name node ! -name incarnation) ]]; }
eventually 30 removed
stop_server
