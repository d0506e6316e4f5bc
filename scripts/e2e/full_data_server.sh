#!/bin/bash
# A data server with a full disk, with stripes and with copies: writers get an error, through the
# server and past it by NFS and by DAFS. No acknowledged data is lost, and all goes on when there is
# room again.
source "$(dirname "$0")/lib.sh"

is_root || skip "needs root to mount a small file system"
in_own_mounts
mkdir -m 777 "$work"/{wide,safe}
"$dafs" cluster init --secret "$work/secret"
# The small one of the stripes, and of the copies.
for number in 2 5; do
    mkdir "$work/data$number"
    mount -t tmpfs -o size=16m tmpfs "$work/data$number" 2>/dev/null ||
        skip "this machine does not let root mount a tmpfs"
    undo+=("umount -l '$work/data$number'")
done
for number in 1 2 3 4 5; do
    data "$number" --cluster-secret "$work/secret" --listen 127.0.0.1:0 "$work/data$number"
done
cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
state_directory = "state"
lease_time_seconds = 5
[nfs]
listen = ["127.0.0.1:0"]
grace_time_seconds = 0
[cluster]
secret = "secret"
[[export]]
name = "wide"
path = "wide"
squash = "none"
unprivileged_ports = true
stripe_bytes = 65536
$(nodes 1 2 3)
[[export]]
name = "safe"
path = "safe"
squash = "none"
unprivileged_ports = true
copies = 2
$(nodes 4 5)
END
serve --config "$work/dafs.toml"
nfs=nfs://$(sed -n 's/.*listening for NFS *address=//p' "$log" | head -n 1)
status=("$dafs" cluster status --state-directory "$work/state")
all_there() { "${status[@]}"; }
eventually all_there

head -c 60M /dev/urandom >"$work/too-big"
head -c 6M /dev/urandom >"$work/some"
# left EXPORT NODE -- the free space there, as shown to the administrator, in bytes.
left() {
    "${status[@]}" --json |
        sed -n "s/.*\"export\":\"$1\",\"number\":$2,.*\"available_bytes\":\([0-9]*\).*/\1/p"
}
# Data servers remove deleted and unfinished files a little later.
has_room() { [[ $(left "$export" "$small") -ge $1 ]]; }
# The bytes that clients have written at data servers.
at_data_servers() {
    local number sum=0
    for number in 1 2 3 4 5; do sum=$((sum + $(counted "${data_log[number]}" dafs_export_written_bytes_total))); done
    echo "$sum"
}
is_mended() { all_there && ! "${status[@]}" | grep 'copies to repair'; }
# check WAY NAME... -- compares the content with the acknowledged data.
check() {
    local way=$1 name
    shift
    for name in "$@"; do
        rm -f "$work/back"
        "$dafs" get "${way/NAME/$name}" "$work/back"
        same "$work/some" "$work/back" "$name as it was written and what comes back by $way"
    done
}
for place in 'wide 2' 'safe 5'; do
    read -r export small <<<"$place"
    # One file's share of it.
    part=$((6 << 20))
    [[ $export == safe ]] || part=$((part / 3))
    # Each way with one of both, as most of the time is spent waiting for removals.
    ways=("$url/$export/NAME" "$nfs/$export/NAME")
    [[ $export == wide ]] || ways=("$url/$export/NAME?pnfs=yes" "$nfs/$export/NAME")
    for way in "${ways[@]}"; do
        step "$way"
        eventually has_room 15000000
        direct=$(at_data_servers)
        "$dafs" put "$work/some" "${way/NAME/first}"
        [[ $way == "$url/$export/NAME" ]] || [[ $(at_data_servers) -gt $direct ]] || fail "it went through the server"
        # The data server becomes full during this one, which leaves no file.
        expect 1 'the file system is full (NOSPC)' "$dafs" put "$work/too-big" "${way/NAME/big}"
        [[ $(ls -A "$work/$export") == first ]] || fail "left: $(ls -A "$work/$export")"
        check "$way" first
        # And then after one of these.
        eventually has_room "$part"
        "$dafs" put "$work/some" "${way/NAME/full0}"
        kept=(first full0)
        while "$dafs" put "$work/some" "${way/NAME/full${#kept[@]}}" 2>"$work/said"; do
            kept+=("full${#kept[@]}")
            [[ ${#kept[@]} -lt 30 ]] || fail "there is room for more than there is"
        done
        grep -q 'NOSPC' "$work/said" || { cat "$work/said"; fail "something else went wrong"; }
        ! has_room $((6 << 20)) || fail "the administrator is not told: $(all_there)"
        check "$way" "${kept[@]}"
        "$dafs" rm "$url/$export/full0"
        eventually has_room "$part"
        "$dafs" put "$work/some" "${way/NAME/later}"
        check "$way" later "${kept[0]}" "${kept[@]:2}"
        eventually is_mended
        for name in later "${kept[0]}" "${kept[@]:2}"; do "$dafs" rm "$url/$export/$name"; done
    done
done
stop_server
