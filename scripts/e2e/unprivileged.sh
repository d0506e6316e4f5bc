#!/bin/bash
# A server without privileges, and root's server with ordinary users and root as callers.
source "$(dirname "$0")/lib.sh"

needs_users
# A user that every Debian has: over TCP the server finds the groups of a local user by its name.
user=daemon
as_user=(setpriv --reuid "$(id -u $user)" --regid "$(id -g $user)" --init-groups)
# The build folder may be closed to others.
cp "$dafs" "$work/dafs"
chmod 755 "$work/dafs"
dafs=$work/dafs
mkdir -m 777 "$work/user"
"${as_user[@]}" bash -c "
    umask 022
    mkdir '$work/user/tree' '$work/user/tree/closed'
    cd '$work/user/tree'
    echo one >file; chmod 640 file; ln file link; ln -s file symlink; mkfifo fifo
    echo two >set; chmod 6755 set
    echo three >group; chmod 2750 group
    echo four >read-only; chmod 400 read-only
    truncate -s 10M hole
    echo five >closed/inside; chmod 500 closed"
listing "$work/user/tree" >"$work/before"

# Copies in and out as the ordinary user, and compares.
round_trip() {
    local transport
    for transport in shm iwarp; do
        "${as_user[@]}" "$dafs" --transport $transport put "$work/user/tree" "$url/" --owner
        listing "$work/user/export/tree" >"$work/listing"
        same "$work/before" "$work/listing" "listings after put over $transport"
        "${as_user[@]}" "$dafs" --transport $transport get "$url/tree" "$work/user/back" --owner
        listing "$work/user/back" >"$work/listing"
        same "$work/before" "$work/listing" "listings after get over $transport"
        cmp "$work/user/tree/set" "$work/user/back/set"
        "${as_user[@]}" bash -c "chmod -R u+w '$work/user/back'; rm -rf '$work/user/back'"
        chmod -R u+w "$work/user/export/tree"
        "${as_user[@]}" "$dafs" --transport $transport rm -r "$url/tree"
        [[ ! -e $work/user/export/tree ]] || fail "something is left"
    done
}

step "a server without privileges serves its own user"
"${as_user[@]}" mkdir "$work/user/export" "$work/user/state"
as=("${as_user[@]}")
serve "$work/user/export" --state-directory "$work/user/state"
round_trip
step "and nobody can do more through it than it can"
mkdir -m 700 "$work/user/export/roots"
expect 1 'ACCES' "$dafs" ls "$url/roots"
stop_server
rmdir "$work/user/export/roots"

step "root's server serves an ordinary user as that user"
as=()
serve "$work/user/export"
round_trip
mkdir -m 700 "$work/user/export/roots"
expect 1 'ACCES' "${as_user[@]}" "$dafs" ls "$url/roots"

step "root is squashed"
expect 1 'ACCES' "$dafs" ls "$url/roots"
expect 1 'ACCES' "$dafs" mkdir "$url/new"
chmod 777 "$work/user/export"
expect 0 '' "$dafs" mkdir "$url/new"
[[ $(stat -c %u:%g "$work/user/export/new") == 65534:65534 ]] || fail "root was not squashed"
echo '#!/bin/sh' >"$work/tool"
chmod 4755 "$work/tool"
expect 0 'set-user-id' "$dafs" put "$work/tool" "$url/"
[[ $(stat -c %a "$work/user/export/tool") == 755 ]] || fail "a set-user-id bit for somebody else"
stop_server

step "unless the administrator says otherwise"
serve "$work/user/export" --no-root-squash
expect 0 '' "$dafs" ls "$url/roots"
expect 0 '' "$dafs" put "$work/tool" "$url/roots/"
[[ $(stat -c %u:%a "$work/user/export/roots/tool") == 0:4755 ]] || fail "not root's"
stop_server
