#!/bin/bash
# Berkeley DB: a table is made of records, and all of it is read.
source "$(dirname "$0")/lib.sh"
case $1 in
input)
    seq -f %09.0f 1 "$(scaled 200000)" |
        awk '{ printf "key%s\nvalue %s of a record, long enough to fill some pages with some of them\n", $1, $1 }' \
            >"$W/records"
    ;;
prepare) ;;
run)
    db5.3_load -T -t btree -f "$W/records" "$D/table.db"
    db5.3_dump -p "$D/table.db" >"$T/dumped"
    ;;
check)
    db5.3_verify -q "$E/table.db" || fail "the table is not right on the server"
    sed -n '/^HEADER=END/,/^DATA=END/{s/^ //p}' "$T/dumped" | cmp - "$W/records" || fail "it holds something else"
    ;;
esac
