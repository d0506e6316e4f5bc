#!/bin/bash
# Whole applications, unchanged, on a mount of a server's files: PostgreSQL under pgbench, killed and
# recovered; SQLite with writers at once; an environment of Berkeley DB; git; tar; rsync; gzip in two
# processes.
source "$(dirname "$0")/lib.sh"

needs_mounts

# Debian keeps the programs of PostgreSQL's server outside of PATH.
postgres=$(find /usr/lib/postgresql -name initdb -printf '%h\n' 2>/dev/null | sort -V | tail -n 1)
missing=()
[[ $postgres ]] || missing+=(postgresql)
for program in pgbench sqlite3 db5.3_load db5.3_recover git tar rsync gzip; do
    command -v "$program" >/dev/null || missing+=("$program")
done
[[ -f /usr/include/db.h ]] || missing+=(libdb5.3-dev)
[[ ${#missing[@]} == 0 ]] || skip "there is no ${missing[*]}; install them with: make setup"

here=$PWD
export=$work/export
point=$work/point
mkdir -m 777 "$export" "$point"
undo+=("umount -l '$point' 2>/dev/null")
serve "$export" --no-root-squash --durable-replies crash
"$dafs" mount "$url/" "$point"
started+=("$(pgrep -f -- "^[^ ]* mount .*$point")")

step "PostgreSQL"
user=$(id -u nobody)
mkdir "$point/database"
chown "$user" "$point/database"
mkdir -m 777 "$work/socket"
# As that user, with a home that is removed at the end.
as_user() { setpriv --reuid "$user" --clear-groups env HOME="$work" "$@"; }
undo+=("as_user '$postgres/pg_ctl' -D '$point/database' -m immediate stop >/dev/null 2>&1")
export PGHOST=$work/socket PGUSER=tester PGDATABASE=postgres
as_user "$postgres/initdb" -D "$point/database" -U tester -A trust -k -E UTF8 --locale=C \
    >"$work/initdb.log" 2>&1 || { cat "$work/initdb.log"; fail "no database was made"; }
cat >>"$point/database/postgresql.conf" <<END
listen_addresses = ''
unix_socket_directories = '$work/socket'
wal_recycle = off
END
begin() {
    as_user "$postgres/pg_ctl" -D "$point/database" -w -t 60 -l "$work/socket/log" start >/dev/null ||
        { tail -n 30 "$work/socket/log"; fail "PostgreSQL does not start"; }
}
ask() { psql -XAtqc "$1"; }
# Each transaction adds the same amount to an account, a teller and a branch, and logs it.
is_balanced() {
    local sums
    sums=$(ask 'select (select sum(abalance) from pgbench_accounts) = (select sum(tbalance) from
        pgbench_tellers) and (select sum(tbalance) from pgbench_tellers) = (select sum(bbalance) from
        pgbench_branches) and (select sum(bbalance) from pgbench_branches) = (select sum(delta) from
        pgbench_history)')
    [[ $sums == t ]] || fail "$1: the sums differ"
}
begin
pgbench -i -q -s "${PGBENCH_SCALE:-1}" >"$work/pgbench.log" 2>&1 || { cat "$work/pgbench.log"; fail "pgbench -i"; }
pgbench -n -c 8 -j 2 -t "${PGBENCH_TRANSACTIONS:-100}" >"$work/pgbench.log" 2>&1 ||
    { cat "$work/pgbench.log"; fail "pgbench"; }
grep -E '^(tps|latency average)' "$work/pgbench.log"
[[ $(ask 'select count(*) from pgbench_history') == $((8 * ${PGBENCH_TRANSACTIONS:-100})) ]] ||
    fail "transactions are missing"
is_balanced "after pgbench"

step "PostgreSQL, killed under load"
pgbench -n -c 8 -j 2 -T 60 >"$work/pgbench.log" 2>&1 &
load=$!
sleep 2
before=$(ask 'select count(*) from pgbench_history')
as_user "$postgres/pg_ctl" -D "$point/database" -m immediate stop >/dev/null || fail "it does not stop"
wait "$load" || true
begin
grep -q 'automatic recovery in progress' "$work/socket/log" || fail "nothing had to be recovered"
[[ $(ask 'select count(*) from pgbench_history') -ge $before ]] || fail "transactions are lost"
is_balanced "after the recovery"

step "PostgreSQL goes on while the server of its files is killed and started anew"
before=$(ask 'select count(*) from pgbench_history')
pgbench -n -c 4 -j 2 -T 8 >"$work/pgbench.log" 2>&1 &
load=$!
for _ in 1 2; do
    sleep 2
    kill_server
    serve "$export" --no-root-squash --durable-replies crash --listen "${url#dafs://}"
done
wait "$load" || { cat "$work/pgbench.log"; tail -n 30 "$work/socket/log"; fail "a client was let down"; }
grep -E 'PANIC|could not (fsync|write)' "$work/socket/log" && fail "PostgreSQL heard of it"
transactions=$(sed -n 's/^number of transactions actually processed: \([0-9]*\).*/\1/p' "$work/pgbench.log")
[[ $(ask 'select count(*) from pgbench_history') == $((before + transactions)) ]] || fail "transactions are lost"
is_balanced "after the server was killed"
ask checkpoint >/dev/null
as_user "$postgres/pg_ctl" -D "$point/database" -m fast stop >/dev/null || fail "it does not stop"
as_user "$postgres/pg_checksums" -D "$point/database" --check >"$work/checksums" ||
    { cat "$work/checksums"; fail "pages are damaged"; }

step "SQLite, four writers at once"
database=$point/sqlite
for mode in delete wal; do
    sqlite3 "$database.$mode" "pragma journal_mode=$mode; create table t(writer, number)" >/dev/null
    writers=()
    for writer in 1 2 3 4; do
        for number in $(seq 25); do
            echo "insert into t values($writer, $number);"
        done | sqlite3 -cmd '.timeout 60000' "$database.$mode" &
        writers+=($!)
    done
    for writer in "${writers[@]}"; do wait "$writer" || fail "a writer failed ($mode)"; done
    [[ $(sqlite3 "$database.$mode" 'select count(distinct writer * 100 + number) from t') == 100 ]] ||
        fail "rows are missing ($mode)"
    [[ $(sqlite3 "$database.$mode" 'pragma integrity_check') == ok ]] || fail "SQLite finds faults"
done

step "Berkeley DB, an environment of several processes"
mkdir "$point/environment"
seq 1 2000 | awk '{ printf "key%06d\nvalue of %d\n", $1, $1 }' >"$work/records"
db5.3_recover -e -h "$point/environment" || fail "no environment was made"
[[ -s $export/environment/__db.001 ]] || fail "the memory that they share is no file"
loaders=()
for kind in btree hash; do
    db5.3_load -h "$point/environment" -T -t "$kind" -f "$work/records" "$kind.db" &
    loaders+=($!)
done
for loader in "${loaders[@]}"; do wait "$loader" || fail "nothing was loaded"; done
db5.3_stat -h "$point/environment" -e >/dev/null || fail "the environment cannot be read"
db5.3_recover -c -h "$point/environment" || fail "the environment cannot be recovered"
for kind in btree hash; do
    db5.3_verify -q "$export/environment/$kind.db" || fail "the $kind is not right on the server"
    db5.3_dump -p "$point/environment/$kind.db" | sed -n '/^HEADER=END/,/^DATA=END/{s/^ //p}' |
        paste - - | sort >"$work/dumped"
    paste - - <"$work/records" | cmp - "$work/dumped" || fail "the $kind holds something else"
done

step "Berkeley DB, with a cache of its own"
own_cache "$point/own.db" timeout 200
db5.3_verify -q "$export/own.db" || fail "the table is not right on the server"

step "git"
export HOME=$work GIT_CONFIG_NOSYSTEM=1
git config --global user.name 'A Tester'
git config --global user.email tester@example.org
git config --global --add safe.directory '*'
git init -q -b main "$point/repository"
cp -r scripts "$point/repository/"
git -C "$point/repository" add .
git -C "$point/repository" commit -qm one
echo more >>"$point/repository/scripts/setup.sh"
git -C "$point/repository" commit -qam two
git -C "$point/repository" gc -q
git clone -q "$point/repository" "$point/clone"
git -C "$point/clone" checkout -q HEAD~1
diff -r scripts "$point/clone/scripts" || fail "something else was checked out"
git -C "$export/clone" fsck --strict || fail "git finds faults"

step "tar and rsync"
tar -C "$here" -cf - scripts | tar -C "$point" -xf -
diff -r scripts "$export/scripts" || fail "tar put something else"
tar -C "$point" --sort=name -cf "$work/tar" scripts
tar -C "$here" -df "$work/tar" || fail "tar finds a difference"
rm -r "$point/scripts"
rsync -a scripts/ "$point/scripts/"
[[ ! $(rsync -ai --checksum scripts/ "$point/scripts/") ]] || fail "rsync finds a difference"
diff -r scripts "$export/scripts" || fail "rsync put something else"

step "gzip in two processes"
seq 1 300000 >"$work/first"
seq 5 300000 >"$work/second"
cp "$work/first" "$work/second" "$point/"
gzip "$point/first" &
first=$!
gzip "$point/second" &
second=$!
wait "$first" || fail "the first gzip failed"
wait "$second" || fail "the second gzip failed"
zcat "$export/first.gz" | cmp - "$work/first" || fail "gzip packed something else"
gunzip "$point/second.gz"
same "$work/second" "$export/second" "what was unpacked"

# As in docs/applications.md.
[[ $(example mount docs/applications.md) == 'dafs mount dafs://localhost/ /mnt/dafs' ]] ||
    fail "docs/applications.md mounts something else"
application gzip mount
[[ $(zcat "$export/gzip/first.gz" | tail -n 1) == 200000 ]] || fail "gzip packed something else"
application "tar and rsync" mount
[[ ! -s $work/said ]] || { cat "$work/said"; fail "rsync or diff finds a difference"; }
diff -r /usr/share/common-licenses "$export/$folder/copy" || fail "rsync put something else"
application git mount
git -C "$export/git/clone" fsck --strict || fail "git finds faults"
application sqlite3 mount
[[ $(cat "$work/said") == $'wal\n100\nok' ]] || { cat "$work/said"; fail "rows are missing"; }
application "Berkeley DB" mount
db5.3_verify -q "$export/$folder/environment/tree.db" || fail "the table is not right on the server"
application PostgreSQL mount
grep -q 'transactions actually processed: 400/400' "$work/said" || { cat "$work/said"; fail "pgbench did less"; }

"$dafs" umount "$point"
stop_server
