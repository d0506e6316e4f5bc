#!/bin/bash
# The commands work with NFS servers as they do with DAFS servers: trees go there and back by every
# version, over TCP, iWARP and shared memory; and wrong URLs get an error with the right form.
source "$(dirname "$0")/lib.sh"

mkdir -p "$work/export/sub"
[[ ! $(id -u) == 0 ]] || chmod 777 "$work/export" "$work/export/sub"
serve "$work/export" --nfs 127.0.0.1:0 --nfs-rdma 127.0.0.1:0 --no-root-squash \
    --nfs-unprivileged-ports
address() { sed -n "s/.*listening for NFS$1 *address=//p" "$log" | head -n 1; }
tcp=$(address '')
rdma=$(address ' over RDMA (iWARP in software)')
[[ $tcp && $rdma ]] || { cat "$log"; fail "the log does not say where NFS is served"; }

step "a tree to copy"
tree=$work/tree
mkdir -p "$tree/dir/deep/deeper" "$tree/empty"
head -c 5000001 /dev/urandom >"$tree/dir/large"
head -c 100 /dev/urandom >"$tree/small"
: >"$tree/dir/nothing"
truncate -s 3M "$tree/dir/sparse"
printf 'end' >>"$tree/dir/sparse"
ln "$tree/small" "$tree/dir/further name"
ln -s ../small "$tree/dir/link"
mkfifo "$tree/dir/pipe"
seq 1 300 | while read -r number; do echo "$number" >"$tree/dir/deep/$number"; done
chmod 4711 "$tree/dir/large"
chmod 500 "$tree/dir/deep/deeper"
find "$tree" -exec touch -h -d '2001-02-03 04:05:06.789' {} +

while read -r place query; do
    step "there and back: $place$query"
    base=$place/sub
    "$dafs" put "$tree" "$base/copy$query"
    rm -rf "$work/back"
    "$dafs" get "$base/copy$query" "$work/back"
    same <(listing "$tree") <(listing "$work/back") "the listings of the trees"
    same <(hard_links "$tree") <(hard_links "$work/back") "the hard links"
    same <(contents "$tree") <(contents "$work/back") "the contents"
    "$dafs" cat "$base/copy/dir/large$query" >"$work/said"
    same "$tree/dir/large" "$work/said" "the files"
    "$dafs" ls "$base/copy/dir/deep$query" >"$work/said"
    same <(LC_ALL=C ls "$tree/dir/deep") "$work/said" "the names"

    "$dafs" mkdir -p "$base/a/b/c$query"
    "$dafs" mv "$base/copy/small$query" "$base/a/b$query"
    "$dafs" ln -s b "$base/a/l$query"
    "$dafs" cat "$base/a/l/small$query" >"$work/said"
    same "$tree/small" "$work/said" "the files"
    "$dafs" stat --json "$base/a/b/small$query" | grep '"size":100' >/dev/null || fail "stat"
    "$dafs" df --json "$base$query" | grep '"space_total":[1-9]' >/dev/null || fail "df"
    "$dafs" put --sync --verify "$tree/dir/large" "$base/a/large$query"
    "$dafs" rm -r "$base/a$query" "$base/copy$query"
    expect 1 'NOENT' "$dafs" cat "$base/a/large$query"
    expect 1 'no such file' "$dafs" get "$base/copy$query" "$work/none"
    [[ ! $(ls -A "$work/export/sub") ]] || fail "something was left"
    no_parts "$work"
done <<END
nfs://$tcp ?vers=3
nfs://$tcp ?vers=4.1
nfs://$tcp ?vers=4.2&rsize=64k&wsize=32k
nfs+rdma://$rdma ?vers=3&transport=iwarp
nfs+rdma://$rdma ?vers=4.2&transport=iwarp
nfs+rdma://$rdma ?vers=3&transport=shm
nfs+rdma://$rdma ?vers=4.1&transport=shm
END

