#!/bin/bash
# nfs-locks.sh -- locks and fences of DAFS clients, as programs on a kernel client see them. Under a
# lock whose holder was killed, their reads, writes and locks fail until it is repaired. A fence
# excludes them and admits them again. Their writes under a lock with auto-recovery are undone with
# it.
source "$(dirname "$0")/../nfs.sh"

dafs=${DAFS:-$lab/../target/debug/dafs}
lease_seconds=2
mkdir -p "$work/export"
serve
place=$(sed -n 's/.*listening address=\(127[^ ]*\).*/\1/p' "$work/server.log")
[[ $place ]] || fail "the server did not say where it listens"
file=dafs://$place/data/file
boot 1

# The content of the file, bypassing the server.
seen() {
    if [[ $layouts ]]; then
        stored
    else
        cat "$work/export/file"
    fi | tr -d '\0'
}
# becomes TEXT -- makes the file anew.
becomes() {
    printf '%s' "$1" >"$work/text"
    chmod 666 "$work/text"
    if [[ ! $layouts ]]; then
        cp "$work/text" "$work/export/file"
        chmod 666 "$work/export/file"
        return
    fi
    # The old content must not be mistaken for it.
    "$dafs" rm -f "$file"
    eventually 20 nothing_stored
    "$dafs" put "$work/text" "$file"
}
nothing_stored() { [[ ! $(seen) ]]; }

# True if the command ends with this status. One that hangs fails the test.
ends() {
    local wanted=$1 status=0
    shift
    timeout -k 5 "$patience_seconds" "$@" >"$work/said" 2>&1 || status=$?
    [[ $status != 124 ]] ||
        fail "no end after $patience_seconds s: $*: $(<"$work/said"); locks at the server:" \
            "$("$dafs" lock list --state-directory "$work/state" 2>&1)"
    [[ $status == "$wanted" ]]
}
has_ended() { ! kill -0 "$1" 2>/dev/null; }
# hold OPTION -- locks the file in the background; the process is $holder. The words of an earlier holder
# do not count: the file is emptied only when the process runs.
hold() {
    rm -f "$work/held"
    "$dafs" lock hold "$file" "$1" >"$work/held" 2>&1 &
    holder=$!
    started+=("$holder")
    eventually 20 grep -qs '^locked$' "$work/held"
}
# refuses WHY -- programs in the guest get this error for reads, writes and truncation of the file.
# The reads must not come from the guest's own cache.
refuses() {
    guest 1 "error='$1'"'
        refused() {
            local said
            ! said=$("$@" 2>&1) || { echo "this should fail: $*"; return 1; }
            [[ $said == *"$error"* ]] || { echo "$*: $said"; return 1; }
        }
        refused dd if=/mnt/a/file of=/dev/null iflag=direct bs=4096 count=1
        refused dd if=/dev/zero of=/mnt/a/file conv=notrunc,fsync bs=4 count=1
        refused truncate -s 3 /mnt/a/file'
}
allows() {
    guest 1 '
        dd if=/mnt/a/file of=/dev/null iflag=direct bs=4096 count=1
        printf free | dd of=/mnt/a/file conv=notrunc,fsync bs=4 count=1
        flock -x -n /mnt/a/file true'
}

[[ ! $layouts ]] || layouts_bytes_min=1
# Through the server in any case.
tried=("${versions[0]}" 3)
[[ ! ${DAFS_TEST_LONG:-} ]] || mapfile -t tried < <(printf '%s\n' "${versions[@]}" 3 | sort -ru)
for version in "${tried[@]}"; do
    step "NFSv$version: a lock whose holder is killed"
    becomes half
    guest 1 "nfs_mount $version a; [[ \$(</mnt/a/file) == half ]]"
    hold --persist
    # The lock is advisory while it is held.
    guest 1 '[[ $(</mnt/a/file) == half ]]'
    [[ $version == 3 ]] || guest 1 'fails flock -x -n /mnt/a/file true'
    kill -9 "$holder"
    wait "$holder" 2>/dev/null || true
    # Until the lease is over, the holder may come back. Without a command, a lock that is granted is held
    # for ever.
    eventually 15 ends 5 "$dafs" lock hold "$file" --timeout 0 -- true
    refuses 'Input/output error'
    [[ $version == 3 ]] || guest 1 '
        started=$SECONDS
        fails flock -x /mnt/a/file true
        [[ $((SECONDS - started)) -lt 5 ]] || { echo "it waited for a holder that is gone"; false; }'
    [[ $(seen) == half ]] || fail "somebody wrote"
    ends 0 "$dafs" lock repair "$file" -- sh -c "'$dafs' cat '$file' >'$work/seen'" ||
        fail "repair: $(<"$work/said")"
    [[ $(<"$work/seen") == half ]] || fail "the repairer saw $(<"$work/seen")"
    allows

    step "NFSv$version: a lock with auto-recovery"
    change() { guest 1 'printf CHANGED | dd of=/mnt/a/file conv=notrunc,fsync seek=1 bs=2'; }
    becomes 'as it was'
    hold --auto-recover
    change
    [[ $(seen) == asCHANGED ]] || fail "not written: $(seen)"
    kill -9 "$holder"
    wait "$holder" 2>/dev/null || true
    eventually 15 ends 0 "$dafs" lock hold "$file" --timeout 0 -- true
    [[ $(seen) == 'as it was' ]] || fail "not undone: $(seen)"
    for status in 7 0; do
        rm -f "$work"/{begun,go}
        "$dafs" lock hold "$file" --auto-recover -- \
            sh -c ": >'$work/begun'; until [ -e '$work/go' ]; do sleep 0.05; done; exit $status" &
        holder=$!
        started+=("$holder")
        eventually 10 test -e "$work/begun"
        change
        : >"$work/go"
        eventually "$patience_seconds" has_ended "$holder"
        ended=0
        wait "$holder" || ended=$?
        [[ $ended == "$status" ]] || fail "the holder ended with $ended, and its command with $status"
        expected='as it was'
        [[ $status != 0 ]] || expected=asCHANGED
        [[ $(seen) == "$expected" ]] || fail "after $status: $(seen)"
    done

    step "NFSv$version: fences"
    fence() { "$dafs" fence "$1" --state-directory "$work/state" --export data "${@:2}"; }
    fence set node-a addr:192.0.2.0/24
    refuses 'Permission denied'
    fence add addr:10.0.2.0/24
    allows
    fence remove addr:10.0.2.0/24
    refuses 'Permission denied'
    if [[ $version != 3 ]]; then
        # By the client's own name.
        owner=$("$dafs" clients --state-directory "$work/state" --json |
            sed -n 's/.*"front_end":"nfs4".*"name":"\([^"]*\)".*/\1/p')
        [[ $owner ]] || fail "who is the client?"
        fence add "nfs:$owner"
        allows
        fence remove "nfs:$owner"
        refuses 'Permission denied'
    fi
    fence clear
    allows
    guest 1 'umount /mnt/a'
done
