#!/bin/bash
# nfs-sharing.sh -- two machines on the same files: flock, ranges of fcntl, waiting for locks,
# counting under locks, appends, recall of delegations, and sqlite with concurrent writers.
source "$(dirname "$0")/../nfs.sh"

command -v sqlite3 >/dev/null || skip "no sqlite3; try: scripts/setup.sh lab"

COUNTS=12
INSERTS=15

serve
boot 1 2

# hold N WORDS... -- guest N takes a lock with fileop and holds it until `release N`.
hold() {
    guest "$1" ": >/tmp/held; fileop ${*:2} >/tmp/held 2>&1 & holder=\$!"'
        until [[ -s /tmp/held ]]; do read -r -t 0.02 -u 3 || true; done
        grep -q locked /tmp/held || { cat /tmp/held; false; }'
}
release() { guest "$1" 'kill $holder; wait $holder'; }
# True if guest 2 is refused such a lock.
denied() { guest 2 "agrees=0; fileop try $* >/dev/null || agrees=\$?; [[ \$agrees == 3 ]]"; }
granted() { guest 2 "fileop try $*"; }

delegations() {
    # With a delegation, another open sends no request, but a close writes all data. After a recall
    # it is returned, and both see the other's data at once. A file that was shared before may get
    # none.
    guest 1 "shared=/mnt/a/shared-$version"'
        opens() { echo $(($(calls a OPEN) + $(calls a OPEN_NOATTR))); }
        written=$(calls a WRITE)
        echo one >$shared
        # The close has waited for the data.
        [[ $(calls a WRITE) -gt $written ]]
        read -r -t 1 -u 3 || true
        cat $shared >/dev/null
        before=$(opens)
        for i in 1 2 3 4 5; do [[ $(<$shared) == one ]]; done
        echo "$(($(opens) - before)) of 5 opens to read went to the server"
        [[ $(opens) == "$before" ]]
        returned=$(calls a DELEGRETURN)'
    guest 2 "echo two >/mnt/a/shared-$version"
    guest 1 '
        has_sent a DELEGRETURN "$returned"
        [[ $(<$shared) == two && $(opens) -gt $before ]]'
    guest 1 'exec 8<>/mnt/a/gone; echo data >&8'
    guest 2 'mv /mnt/a/gone /mnt/a/there; grep -q data /mnt/a/there; chmod 600 /mnt/a/there
        : >/mnt/a/there; rm /mnt/a/there'
    guest 1 'exec 8>&-; [[ ! -e /mnt/a/there ]]'
}

