#!/bin/bash
# A mounted tree: programs see the server's files, whoever changes them; open files outlive their
# names and the server; unmounting works in every state of the mount.
source "$(dirname "$0")/lib.sh"

needs_mounts

export=$work/export
point=$work/point
mkdir -m 777 "$export" "$point"
undo+=("umount -l '$point' 2>/dev/null")
is_mounted() { grep -q "^dafs://.* $point fuse" /proc/self/mounts; }
is_gone() { ! kill -0 "$1" 2>/dev/null; }
# The process that serves the mount.
keeper() { pgrep -f -- "^[^ ]* mount .*$point"; }
serve "$export" --no-root-squash

step "what cannot be mounted is said"
expect 1 'NOENT' "$dafs" mount "$url/nothing" "$point"
expect 1 'cannot mount on' "$dafs" mount "$url/" "$work/nowhere"
expect 1 'is no mount of dafs' "$dafs" umount "$point"
expect 3 'connect' "$dafs" mount dafs://127.0.0.1:1/ "$point"
is_mounted && fail "something was mounted"

step "files, directories, links"
"$dafs" mount "$url/" "$point" 9>"$work/held"
is_mounted || fail "nothing is mounted"
[[ ! $(find "/proc/$(keeper)/fd" -lname "$work/held") ]] || fail "it holds what it has nothing to do with"
mkdir "$point/directory"
echo hello >"$point/directory/file"
[[ $(cat "$export/directory/file") == hello ]] || fail "the server has something else"
echo more >>"$point/directory/file"
[[ $(cat "$point/directory/file") == $'hello\nmore' ]] || fail "appending"
truncate -s 7 "$point/directory/file"
[[ $(stat -c %s "$export/directory/file") == 7 ]] || fail "cutting"
mv "$point/directory/file" "$point/moved"
ln "$point/moved" "$point/second"
ln -s moved "$point/link"
[[ $(stat -c %h "$point/moved") == 2 && $(readlink "$point/link") == moved ]] || fail "links"
echo other >"$point/other"
mv -n "$point/other" "$point/moved" || true
[[ -e $point/other ]] || fail "a file was replaced against the user's will"
mkfifo "$point/pipe"
[[ -p $export/pipe ]] || fail "a pipe"
chmod 4751 "$point/moved"
touch -d '2001-02-03 04:05:06.789' "$point/moved"
[[ $(stat -c '%a %y' "$export/moved") == '4751 2001-02-03 04:05:06.789000000 '* ]] ||
    fail "attributes: $(stat -c '%a %y' "$export/moved")"
rmdir "$point/directory"
rm "$point/second" "$point/link" "$point/pipe" "$point/other" "$point/moved"
[[ ! $(ls -A "$export") ]] || fail "something was left: $(ls -A "$export")"

step "many names, read as they were made"
mkdir "$point/many"
seq 3000 | (cd "$point/many" && xargs touch)
same <(seq 3000 | sort) <(ls "$point/many" | sort) "the names"
[[ $(find "$point/many" -type f -size 0 | wc -l) == 3000 ]] || fail "attributes of the entries"
rm -r "$point/many"

step "content both ways"
head -c 30000000 /dev/urandom >"$work/random"
cp "$work/random" "$point/big"
same "$work/random" "$export/big" "what was written and what the server has"
cp "$export/big" "$export/again"
same "$work/random" "$point/again" "what the server has and what was read"
dd if=/dev/zero of="$point/big" bs=1 seek=12345 count=10 conv=notrunc,fsync status=none
dd if=/dev/zero of="$work/random" bs=1 seek=12345 count=10 conv=notrunc status=none
same "$work/random" "$export/big" "a small write in the middle"

step "random operations, checked one by one"
operations=3000
[[ ! ${DAFS_TEST_LONG:-} ]] || operations=100000
scripts/e2e/exercise.py "$point" 1 "$operations" || fail "a file is not what it must be"

step "the rules for names, rights, attributes and times, as root and as a user"
mkdir -m 777 "$point/rules" "$work/rules"
mkdir "$point/rules-of-user" "$work/rules-of-user"
chown 1234:1234 "$point/rules-of-user" "$work/rules-of-user"
scripts/e2e/mount_rules.py "$point/rules" "$work/rules" || fail "a rule does not hold for root"
setpriv --reuid 1234 --regid 1234 --clear-groups env PATH=/usr/bin:/bin \
    python3 - "$point/rules-of-user" "$work/rules-of-user" <scripts/e2e/mount_rules.py ||
    fail "a rule does not hold for a user"
