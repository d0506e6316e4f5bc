#!/bin/bash
# dafs-verbs.sh -- DAFS over RDMA devices, between guests with rxe: transfers of all sizes and many at a
# time, batches, delegations, locks, data servers, optimistic reads, a server that is killed and comes
# back. A session that has chosen its device by itself goes on over TCP when the server listens by TCP
# alone, and devices are removed under load, at the client and at the server. `dafs ping` and `dafs doctor`
# say what is used, and why rxe is used only when it is asked for.
export LAB_TRANSPORT=rxe
source "$(dirname "$0")/../nfs.sh"

[[ ! ${LAB_SERVER:-} && ! $layouts ]] || skip "only this server, without layouts"
dafs=${DAFS:-$lab/../target/debug/dafs}
transfers=${DAFS_TARGET:-$lab/../target/debug}/examples/transfers
for program in "$dafs" "$transfers"; do
    [[ -x $program ]] || fail "there is no $program; build it with: cargo build --bins --examples"
done
strip -o "$work/out/dafs" "$dafs"
strip -o "$work/out/transfers" "$transfers"

APPENDS=2000
LOAD_SECONDS=15
# Blocks that are read in a round of optimistic reads.
BLOCKS=5000

# Empty while the server uses no device.
devices=yes
serve_dafs() {
    local verbs='' nodes='' number rights='squash = "none"
networks = ["10.0.2.0/24"]
unprivileged_ports = true'
    [[ ! $devices ]] || verbs="verbs_listen = [\"$address:20490\"]"
    for number in 1 2; do
        nodes+="[[export.node]]
number = $number
path = \"node$number\"
listen = \"$address:205$number\"
dafs_listen = \"$address:2049$number\"
dafs_verbs = $([[ $devices ]] && echo true || echo false)
"
    done
    cat >"$work/out/dafs.toml" <<END
listen = ["$address:20490"]
$verbs
metrics_listen = "$address:9300"
lease_time_seconds = $lease_seconds
optimistic_memory_bytes = 16777216
state_directory = "state"
trusted = ["10.0.2.0/24"]
danger_allow_unauthenticated_remote_clients = "anyone who reaches this port can read and write these files"
[nfs]
listen = ["$address:2049"]
[[export]]
name = "data"
path = "export"
$rights
durable_replies = "crash"
optimistic = "remote"
[[export]]
name = "wide"
path = "wide"
$rights
stripe_bytes = 65536
$nodes
END
    [[ ${guests[server_guest]:-} ]] || boot "$server_guest"
    guest "$server_guest" "log=${LAB_LOG:-info}"'
        mkdir -p /tmp/export /tmp/state /tmp/wide /tmp/node1 /tmp/node2
        chmod 755 /tmp/export /tmp/state /tmp/wide /tmp/node1 /tmp/node2
        cp /out/dafs.toml /tmp/
        /out/dafs serve --config /tmp/dafs.toml --log $log >/out/server.out 2>>/out/server.log &
        server=$!'
}