step "the best version and transport are chosen"
"$dafs" -v ls "nfs://$tcp/" 2>"$work/said" >/dev/null
grep -q 'tcp: NFS version 4.2' "$work/said" || { cat "$work/said"; fail "another choice"; }
"$dafs" -v ls "nfs+rdma://$rdma/" 2>"$work/said" >/dev/null
grep -q 'shm: NFS version 4.2' "$work/said" || { cat "$work/said"; fail "another choice"; }
"$dafs" -v --transport iwarp ls "nfs+rdma://$rdma/" 2>"$work/said" >/dev/null
grep -q 'iwarp: NFS version 4.2' "$work/said" || { cat "$work/said"; fail "another choice"; }

step "measurements"
"$dafs" bench "nfs://$tcp/sub" --size 4m --seconds 1 --block 64k --json >"$work/said"
[[ $(grep -c '"mebibytes_per_second":[1-9]' "$work/said") == 4 ]] ||
    { cat "$work/said"; fail "not four measurements"; }
[[ ! $(ls -A "$work/export/sub") ]] || fail "the file of the measurement was left"
"$dafs" bench "$url/sub" --size 1m --seconds 1 --block 4k --run randread | grep '^randread' >/dev/null ||
    fail "no measurement"
echo content >"$work/export/sub/file"
expect 2 'is not written to' "$dafs" bench "nfs://$tcp/sub/file" --run seqwrite
expect 2 'choose a smaller --block' "$dafs" bench "nfs://$tcp/sub/file"

step "commands for DAFS servers alone"
# docs/copying.md names those that take URLs of NFS servers; the loop above runs them.
while read -r line; do
    read -ra words <<<"$line"
    expect 2 'dafs://' "$dafs" "${words[@]}"
done <<END
ping nfs://$tcp/
lock test nfs://$tcp/sub/file
fence get --filesystem nfs://$tcp/
run --at /data=nfs://$tcp/ true
END
expect 2 'no DAFS server' "$dafs" mount "nfs://$tcp/" "$work/none"

step "wrong input says what to write instead"
expect 2 'nfs:// or nfs+rdma://' "$dafs" ls "http://$tcp/"
expect 2 '3, 4.1 or 4.2' "$dafs" ls "nfs://$tcp/?vers=2"
expect 2 'there are vers, transport' "$dafs" ls "nfs://$tcp/?colour=red"
expect 2 'write nfs+rdma://' "$dafs" ls "nfs://$tcp/?transport=shm"
expect 2 'write nfs+rdma://' "$dafs" --transport shm ls "nfs://$tcp/"
expect 2 'user of this process' "$dafs" --user me ls "nfs://$tcp/"
expect 2 'by dafs:// only' "$dafs" get --xattrs "nfs://$tcp/sub" "$work/none"
expect 2 'on different servers' "$dafs" mv "nfs://$tcp/sub/file" "$url/sub/other"
expect 3 'check that the server runs' "$dafs" ls "nfs://127.0.0.1:1/"
expect 3 '' "$dafs" ls "nfs+rdma://127.0.0.1:1/?transport=iwarp"
expect 1 'the object is a directory' "$dafs" cat "nfs://$tcp/sub"
stop_server

step "a server that goes away and comes back"
port=${tcp##*:}
serve "$work/export" --nfs "127.0.0.1:$port" --no-root-squash --nfs-unprivileged-ports
head -c 200000000 /dev/zero >"$work/export/sub/huge"
"$dafs" get "nfs://$tcp/sub/huge?rsize=16k" "$work/huge" &
copy=$!
started+=("$copy")
begun() { compgen -G "$work/.dafs-*" >/dev/null || ! kill -0 "$copy"; }
eventually begun
kill_server
serve "$work/export" --nfs "127.0.0.1:$port" --no-root-squash --nfs-unprivileged-ports
wait "$copy" || fail "the copy failed"
same "$work/export/sub/huge" "$work/huge" "the files"
