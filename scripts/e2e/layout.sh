#!/bin/bash
# Files striped over directories: the administrator is shown the right places, and the commands use
# the data servers directly by NFS.
source "$(dirname "$0")/lib.sh"

mkdir -p "$work/names" "$work/disk1" "$work/disk2" "$work/disk3"
chmod 777 "$work/names"
echo before >"$work/names/old"
{
    cat <<'END'
listen = ["127.0.0.1:0"]
state_directory = "state"
metrics_listen = "127.0.0.1:0"

[nfs]
listen = ["127.0.0.1:0"]
grace_time_seconds = 0

[[export]]
name = "wide"
path = "names"
squash = "none"
unprivileged_ports = true
stripe_bytes = 65536
END
    for number in 1 2 3; do
        printf '[[export.node]]\nnumber = %d\npath = "disk%d"\nlisten = "127.0.0.1:0"\n' $number $number
    done
} >"$work/dafs.toml"
serve --config "$work/dafs.toml"
place=(--state-directory "$work/state")

step "a file is drawn where its stripes lie"
head -c 400000 /dev/urandom >"$work/file"
"$dafs" put "$work/file" "$url/wide/file"
"$dafs" layout "${place[@]}" /wide/file | tee "$work/drawn"
grep -q '^/wide/file: .* in 7 stripes of 64' "$work/drawn" || fail "its first line says something else"
[[ $(grep -c '^ *127.0.0.1:[0-9]* \[' "$work/drawn") == 3 ]] || fail "not one line for each node"
# Each stripe lies where it is drawn, and nowhere else.
number=0
while read -r _ row; do
    number=$((number + 1))
    cells=${row//[\[\]]/}
    component=$(find "$work/disk$number" -type f -size +64k)
    for ((stripe = 0; stripe < 7; stripe++)); do
        want=$(dd if="$work/file" bs=65536 skip=$stripe count=1 status=none | sha256sum)
        got=$(dd if="$component" bs=65536 skip=$stripe count=1 status=none | head -c "$(
            dd if="$work/file" bs=65536 skip=$stripe count=1 status=none | wc -c
        )" | sha256sum)
        drawn=${cells:stripe:1}
        if [[ $got == "$want" ]]; then [[ $drawn == '#' ]]; else [[ $drawn == . ]]; fi ||
            fail "stripe $stripe of disk$number is drawn as $drawn"
    done
done < <(tail -n +2 "$work/drawn")

step "bytes by NFS go past the server"
nfs=nfs://$(sed -n 's/.*listening for NFS *address=//p' "$log" | head -n 1)
# The bytes that data servers have received and sent, and those that the server itself has moved by
# NFS.
said() {
    printf '%s %s %s\n' "$(counted "$log" dafs_data_received_bytes_total)" "$(counted "$log" dafs_data_sent_bytes_total)" "$((
        $(counted "$log" dafs_export_read_bytes_total) + $(counted "$log" dafs_export_written_bytes_total)
    ))"
}
head -c 20000000 /dev/urandom >"$work/large"
large=20000000
read -r received sent through < <(said)
"$dafs" put "$work/large" "$nfs/wide/large"
"$dafs" get "$nfs/wide/large" "$work/back"
same "$work/large" "$work/back" "what was written and what was read at data servers"
read -r received_now sent_now through_now < <(said)
echo "data servers: $((received_now - received)) bytes written, $((sent_now - sent)) read;" \
    "through the server by NFS: $((through_now - through))"
[[ $((received_now - received)) -ge $large && $((sent_now - sent)) -ge $large ]] ||
    fail "not all bytes went to data servers"
[[ $through_now == "$through" ]] || fail "bytes went through the server"
"$dafs" get "$url/wide/large" "$work/back.dafs"
same "$work/large" "$work/back.dafs" "what was written at data servers and what the server has"
[[ $(counted "$log" dafs_data_indirect_bytes_total) == 0 ]] || fail "stripes came to the wrong data server"
all=0
for number in 1 2 3; do
    written=$(counted "$log" "dafs_data_node_written_bytes_total{export=\"/wide\",node=\"$number\"}")
    [[ $written -gt 0 ]] || fail "nothing was written at node $number"
    all=$((all + written))
    "$dafs" cluster status "${place[@]}" --json | grep "\"number\":$number,.*\"written_bytes\":$written," >/dev/null ||
        fail "something else is told of node $number"
done
[[ $all -ge $large ]] || fail "$all bytes were written at nodes"
"$dafs" put "$work/large" "$nfs/wide/large.through?pnfs=no"
"$dafs" get "$nfs/wide/large.through?pnfs=no" "$work/back.through"
same "$work/large" "$work/back.through" "what went through the server"
read -r received sent through < <(said)
[[ $received == "$received_now" && $sent == "$sent_now" ]] || fail "pnfs=no went to data servers"
[[ $((through - through_now)) -ge $((2 * large)) ]] || fail "pnfs=no did not go through the server"
"$dafs" rm "$url/wide/large" "$url/wide/large.through"

step "what is not spread, and what is not there"
"$dafs" layout "${place[@]}" /wide/old | grep 'at the server itself' >/dev/null || fail "an old file is spread"
"$dafs" layout "${place[@]}" --json /wide/file | grep '"form":"stripes"' >/dev/null || fail "no JSON"
expect 1 'no export is called so' "$dafs" layout "${place[@]}" /narrow/file
expect 1 'no file with content' "$dafs" layout "${place[@]}" /wide
expect 1 '/wide/none' "$dafs" layout "${place[@]}" /wide/none
