#!/bin/bash
# PostgreSQL under pgbench: started, eight clients at work, stopped, with all that it does to be able
# to recover.
source "$(dirname "$0")/lib.sh"
programs=$(find /usr/lib/postgresql -name initdb -printf '%h\n' | sort -V | tail -n 1)
user=$(id -u nobody)
user_command=(setpriv --reuid "$user" --clear-groups env "HOME=$T")
as_user() { "${user_command[@]}" "$@"; }
export PGHOST=$T PGUSER=tester PGDATABASE=postgres
transactions=$(scaled 1000)
# with_server COMMAND... -- while PostgreSQL runs.
with_server() {
    # No function, so that the process is the server's and gets its signals.
    "${user_command[@]}" "$programs/postgres" -D "$D/database" >"$T/log" 2>&1 &
    server=$!
    trap 'kill -QUIT "$server"' EXIT
    until psql -XAtqc 'select 1' >/dev/null 2>&1; do
        kill -0 "$server" 2>/dev/null || { tail "$T/log" >&2; fail "PostgreSQL does not start"; }
        sleep 0.02
    done
    "$@"
    trap - EXIT
    # Its work at its end, with the clients gone.
    kill -INT "$server"
    wait "$server" || fail "PostgreSQL ended with $?"
}
case $1 in
input) ;;
prepare)
    chmod 777 "$T"
    mkdir "$D/database"
    chown "$user" "$D/database"
    as_user "$programs/initdb" -D "$D/database" -U tester -A trust -k -E UTF8 --locale=C >"$T/initdb.log" 2>&1 ||
        { cat "$T/initdb.log" >&2; fail "no database was made"; }
    printf "listen_addresses = ''\nunix_socket_directories = '%s'\n" "$T" >>"$D/database/postgresql.conf"
    with_server pgbench -i -q -s "$(((SCALE + 9) / 10))" >"$T/pgbench.log" 2>&1 ||
        { cat "$T/pgbench.log" >&2; fail "pgbench -i"; }
    ;;
run)
    work() {
        pgbench -n -c 8 -j 2 -t "$transactions" >"$T/pgbench.log" 2>&1 ||
            { cat "$T/pgbench.log" >&2; fail "pgbench"; }
        # Each transaction adds the same to an account, a teller and a branch, and notes it.
        psql -XAtqc 'select count(*), sum(delta) = (select sum(abalance) from pgbench_accounts) and sum(delta)
            = (select sum(tbalance) from pgbench_tellers) and sum(delta) = (select sum(bbalance) from
            pgbench_branches) from pgbench_history' >"$T/sums"
    }
    with_server work
    ;;
check)
    [[ $(<"$T/sums") == "$((8 * transactions))|t" ]] || fail "transactions are missing: $(<"$T/sums")"
    as_user "$programs/pg_checksums" -D "$E/database" --check >"$T/checksums" ||
        { cat "$T/checksums" >&2; fail "pages are damaged"; }
    ;;
esac
