#!/bin/bash
# nfs-pnfs.sh -- files that are spread over three directories: the kernel's client goes to the data
# servers itself with version 4.1, and through the server with version 3; both see the same bytes.
#
# Clients fall back to the server without a word, so what went which way is read from the server's
# counters.
source "$(dirname "$0")/../nfs.sh"

[[ $transport == tcp && ! ${LAB_SERVER:-} ]] || skip "only over TCP, and only this server"

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
stripe_bytes = 65536
END
    for number in 1 2 3; do
        cat >>"$work/dafs.toml" <<END
[[export.node]]
number = $number
path = "disk$number"
listen = "$address:205$number"
END
    done
    "$dafs" serve --config "$work/dafs.toml" --log "${LAB_LOG:-info}" \
        >>"$work/server.out" 2>>"$work/server.log" &
    server=$!
    started+=("$server")
}

counter() {
    local line
    exec 3<>/dev/tcp/127.0.0.1/9300
    printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
    while read -r line; do
        line=${line%$'\r'}
        [[ $line != "$1 "* && $line != "$1_total "* ]] || echo "${line##* }"
    done <&3
    exec 3<&-
}

serve
boot 1 2
guest 1 'nfs_mount 4.1 a'
guest 2 'nfs_mount 3 a'

step "writing past the server"
guest 1 'dd if=/dev/urandom of=/out/wanted bs=1M count=16 status=none
    dd if=/out/wanted of=/mnt/a/file bs=1M conv=fsync status=none'
received=$(counter data_received_bytes) whole=$((16 << 20))
[[ $received -ge $whole ]] || fail "only $received bytes went to data servers"
through=$(counter nfs_received_bytes)
[[ $through -lt $((1 << 20)) ]] || fail "$through bytes went through the server"
[[ $(counter data_indirect_bytes) == 0 ]] || fail "stripes came to the wrong data server"
[[ $(stat -c %s "$work/export/file") == "$whole" ]] || fail "the server does not know the size"
for number in 1 2 3; do
    [[ $(du -sk "$work/disk$number" | cut -f1) -ge 5000 ]] || fail "disk$number has too little"
done

step "reading past the server"
guest 1 'echo 3 >/proc/sys/vm/drop_caches; cmp /out/wanted /mnt/a/file'
sent=$(counter data_sent_bytes)
[[ $sent -ge $whole ]] || fail "only $sent bytes came from data servers"

step "the same through the server"
guest 2 'cmp /out/wanted /mnt/a/file
    printf changed | dd of=/mnt/a/file bs=1 seek=70000 conv=notrunc status=none
    truncate -s 200000 /mnt/a/file'
guest 1 'echo 3 >/proc/sys/vm/drop_caches
    [[ $(stat -c %s /mnt/a/file) == 200000 ]]
    [[ $(dd if=/mnt/a/file bs=1 skip=70000 count=7 status=none) == changed ]]
    head -c 70000 /mnt/a/file | cmp - <(head -c 70000 /out/wanted)
    rm /mnt/a/file'
removed() { [[ ! $(find "$work"/disk? -type f ! -name node) ]]; }
eventually 30 removed
stop_server
