#!/bin/bash
# Fences: an excluded writer has stopped when the command returns, lists survive a killed server,
# and only permitted users set them.
source "$(dirname "$0")/lib.sh"

mkdir -p "$work/data" "$work/other"
chmod 777 "$work/data" "$work/other"
cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
state_directory = "state"
[[export]]
name = "data"
path = "data"
[[export]]
name = "other"
path = "other"
END
start() { serve --config "$work/dafs.toml"; }
start
place=(--state-directory "$work/state")
echo hello >"$work/hello"
"$dafs" put "$work/hello" "$url/data/file"
"$dafs" put "$work/hello" "$url/other/file"

step "lists"
expect 0 'everybody has access' "$dafs" fence get "$url/data/file"
expect 1 'dafs fence set' "$dafs" fence add "$url/data/file" n1
expect 1 'no list to take it off' "$dafs" fence remove "$url/data/file" n1
"$dafs" fence set "$url/data/file" n1 n2
"$dafs" fence add "$url/data/file" 'nfs:Linux NFSv4.2 n3' addr:192.0.2.7/24
"$dafs" fence remove "$url/data/file" n2
"$dafs" fence get "$url/data/file" >"$work/list"
printf '%s\n' n1 'nfs:Linux NFSv4.2 n3' addr:192.0.2.0/24 | diff - "$work/list" || fail "another list"
"$dafs" fence get "$url/data/file" --json | grep '"fenced":true' >/dev/null || fail "not told as JSON"

step "who is on it, and who is not"
expect 0 'hello' "$dafs" cat "$url/data/file" --fence-id n1
expect 0 'hello' "$dafs" cat "$url/data/file?fence-id=n1"
expect 1 'FENCED' "$dafs" cat "$url/data/file" --fence-id n2
expect 1 'FENCED' "$dafs" cat "$url/data/file"
expect 1 'FENCED' "$dafs" put "$work/hello" "$url/data/file" --fence-id n2
expect 1 'FENCED' "$dafs" rm "$url/data/file" --fence-id n2
expect 1 'fenced off itself' "$dafs" fence clear "$url/data/file" --fence-id n2
expect 0 'hello' "$dafs" cat "$url/other/file" --fence-id n2

step "wrong input"
expect 2 'name a URL' "$dafs" fence get
expect 2 'name whom' "$dafs" fence add "$url/data/file"
expect 2 'take no names' "$dafs" fence clear "$url/data/file" n1
expect 2 'a name is empty' "$dafs" fence set "$url/data/file" ''
expect 2 'set by DAFS' "$dafs" fence get nfs://127.0.0.1/data
expect 2 'NFS clients' "$dafs" cat "$url/data/file" --fence-id nfs:n1
expect 1 'makes no sense' "$dafs" fence set "$url/data/file" addr:nowhere
expect 1 'makes no sense' "$dafs" fence remove "$url/data/file" addr:192.0.2.1
expect 1 'there is no export' "$dafs" fence get "${place[@]}" --export nothing
expect 1 'NOENT' "$dafs" fence get "$url/data/nothing"

step "lists outlive a server that is killed"
"$dafs" fence set "${place[@]}" --export other n1
kill_server
start
expect 1 'FENCED' "$dafs" cat "$url/data/file" --fence-id n2
expect 0 'hello' "$dafs" cat "$url/data/file" --fence-id n1
expect 1 'FENCED' "$dafs" cat "$url/other/file" --fence-id n2
expect 0 '/other: n1' "$dafs" fence get "${place[@]}" --all-exports
expect 0 '"names":["n1"]' "$dafs" fence get "${place[@]}" --export other --json

step "unfenced again, also by who is shut out and has no name"
"$dafs" fence clear "$url/data/file"
"$dafs" fence clear --filesystem "$url/other/file"
expect 0 'hello' "$dafs" cat "$url/data/file" --fence-id n2
expect 0 'hello' "$dafs" cat "$url/other/file"

# writer NUMBER -- writes numbers to a file of its own until it is excluded.
step "a writer has stopped when the command returns"
"$dafs" fence set "${place[@]}" --export data n1 n2
head -c 64M /dev/zero | tr '\0' x >"$work/large"
for round in 1 2 3 4 5; do
    (
        while "$dafs" put "$work/large" "$url/data/out" --fence-id n2; do :; done
    ) >"$work/writer.log" 2>&1 &
    writer=$!
    started+=("$writer")
    has_begun() { [[ $(find "$work/data" -size +4M) ]]; }
    eventually has_begun
    "$dafs" fence remove "${place[@]}" --export data n2
    listing "$work/data" >"$work/before"
    wait "$writer" || true
    grep -q FENCED "$work/writer.log" || { cat "$work/writer.log"; fail "it did not stop for the fence"; }
    listing "$work/data" >"$work/after"
    cmp "$work/before" "$work/after" || fail "something came after the fence in round $round"
    find "$work/data" -type f ! -name file -delete
    "$dafs" fence add "${place[@]}" --export data n2
done

step "fenced from everything"
"$dafs" fence set "${place[@]}" --all-exports n1
expect 3 'dafs fence add' "$dafs" ls "$url/" --fence-id n2
"$dafs" fence clear "${place[@]}" --all-exports
expect 0 'data' "$dafs" ls "$url/" --fence-id n2

step "sessions"
mkfifo "$work/pipe"
"$dafs" put "$work/large" "$url/data/out2" --fence-id n7
exec 9<>"$work/pipe"
"$dafs" cat "$url/data/out2" --fence-id n7 --transport iwarp >"$work/pipe" &
reader=$!
started+=("$reader")
"$dafs" sessions "${place[@]}" --json >"$work/sessions" || fail "no sessions"
shows() { "$dafs" sessions "${place[@]}" --json | grep '"fence_id":"n7".*"transport":"iwarp"' >/dev/null; }
eventually shows
"$dafs" sessions "${place[@]}" | grep 'n7' >/dev/null || fail "not in the table"
"$dafs" clients "${place[@]}" --json | grep '"transport":"iwarp"' >/dev/null || fail "clients have no transport"
kill "$reader"
exec 9>&-
wait "$reader" 2>/dev/null || true
stop_server
