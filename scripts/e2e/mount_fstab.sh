#!/bin/bash
# Mounts by mount(8): a line of fstab mounts with its options, umount ends the process, and wrong options are refused.
source "$(dirname "$0")/lib.sh"
needs_mounts

mkdir "$work/export" "$work/point" "$work/sbin"
echo content >"$work/export/file"
helper=$work/sbin/mount.dafs
sed "s|^dafs=.*|dafs=$(realpath "$dafs")|" packaging/mount.dafs >"$helper"
chmod 755 "$helper"
serve "$work/export" --no-root-squash
page=$work/page
undo+=("umount -l $work/point 2>/dev/null")
cat >"$work/recorder" <<'END'
#!/bin/sh
printf '<%s>' "$@"
exit "${STATUS:-0}"
END
chmod 755 "$work/recorder"
recorded=$work/mount.dafs
sed "s|^dafs=.*|dafs=$work/recorder|" packaging/mount.dafs >"$recorded"
chmod 755 "$recorded"

step "options"
# becomes ARGUMENTS WORD... -- the helper calls the command with these arguments.
becomes() {
    local wanted=$1 said
    shift
    said=$("$recorded" "$@") || fail "status $?: $*"
    [[ $said == "$wanted" ]] || fail "$* became $said instead of $wanted"
}
url_of=dafs://host/path
becomes '<mount><--><dafs://host/path></mnt>' $url_of /mnt
becomes '<mount><--read-only><--><dafs://host/path></mnt>' $url_of /mnt -n -o ro,_netdev,nofail,x-systemd.automount
becomes '<mount><--verbose><--allow-other><--user=anna><--password-file=/a b><--><dafs://host/path></mnt>' \
    $url_of /mnt -v -o 'rw,allow_other,username=anna' -o 'password-file=/a b'
becomes '<mount><--transport=shm><--belief=0.5><--threads=4><--checksums><--one-user><--><dafss://h/></mnt>' \
    dafss://h/ /mnt -sn -o transport=shm,belief=0.5,threads=4,checksums,one-user
becomes '<mount><--fence-id=--x;*><--><dafs://host/path></mnt>' $url_of /mnt -o 'fence-id=--x;*'
becomes '' $url_of /mnt -f
expect 1 'is no DAFS server' "$recorded" /dev/sda1 /mnt
expect 1 'unknown option dafs' "$recorded" $url_of /mnt -o dafs
expect 1 'leave noexec out' "$recorded" $url_of /mnt -o noexec
expect 1 'leave it out' "$recorded" $url_of /mnt -o suid
expect 1 'unmount it' "$recorded" $url_of /mnt -o remount,ro
expect 1 'usage' "$recorded" $url_of
STATUS=2 expect 1 '' "$recorded" $url_of /mnt
STATUS=3 expect 32 '' "$recorded" $url_of /mnt
for option in $(sed -n 's/^    \([a-z][^)]*\))$/\1/p' packaging/mount.dafs | tr -d ' ' | tr '|' '\n' | sed -n 's/=?\*$//p'); do
    sed 's/\\-/-/g' packaging/mount.dafs.8 | grep -F "$option=" >/dev/null || fail "mount.dafs.8 has no $option"
done

step "by the helper"
"$helper" "$url" "$work/point" -o rw
[[ $(<"$work/point/file") == content ]] || fail "nothing is mounted"
umount "$work/point"
expect 32 '' "$helper" "$url/none" "$work/point"
expect 32 '' "$helper" "$url" "$work/none"

step "by fstab"
echo "$url $work/point dafs ro,_netdev,nofail 0 0" >"$work/fstab"
# mount(8) looks for helpers in the system's folder alone, so ours lies over it, in this name space of mounts.
if ! mount -t overlay overlay -o "lowerdir=$work/sbin:/usr/sbin" /usr/sbin 2>"$work/said"; then
    cat "$work/said"
    skip "all but the line of fstab has passed: there is no overlay of /usr/sbin here"
fi
[[ -x /sbin/mount.dafs ]] || skip "all but the line of fstab has passed: /sbin is not /usr/sbin here"
mount -T "$work/fstab" "$work/point"
[[ $(<"$work/point/file") == content ]] || fail "nothing is mounted by fstab"
grep " $work/point fuse.dafs ro," /proc/mounts >"$page" || fail "it is not read-only: $(grep "$work/point" /proc/mounts)"
umount "$work/point"
gone() { ! grep " $work/point " /proc/mounts; }
eventually gone
stop_server