rm -r "$point/rules" "$point/rules-of-user"

step "a change on the server is seen when the file is opened"
echo one >"$export/seen"
[[ $(cat "$point/seen") == one ]] || fail "the first content"
echo two >"$export/seen"
sleep 1.1
[[ $(cat "$point/seen") == two ]] || fail "old content"

step "a file outlives its name"
exec 7<>"$point/seen"
rm "$point/seen"
echo three >&7
[[ $(cat /proc/self/fd/7) == three ]] || fail "an open file without a name"
exec 7>&-

step "who makes something owns it"
as_user() { setpriv --reuid 1234 --regid 1234 --clear-groups "$@"; }
mkdir -m 777 "$point/open"
as_user bash -c "cd '$point/open' && echo x >file && mkdir sub && ln -s file link && mkfifo pipe"
[[ $(cd "$export/open" && stat -c '%u:%g' file sub link pipe | sort -u) == 1234:1234 ]] ||
    fail "owners: $(cd "$export/open" && stat -c '%u:%g %n' file sub link pipe)"
chmod 700 "$point/open"
as_user ls "$point/open" 2>/dev/null && fail "a directory was open to everybody"
mkdir "$point/group"
chown 0:4321 "$point/group"
chmod 2777 "$point/group"
as_user touch "$point/group/file"
[[ $(stat -c '%u:%g' "$export/group/file") == 1234:4321 ]] || fail "a group is not inherited"

step "extended attributes"
touch "$point/noted"
python3 - "$point/noted" <<'PYTHON'
import errno, os, sys
file = sys.argv[1]
assert os.listxattr(file) == []
os.setxattr(file, "user.note", b"first", os.XATTR_CREATE)
try:
    os.setxattr(file, "user.note", b"", os.XATTR_CREATE)
    sys.exit("made twice")
except FileExistsError:
    pass
os.setxattr(file, "user.note", b"2nd")
assert os.listxattr(file) == ["user.note"] and os.getxattr(file, "user.note") == b"2nd"
os.removexattr(file, "user.note")
for name, wanted in [("user.note", errno.ENODATA), ("trusted.note", errno.EOPNOTSUPP)]:
    try:
        os.getxattr(file, name)
        sys.exit("an attribute out of nothing")
    except OSError as error:
        assert error.errno == wanted, error
for name in "user..", "user...", "user.a/b":
    os.setxattr(file, name, name.encode(), os.XATTR_CREATE)
    assert name in os.listxattr(file) and os.getxattr(file, name) == name.encode()
    os.removexattr(file, name)
# More than EXT4 takes: what fails leaves the old value and makes nothing.
os.setxattr(file, "user.note", b"kept")
for name, before in ("user.note", b"kept"), ("user.new", None):
    try:
        os.setxattr(file, name, b"x" * 65536)
    except OSError as error:
        assert error.errno in (errno.ENOSPC, errno.E2BIG), error
        assert (os.getxattr(file, name) if name in os.listxattr(file) else None) == before
    else:
        assert os.getxattr(file, name) == b"x" * 65536
    if name in os.listxattr(file):
        os.removexattr(file, name)
PYTHON

step "data and holes"
python3 - "$point/sparse" "$export/sparse" <<'PYTHON' || fail "holes"
import os, sys
served, local = (os.open(path, os.O_RDWR | os.O_CREAT) for path in sys.argv[1:])
os.ftruncate(served, 1 << 20)
os.pwrite(served, b"x" * 4096, 1 << 19)
def seek(file, offset, whence):
    try:
        return os.lseek(file, offset, whence)
    except OSError as error:
        return error.errno
for offset in (0, 1 << 19, (1 << 19) + 4096, (1 << 20) - 1, 1 << 20):
    for whence in (os.SEEK_DATA, os.SEEK_HOLE):
        assert seek(served, offset, whence) == seek(local, offset, whence), (offset, whence)
PYTHON

step "the owner that a file has already counts"
touch "$point/owned"
for owner in 0:0 0 :0; do
    chmod 6755 "$point/owned"
    chown "$owner" "$point/owned"
    [[ $(stat -c %a "$export/owned") == 755 ]] || fail "chown $owner leaves what lends rights"
    before=$(stat -c %z "$export/owned")
    moved() { chown "$owner" "$point/owned" && [[ $(stat -c %z "$export/owned") != "$before" ]]; }
    eventually moved
