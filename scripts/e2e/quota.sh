#!/bin/bash
# Quotas of the export's file system: they hold for callers over all front ends, users see theirs, and a
# server that may not read quotas has none to show. The file systems are a tmpfs with quotas of users
# (Linux 6.6) and an EXT4 with a quota of a project. The kernel here may have one of them, both or none.
source "$(dirname "$0")/lib.sh"

needs_users
tested=0
cp "$dafs" "$work/dafs"
chmod 755 "$work/dafs"
dafs=$work/dafs
head -c 3M /dev/urandom >"$work/file"
head -c 9M /dev/urandom >"$work/large"
# serve_quotas DIRECTORY -- serves it by DAFS and NFS; sets `places`, the URLs of the front ends.
serve_quotas() {
    serve "$1" --nfs 127.0.0.1:0 --no-root-squash --nfs-unprivileged-ports
    local tcp
    tcp=$(sed -n 's/.*listening for NFS *address=//p' "$log" | head -n 1)
    [[ $tcp ]] || { cat "$log"; fail "the log does not say where NFS is served"; }
    places=("$url" "nfs://$tcp")
}
# number NAME PLACE [AS...] -- prints a number of `dafs df`, or null.
number() {
    local name=$1 place=$2
    shift 2
    "$@" "$dafs" df --json "$place/" | grep -o "\"$name\":[0-9a-z]*" | cut -d : -f 2
}
# is_between LEAST NUMBER MOST
is_between() { [[ $2 -ge $1 && $2 -le $3 ]] || fail "$2 is not between $1 and $3"; }
# is_free PLACE [AS...] -- true if the quota is not used, once the server has closed removed files.
is_free() { [[ $(number quota_used "$@") -lt 100000 ]]; }

step "a user of a tmpfs"
mkdir "$work/users"
if mount -t tmpfs -o size=64m,mode=1777,usrquota,usrquota_block_hardlimit=4m tmpfs "$work/users"; then
    undo+=("umount -l '$work/users'")
    tested=1
    serve_quotas "$work/users"
    for place in "${places[@]}"; do
        "${as_other[@]}" "$dafs" put "$work/file" "$place/kept"
        is_between 3145728 "$(number quota_used "$place" "${as_other[@]}")" 3400000
        is_between 700000 "$(number quota_left "$place" "${as_other[@]}")" 1048576
        expect 1 'DQUOT' "${as_other[@]}" "$dafs" put "$work/file" "$place/more"
        # The quota is that of one user alone.
        "$dafs" put "$work/large" "$place/large"
        "$dafs" rm "$place/kept" "$place/large"
        eventually is_free "$place" "${as_other[@]}"
    done
    expect 1 'DQUOT' "${as_other[@]}" "$dafs" put "$work/large" "${places[1]}/large?vers=3"
    stop_server

    step "a server without CAP_SYS_ADMIN shows no quota, and the kernel keeps it"
    as=(setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin)
    serve_quotas "$work/users"
    as=()
    is_empty() { [[ $(df --output=used "$work/users" | tail -n 1) -lt 100 ]]; }
    for place in "${places[@]}"; do
        "${as_other[@]}" "$dafs" put "$work/file" "$place/kept"
        [[ $(number quota_used "$place" "${as_other[@]}") == null ]] || fail "$place shows a quota"
        expect 1 'DQUOT' "${as_other[@]}" "$dafs" put "$work/file" "$place/more"
        "${as_other[@]}" "$dafs" rm "$place/kept"
        eventually is_empty
    done
    stop_server
else
    echo "not tested: this kernel has no quotas of users on tmpfs"
fi

step "a project of an EXT4"
mkdir "$work/projects"
truncate -s 64M "$work/image"
if command -v python3 >/dev/null && mkfs.ext4 -q -O quota,project -I 256 "$work/image" &&
    mount -o loop,prjquota "$work/image" "$work/projects"; then
    undo+=("umount -l '$work/projects'")
    tested=1
    mkdir -m 777 "$work/projects/shared"
    python3 scripts/e2e/quota.py "$work/projects/shared" 42 $((8 << 20))
    serve_quotas "$work/projects/shared"
    for place in "${places[@]}"; do
        [[ $(number space_total "$place") == $((8 << 20)) ]] || fail "$place shows all of the disk"
        "${as_other[@]}" "$dafs" put "$work/file" "$place/kept"
        is_between 3145728 "$(number quota_used "$place")" 3400000
        is_between 4900000 "$(number quota_left "$place")" $((5 << 20))
        expect 1 'DQUOT' "${as_other[@]}" "$dafs" put "$work/large" "$place/large"
        "$dafs" rm "$place/kept"
        eventually is_free "$place"
    done
    stop_server
else
    echo "not tested: this machine makes or mounts no EXT4 with quotas of projects"
fi
[[ $tested == 1 ]] || skip "this kernel has quotas neither on tmpfs nor of projects on EXT4"
