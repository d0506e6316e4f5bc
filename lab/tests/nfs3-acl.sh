#!/bin/bash
# nfs3-acl.sh -- POSIX access control lists by the kernel's NFSv3 client (NFS_ACL): entries for users, masks,
# default lists. The client shows them as attributes of the kernel's form: a version, then tag, rights and id of
# each entry in little-endian.
source "$(dirname "$0")/../nfs.sh"

command -v setfattr >/dev/null || skip "no setfattr; try: scripts/setup.sh lab"
read -r _ _ users </proc/self/uid_map
[[ $users -gt 1 ]] || skip "this user may not act as other users, so lists cannot name them"
serve
boot 1
none=ffffffff
# The rights of the owner and of user 1000, then those of the group, the mask and all others.
list() {
    printf '%s' 02000000 "01000${1}00$none" "02000${2}00e8030000" "04000${3}00$none" "10000${4}00$none" "20000${5}00$none"
}

step "an entry for a user counts as far as the mask"
guest 1 "list=$(list 6 6 4 4 0) wide=$(list 6 6 4 6 0)"'
    acl() { on_host getfattr --absolute-names --only-values -n "system.posix_acl_$1" "/mnt/a/$2" | od -An -v -tx1 | tr -d " \n"; }
    set_acl() { on_host setfattr -n "system.posix_acl_$1" -v "0x$2" "/mnt/$3"; }
    as_user() { setpriv --reuid 1000 --regid 1000 --clear-groups "$@"; }
    nfs_mount 3 a
    cd /mnt/a
    echo text >guarded
    chmod 640 guarded
    fails on_host getfattr -n system.posix_acl_access /mnt/a/guarded
    fails as_user cat guarded
    set_acl access $list a/guarded
    echo 3 >/proc/sys/vm/drop_caches
    [[ $(acl access guarded) == "$list" && $(stat -c %a guarded) == 640 ]]
    as_user grep -q text guarded
    fails as_user bash -c "echo more >>guarded"
    chmod 660 guarded
    # The client may keep the list of before.
    echo 3 >/proc/sys/vm/drop_caches
    [[ $(acl access guarded) == "$wide" ]]
    as_user bash -c "echo more >>guarded"
    fails setpriv --reuid 1001 --regid 1001 --clear-groups cat guarded
    nfs_mount 4.2 b
    as_user grep -q more /mnt/b/guarded
    umount /mnt/b'
[[ $server_guest ]] || setfattr -x system.posix_acl_access "$work/export/guarded" ||
    fail "the host does not have the list"

step "new files inherit the default list"
guest 1 "default=$(list 7 7 5 7 0) new=$(list 6 7 5 6 0)"'
    mkdir folder
    set_acl default $default a/folder
    [[ $(acl default folder) == "$default" ]]
    (umask 077; echo text >folder/new; mkdir folder/below)
    echo 3 >/proc/sys/vm/drop_caches
    [[ $(acl access folder/new) == "$new" && $(stat -c %a folder/new) == 660 ]]
    [[ $(acl default folder/below) == "$default" ]]
    as_user bash -c "echo more >>folder/new"
    on_host setfattr -x system.posix_acl_default /mnt/a/folder
    (umask 077; echo text >folder/plain)
    [[ $(stat -c %a folder/plain) == 600 ]]
    cd /
    umount /mnt/a'

step "a store of modes"
[[ ${LAB_SERVER:-dafs} == dafs ]] || exit 0
guest 1 "list=$(list 6 6 4 4 0)"'
    nfs_mount 3 memory "" /memory
    echo text >/mnt/memory/file
    chmod 600 /mnt/memory/file
    fails set_acl access $list memory/file
    [[ $(stat -c %a /mnt/memory/file) == 600 ]]
    umount /mnt/memory'