# Functions for the guests. `says TEXT COMMAND...`: the output has that text, whatever the status; with
# `does` the command succeeds, too.
# `moves OPTIONS FOLDER WHAT [NUMBER]` runs the program of crates/dafs/examples, which allows its client to
# choose rxe by itself: without a device asked for, a session has TCP to go on with. `metric PATTERN` is the
# sum of the values of such lines of the server's metrics. `through` is the number of bytes of striped files
# that were read through the metadata server, and `asked` the number of requests to read.
words='
    host=dafs://'$address' url=dafs://'$address'/data
    says() {
        "${@:2}" >/tmp/said 2>&1 || true
        cat /tmp/said
        [[ $(</tmp/said) == *"$1"* ]]
    }
    does() {
        "${@:2}" >/tmp/said 2>&1 || { cat /tmp/said; return 1; }
        cat /tmp/said
        [[ $(</tmp/said) == *"$1"* ]]
    }
    moves() { transfers "$url/$2?$1" "${@:3}"; }
    metric() {
        local line sum=0
        exec 4<>/dev/tcp/'$address'/9300
        printf "GET /metrics HTTP/1.0\r\n\r\n" >&4
        while read -r line; do
            line=${line%[[:space:]]}
            [[ $line != $1 ]] || sum=$((sum + ${line##* }))
        done <&4
        exec 4<&-
        echo $sum
    }
    through() { metric "dafs_export_read_bytes*wide*"; }
    asked() { metric "dafs_operation_duration_seconds_count{front_end=\"dafs\",operation=\"READ_*"; }'

serve
boot 1 2
for number in 1 2; do guest "$number" "cp /out/dafs /out/transfers /job/bin/$words"; done

step "what is used, and why"
guest 1 '
    dafs mkdir "$url/one"
    dafs mkdir "$url/two"
    dafs mkdir "$host/wide/three"
    asked="transport verbs: it was asked for: the RDMA device rxe0, RoCE in software (rxe)"
    says "$asked" dafs ping "$url?transport=verbs"
    soft="rxe0 is a rxe device, RoCE in software, which only transport=verbs uses"
    for wish in "" "?transport=auto"; do
        says "transport iwarp: the server runs on another host, and no RDMA device is of use ($soft)" \
            dafs ping "$url$wish"
    done
    says "transport iwarp: it was asked for" dafs ping "$url?transport=iwarp"
    says "DAFS clients choose no RDMA device by themselves: rxe0 works in software" dafs doctor
    does "locks by verbs: the server runs on another host and listens for the RDMA device rxe0" \
        moves transport=auto one locks
    (
        ulimit -S -l 64
        as_nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
        says "no RDMA device is of use (only 65536 bytes" \
            as_nobody transfers "$url/one?transport=auto" locks
    )'

# The kernel may wait with the removal of a device until programs have closed it.
step "a client that does not use the device does not hold it open"
guest 1 '
    head -c 1000000 /dev/urandom >/tmp/some
    dafs put /tmp/some "$url/some"
    dafs bench --run randread --seconds 10 "$url/some" >/tmp/measured & measuring=$!
    is_connected() { grep -q ":500A 01 " /proc/net/tcp; }
    for ((i = 0; i < 300; i++)); do ! is_connected || break; sleep 0.1; done
    is_connected
    ls -l "/proc/$measuring/fd" >/tmp/held
    fails grep /dev/infiniband /tmp/held
    wait $measuring'

for what in data batches delegations locks; do
    step "$what"
    begin 1 "does '$what by verbs' moves transport=verbs one $what"
    begin 2 "does '$what by verbs' moves transport=verbs two $what"
    end 1
    end 2
done

step "what the server has in the end"
guest 1 'head -c 10000001 /dev/urandom >/tmp/large; dafs put /tmp/large "$url?transport=verbs"'
sum=$(guest 1 'sha256sum </tmp/large')
[[ $(in_export 'sha256sum <large') == "$sum" ]] || fail "the server has other data"
[[ $(guest 2 'dafs get "$url/large?transport=verbs" /tmp/large; sha256sum </tmp/large') == "$sum" ]] ||
    fail "the client has other data"

step "data servers"
guest 1 '
    before=$(through)
    does "data by verbs" transfers "$host/wide/three?transport=verbs&pnfs=yes" data
    read=$(($(through) - before))
    echo "$read bytes were read through the metadata server"
    [[ $read -lt 1000000 ]]'

# used -- prints the ticks of CPU time that the server has used, and those of its whole machine, whose kernel
# is the device.
used() {
    guest "$server_guest" 'read -r -a words </proc/$server/stat
        own=$((words[13] + words[14]))
        read -r -a words </proc/stat
        echo $own $((words[1] + words[2] + words[3] + words[6] + words[7]))'
}
optimistic='transport=verbs&optimistic=yes'

step "reads that cost the server no request"
for what in hits reads; do
    options=$optimistic
    [[ $what == hits ]] || options=transport=verbs
    read -r -a before < <(used)
    guest 2 "before=\$(asked)
        moves '$options' one $what $BLOCKS >/tmp/said || { cat /tmp/said; false; }
        tail -n 1 /tmp/said
        read -r reads _ hits _ < <(tail -n 1 /tmp/said)
        requests=\$((\$(asked) - before))
        echo \"\$requests requests\"
        [[ \$requests -le \$((reads - hits + 100)) ]]"
    read -r -a after < <(used)
    echo "for these $what the server used $((after[0] - before[0])) ticks, its machine $((after[1] - before[1]))"
done

step "a fence ends them before it is answered"
guest 2 "moves '$optimistic' one fence $BLOCKS"

# began FILE [WHAT] -- waits until the load, or something else, has begun.
began() { eventually 30 grep -qs "${2:-load by verbs}" "$work/out/$1"; }

step "the server is killed while it shows a file"
guest 2 "moves '$optimistic' one watch $LOAD_SECONDS"' >/out/watched 2>&1 & watching=$!'
began watched 'the first hits'
kill_server
serve
guest 2 'wait $watching || { cat /out/watched; false; }
    tail -n 1 /out/watched'
grep -q 'the last server was killed while RDMA devices showed its files' "$work/$server_log" ||
    fail "the server has not waited for the devices of the last one"

step "a server that is killed"
guest 1 "moves transport=verbs one append $APPENDS"' >/out/appended 2>&1 & appending=$!'
lines() { wc -l <"$work/out/appended" 2>/dev/null || echo 0; }
for round in 1 2 3; do
    went_on() { [[ $(lines) -gt $((round * 40)) ]]; }
    eventually 60 went_on
    kill_server
    serve
done
guest 1 'wait $appending || { cat /out/appended; false; }
    tail -n 1 /out/appended'
[[ $(tail -n 1 "$work/out/appended") == "$APPENDS lines, each once" ]] || fail "an append was lost or doubled"
[[ $(in_export 'wc -l <one/appended') == "$APPENDS" ]] || fail "the server has another number of lines"

step "a server that does not listen for devices any more"
guest 1 "moves transport=auto one load $LOAD_SECONDS"' >/out/load-1 2>&1 & loading=$!'
began load-1
kill_server
devices=
serve
guest 1 'wait $loading || { cat /out/load-1; false; }
    says "at last by iwarp: an RDMA device carried the session" cat /out/load-1
    says "and no RDMA device is of use (" dafs ping "$url"
    says "was not reached by an RDMA device" dafs ping "$url?transport=verbs&connect-timeout=5"'
stop_server
devices=yes
serve

# The kernel waits with the removal of rxe until programs have closed it, or takes it from them.
step "the device of a client is removed under load"
guest 1 "moves transport=auto one load $LOAD_SECONDS"' >/out/load-2 2>&1 & loading=$!'
began load-2
guest 1 'rdma link delete rxe0 & removing=$!'
guest 1 'wait $loading || { cat /out/load-2; false; }
    says "rounds, at last by" cat /out/load-2
    wait $removing
    [[ ! $(rdma link) ]]
    says "transport iwarp: the server runs on another host" dafs ping "$url"
    says "was not reached by an RDMA device" dafs ping "$url?transport=verbs"'

step "the device of the server is removed under load"
guest 2 "moves transport=auto two load $LOAD_SECONDS"' >/out/load-3 2>&1 & loading=$!'
began load-3
guest "$server_guest" 'rdma link delete rxe0 & removing=$!'
guest 2 'wait $loading || { cat /out/load-3; false; }
    says "rounds, at last by" cat /out/load-3'
kill_server
guest "$server_guest" 'wait $removing
    said=$(timeout 20 /out/dafs serve --config /tmp/dafs.toml 2>&1) && false
    echo "$said"
    [[ $said == *"RDMA device for DAFS at "* ]]'
devices=
serve
guest 2 'says "transport iwarp: " dafs ping "$url"'
