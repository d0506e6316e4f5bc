#!/bin/bash
# nfs-files.sh -- everyday work on files by the kernel's client with NFSv4.2, 4.1 and 3: the results
# of writes, links, renames, removals, maps and listings are visible to itself, after a new mount,
# and in the exported folder. A listing of many entries has each once. Mounts come and go.
source "$(dirname "$0")/../nfs.sh"

ENTRIES=20000
SOME=1000
case ${LAB_LAYOUTS:-} in
'') ;;
# The files are made through the server, and the kernel client caches as many.
stripes) ENTRIES=2000 ;;
# A cluster needs some milliseconds for each.
*) ENTRIES=400 SOME=200 ;;
esac
MOUNTS=10
# Almost all of it is one file.
layouts_bytes_min=3000000

serve
boot 1
in_export "fileop many large $ENTRIES"

counts_space=yes
if ! counts_space; then
    counts_space=no
    echo "the size of the file system is not looked at: this cluster has no manager, who counts that"
fi

# True if the server may act as other users. It may not in a user namespace with one user.
read -r _ _ users </proc/self/uid_map

for version in "${versions[@]}"; do
    step "NFSv$version: files"
    guest 1 "version=$version counts_space=$counts_space"'
        nfs_mount $version a
        mkdir /mnt/a/$version
        cd /mnt/a/$version
        echo hello >file
        head -c 3000001 /dev/urandom >large
        sha256sum <large >/tmp/sum
        ln file linked
        ln -s file pointing
        ln -s /nowhere/at/all dangling
        mkfifo fifo
        mkdir -p deep/er
        touch -d "2001-02-03 04:05:06.789 UTC" deep/old
        chmod 4751 file
        echo more >>linked
        mv large deep/er/moved
        truncate -s 5 deep/short
        long=$(printf "%0255d" 0)
        echo long >$long
        fails touch ${long}0
        fails mkdir deep
        fails rmdir deep
        fails mv file deep/er/moved/x
        fails cat missing
        printf "%04096d" 0 >mapped
        fileop map mapped 1000 "written through a mapping"
        fileop excl only
        status=0; fileop excl only || status=$?; [[ $status == 3 ]]
        fileop gone open other
        cd /
        umount /mnt/a
        nfs_mount $version a
        cd /mnt/a/$version
        [[ $(cat pointing) == hello?more && $(readlink dangling) == /nowhere/at/all ]]
        [[ $(stat -c "%a %h" file) == "4751 2" && file -ef linked ]]
        [[ $(stat -c "%y" deep/old) == "2001-02-03 04:05:06.789"* ]]
        [[ $(sha256sum <deep/er/moved) == $(</tmp/sum) ]]
        [[ $(stat -c %s deep/short) == 5 && -p fifo && $(cat $long) == long ]]
        [[ $(stat -c %h .) == 3 ]]
        grep -q "written through" mapped
        [[ $counts_space == no || $(df --output=size . | tail -n 1) -gt 1000 ]]
        [[ $(ls -A | wc -l) == 10 ]]
        cp /tmp/sum /out/sum
        cd /'
    in_export "cd $version"'
        sha256sum <deep/er/moved
        stat -c "%a %h %s" file
        find . | wc -l
        echo "by somebody else" >local' >"$work/seen"
    { cat "$work/out/sum"; printf '4751 2 11\n15\n'; } | diff - "$work/seen" ||
        fail "the server's folder differs"
    if [[ $users -gt 1 ]]; then
        step "NFSv$version: another user"
        guest 1 '
            cd /mnt/a/$version
            grep -q somebody local
            echo secret >private
            chmod 600 private
            mkdir -m 1777 shared
            as_user() { setpriv --reuid 1000 --regid 1000 --groups 1000,1001 "$@"; }
            fails as_user cat private
            fails as_user touch new
            fails as_user chmod 777 private
            as_user touch shared/his
            [[ $(stat -c "%u %g" shared/his) == "1000 1000" ]]
            # With Kerberos the groups are those that the server knows.
            [[ $security != sys ]] || chgrp 1001 shared/his
            chown 1234:4321 private
            [[ $(stat -c "%u %g" private) == "1234 4321" ]]
            cd /'
    fi
    step "NFSv$version: a directory of $ENTRIES"
    guest 1 "
        fileop list /mnt/a/large $ENTRIES
        echo 3 >/proc/sys/vm/drop_caches
        fileop list /mnt/a/large $ENTRIES stat
        fileop many /mnt/a/$version/some $SOME
        fileop list /mnt/a/$version/some $SOME
        rm -r /mnt/a/$version/some"
    guest 1 'umount /mnt/a'
done

step "$MOUNTS mounts of each version"
guest 1 "versions='${versions[*]}' mounts=$MOUNTS"'
    for ((i = 0; i < mounts; i++)); do
        for version in $versions; do
            nfs_mount $version a
            ls /mnt/a >/dev/null
            umount /mnt/a
        done
    done'
