#!/bin/bash
# Several users in one session. A mount made by root acts at the server as the user of each program, with
# its groups, also where the server squashes root, over a restart of the server and of the mount; what
# the kernel and the mount cache for one user opens nothing for another. `dafs run` acts as the user
# that its process is at the time.
source "$(dirname "$0")/lib.sh"

needs_mounts
needs_users
needs_preload
# That of the system, which any user may run.
python=/usr/bin/python3
[[ -x $python ]] || skip "there is no $python"

export=$work/export
point=$work/point
mkdir -m 1777 "$export"
mkdir "$point"
undo+=("umount -l '$point' 2>/dev/null")
# Three users: the second is in a group of the first, and so is the third.
anna=(setpriv --reuid 1234 --regid 1234 --groups 4000)
bert=(setpriv --reuid 1235 --regid 1235 --clear-groups)
carl=(setpriv --reuid 1236 --regid 1236 --groups 4001,4000)
keeper() { pgrep -f -- "^[^ ]* mount .*$point"; }
# is STAT-FORMAT VALUE FILE -- what the server's own file system has.
is() {
    local found
    found=$(stat -c "$1" "$export/$3")
    [[ $found == "$2" ]] || fail "$3: $1 is $found, not $2"
}
# refused COMMAND... -- it fails for lack of rights.
refused() {
    local status=0
    "$@" >"$work/said" 2>&1 </dev/null || status=$?
    [[ $status != 0 ]] || fail "it is not refused: $*"
    grep -qE 'Permission denied|Operation not permitted' "$work/said" || { cat "$work/said"; fail "another error: $*"; }
}

# Root squash is the default: this root has no rights there, and its users have theirs.
serve "$export"
"$dafs" mount "$url/" "$point"

step "what a user makes is that user's, and has the mode that it was made with"
"${anna[@]}" bash -c "umask 077 && cd '$point' && echo secret >file && mkdir dir && mkfifo pipe && ln -s file link"
is '%u:%g %a' '1234:1234 600' file
is '%u:%g %a' '1234:1234 700' dir
is '%u:%g %a' '1234:1234 600' pipe
is '%u:%g' '1234:1234' link
touch "$point/of-root"
is '%u:%g' '65534:65534' of-root

step "a file of mode 0600 is for its owner alone, cached or not"
for round in 1 2 3; do
    [[ $("${anna[@]}" cat "$point/file") == secret ]] || fail "its owner does not read it"
    refused "${bert[@]}" cat "$point/file"
    refused "${carl[@]}" bash -c "echo x >>'$point/file'"
    # The kernel lets root pass, and the server does not.
    refused cat "$point/file"
    refused bash -c "echo $round >>'$point/file'"
done
refused "${bert[@]}" ls "$point/dir"
refused "${bert[@]}" touch "$point/dir/new"
refused touch "$point/dir/new"

step "only its owner changes mode and times, and nobody gives it away"
refused "${bert[@]}" chmod 666 "$point/file"
refused "${bert[@]}" touch -d 2001-02-03 "$point/file"
refused "${bert[@]}" chown 1235 "$point/file"
refused "${anna[@]}" chown 1235 "$point/file"
refused "${anna[@]}" chgrp 4001 "$point/file"
refused chown 0 "$point/file"
"${anna[@]}" touch -d 2001-02-03 "$point/file"
is '%Y' "$(date -d 2001-02-03 +%s)" file

step "groups, with those that a program has now"
"${anna[@]}" chgrp 4000 "$point/file"
"${anna[@]}" chmod 640 "$point/file"
[[ $("${carl[@]}" cat "$point/file") == secret ]] || fail "a member does not read it"
refused "${carl[@]}" bash -c "echo x >>'$point/file'"
refused "${bert[@]}" cat "$point/file"
# One process leaves its group, and the other one joins it.
python3 - "$point/file" <<'PYTHON' || fail "groups are not those of the moment"
import os, sys, time
file = sys.argv[1]
def may(groups, uid):
    """True if a process reads the file that gets these groups, and then becomes a user."""
    child = os.fork()
    if child == 0:
        os.setgroups(groups)
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        try:
            os._exit(0 if os.read(os.open(file, os.O_RDONLY), 9) == b"secret\n" else 2)
        except PermissionError:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
for round in range(3):
    found = [may([4000], 1235), may([], 1235), may([4001], 1236), may([4001, 4000], 1236)]
    assert found == [0, 1, 1, 0], found
