#!/bin/bash
# A closed reader of the output ends every command quietly: exit status 1, no panic.
source "$(dirname "$0")/lib.sh"

mkdir "$work/export"
echo text >"$work/export/file"
head -c 100000 /dev/urandom >"$work/export/long"
serve "$work/export" --no-root-squash
state=(--state-directory "$work/state")

# The write end of a pipe without a reader: opened for both, so that the open does not block, and
# then for writing alone.
mkfifo "$work/pipe"
exec 8<>"$work/pipe" 9>"$work/pipe"
exec 8>&-

# closed ARGUMENTS... -- runs the command with an output without a reader.
closed() {
    local status=0
    # With the default action of SIGPIPE, as most programs are started.
    "$dafs" "$@" >&9 2>"$work/said" </dev/null || status=$?
    [[ $status == 1 ]] || { cat "$work/said"; fail "status $status: $*"; }
    [[ ! -s $work/said ]] || { cat "$work/said"; fail "said something: $*"; }
}

for json in '' --json; do
    step "commands that show something ${json:-in words}"
    closed stat $json "$url/file"
    closed ls -l $json "$url"
    closed df $json "$url"
    closed ping $json "$url"
    closed bench $json --size 1m --seconds 1 --run seqread "$url"
    closed lock test $json "$url/file"
    closed fence get $json "$url/file"
done
[[ $(ls -A "$work/export" | sort | xargs) == "file long" ]] || fail "bench has left a file behind"
for command in 'lock list' sessions clients reload; do
    # shellcheck disable=SC2086
    closed $command "${state[@]}"
done
closed cat "$url/file"
closed cat "$url/long"
closed get --json "$url/file" "$work/copy"
[[ $(cat "$work/copy") == text ]] || fail "the copy is not complete"

step "errors that nobody reads"
status=0
"$dafs" cat "$url/missing" "$url/file" >"$work/said" 2>&9 </dev/null || status=$?
[[ $status == 1 && $(cat "$work/said") == text ]] || fail "status $status"
stop_server
