#!/bin/bash
# verbs-client.sh -- DAFS over an rxe device by the tests that `cargo test` runs over iWARP and shared memory: files,
# batches, chains, groups, caches, random operations against a model, servers that restart or go away. A server and
# its clients are one process in a guest, and the device takes the place of both (DAFS_TEST_VERBS).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# newest -- prints the path of the client's test program that was built last, if there is one.
newest() {
    local file found=
    for file in "${DAFS_TARGET:-../../target/debug}"/deps/client-*.d; do
        grep -qs 'crates/dafs-client/tests/client/main\.rs' "$file" || continue
        file=${file%.d}
        [[ ! -x $file || $file -ot $found ]] || found=$file
    done
    echo "$found"
}
tests=$(newest)
[[ $tests ]] || {
    # Not in the lab's network, which has no way out.
    [[ ${LAB_NET:-} ]] || cargo test --locked --quiet -p dafs-client --test client --no-run || true
    tests=$(newest)
}
[[ $tests ]] || { echo "build it first: cargo test -p dafs-client --test client --no-run"; exit 1; }
[[ ${LAB_NET:-} ]] || exec ../lab.sh net "$PWD/${BASH_SOURCE[0]##*/}" "$@"

# Modules of crates/dafs-client/tests/client. The others have a simulated server, proofs of users, or little that
# depends on the transport.
modules=(asynchronous batch cache chains counted delegated files fsx groups lost padding parts recovered shared undone
    whole)
# Connections of TCP that a relay cuts, the names of transports, ports of loopback. dafs-verbs.sh has optimistic
# reads, between two guests.
left_out=(over_a_wire a_transfer_waiting_for_a_connection the_transport_is_chosen a_server_that_is_not_there
    a_peer_that_says_nothing optimistic)
# A client may cache writes only where fanotify tells of local uses of a file, and the guest's kernel has none.
left_out+=(a_restart_of_the_server_loses_nothing_that_was_not_written_back data_that_cannot_be_written_back
    holders_are_asked_for_the_size own_changes_are_seen_by_all sequential_readers_and_writers_of_pages)

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/host"
strip -o "$tmp/host/tests" "$tests"
skips=()
for name in "${left_out[@]}"; do skips+=(--skip "$name"); done
../lab.sh run -t 840 -m 1024 -s "$tmp/host" -k "$tmp/kernel.log" \
    guest/verbs-client /host/tests --test-threads 1 "${skips[@]}" "${modules[@]/%/::}" | tee "$tmp/said" || {
    tail -n 20 "$tmp/kernel.log"
    exit 1
}
for module in "${modules[@]}"; do
    grep -q "^test $module::" "$tmp/said" || { echo "FAILED  no test of $module has run"; exit 1; }
done
