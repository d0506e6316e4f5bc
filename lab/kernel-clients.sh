#!/bin/bash
# kernel-clients.sh DAFS_BENCH MIB MBITS SMALL_FILES SMALL_BYTES -- the throughput of Linux's
# client, in one guest and in two at once, and of ours over the same three data servers. Each data
# server is a process behind a link of its own with a rate of MBITS. `dafs-bench pnfs` runs this
# script and reads the lines that begin with `rate`: client, operation, number of concurrent
# clients, and MB or files per second.
#
# Clients silently fall back to the metadata server, so the script checks the counters of the data
# servers. All data read is compared.
bench=$1 mib=$2 megabits=$3 small_files=$4 small_bytes=$5
source "$(dirname "$0")/nfs.sh"

dafs=${DAFS:-$(dirname "$bench")/dafs}
[[ -x $dafs ]] || fail "there is no $dafs; build it with: cargo build -p dafs, as dafs-bench was built"
for program in tc nsenter; do
    command -v "$program" >/dev/null || skip "there is no $program"
done

"$dafs" cluster init --secret "$work/secret"
holder=()
in_node() {
    local number=$1
    shift
    nsenter --net="/proc/${holder[number]}/ns/net" "$@"
}
is_apart() { [[ $(readlink "/proc/${holder[$1]}/ns/net") != "$(readlink /proc/self/ns/net)" ]]; }
limited() { echo "qdisc add dev $1 root tbf rate ${megabits}mbit burst 128kb latency 2s"; }
# Starts data server $1, at 10.0.2.20$1, in a network namespace of its own.
data() {
    local number=$1
    mkdir "$work/disk$number"
    unshare --net sleep infinity &
    holder[number]=$!
    started+=("${holder[number]}")
    eventually 10 is_apart "$number"
    ip link add "data$number" type veth peer name eth0 netns "${holder[number]}"
    ip link set "data$number" master lab up
    limited "data$number" | tc -batch -
    in_node "$number" ip link set lo up
    in_node "$number" ip addr add "10.0.2.20$number/24" dev eth0
    in_node "$number" ip link set eth0 up
    limited eth0 | in_node "$number" tc -batch -
    in_node "$number" "$dafs" serve --role data --cluster-secret "$work/secret" \
        --control "10.0.2.20$number:7101" --nfs "10.0.2.20$number:2049" --nfs-network 10.0.2.0/24 \
        --nfs-unprivileged-ports --metrics "10.0.2.20$number:9300" --log "${LAB_LOG:-info}" \
        "$work/disk$number" >>"$work/data-$number.out" 2>>"$work/server.log" &
    started+=("$!")
}
serve_dafs() {
    local number
    for number in 1 2 3; do data "$number"; done
    cat >"$work/dafs.toml" <<TOML
listen = ["127.0.0.1:0"]
state_directory = "state"
[nfs]
listen = ["$address:2049"]
grace_time_seconds = 0
[cluster]
secret = "secret"
[[export]]
name = "data"
path = "export"
squash = "none"
networks = ["10.0.2.0/24"]
unprivileged_ports = true
stripe_bytes = 262144
TOML
    for number in 1 2 3; do
        printf '[[export.node]]\nnumber = %d\ncontrol = "10.0.2.20%d:7101"\n' "$number" "$number" \
            >>"$work/dafs.toml"
    done
    "$dafs" serve --config "$work/dafs.toml" --log "${LAB_LOG:-info}" \
        >>"$work/server.out" 2>>"$work/server.log" &
    server=$!
    started+=("$server")
}
all_there() { "$dafs" cluster status --state-directory "$work/state" >/dev/null 2>&1; }

# moved NAME -- the sum of a counter over all data servers.
moved() {
    local number line sum=0
    for number in 1 2 3; do
        exec 3<>"/dev/tcp/10.0.2.20$number/9300"
        printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
        while read -r line; do
            line=${line%$'\r'}
            [[ $line != "$1 "* ]] || sum=$((sum + ${line##* }))
        done <&3
        exec 3<&-
    done
    echo "$sum"
}

# measure COUNT WHAT AMOUNT TEXT -- COUNT guests run the text at once, and each prints the
# microseconds that it took; the slowest one counts. The amount is the total of all.
measure() {
    local number slowest=0 took
    for number in $(seq "$1"); do
        guest "$number" 'echo 3 >/proc/sys/vm/drop_caches'
    done
    for number in $(seq "$1"); do begin "$number" "${4//NUMBER/$number}"; done
    for number in $(seq "$1"); do
        took=$(end "$number") || fail "guest $number: $took"
        took=${took##*$'\n'}
        ((took <= slowest)) || slowest=$took
    done
    echo "rate Linux $2 $1 $(awk "BEGIN { printf \"%.3f\", $3 * 1e6 / $slowest }")"
}

serve
eventually 30 all_there
boot 1 2
for number in 1 2; do guest "$number" 'nfs_mount 4.1 a'; done
megabytes=$(awk "BEGIN { print $mib * 1.048576 }")
for count in 1 2; do
    step "guests: $count"
    all=$(awk "BEGIN { print $count * $megabytes }")
    sent=$(moved dafs_data_sent_bytes_total) received=$(moved dafs_data_received_bytes_total)
    measure "$count" write "$all" "fileop put /mnt/a/large-NUMBER NUMBER $mib"
    measure "$count" read "$all" "fileop get /mnt/a/large-NUMBER NUMBER $mib"
    bytes=$((count * mib << 20))
    [[ $(($(moved dafs_data_received_bytes_total) - received)) -ge $bytes ]] || fail "writes went another way"
    [[ $(($(moved dafs_data_sent_bytes_total) - sent)) -ge $bytes ]] || fail "reads went another way"
    files=$((count * small_files))
    measure "$count" small-write "$files" "fileop put-small /mnt/a/small-NUMBER $small_files $small_bytes"
    measure "$count" small-read "$files" "fileop get-small /mnt/a/small-NUMBER $small_files $small_bytes"
    for number in $(seq "$count"); do
        guest "$number" "rm /mnt/a/large-$number /mnt/a/small-$number-*"
    done
done
[[ $(moved dafs_data_indirect_bytes_total) == 0 ]] || fail "stripes came to the wrong data server"

step "the same by dafs-nfs-client"
"$bench" pnfs-here "nfs://$address:2049/data?vers=4.1" "$mib" 1,2
[[ $(moved dafs_data_indirect_bytes_total) == 0 ]] || fail "stripes came to the wrong data server"
stop_server