done
chmod 6755 "$point/owned"
python3 -c 'import os, sys; os.chown(sys.argv[1], -1, -1)' "$point/owned"
[[ $(stat -c %a "$export/owned") == 755 ]] || fail "chown to nobody leaves what lends rights"

step "locks"
echo x >"$point/locked"
python3 - "$point/locked" <<'PYTHON' || fail "who holds a lock"
import fcntl, os, struct, subprocess, sys
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.lockf(fd, fcntl.LOCK_EX, 10, 5)
ask = """if 1:
    import fcntl, os, struct, sys
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
    lock = fcntl.fcntl(os.open(sys.argv[1], os.O_RDWR), fcntl.F_GETLK, lock)
    print(*struct.unpack("hhqqi4x", lock))
"""
told = subprocess.run([sys.executable, "-c", ask, sys.argv[1]], stdout=subprocess.PIPE, check=True)
told = list(map(int, told.stdout.split()))
assert told == [fcntl.F_WRLCK, 0, 5, 10, os.getpid()], (told, os.getpid())
PYTHON
exec 8<>"$point/locked"
flock 8
flock -n "$point/locked" true && fail "a lock was given twice"
flock "$point/locked" touch "$work/got" &
waiter=$!
started+=("$waiter")
# It sleeps in the kernel until its request is answered.
is_waiting() { grep -q request_wait_answer "/proc/$waiter/stack"; }
eventually is_waiting
[[ ! -e $work/got ]] || fail "a lock was given twice"
flock -u 8
wait "$waiter"
[[ -e $work/got ]] || fail "who waited did not get the lock"
flock 8
flock "$point/locked" true &
waiter=$!
started+=("$waiter")
eventually is_waiting
kill -9 "$waiter"
wait "$waiter" || true
eventually is_gone "$waiter"
exec 8>&-
# The kernel reports the last close after the program has gone on.
eventually flock -n "$point/locked" true

step "two mounts of one directory, which believe for a minute what they know"
mkdir -m 777 "$export/shared" "$work/one" "$work/two"
undo+=("umount -l '$work/one' '$work/two' 2>/dev/null")
"$dafs" mount --belief 60 "$url/shared" "$work/one"
ln -s two "$work/link-to-two"
"$dafs" mount --belief 60 -- "$url/shared" "$work/link-to-two"
scripts/e2e/mount_shared.py "$work/one" "$work/two" || fail "two mounts do not agree"
"$dafs" umount "$work/one" "$work/link-to-two"
grep -q " $work/\(one\|two\) " /proc/self/mounts && fail "still mounted"

