#!/bin/bash
# nfs-recovery.sh -- the kernel's client keeps its files and locks when the server is killed in the
# middle of writes and locks and started again; the test measures how long it waits after an orderly
# restart, and when others get the locks of a client machine that is gone.
source "$(dirname "$0")/../nfs.sh"

KILLS=3
[[ ! ${DAFS_TEST_LONG:-} ]] || KILLS=12
RESTARTS=2
# A guest with TLS and Kerberos may take six seconds to come back on a busy machine.
lease_seconds=8
# Counted since the last start, after which little follows.
layouts_bytes_min=10000
file=/mnt/a/locked

# True if guest 2 is refused such a lock.
denied() { guest 2 "agrees=0; fileop try $* >/dev/null || agrees=\$?; [[ \$agrees == 3 ]]"; }
granted() { guest 2 "fileop try $*"; }
# wait_for TEXT FILE, in a guest
wait_for='wait_for() { until grep -q "$1" "$2" 2>/dev/null; do read -r -t 0.05 -u 3 || true; done; }'

# start_load N [killed] -- guest N appends with fsync to a journal and makes, renames and removes
# files; `killed` as in fileop.c. When this returns, some work was acknowledged.
start_load() {
    local killed=${2:-}
    # See end_load.
    [[ ! $killed || $layouts != glusterfs ]] || killed=both
    guest "$1" "killed='$killed'; $wait_for"'
        fileop journal /mnt/a/journal-$guest /tmp/out/acknowledged-$guest >/tmp/journal & journal=$!
        fileop churn /mnt/a/churn-$guest file $killed >/tmp/churn & churn=$!
        wait_for begun /tmp/journal
        wait_for begun /tmp/churn
        wait_for . /tmp/out/acknowledged-$guest'
}
# end_load N KILLS -- ends the load, and checks that each record is there once and in order, and
# each file, too. GlusterFS gives a file its new name before it removes the old one, so a server
# that is killed may leave both.
end_load() {
    guest "$1" '
        ended=0
        kill $journal $churn || ended=1
        wait $journal || ended=1
        wait $churn || ended=1
        sed "s/^/journal: /" /tmp/journal
        sed "s/^/files: /" /tmp/churn
        [[ $ended == 0 ]]'
    guest "$1" "layouts='$layouts' kills=$2"'
        read -r records _ < <(grep records /tmp/journal)
        cut -d " " -f 2 /mnt/a/journal-$guest >/tmp/found
        seq 0 $((records - 1)) | cmp - /tmp/found
        read -r rounds _ < <(grep rounds /tmp/churn)
        for ((i = 0; i < rounds; i += 10)); do echo file-$i; done | sort >/tmp/wanted
        ls /mnt/a/churn-$guest >/tmp/found
        if [[ $layouts == glusterfs ]]; then
            left=$(grep -c "[.]new$" /tmp/found || true)
            [[ $left -le $kills ]]
            sed -i "/[.]new$/d" /tmp/found
        fi
        sort /tmp/found | diff /tmp/wanted -
        rm -r /mnt/a/churn-$guest /mnt/a/journal-$guest'
}
# Checks that all acknowledged work is in the exported folder, while the server is down.
check_acknowledged() {
    local number last
    for number in "$@"; do
        read -r last <"$work/out/acknowledged-$number"
        in_export "grep -q '^record $last ' journal-$number" || fail "record $last is lost"
        echo "guest $number: $((last + 1)) records acknowledged"
    done
}
# Waits until the load goes on.
load_goes_on() {
    local number before last
    for number in 1 2; do
        read -r before <"$work/out/acknowledged-$number"
        is_ahead() { read -r last <"$work/out/acknowledged-$number" && [[ $last -gt $before ]]; }
        eventually 30 is_ahead
    done
}

serve
boot 1 2
# With two versions, where two of them know locks.
for number in 1 2; do
    version=${versions[number - 1]:-3}
    [[ $version != 3 ]] || version=${versions[0]}
    guest "$number" "nfs_mount $version a"
