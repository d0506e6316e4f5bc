#!/bin/bash
# nfs-kerberos.sh -- the kernel's client with sec=krb5, krb5i and krb5p: files of two users, a user without a ticket, and
# an export that takes one flavour alone.
export LAB_SECURITY=${LAB_SECURITY:-krb5p}
source "$(dirname "$0")/../nfs.sh"

# The folder is exported again, to krb5p alone.
more_exports=strict
mkdir "$work/strict"
flavours='"krb5p", "krb5i", "krb5"' more_flavours='"krb5p"'

serve
chmod 1777 "$work/export"
boot 1
ticket bert 1

for version in "${versions[@]}"; do
    for sec in krb5 krb5i krb5p; do
        step "NFSv$version, sec=$sec: two users"
        guest 1 "version=$version sec=$sec"'
            nfs_mount $version a sec=$sec
            grep " /mnt/a " /proc/mounts | grep -q "sec=$sec,"
            cd /mnt/a
            as anna bash -c "umask 077; echo private >private; mkdir own; echo deep >own/file"
            [[ $(stat -c "%u %g %a" private own/file) == $(printf "1000 1000 600\n1000 1000 600") ]]
            [[ $(as anna cat private own/file) == $(printf "private\ndeep") ]]
            fails as bert cat private
            fails as bert ls own
            fails as bert rm private
            as bert touch his
            [[ $(stat -c %u his) == 1001 ]]
            # Somebody without a ticket reads nothing, not even what all may read.
            fails setpriv --reuid 1002 --regid 1002 --clear-groups cat his

            # Larger than any call, and lengths that are no multiples of four.
            for size in 1 5 4097 65537 3000001; do
                head -c $size /dev/urandom >/tmp/data
                as anna bash -c "cat /tmp/data >data; cp data again"
                echo 3 >/proc/sys/vm/drop_caches
                cmp /tmp/data data
                cmp /tmp/data again
            done
            as anna mv data own/moved
            as anna ln -s own/moved link
            [[ $(readlink link) == own/moved ]]
            rm -r private own his again link
            cd /
            umount /mnt/a'
    done
done

step "an export of one flavour"
guest 1 'nfs_mount 4.1 a "sec=krb5p" /strict
    echo strict >/mnt/a/file
    umount /mnt/a
    for sec in sys krb5 krb5i; do
        for version in 4.1 3; do
            # Some of these mounts succeed, as their client asks for nothing that is refused.
            ! nfs_mount $version a "sec=$sec" /strict 2>/dev/null || {
                fails cat /mnt/a/file
                umount /mnt/a
            }
        done
    done
    # Without the option a client takes the first flavour that the server names.
    mount -t nfs -o "vers=4.1,proto=tcp,port=$nfs_port" "$server:/strict" /mnt/a
    [[ $(cat /mnt/a/file) == strict ]]
    grep " /mnt/a " /proc/mounts | grep -q sec=krb5p
    umount /mnt/a'