# More of them than AUTH_SYS has room for.
assert may(list(range(5000, 5100)) + [4000], 1235) == 0
assert may(list(range(5000, 5100)), 1235) == 1
PYTHON

step "a sticky directory, and one with the set-group-id bit"
refused "${bert[@]}" rm -f "$point/file"
refused "${bert[@]}" mv "$point/file" "$point/taken"
"${bert[@]}" touch "$point/own"
refused "${anna[@]}" mv -f "$point/own" "$point/taken"
"${bert[@]}" mv "$point/own" "$point/renamed"
"${bert[@]}" rm "$point/renamed"
mkdir -m 2775 "$export/shared"
chown 0:4000 "$export/shared"
chmod 2775 "$export/shared"
"${carl[@]}" bash -c "umask 002 && echo x >'$point/shared/file' && mkdir '$point/shared/below'"
is '%u:%g %a' '1236:4000 664' shared/file
is '%u:%g %a' '1236:4000 2775' shared/below
"${anna[@]}" bash -c "echo y >>'$point/shared/file'"
refused "${bert[@]}" touch "$point/shared/of-bert"

step "an open file is used with the rights of its opener"
python3 - "$point/file" <<'PYTHON' || fail "an open file"
import os, sys
file = sys.argv[1]
os.setgroups([])
os.setegid(1234)
os.seteuid(1234)
kept = os.open(file, os.O_RDWR)
os.chmod(file, 0)
os.seteuid(0)
os.setegid(1235)
os.seteuid(1235)
try:
    os.open(file, os.O_RDONLY)
    sys.exit("another user opens it")
except PermissionError:
    pass
assert os.pread(kept, 9, 0) == b"secret\n"
assert os.pwrite(kept, b"SECRET", 0) == 6
os.ftruncate(kept, 6)
os.fsync(kept)
os.seteuid(0)
os.seteuid(1234)
os.chmod(file, 0o640)
PYTHON
[[ $(cat "$export/file") == SECRET ]] || fail "what was written through it"

step "bits that lend rights go when another user writes"
"${anna[@]}" bash -c "umask 0 && echo x >'$point/tool' && chmod 6777 '$point/tool'"
"${bert[@]}" bash -c "echo y >>'$point/tool'"
is '%a' 777 tool
"${anna[@]}" chmod 6777 "$point/tool"
"${bert[@]}" truncate -s 1 "$point/tool"
is '%a' 777 tool

