#!/bin/bash
# nfs-features.sh -- features of NFSv4.2 beyond reads and writes, by the kernel's client: holes,
# allocation, copies and clones within the server, extended attributes; and ACLs.
source "$(dirname "$0")/../nfs.sh"

command -v setfattr >/dev/null || skip "no setfattr; try: scripts/setup.sh lab"

serve
boot 1
guest 1 'nfs_mount 4.2 a; cd /mnt/a'

step "holes"
# Data at 1 MiB and 5 MiB, a hole at the end.
guest 1 '
    dd if=/dev/urandom of=/tmp/piece bs=64k count=1 status=none
    truncate -s 8M holes
    dd if=/tmp/piece of=holes bs=64k seek=16 conv=notrunc status=none
    dd if=/tmp/piece of=holes bs=64k seek=80 conv=notrunc,fsync status=none
    fileop holes holes | tee /out/holes
    echo 3 >/proc/sys/vm/drop_caches
    cp --sparse=always holes /tmp/copied
    { head -c 1M /dev/zero; cat /tmp/piece; head -c $((4096 * 1024 - 65536)) /dev/zero; cat /tmp/piece
        head -c $((3 * 1024 * 1024 - 65536)) /dev/zero; } >/tmp/wanted
    cmp /tmp/wanted holes
    cmp /tmp/wanted /tmp/copied
    # Linux does not use READ_PLUS over RDMA, where its data could not be placed.
    [[ $transport != tcp || $(calls a READ_PLUS) -gt 0 ]]
    [[ $(calls a SEEK) -gt 0 ]]'
[[ $(<"$work/out/holes") == $'data 1048576 1114112\ndata 5242880 5308416' ]] ||
    fail "other holes"

step "allocation"
guest 1 '
    fallocate -l 3M allocated
    [[ $(stat -c %s allocated) == 3145728 && $(stat -c %b allocated) -ge 6144 ]]
    cp /tmp/wanted punched
    fallocate -p -o 1048576 -l 65536 punched
    [[ $(fileop holes punched) == "data 0 1048576"?"data 1114112 8388608" ]]
    { head -c 5M /dev/zero; tail -c 3M /tmp/wanted; } | cmp - punched
    [[ $(calls a ALLOCATE) -gt 0 && $(calls a DEALLOCATE) -gt 0 ]]'

step "copies within the server"
guest 1 '
    head -c 9000001 /dev/urandom >source
    sync
    written=$(calls a WRITE)
    fileop copy source 0 target 0 9000001
    cmp source target
    fileop copy source 4097 target 100 100001
    cmp <(tail -c +4098 source | head -c 100001) <(tail -c +101 target | head -c 100001)
    fileop copy source 0 target 9000001 65536
    cmp <(head -c 65536 source) <(tail -c 65536 target)
    [[ $(calls a COPY) -gt 0 && $(calls a WRITE) == "$written" ]]'

step "clones"
guest 1 '
    kind=clones
    fileop clone source cloned || kind="no clones ($?)"
    echo "the exported folder: $kind"
    [[ $kind != clones ]] || cmp source cloned'
if [[ ${LAB_SERVER:-dafs} == dafs ]]; then
    guest 1 '
        nfs_mount 4.2 memory "" /memory
        head -c 1000000 source >/mnt/memory/source
        fileop clone /mnt/memory/source /mnt/memory/cloned
        cmp /mnt/memory/source /mnt/memory/cloned
        [[ $(calls memory CLONE) -gt 0 ]]
        printf changed >>/mnt/memory/cloned
        head -c 1000000 source | cmp - /mnt/memory/source
        umount /mnt/memory'
fi

step "extended attributes"
guest 1 '
    attribute() { on_host getfattr --absolute-names --only-values -n "user.$1" "/mnt/a/$2" 2>/dev/null; }
    set_attribute() { on_host setfattr -n "user.$1" -v "$2" "/mnt/a/$3"; }
    mkdir -p folder
    set_attribute colour blue source
    set_attribute colour green folder
    set_attribute "a name with spaces" "" source
    set_attribute large "$(printf "%03000d" 8)" source
    [[ $(attribute colour source) == blue && $(attribute colour folder) == green ]]
    set_attribute colour red source
    echo 3 >/proc/sys/vm/drop_caches
    [[ $(attribute colour source) == red && $(attribute large source | wc -c) == 3000 ]]
    on_host getfattr --absolute-names -d /mnt/a/source >/tmp/all
    [[ $(grep -c ^user /tmp/all) == 3 ]]
    on_host setfattr -x user.colour /mnt/a/source
    fails on_host setfattr -x user.colour /mnt/a/source
    fails on_host getfattr -n user.colour /mnt/a/source
    fails set_attribute toolarge "$(printf "%070000d" 8)" source
    [[ $(calls a GETXATTR) -gt 0 && $(calls a SETXATTR) -gt 0 && $(calls a LISTXATTRS) -gt 0 ]]
    [[ $(calls a REMOVEXATTR) -gt 0 ]]'
if [[ ! $server_guest ]]; then
    [[ $(getfattr --absolute-names --only-values -n user.large "$work/export/source" | wc -c) == 3000 ]] ||
        fail "the host has other attributes"
    setfattr -n user.local -v here "$work/export/folder"
    guest 1 '[[ $(attribute local folder) == here ]]'
fi

step "access control lists"
# The kernel's client shows NFSv4 ACLs as an attribute of their bytes on the wire, after an XDR
# count.
guest 1 '
    echo text >guarded
    chmod 640 guarded
    acl() { on_host getfattr --absolute-names --only-values -n system.nfs4_acl "/mnt/a/$1" | od -An -v -tx1 | tr -d " \n"; }
    before=$(acl guarded)
    [[ ${#before} -gt 40 ]]
    chmod 600 guarded
    after=$(acl guarded)
    [[ $before != "$after" ]]
    on_host setfattr -n system.nfs4_acl -v "0x$before" /mnt/a/guarded
    # With a delegation the client believes its own idea of the mode, so that has to go first.
    echo 3 >/proc/sys/vm/drop_caches
    [[ $(stat -c %a guarded) == 640 && $(acl guarded) == "$before" ]]'
# One more entry: allow, no flags, to read data, attributes and the list itself, for user 1000.
read -r _ _ users </proc/self/uid_map
if [[ $users -gt 1 ]]; then
    guest 1 '
        as_user() { setpriv --reuid 1000 --regid 1000 --clear-groups "$@"; }
        chmod 600 guarded
        fails as_user cat guarded
        plain=$(acl guarded)
        entry=000000000000000000120081$(printf %08x 4)$(printf 1000 | od -An -tx1 | tr -d " ")
        on_host setfattr -n system.nfs4_acl -v "0x00000004$entry${plain:8}" /mnt/a/guarded
        as_user grep -q text guarded
        fails as_user bash -c "echo more >>guarded"
        [[ $(acl guarded) == *"$(printf 1000 | od -An -tx1 | tr -d " ")"* ]]
        on_host setfattr -n system.nfs4_acl -v "0x$plain" /mnt/a/guarded
        fails as_user cat guarded'
fi
guest 1 'cd /; umount /mnt/a'
