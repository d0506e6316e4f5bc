#!/bin/bash
# SQLite: four writers at once, each row a transaction of its own, with a rollback journal.
source "$(dirname "$0")/lib.sh"
rows=$(scaled 100)
case $1 in
input) ;;
prepare) sqlite3 "$D/db" 'create table t(writer, number, filling)' ;;
run)
    writers=()
    for writer in 1 2 3 4; do
        for ((number = 0; number < rows; number++)); do
            echo "insert into t values($writer, $number, zeroblob(500));"
        done | sqlite3 -cmd '.timeout 60000' "$D/db" &
        writers+=($!)
    done
    for writer in "${writers[@]}"; do wait "$writer" || fail "a writer failed"; done
    sqlite3 "$D/db" 'select sum(number) from t' >"$T/sum"
    ;;
check)
    [[ $(<"$T/sum") == $((4 * rows * (rows - 1) / 2)) ]] || fail "rows are missing"
    [[ $(sqlite3 "$E/db" 'select count(distinct writer * 100000 + number) from t') == $((4 * rows)) ]] ||
        fail "rows are missing on the server"
    [[ $(sqlite3 "$E/db" 'pragma integrity_check') == ok ]] || fail "SQLite finds faults"
    ;;
esac
