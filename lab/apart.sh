# shellcheck shell=bash
# Sourced by the tests of data servers that are separate processes, next to the nodes of another
# file system. The test defines for each of the three: `engine N`, its configuration; and `door N`,
# the address of its front end.

dafs=${DAFS:-$lab/../target/debug/dafs}
[[ -x $dafs ]] || fail "there is no $dafs; build it with: cargo build"
"$dafs" cluster init --secret "$work/secret"

# far N -- the metadata server's configuration of a data server, without the address of the node
# next to it.
far() { printf 'number = %d\ncontrol = "127.0.0.1:710%d"\n' "$1" "$1"; }
data_server=()
# data N... -- starts data servers.
data() {
    local number
    for number in "$@"; do
        mkdir -p "$work/data$number"
        engine "$number" >"$work/engine$number.toml"
        "$dafs" serve --role data --engine "$work/engine$number.toml" \
            --cluster-secret "$work/secret" --control "127.0.0.1:710$number" \
            --nfs "$(door "$number")" --nfs-network 10.0.2.0/24 \
            --metrics "127.0.0.1:930$number" --lease "$lease_seconds" --log "${LAB_LOG:-info}" \
            "$work/data$number" >>"$work/data-$number.out" 2>>"$work/server.log" &
        data_server[number]=$!
        started+=("${data_server[number]}")
    done
}
all_there() { "$dafs" cluster status --state-directory "$work/state" >"$work/status" 2>&1; }
is_missed() { ! all_there; }

# write_files NAME -- writes files of a megabyte each, copies of /out/wanted. read_files GUEST NAME
# -- compares them.
write_files() {
    guest 1 "for ((n = 0; n < $files; n++)); do
            dd if=/out/wanted of=/mnt/a/$1\$n bs=1M count=1 skip=\$n conv=fsync status=none
        done"
}
read_files() {
    guest "$1" "echo 3 >/proc/sys/vm/drop_caches
        for ((n = 0; n < $files; n++)); do cat /mnt/a/$2\$n; done | cmp -n $((files << 20)) /out/wanted -"
}

# Kills a data server under writes of guest 1 and starts it again; clients return to it. Guest 2 has
# no pNFS.
go_without_one() {
    local received name began whole=$((files << 20))
    step "a data server is killed under writes"
    received=$(counted 2 dafs_data_received_bytes_total)
    begin 1 "for ((n = 0; n < $files; n++)); do
            dd if=/out/wanted of=/mnt/a/during\$n bs=64k count=16 skip=\$((n * 16)) oflag=sync status=none
        done"
    eventually 60 at_least 2 dafs_data_received_bytes_total $((received + 500000))
    look
    kill -9 "${data_server[2]}"
    wait "${data_server[2]}" 2>/dev/null || true
    busy 1 || fail "the writer was done before"
    end 1 || fail "the writer was told of an error"
    eventually 30 is_missed
    write_files without
    echo "$(since 0 written) bytes went through the metadata server meanwhile"
    [[ $(since 0 written) -ge $((2 << 20)) ]] || fail "it has not fallen back"
    for name in during without; do read_files 2 "$name"; read_files 1 "$name"; done

    step "it comes back, and so do clients"
    data 2
    eventually 30 all_there
    # A data server that was evicted from its file system returns as a new client of it.
    wrote() {
        look
        # `set -e` has no effect in a function that is used as a condition, so each command returns by itself.
        write_files again || return 1
        (moved written "$whole" $((1 << 20))) >"$work/moved"
    }
    (eventually 60 wrote) || fail "writes do not return: $(<"$work/moved")"
    cat "$work/moved"
    read_files 2 again
    # Reads that began before return, too: a kernel that got no layout for a file asks for one again
    # after 120 seconds.
    returned() {
        look
        read_files 1 without || return 1
        (moved read "$whole" $((1 << 20))) >"$work/moved"
    }
    began=$SECONDS
    # A kernel refused once more by a server that is not ready waits for as long again.
    (eventually 400 returned) || fail "reads do not return: $(<"$work/moved")"
    echo "$(<"$work/moved"), $((SECONDS - began)) s later"
}
