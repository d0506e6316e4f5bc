#!/bin/bash
# nfs-copies.sh -- files with two copies on three data servers: the kernel's client reads and writes
# the copies itself, goes on when a data server is killed under writes, and uses it again after it
# is back and repaired.
source "$(dirname "$0")/../nfs.sh"

[[ $transport == tcp && ! ${LAB_SERVER:-} ]] || skip "only over TCP, and only this server"

dafs=${DAFS:-$lab/../target/debug/dafs}
[[ -x $dafs ]] || fail "there is no $dafs; build it with: cargo build"
"$dafs" cluster init --secret "$work/secret"
mkdir "$work"/disk{1,2,3}
data_server=()
# Starts data server $1.
data() {
    "$dafs" serve --role data --cluster-secret "$work/secret" --control "127.0.0.1:710$1" \
        --nfs "$address:205$1" --nfs-network 10.0.2.0/24 --metrics "127.0.0.1:930$1" \
        --lease "$lease_seconds" --log "${LAB_LOG:-info}" "$work/disk$1" \
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
[[export]]
name = "data"
path = "export"
squash = "none"
networks = ["10.0.2.0/24"]
copies = 2
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
status() { "$dafs" cluster status --state-directory "$work/state" 2>&1; }
all_there() { status >/dev/null; }
is_mended() { local said; said=$(status) && [[ $said != *"copies to repair"* ]]; }

# True if twice the file was written to data servers since `look`, and not more if $1 says so.
written_directly() {
    local bytes=0
    moved written $((2 * whole)) 0
    for number in 1 2 3; do bytes=$((bytes + $(since "$number" written))); done
    [[ ! ${1:-} || $bytes == $((2 * whole)) ]] || fail "some of it was written twice"
}
read_directly() { moved read "$whole" 0; }
# True if the copies of file $1 are whole and equal.
alike() {
    local copies
    [[ $("$dafs" layout --state-directory "$work/state" "/data/$1" | grep -c '\[####\]') == 2 ]] ||
        return 1
    copies=$(find "$work"/disk? -type f -size +15M -newer "$work/$1.began" -exec sha256sum {} + |
        cut -d' ' -f1 | sort | uniq -c | sort -rn | head -n 1)
    [[ ${copies% *} -ge 2 && ${copies##* } == "$(sha256sum <"$work/out/wanted" | cut -d' ' -f1)" ]]
}

whole=$((16 << 20))
for number in 1 2 3; do data "$number"; done
serve
eventually 30 all_there
boot 1 2
guest 1 'nfs_mount 4.1 a'
guest 2 'nfs_mount 3 a'

step "writing both copies past the server"
touch "$work/file.began"
look
guest 1 'dd if=/dev/urandom of=/out/wanted bs=1M count=16 status=none
    dd if=/out/wanted of=/mnt/a/file bs=1M conv=fsync status=none'
written_directly once
[[ $(stat -c %s "$work/export/file") == "$whole" ]] || fail "the server does not know the size"
alike file || fail "the copies differ"

step "reading one of them"
look
guest 1 'echo 3 >/proc/sys/vm/drop_caches; cmp /out/wanted /mnt/a/file'
read_directly
guest 2 'cmp /out/wanted /mnt/a/file'

step "a data server is killed under writes, and reads and writes go on"
touch "$work/second.began"
before=()
for number in 1 2 3; do before[number]=$(counted "$number" dafs_export_written_bytes_total); done
begin 1 'dd if=/out/wanted of=/mnt/a/second bs=64k oflag=sync status=none'
victim=''
is_written() {
    for victim in 1 2 3; do
        [[ $(($(counted "$victim" dafs_export_written_bytes_total) - before[victim])) -lt 500000 ]] || return 0
    done
    return 1
}
eventually 60 is_written
kill -9 "${data_server[$victim]}"
wait "${data_server[$victim]}" 2>/dev/null || true
busy 1 || fail "the writer was done before"
end 1 || fail "the writer was told of an error"
for reader in 1 2; do
    guest "$reader" 'echo 3 >/proc/sys/vm/drop_caches
        cmp /out/wanted /mnt/a/second; cmp /out/wanted /mnt/a/file'
done
! all_there || fail "data server $victim is not missed"

step "it is back, and is mended"
begin 1 'echo 3 >/proc/sys/vm/drop_caches; cmp /out/wanted /mnt/a/second; cmp /out/wanted /mnt/a/file'
data "$victim"
end 1 || fail "the reader was told of an error"
eventually 60 is_mended
eventually 30 alike second
guest 1 'echo 3 >/proc/sys/vm/drop_caches; cmp /out/wanted /mnt/a/second'

step "what comes next goes to data servers again"
look
touch "$work/third.began"
guest 1 'dd if=/out/wanted of=/mnt/a/third bs=1M conv=fsync status=none'
# The client may repeat some of it to the data server that was down.
written_directly
alike third || fail "the copies differ"
look
guest 1 'echo 3 >/proc/sys/vm/drop_caches; cmp /out/wanted /mnt/a/third'
read_directly
guest 2 'cmp /out/wanted /mnt/a/third'

lose_the_server
guest 1 'rm /mnt/a/file /mnt/a/second /mnt/a/third'
removed() { [[ ! $(find "$work"/disk? -type f ! -name node ! -name incarnation) ]]; }
eventually 60 removed
stop_server