step "the server restarts, and knows no user any more"
port=${url##*:}
# A program of another user, with a file open that is for that user alone.
mkfifo -m 666 "$work/go"
"${anna[@]}" bash -c "exec 8<>'$point/private' && chmod 600 '$point/private' && echo ready >&9 && read -r _ <'$work/go' && echo after >&8" \
    9>"$work/ready" &
program=$!
started+=("$program")
is_ready() { [[ -s $work/ready ]]; }
eventually is_ready
kill_server
serve "$export" --listen "127.0.0.1:$port"
[[ $("${anna[@]}" cat "$point/file") == SECRET ]] || fail "its owner does not read it after a restart"
refused "${bert[@]}" cat "$point/file"
refused cat "$point/file"
"${bert[@]}" touch "$point/later"
is '%u:%g' 1235:1235 later

step "a newer version of the mount takes over"
# A user whose rights to an open file were withdrawn loses it, and keeps no other from the new version.
mkfifo -m 666 "$work/go-on" "$work/go-away"
"${anna[@]}" "$python" -c '
import errno, fcntl, os, sys
kept = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
fcntl.lockf(kept, fcntl.LOCK_EX)
print("ready", flush=True)
open(sys.argv[2]).read()
try:
    os.write(kept, b"x")
except OSError as error:
    sys.exit(None if error.errno == errno.EBADF else error)
sys.exit("it writes")' "$point/withdrawn" "$work/go-on" >"$work/opened" &
loser=$!
started+=("$loser")
is_opened() { [[ -s $work/opened ]]; }
eventually is_opened
chown 0:0 "$export/withdrawn"
chmod 0 "$export/withdrawn"
# The second one does not know that there was such a file, and gives its number to no other.
for round in 1 2; do
    before=$(keeper)
    "$dafs" mount --take-over "$url/" "$point"
    [[ $(keeper) != "$before" ]] || fail "the old process is there"
    has_one_keeper() { [[ $(keeper | wc -l) == 1 ]]; }
    eventually has_one_keeper
done
"${bert[@]}" touch "$point/many"
"${bert[@]}" "$python" -c '
import os, sys
kept = [os.open(sys.argv[1], os.O_RDWR) for _ in range(300)]
print("ready", flush=True)
open(sys.argv[2]).read()' "$point/many" "$work/go-away" >"$work/held" &
holder=$!
started+=("$holder")
is_held() { [[ -s $work/held ]]; }
eventually is_held
refused "${bert[@]}" cat "$point/file"
[[ $("${carl[@]}" cat "$point/file") == SECRET ]] || fail "a member does not read it after that"
"${bert[@]}" touch "$point/latest"
is '%u:%g' 1235:1235 latest
echo go >"$work/go"
wait "$program" || fail "a program lost its open file"
forget_process "$program"
echo go >"$work/go-on"
wait "$loser" || fail "a program writes a file that its user may not open any more"
forget_process "$loser"
[[ ! -s $export/withdrawn && ! -s $export/many ]] || fail "what was written without rights"
echo go >"$work/go-away"
wait "$holder" || fail "a program of another user"
forget_process "$holder"
[[ $(cat "$export/private") == after ]] || fail "what it wrote"
is '%u:%g %a' '1234:1234 600' private

step "more users than the server keeps credentials for"
python3 - "$point" "$export" <<'PYTHON' || fail "many users"
import os, sys
point, export = sys.argv[1:]
os.setgroups([])
for round in range(2):
    for uid in range(20000, 20600):
        os.seteuid(uid)
        path = f"{point}/of-{uid}"
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        os.seteuid(0)
        assert os.stat(f"{export}/of-{uid}").st_uid == uid
PYTHON
[[ $("${anna[@]}" cat "$point/file") == SECRET ]] || fail "the first users are refused"

step "a mount of one user is as the session"
"$dafs" umount "$point"
stop_server
serve "$export" --no-root-squash
mkdir -m 777 "$export/rules" "$work/rules"
"$dafs" mount --one-user "$url/" "$point"
"${anna[@]}" touch "$point/given"
is '%u:%g' 1234:1234 given
refused "${bert[@]}" cat "$point/file"
scripts/e2e/mount_rules.py "$point/rules" "$work/rules" || fail "a rule does not hold"
"$dafs" umount "$point"

step "dafs run acts as the user that its process is"
"$dafs" run --at "/served=$url/" -- python3 - <<'PYTHON' || fail "dafs run"
import os
made = lambda name: os.close(os.open(f"/served/{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
made("run-root")
kept = os.open("/served/run-root", os.O_RDWR)
os.setgroups([4000])
os.setegid(1235)
os.seteuid(1235)
made("run-user")
assert os.stat("/served/run-user").st_uid == 1235
try:
    os.open("/served/run-root", os.O_RDONLY)
    raise SystemExit("with rights that it has given up")
except PermissionError:
    pass
assert os.pwrite(kept, b"kept", 0) == 4, "an open file stays open"
# As a member of a group.
assert os.read(os.open("/served/file", os.O_RDONLY), 6) == b"SECRET"
os.seteuid(0)
os.setegid(0)
made("run-again")
assert os.stat("/served/run-again").st_uid == 0
if os.fork() == 0:
    os.setgroups([])
    os.setresgid(1236, 1236, 1236)
    os.setresuid(1236, 1236, 1236)
    made("run-child")
    os._exit(0)
assert os.wait()[1] == 0
PYTHON
is '%u:%g' 0:0 run-root
is '%u:%g' 1235:1235 run-user
is '%u:%g' 0:0 run-again
is '%u:%g' 1236:1236 run-child
stop_server

step "a user with a password acts for no other"
echo secret | "$dafs" passwd "$work/passwords" anna --uid 1234 --gid 1234
cat >"$work/dafs.toml" <<END
listen = ["127.0.0.1:0"]
password_file = "passwords"
[[export]]
name = "data"
path = "export"
squash = "none"
END
serve --config "$work/dafs.toml"
DAFS_PASSWORD=secret "$dafs" mount --user anna "$url/data" "$point"
touch "$point/by-root"
is '%u:%g' 1234:1234 by-root
refused "${bert[@]}" cat "$point/file"
"$dafs" umount "$point"
stop_server