done

step "the server is killed $KILLS times"
guest 1 'head -c 24000000 /dev/urandom >/tmp/bulk
    echo lock >'$file'
    exec 8<>/mnt/a/whole; flock -x 8
    fileop lock '$file' w 10 10 >/tmp/held & holder=$!'"
    $wait_for"'
    wait_for locked /tmp/held'
start_load 1 killed
start_load 2 killed
guest 1 'for i in 1 2 3 4; do dd if=/tmp/bulk of=/mnt/a/bulk-$i bs=64k conv=fsync status=none; done & bulk=$!'
for ((kill = 0; kill < KILLS; kill++)); do
    sleep "1.$((RANDOM % 10))"
    kill_server
    # The content on data servers is visible through the server alone.
    [[ $layouts ]] || check_acknowledged 1 2
    serve
    [[ ! $layouts ]] || check_acknowledged 1 2
    denied $file w 0 0
    denied $file r 15 1
    granted $file w 0 10
    guest 2 'exec 8<>/mnt/a/whole; fails flock -s -n 8; exec 8>&-'
done
guest 1 'wait $bulk
    for i in 1 2 3 4; do cmp /tmp/bulk /mnt/a/bulk-$i; done
    sha256sum </tmp/bulk >/out/bulk'
guest 2 'for i in 1 2 3 4; do [[ $(sha256sum </mnt/a/bulk-$i) == "$(</out/bulk)" ]]; done'
end_load 1 "$KILLS"
end_load 2 "$KILLS"
guest 1 'kill $holder; wait $holder; exec 8>&-'
granted $file w 0 0
guest 2 'flock -x -n /mnt/a/whole true'
! grep -i 'reclaim' "$work"/guest-*.log || fail "a client lost what it held"

step "the server is restarted in order $RESTARTS times, under load"
stop_server
serve held
for ((restart = 0; restart < RESTARTS; restart++)); do
    start_load 1
    start_load 2
    guest 1 ': >/tmp/held
        fileop lock '$file' w 10 10 >/tmp/held & holder=$!
        wait_for locked /tmp/held'
    sleep 1
    restart_server
    sleep 1
    check_acknowledged 1 2
    load_goes_on
    denied $file w 0 0
    end_load 1 0
    end_load 2 0
    guest 1 'kill $holder; wait $holder'
done

step "a machine that is away longer than its lease, while nobody wants what it holds"
guest 2 'fileop lock '$file' w 0 100 >/tmp/held & holder=$!'"
    $wait_for"'
    wait_for locked /tmp/held
    exec 8<>/mnt/a/whole; flock -x 8'
cut_off 2
sleep $((lease_seconds * 2))
reconnect 2
guest 2 'echo back >/mnt/a/back; kill -0 $holder; cat /mnt/a/back'
guest 1 "[[ \$(fileop holder $file w 0 0) == 'w 0 100' ]]; fails flock -s -n /mnt/a/whole true"

step "a machine that is gone while it holds locks"
cut_off 2
guest 1 "agrees=0; fileop try $file w 0 100 || agrees=\$?; [[ \$agrees == 3 ]]"
began=$SECONDS
guest 1 "$wait_for"'
    : >/tmp/held
    fileop lock-wait '$file' w 0 100 >/tmp/held & holder=$!
    wait_for locked /tmp/held
    flock -x /mnt/a/whole true
    mv /mnt/a/back /mnt/a/moved
    echo changed >/mnt/a/moved'
echo "others had its locks after $((SECONDS - began)) s, with a lease of $lease_seconds s"

step "it comes back and learns that its lock is not its own any more"
reconnect 2
guest 2 '[[ $(</mnt/a/moved) == changed ]]'
denied $file w 0 100
guest 1 'kill $holder; wait $holder'
guest 2 'kill $holder; wait $holder || true; exec 8>&-; echo new >/mnt/a/new'
granted $file w 0 100
