#!/bin/bash
# Files spread over directories: where the administrator is told they lie, and that they lie there.
source "$(dirname "$0")/lib.sh"

mkdir -p "$work/names" "$work/disk1" "$work/disk2" "$work/disk3"
chmod 777 "$work/names"
echo before >"$work/names/old"
{
    cat <<'END'
listen = ["127.0.0.1:0"]
state_directory = "state"

[[export]]
name = "wide"
path = "names"
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

step "what is not spread, and what is not there"
"$dafs" layout "${place[@]}" /wide/old | grep -q 'at the server itself' || fail "an old file is spread"
"$dafs" layout "${place[@]}" --json /wide/file | grep -q '"form":"stripes"' || fail "no JSON"
expect 1 'no export is called so' "$dafs" layout "${place[@]}" /narrow/file
expect 1 'no file with content' "$dafs" layout "${place[@]}" /wide
expect 1 '/wide/none' "$dafs" layout "${place[@]}" /wide/none
