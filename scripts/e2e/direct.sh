#!/bin/bash
# DAFS clients that use data servers directly (pnfs=yes), with stripes and with copies: commands and
# a mount write and read the right data, also when a data server is killed meanwhile. The counters
# of all servers show the path of the data.
source "$(dirname "$0")/lib.sh"

needs_mounts
point=$work/point
mkdir -m 777 "$work"/{wide,safe} "$point"
undo+=("umount -l '$point' 2>/dev/null")
"$dafs" cluster init --secret "$work/secret"
restart() { data "$1" --cluster-secret "$work/secret" --listen 127.0.0.1:0 "$work/data$1"; }
for number in 1 2 3 4 5; do restart "$number"; done
cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
metrics_listen = "127.0.0.1:0"
state_directory = "state"
lease_time_seconds = 5
[cluster]
secret = "secret"
[[export]]
name = "wide"
path = "wide"
squash = "none"
stripe_bytes = 65536
$(nodes 1 2 3)
[[export]]
name = "safe"
path = "safe"
squash = "none"
copies = 2
$(nodes 4 5)
END
serve --config "$work/dafs.toml"
status=("$dafs" cluster status --state-directory "$work/state")
all_there() { "${status[@]}"; }
is_missed() { ("${status[@]}" || true) | grep " $1 missing " >/dev/null; }
is_mended() { all_there && ! "${status[@]}" | grep 'copies to repair'; }
eventually all_there
large=20000000
head -c "$large" /dev/urandom >"$work/wanted"
for _ in 1 2 3 4 5 6 7 8; do cat "$work/wanted"; done >"$work/long"

# through -- the number of reads and writes at the metadata server.
through() {
    local name sum=0
    for name in READ_INLINE READ_DIRECT WRITE_INLINE WRITE_DIRECT BATCH_SUBMIT; do
        name="dafs_operation_duration_seconds_count{front_end=\"dafs\",operation=\"$name\"}"
        sum=$((sum + $(counted "$log" "$name")))
    done
    echo "$sum"
}
# moved WAY -- the bytes that were `read` or `written` at data servers.
moved() {
    local number sum=0
    for number in "${nodes[@]}"; do
        sum=$((sum + $(counted "${data_log[number]}" "dafs_export_$1_bytes_total")))
    done
    echo "$sum"
}
# Remembers both.
look() { read=$(moved read) written=$(moved written) asked=$(through); }
# is_gone WAY BYTES [MAX] -- since then, at least these bytes were moved at data servers, and the
# metadata server got no requests, or at most MAX.
is_gone() {
    local bytes asked_now
    bytes=$(($(moved "$1") - $1)) asked_now=$(($(through) - asked))
    echo "$1: $bytes bytes at data servers, asked of the metadata server: $asked_now"
    [[ $bytes -ge $2 && $asked_now -le ${3:-0} ]]
}
went() { is_gone "$@" || fail "it was to be $2, and asked ${3:-0} times"; }

for place in 'wide 1 2 3' 'safe 4 5'; do
    read -r -a nodes <<<"$place"
    export=${nodes[0]} nodes=("${nodes[@]:1}") victim=${nodes[1]}
    stored=$large
    [[ $export == wide ]] || stored=$((2 * large))
    direct="$url/$export/NAME?pnfs=yes"
    # check NAME FILE -- compares the content with the written data, by either path.
    check() {
        rm -f "$work"/back*
        "$dafs" get "${direct/NAME/$1}" "$work/back"
        same "$2" "$work/back" "$1 as it was written and what came back"
        "$dafs" get "$url/$export/$1" "$work/back.through"
        same "$2" "$work/back.through" "$1 as it was written and what came through the server"
    }

    step "$export: there and back by commands"
    look
    "$dafs" put "$work/wanted" "${direct/NAME/one}"
    went written "$stored"
    look
    "$dafs" get "${direct/NAME/one}" "$work/back"
    same "$work/wanted" "$work/back" "what was written and what came back"
    # Tests for data behind the end.
    went read "$large" 1
    look
    "$dafs" cat "${direct/NAME/one}" | cmp "$work/wanted" -
    # Tests for data behind the end.
    went read "$large" 20
    look
    check one "$work/wanted"
    [[ $(through) -gt $asked ]] || fail "what goes through the server is not counted"

    step "$export: a data server is killed under writes"
    grows() { [[ $(counted "${data_log[victim]}" dafs_export_written_bytes_total) -gt $begun ]]; }
    # The writer may be done before, although it has more to write than other steps.
    for attempt in 1 2 3 4 5 6; do
        [[ $attempt != 6 ]] || fail "the writer was always done before"
        begun=$(counted "${data_log[victim]}" dafs_export_written_bytes_total)
        "$dafs" put "$work/long" "${direct/NAME/two}" >"$work/put" 2>&1 &
        writer=$!
        started+=("$writer")
        eventually grows
        kill_data "$victim"
        ! kill -0 "$writer" 2>/dev/null || break
        wait "$writer" || { cat "$work/put"; fail "a write was not carried on"; }
        eventually is_missed "$victim"
        restart "$victim"
        eventually all_there
        eventually is_mended
    done
    eventually is_missed "$victim"
    restart "$victim"
    # A client that keeps unstable data has sent it again; any other got an error.
    wait "$writer" || {
        grep -qE 'write it again|DELAY' "$work/put" || { cat "$work/put"; fail "a write was not carried on"; }
        eventually all_there
        "$dafs" put "$work/long" "${direct/NAME/two}"
    }
    check two "$work/long"
    "$dafs" rm "${direct/NAME/two}"
    eventually is_mended

    step "$export: a mount"
    # One request of a megabyte may go to the server before there is a layout.
    some=$((stored - (stored / large << 20)))
    "$dafs" mount "$url/$export?pnfs=yes" "$point"
    look
    dd if="$work/wanted" of="$point/three" bs=1M conv=fsync status=none
    went written "$some" 1
    # The server may refuse the layout for a moment. A mount asks again half a second later, when a
    # machine has read all through the server.
    for attempt in 1 2 3; do
        "$dafs" umount "$point"
        "$dafs" mount "$url/$export?pnfs=yes" "$point"
        look
        cmp "$work/wanted" "$point/three"
        ! is_gone read $((large - (1 << 20))) 20 || break
        [[ $attempt != 3 ]] || fail "a mount never reads at data servers"
    done
    check three "$work/wanted"

    step "$export: a data server is killed under writes of the mount"
    begun=$(counted "${data_log[victim]}" dafs_export_written_bytes_total)
    dd if="$work/wanted" of="$point/four" bs=64k oflag=sync status=none 2>"$work/put" &
    writer=$!
    started+=("$writer")
    eventually grows
    kill_data "$victim"
    kill -0 "$writer" 2>/dev/null || fail "the writer was done before"
    eventually is_missed "$victim"
    restart "$victim"
    wait "$writer" || { cat "$work/put"; fail "a write was not carried on"; }
    check four "$work/wanted"
    eventually is_mended
    look
    dd if="$work/wanted" of="$point/five" bs=1M conv=fsync status=none
    went written "$some" 1
    check five "$work/wanted"
    "$dafs" umount "$point"
done
stop_server
