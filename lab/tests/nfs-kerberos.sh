#!/bin/bash
# nfs-kerberos.sh -- the kernel's client with sec=krb5, krb5i and krb5p: files of two users, a user without a ticket, an
# export that takes one flavour alone, a server that is killed under writes and gets new keys meanwhile, and a
# ticket that ends in the middle of writes.
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
            # A user without a ticket reads nothing, not even a file that is open to all.
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
    proto=rdma
    [[ $transport != tcp ]] || proto=tcp
    mount -t nfs -o "vers=4.1,proto=$proto,port=$nfs_port" "$server:/strict" /mnt/a
    [[ $(cat /mnt/a/file) == strict ]]
    grep " /mnt/a " /proc/mounts | grep -q sec=krb5p
    umount /mnt/a'

# Where a program of a user notes what was acknowledged.
: >"$work/out/acknowledged"
chmod 666 "$work/out/acknowledged"
acknowledged() { cat "$work/out/acknowledged"; }
# start_journal NAME -- anna appends records with fsync.
start_journal() {
    : >"$work/out/acknowledged"
    guest 1 "name=$1"'
        # Not by `as`, whose process would be another one.
        setpriv --reuid 1000 --regid 1000 --clear-groups \
            fileop journal "/mnt/a/$name" /tmp/out/acknowledged >/tmp/journal 2>&1 & journal=$!
        until [[ -s /tmp/out/acknowledged ]]; do read -r -t 0.05 -u 3 || true; done'
}
# True once more records were acknowledged than so many.
went_on() { [[ $(acknowledged) -gt $1 ]]; }
# end_journal -- ends it, and checks that each record is there once and in order.
end_journal() {
    guest 1 '
        kill $journal
        wait $journal
        cat /tmp/journal
        read -r records _ < <(grep records /tmp/journal)
        cut -d " " -f 2 "/mnt/a/$name" >/tmp/found
        seq 0 $((records - 1)) | cmp - /tmp/found'
}

for version in 4.1 3; do
    step "NFSv$version: a server that is killed under writes, and gets new keys"
    guest 1 "nfs_mount $version a"
    start_journal "killed-$version"
    for _ in 1 2; do
        kill_server
        before=$(acknowledged)
        # Old tickets hold on to the old key, which stays in the file.
        printf '%s\n' "cpw -randkey -keepold nfs/host.test.dafs" "ktadd -norandkey -k $realm/server.keytab nfs/host.test.dafs" |
            administer
        serve
        eventually 60 went_on "$before"
    done
    end_journal
    guest 1 'umount /mnt/a'
done

step "a ticket that ends in the middle of writes"
ticket anna 1 -l 5s
guest 1 'nfs_mount 4.1 a'
start_journal ended
# The server takes the context for a minute longer, and the library's clocks may differ by five seconds.
has_ended() { guest 1 '[[ ! $(jobs -r) ]]' >/dev/null; }
eventually 120 has_ended
guest 1 'grep "Key has expired" /tmp/journal'
ticket anna 1
# All that was acknowledged is there, and the user goes on.
guest 1 "last=$(acknowledged)"'
    cut -d " " -f 2 /mnt/a/ended | head -n $((last + 1)) >/tmp/found
    seq 0 $last | cmp - /tmp/found
    as anna bash -c "echo more >>/mnt/a/ended"
    echo "$last records were acknowledged before"'
