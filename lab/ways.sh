# shellcheck shell=bash
# Sourced by nfs.sh: checks the path of file bytes. Clients silently fall back to the metadata
# server, so the checks read the counters of every server: at port 9300 for the metadata server and
# the data servers of its process, and at 9301 to 9303 for data servers in separate processes.

# counted N NAME -- a counter of data server N, or of the metadata server, 0, since its start: for
# all exports together.
counted() {
    local line sum=0
    if exec 4<>"/dev/tcp/127.0.0.1/930$1"; then
        printf 'GET /metrics HTTP/1.0\r\n\r\n' >&4
        while read -r line; do
            line=${line%$'\r'}
            [[ $line != "$2 "* && $line != "$2{"* ]] || sum=$((sum + ${line##* }))
        done <&4
        exec 4<&-
    fi 2>/dev/null
    echo "$sum"
}
# at_least N NAME VALUE
at_least() { [[ $(counted "$1" "$2") -ge $3 ]]; }
# at_data_servers NAME -- the sum over all data servers.
at_data_servers() { echo $(($(counted 1 "$1") + $(counted 2 "$1") + $(counted 3 "$1"))); }

# Remembers the bytes that each server has read and written for clients so far.
declare -A before_it=()
look() {
    local way number
    for way in read written; do
        for number in 0 1 2 3; do before_it[$way$number]=$(counted "$number" "dafs_export_${way}_bytes_total"); done
    done
}
# since N WAY -- the bytes that server N has `read` or `written` since `look`.
since() { echo $(($(counted "$1" "dafs_export_$2_bytes_total") - before_it[$2$1])); }
# True if no bytes were read or written through the metadata server since `look`.
none_through() {
    local read written
    read=$(since 0 read) written=$(since 0 written)
    echo "through the metadata server: $read bytes read, $written written"
    [[ $read == 0 && $written == 0 ]] || fail "it went through the metadata server"
}
# moved WAY BYTES EACH [N...] -- since `look` clients have `read` or `written` so many bytes at data
# servers, and EACH of these at each of N (all three); and none, in either direction, through the
# metadata server.
moved() {
    local way=$1 bytes=$2 each=$3 number all=0 now=()
    shift 3
    [[ $# != 0 ]] || set -- 1 2 3
    for number in 1 2 3; do
        now[number]=$(since "$number" "$way")
        all=$((all + now[number]))
    done
    echo "$way at data servers: ${now[*]} bytes"
    for number in "$@"; do
        [[ ${now[number]} -ge $each ]] || fail "data server $number has moved too little"
    done
    [[ $all -ge $bytes ]] || fail "$all of $bytes bytes went to data servers"
    none_through
}

# lose_the_server -- kills the metadata server alone, after guest 1 has written all of a file at
# data servers without a LAYOUTCOMMIT, and while it writes another one. Guest 2 has no pNFS.
lose_the_server() {
    local whole=$((8 << 20)) name
    step "the metadata server is killed between data and commit"
    guest 1 'dd if=/out/wanted of=/mnt/a/stable bs=1M count=8 conv=fsync status=none
        calls a LAYOUTCOMMIT >/out/told'
    look
    guest 1 'exec 8>/mnt/a/untold
        dd if=/out/wanted bs=1M count=8 oflag=direct status=none >&8
        [[ $(calls a LAYOUTCOMMIT) == "$(</out/told)" ]] || { echo "it has told of it"; false; }'
    moved written "$whole" 0
    look
    begin 1 'dd if=/out/wanted of=/mnt/a/torn bs=64k count=128 oflag=sync status=none; exec 8>&-'
    is_written() { [[ $(($(since 1 written) + $(since 2 written) + $(since 3 written))) -ge $((1 << 20)) ]]; }
    eventually 60 is_written
    kill_server
    busy 1 || fail "the writer was done before"
    serve
    end 1 || fail "the writer was told of an error"
    eventually 30 all_there
    for name in stable untold torn; do
        guest 2 "cmp -n $whole /out/wanted /mnt/a/$name; [[ \$(stat -c %s /mnt/a/$name) == $whole ]]"
    done
    look
    guest 1 'dd if=/out/wanted of=/mnt/a/later bs=1M count=8 conv=fsync status=none
        echo 3 >/proc/sys/vm/drop_caches
        for name in stable untold torn later; do cmp -n $((8 << 20)) /out/wanted /mnt/a/$name; done'
    moved written "$whole" 0
    moved read $((4 * whole)) 0
    guest 2 'cmp -n $((8 << 20)) /out/wanted /mnt/a/later'
    guest 1 'cd /mnt/a; rm stable untold torn later; cd /'
}
