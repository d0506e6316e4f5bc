#!/bin/bash
# A client killed in mid-transfer leaves no state at the server.
source "$(dirname "$0")/lib.sh"

mkdir "$work/export"
# One hole, so that it takes no space, and so long that no reader gets to its end.
truncate -s 200G "$work/export/long"
head -c 600M /dev/zero >"$work/wide"
serve "$work/export" --lease 1 --no-root-squash

# Open files of a lost client would be kept until its lease has ended.
holds_nothing() {
    [[ $(counts) =~ connections=0\ sessions=0\ pending=0\ replies=0\ chunks=0\ credits=0 ]] &&
        [[ $(count opens) == 0 && $(count clients) == 0 ]]
}
eventually holds_nothing
# Sockets, memory and events. The store may cache some files.
descriptors() {
    find "/proc/$server/fd" -mindepth 1 -printf '%l\n' | grep -c -e '^socket:' -e '^anon_inode:' -e memfd
}
before=$(descriptors)

for transport in shm iwarp; do
    step "cat over $transport"
    "$dafs" --transport $transport cat "$url/long" >/dev/null &
    client=$!
    started+=("$client")
    is_reading() { [[ $(count opens) == 1 && $(count sessions) == 1 ]]; }
    eventually is_reading
    sleep 0.3
    kill -9 "$client"
    wait "$client" || true
    eventually holds_nothing

    step "put over $transport"
    "$dafs" --transport $transport put "$work/wide" "$url/" &
    client=$!
    started+=("$client")
    is_writing() { [[ $(find "$work/export" -name '.dafs-*.part' -size +1M) ]]; }
    eventually is_writing
    kill -9 "$client"
    wait "$client" || true
    eventually holds_nothing
    [[ ! -e $work/export/wide ]] || fail "a half-written file has its final name"
    rm "$work"/export/.dafs-*.part
done
[[ $(descriptors) -le $before ]] ||
    { ls -l "/proc/$server/fd"; fail "descriptors: $before before, $(descriptors) now"; }
"$dafs" ls "$url" >/dev/null
stop_server
