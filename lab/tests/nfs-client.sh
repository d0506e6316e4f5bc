#!/bin/bash
# nfs-client.sh -- our own NFS client, the dafs command, with the kernel's server: its writes are in
# the exported folder, and it reads back the same data. Over RDMA its end is our iWARP on the host
# and the server's is siw; with LAB_TRANSPORT=rxe it runs in a guest, with verbs.
export LAB_SERVER=${LAB_SERVER:-knfsd} LAB_TRANSPORT=${LAB_TRANSPORT:-siw}
source "$(dirname "$0")/../nfs.sh"

serve
mkdir "$work/out/client"
program=${DAFS:-$lab/../target/debug/dafs}
options="" scheme=nfs+rdma
case $transport in
tcp) scheme=nfs ;;
rxe) options='&transport=verbs' ;;
esac
if [[ $transport == rxe ]]; then
    boot 1
    [[ -e $work/out/dafs ]] || strip -o "$work/out/dafs" "$program"
    # The files it copies are in the guest's memory.
    guest 1 'mkdir /tmp/client; cp /out/dafs /job/bin/'
    client() { guest 1 "cd /tmp/client; $1"; }
else
    cp "$program" "$work/out/dafs"
    client() {
        local shell=(timeout "$patience_seconds" bash -euo pipefail -c)
        (cd "$work/out/client" && PATH=$work/out:$PATH "${shell[@]}" "$1")
    }
fi

client '
    mkdir -p tree/deep/er
    head -c 10000001 /dev/urandom >tree/large
    for size in 0 1 3 4095 4096 4097 65536 262145 1048576 1048577; do
        head -c $size /dev/urandom >tree/deep/$size
    done
    ln -s ../large tree/deep/link
    chmod 640 tree/deep/1
    (cd tree; find . -type f | sort | xargs sha256sum) >sums'

for version in "${versions[@]}"; do
    folder=$export_path
    [[ $version != 3 || $folder != / ]] || folder=/tmp/export
    query="?vers=$version$options" url=$scheme://$address${folder%/}

    step "NFSv$version: a tree there and back"
    client "
        dafs mkdir '$url/$version$query'
        dafs put tree '$url/$version$query'
        [[ \$(dafs ls '$url/$version/tree/deep$query' | wc -l) == 12 ]]
        rm -rf back
        dafs get '$url/$version/tree$query' back
        (cd back; sha256sum --quiet -c ../sums)
        diff -r tree back
        [[ \$(readlink back/deep/link) == ../large ]]
        dafs cat '$url/$version/tree/large$query' | cmp - tree/large"
    in_export "cd $version/tree; find . -type f | sort | xargs sha256sum" >"$work/seen"
    client 'cat sums' | diff - "$work/seen" || fail "the server has other data"
    in_export "[[ \$(stat -c %a $version/tree/deep/1) == 640 && -h $version/tree/deep/link ]]"

    step "NFSv$version: what the server wrote"
    in_export "head -c 5000003 /dev/urandom >$version/theirs; sha256sum <$version/theirs" >"$work/seen"
    client "dafs get '$url/$version/theirs$query' theirs; sha256sum <theirs; rm theirs" |
        diff - "$work/seen" || fail "the client has other data"
done
