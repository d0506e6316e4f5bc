#!/bin/bash
# A server with durable replies does not start with a damaged journal: it reports the finding and
# the remedy, and leaves the journal alone. A torn tail is no damage.
source "$(dirname "$0")/lib.sh"

mkdir "$work/export" "$work/state"
cat >"$work/dafs.toml" <<CONFIG
listen = ["127.0.0.1:0"]
state_directory = "state"
[[export]]
name = "data"
path = "export"
durable_replies = "power"
squash = "none"
CONFIG
journal=$work/state/journal
url_of() { echo "$url/data/$1"; }

step "a journal is begun and found again"
serve --config "$work/dafs.toml"
grep -q 'replies of the last run were recovered' "$log" || fail "nothing is said of the journal"
echo hello >"$work/file"
"$dafs" put "$work/file" "$(url_of file)"
kill_server
serve --config "$work/dafs.toml"
[[ $(cat "$work/export/file") == hello ]] || fail "the file is not there"
stop_server

# The segment in use: the one before the last, which is allocated in advance.
segments=("$journal"/segment-*)
segment=${segments[${#segments[@]} - 2]}
cp -a "$journal" "$work/whole"

# refuse TEXT... -- the server does not start, prints these texts and changes no file.
refuse() {
    cp -a "$journal" "$work/before"
    local text
    for text in "$@"; do
        expect 1 "$text" timeout 20 "$dafs" serve --config "$work/dafs.toml"
    done
    diff -r "$work/before" "$journal" || fail "the journal was changed"
    rm -r "$work/before" "$journal"
    cp -a "$work/whole" "$journal"
}

# write OFFSET BYTES -- puts bytes into the segment.
write() { printf "$2" | dd of="$segment" bs=1 seek="$1" conv=notrunc status=none; }

step "cut"
truncate -s 100000 "$segment"
refuse "${segment##*/} was cut to 100000 bytes" 'another place'

truncate -s 0 "$segment"
refuse "${segment##*/} was cut to 0 bytes"

step "a flipped bit"
byte=$(dd if="$segment" bs=1 skip=72 count=1 status=none | od -An -tu1)
write 72 "\\x$(printf %02x $((byte ^ 4)))"
refuse "${segment##*/} is damaged at byte" 'bring back a copy'

step "a newer version"
write 8 '\x07'
refuse 'has version 7' 'start the program that wrote it'

step "something else"
write 0 'GIF89a'
refuse 'is no journal'

step "it is looked at even if no replies are kept any more"
sed -i 's/"power"/"off"/' "$work/dafs.toml"
truncate -s 100000 "$segment"
refuse "${segment##*/} was cut to 100000 bytes"
serve --config "$work/dafs.toml"
grep -q 'replies of the last run were recovered' "$log" || fail "nothing is said of the journal"
stop_server
sed -i 's/"off"/"power"/' "$work/dafs.toml"

step "it still works, and so does none"
serve --config "$work/dafs.toml"
stop_server
mv "$journal" "$work/aside"
expect 1 'it is missing' timeout 20 "$dafs" serve --config "$work/dafs.toml"
"$dafs" accept-loss journal --state-directory "$work/state"
serve --config "$work/dafs.toml"
stop_server
