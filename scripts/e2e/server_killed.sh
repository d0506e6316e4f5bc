#!/bin/bash
# A killed server gives clients without recovery a clear error at once, and no half-written file
# gets a final name.
source "$(dirname "$0")/lib.sh"

mkdir "$work/export" "$work/back"
head -c 600M /dev/zero >"$work/wide"
ln "$work/wide" "$work/export/long"
export_files() { find "$work/export" -type f | sort; }

# The next server has a grace period of one lease for the clients of the last one.
for transport in shm iwarp; do
    step "get over $transport"
    serve "$work/export" --no-root-squash --lease 1
    "$dafs" --transport $transport --recovery 0 get "$url/long" "$work/back/" >"$work/said" 2>&1 &
    client=$!
    started+=("$client")
    is_reading() { [[ $(find "$work/back" -name '.dafs-*.part') && $(count opens) == 1 ]]; }
    eventually is_reading
    kill -9 "$server"
    began=$SECONDS status=0
    wait "$client" || status=$?
    [[ $status == 3 ]] || { cat "$work/said"; fail "status $status"; }
    [[ $((SECONDS - began)) -le 20 ]] || fail "it took $((SECONDS - began)) s to notice"
    grep -q 'the connection to the server at .* is gone' "$work/said" || fail "$(cat "$work/said")"
    [[ $(wc -l <"$work/said") == 1 ]] || { cat "$work/said"; fail "more than one line"; }
    [[ ! $(ls -A "$work/back") ]] || fail "left behind: $(ls -A "$work/back")"

    step "put over $transport"
    serve "$work/export" --no-root-squash --lease 1
    "$dafs" --transport $transport put "$work/wide" "$url/?recovery=0" >"$work/said" 2>&1 &
    client=$!
    started+=("$client")
    is_writing() { [[ $(find "$work/export" -name '.dafs-*.part' -size +1M) ]]; }
    eventually is_writing
    kill -9 "$server"
    status=0
    wait "$client" || status=$?
    [[ $status == 3 ]] || { cat "$work/said"; fail "status $status"; }
    [[ ! -e $work/export/wide ]] || fail "a half-written file has its final name"
    rm -f "$work"/export/.dafs-*.part
    [[ $(export_files) == "$work/export/long" ]] || fail "left behind: $(export_files)"
done