step "the server restarts"
port=${url##*:}
exec 9<>"$point/kept"
echo before >&9
sync "$point/kept"
kill_server
# A server that inherits the open file would keep the mount in use.
serve "$export" --no-root-squash --listen "127.0.0.1:$port" 9>&-
echo after >&9
exec 9>&-
[[ $(cat "$point/kept") == $'before\nafter' ]] || fail "after a restart"

step "unmounting: idle, in use, and with nobody behind"
process=$(keeper)
"$dafs" umount "$point"
is_mounted && fail "still mounted"
eventually is_gone "$process"
"$dafs" mount "$url/" "$point"
exec 9<"$point/kept"
process=$(keeper)
expect 0 'was in use' "$dafs" umount "$point"
is_mounted && fail "still mounted"
[[ $(cat <&9) == $'before\nafter' ]] || fail "who had a file open lost it"
exec 9<&-
eventually is_gone "$process"
"$dafs" mount "$url/" "$point"
process=$(keeper)
kill -9 "$process"
eventually is_gone "$process"
ls "$point" 2>/dev/null && fail "a mount without a process answers"
"$dafs" umount "$point"
is_mounted && fail "still mounted"

step "what is mounted in its place later stays"
"$dafs" mount "$url/" "$point"
exec 9<"$point/kept"
process=$(keeper)
expect 0 'was in use' "$dafs" umount "$point"
"$dafs" mount "$url/shared" "$point" 9<&-
exec 9<&-
eventually is_gone "$process"
is_mounted || fail "who ended took another mount along"
process=$(keeper)
mount -t tmpfs tmpfs "$point"
expect 1 'is no mount of dafs' "$dafs" umount "$point"
kill -TERM "$process"
[[ $(stat -f -c %T "$point") == tmpfs ]] || fail "the mount above was taken down"
umount "$point"
# The signal may take effect only now, and then the mount is gone already.
"$dafs" umount "$point" || ! is_mounted || fail "it does not go"
eventually is_gone "$process"
! is_mounted || fail "it is still mounted"

step "in the foreground, ended by a signal"
"$dafs" mount --foreground "$url/" "$point" 2>"$work/mount.log" &
process=$!
started+=("$process")
eventually is_mounted
echo seen >"$point/seen"
is_counted() {
    kill -USR1 "$process"
    grep -E 'INFO .*counts requests=[1-9].* written_bytes=[1-9]' "$work/mount.log"
}
eventually is_counted
grep -q 'INFO .*mounted ' "$work/mount.log" || { cat "$work/mount.log"; fail "the log does not tell of the mount"; }
kill -HUP "$process"
wait "$process" || fail "status $?"
is_mounted && fail "still mounted"

step "mounted by a user, who may not mount, with the helper that may"
# The helper requires a user with a name.
as_nobody() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
if type -P fusermount3 >/dev/null; then
    # As Debian has it; where the device is for root alone, users get one of their own in this mount
    # namespace.
    if ! as_nobody test -w /dev/fuse; then
        mknod -m 666 "$work/fuse" c 10 229
        mount --bind "$work/fuse" /dev/fuse
    fi
    mkdir "$work/users" "$export/users"
    chown 65534:65534 "$work/users" "$export/users"
    as_nobody "$dafs" mount "$url/users" "$work/users"
    grep -q "^dafs://.*/users $work/users fuse.dafs .*user_id=65534" /proc/self/mounts ||
        fail "not mounted for the user"
    as_nobody bash -c "echo x >'$work/users/file' && mkdir '$work/users/directory'"
    [[ $(stat -c %u:%g "$export/users/file") == 65534:65534 ]] || fail "it is not the user's"
    ls "$work/users" 2>/dev/null && fail "root looks into the mount of a user"
    as_nobody bash -c "exec 9<'$work/users/file' && '$dafs' umount '$work/users' && cat <&9" \
        >"$work/said" 2>&1 || { cat "$work/said"; fail "unmounting in use"; }
    grep -qx x "$work/said" || fail "who had a file open lost it"
    grep -q " $work/users " /proc/self/mounts && fail "still mounted"
    as_nobody "$dafs" mount --read-only "$url/users" "$work/users"
    expect 1 'Read-only file system' as_nobody touch "$work/users/new"
    as_nobody "$dafs" umount "$work/users"
else
    echo "without fusermount3, users cannot mount"
fi

step "the example of the documentation"
example=$(awk '$0 == "<!-- example -->" { found = 1; next }
    found && /^```$/ && lines { exit }
    found && !/^```/ { lines = 1; print }' docs/mounting.md)
[[ $example == *'dafs mount'*'dafs umount'* ]] || fail "docs/mounting.md has no example"
mkdir "$export/demo" "$work/bin"
ln -s "$(realpath "$dafs")" "$work/bin/dafs"
example=${example//dafs:\/\/localhost/$url}
PATH=$work/bin:$PATH bash -euxc "${example//\/mnt\/demo/$point}" >"$work/said" 2>&1 ||
    { cat "$work/said"; fail "a command of the example failed"; }
grep -qx 'hello, everybody' "$work/said" || fail "grep did not find the line"
is_mounted && fail "still mounted"
stop_server

step "a password from a pipe of the shell, for a mount in the background"
echo secret | "$dafs" passwd "$work/passwords" anna --uid 0 --gid 0
cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
password_file = "passwords"
trusted = []
[[export]]
name = "data"
path = "export"
squash = "none"
END
serve --config "$work/dafs.toml"
echo hello >"$export/secret"
# mount_as PASSWORD -- with one more pipe that does not concern the mount.
mount_as() {
    "$dafs" mount --transport iwarp --user anna --password-file <(echo "$1") "$url/data" "$point" \
        9> >(cat >"$work/rest")
}
expect 3 'proof of identity was not accepted' mount_as wrong
mount_as secret
[[ $(cat "$point/secret") == hello ]] || fail "the mount has something else"
[[ ! $(find "/proc/$(keeper)/fd" -lname 'pipe:*') ]] || fail "it holds pipes of the shell"
"$dafs" umount "$point"
stop_server