for version in "${versions[@]}"; do
    # Version 3 has a separate lock protocol, which the server does not have.
    [[ $version != 3 ]] || continue
    step "NFSv$version: flock and ranges of fcntl"
    for number in 1 2; do guest "$number" "nfs_mount $version a"; done
    guest 1 'cd /mnt/a; printf "%01000d" 0 >file'
    file=/mnt/a/file

    guest 1 'exec 8<>/mnt/a/file; flock -x -n 8'
    guest 2 'exec 8<>/mnt/a/file; fails flock -x -n 8; fails flock -s -n 8'
    begin 2 'flock -x 8'
    sleep 0.5
    busy 2 || fail "flock waited for nobody"
    guest 1 'flock -u 8'
    end 2
    guest 1 'fails flock -s -n 8'
    guest 2 'flock -s -n 8'
    guest 1 'flock -s -n 8; exec 8>&-'
    guest 2 'flock -x -n 8; exec 8>&-'

    hold 1 lock $file w 100 50
    denied $file w 0 0
    denied $file r 149 1
    granted $file w 0 100
    granted $file w 150 0
    [[ $(guest 2 "fileop holder $file r 0 0") == 'w 100 50' ]] || fail "another holder"
    release 1
    granted $file w 0 0
    hold 1 lock $file r 0 0
    granted $file r 0 0
    denied $file w 999 1
    release 1
    hold 1 ranges $file
    for free in '100 100' '400 0'; do granted $file w $free; done
    for taken in '99 1' '0 1' '200 1' '299 1'; do denied $file r $taken; done
    denied $file w 300 1
    denied $file w 399 1
    granted $file r 300 100
    begin 2 "fileop try $file w 120 10; : >/tmp/held; fileop lock-wait $file w 250 100 >/tmp/held & holder=\$!"'
        until [[ -s /tmp/held ]]; do read -r -t 0.02 -u 3 || true; done'
    sleep 0.5
    busy 2 || fail "a lock was granted against another"
    release 1
    end 2
    guest 1 "[[ \$(fileop holder $file w 0 0) == 'w 250 100' ]]"
    release 2

    step "NFSv$version: a waiting process that is killed"
    hold 1 lock $file w 0 0
    guest 2 "fileop lock-wait $file w 0 0 >/tmp/held 2>&1 & holder=\$!"'
        read -r -t 0.5 -u 3 || true
        kill -KILL $holder
        wait $holder || true'
    release 1
    guest 1 "[[ \$(fileop holder $file w 0 0) == free ]]"

    step "NFSv$version: counting and appending under locks"
    guest 1 'echo 0 >/mnt/a/counter; rm -f /mnt/a/appended'
    for number in 1 2; do
        begin "$number" "times=$COUNTS"'
            for kind in fcntl flock; do
                fileop count /mnt/a/counter $kind $times & first=$!
                fileop count /mnt/a/counter $kind $times
                wait $first
            done
            fileop append /mnt/a/appended $times machine-$guest'
    done
    end 1
    end 2
    # Each machine counted in two processes with each kind of lock. The server does not distinguish
    # the kinds, so they conflict, too.
    guest 1 "[[ \$(</mnt/a/counter) == $((8 * COUNTS)) ]] || { cat /mnt/a/counter; false; }"
    guest 1 "[[ \$(sort -u /mnt/a/appended | wc -lc) =~ ^\ *$((2 * COUNTS))\ +$((128 * COUNTS))$ ]] ||
        { cat /mnt/a/appended; false; }"
    [[ $(in_export 'sort -u appended | wc -l') == $((2 * COUNTS)) ]] ||
        fail "the server's folder has other records"

    if grants_delegations; then
        step "NFSv$version: delegations"
        delegations
    else
        echo "NFSv$version: no delegations are granted for files that clients of $layouts may change"
    fi
    step "NFSv$version: a writer's size and data"
    # The other must see its size and then its data.
    guest 1 '
        exec 8>/mnt/a/written
        printf "%05000d" 7 >&8
        exec 9>>/mnt/a/written
        printf more >&9'
    guest 2 '[[ $(stat -c %s /mnt/a/written) -ge 0 ]]
        [[ $(wc -c </mnt/a/written) -le 5004 ]]'
    guest 1 'exec 8>&- 9>&-'
    guest 2 '[[ $(wc -c </mnt/a/written) == 5004 && $(tail -c 4 /mnt/a/written) == more ]] ||
        { stat -c "%s bytes" /mnt/a/written; tail -c 16 /mnt/a/written | od -c; false; }'

    step "NFSv$version: sqlite with concurrent writers"
    guest 1 '
        rm -f /mnt/a/base*
        on_host sqlite3 /mnt/a/base "create table t(who text, number int, unique(who, number));"'
    for number in 1 2; do
        begin "$number" "inserts=$INSERTS"'
            writers=()
            for writer in a b; do
                {
                    echo ".timeout 80000"
                    for ((i = 0; i < inserts; i++)); do
                        echo "begin immediate; insert into t values(\"$guest$writer\", $i);
                            insert into t select \"sum$guest$writer$i\", count(*) from t; commit;"
                    done
                } >/tmp/sql-$writer
                on_host sqlite3 -bail /mnt/a/base <<<".read /tmp/sql-$writer" & writers+=($!)
            done
            for writer in "${writers[@]}"; do wait "$writer"; done'
    done
    end 1
    end 2
    guest 1 'on_host sqlite3 /mnt/a/base "pragma integrity_check; select count(*) from t;" >/out/said'
    [[ $(<"$work/out/said") == $'ok\n'$((8 * INSERTS)) ]] || fail "sqlite: $(<"$work/out/said")"
    for number in 1 2; do guest "$number" 'cd /; umount /mnt/a'; done
    [[ ${DAFS_TEST_LONG:-} ]] || break
done
