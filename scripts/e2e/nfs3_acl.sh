#!/bin/bash
# Access control lists of NFSv3 (NFS_ACL): a client of a few lines sets and reads them. The kernel of the server
# has the same lists, and they hold for NFSv3 and DAFS clients alike.
source "$(dirname "$0")/lib.sh"

needs_users
# Modules leave nothing in the source tree.
export PYTHONDONTWRITEBYTECODE=1
acl=$(cd "$(dirname "$0")" && pwd)/nfs3_acl.py
# The build folder may be closed to others.
install -m 755 "$dafs" "$work/dafs"
dafs=$work/dafs
mkdir "$work/export" "$work/export/folder"
chmod 755 "$work/export" "$work/export/folder"
echo content >"$work/export/file"
chmod 640 "$work/export/file"
python3 - "$work/export" <<'END' || skip "the file system of $work has no access control lists"
import errno, os, sys
try:
    os.getxattr(sys.argv[1], "system.posix_acl_access")
except OSError as error:
    sys.exit(error.errno != errno.ENODATA)
END
serve "$work/export" --nfs 127.0.0.1:0 --no-root-squash
port=$(sed -n 's/.*listening for NFS.*:\([0-9]*\).*/\1/p' "$log" | head -n 1)
[[ $port ]] || { cat "$log"; fail "the log does not say where NFS is served"; }
other=$(id -u daemon)
# lists UID STEP...
lists() { python3 "$acl" "$port" "$@" || fail "the lists are other ones"; }
mode() { stat -c %a "$work/export/$1"; }
reads() { "${as_other[@]}" "$dafs" cat "$url/file" >"$work/read" 2>/dev/null; }

step "a mode is a list"
lists 0 get,file=u::6+g::4+m::4+o::0 get,folder=u::7+g::5+m::5+o::5
lists "$other" access,file=0
! reads || fail "a DAFS client reads what its user may not"

step "an entry for a user counts as far as the mask"
list="u::6+u:$other:6+g::4"
lists 0 "set,file,$list+m::4+o::0=0" "get,file=$list+m::4+o::0"
[[ $(mode file) == 640 ]] || fail "another mode: $(mode file)"
lists "$other" access,file=1
reads || fail "a DAFS client does not read what its user may"
chmod 660 "$work/export/file"
lists 0 "get,file=$list+m::6+o::0"
lists "$other" access,file=13

step "owners alone set lists"
lists "$other" set,file,u::7+g::7+m::7+o::7=1
lists 0 "get,file=$list+m::6+o::0" set,file,u::6+g::4+m::4+o::0=0
[[ $(mode file) == 640 ]] || fail "another mode: $(mode file)"
lists "$other" access,file=0
! reads || fail "a DAFS client reads what its user may no longer"

step "new files inherit the default list"
default="u::7+u:$other:7+g::5+m::7+o::0"
lists 0 "set,folder,u::7+g::5+m::5+o::5/$default=0" "get,folder=u::7+g::5+m::5+o::5/$default"
touch "$work/export/folder/new"
lists 0 "get,folder/new=u::6+u:$other:7+g::5+m::6+o::0"
lists 0 set,folder,u::7+g::5+m::5+o::5/=0 get,folder=u::7+g::5+m::5+o::5

step "lists that are none are refused"
lists 0 "set,file,u::6+u:$other:6+g::4+o::0=22" set,file,u::6+g::4=22 set,file,=22 \
    set,file,u::6+g::4+o::0/u::6+g::4+o::0=22 garbage,file=4 get,file=u::6+g::4+m::4+o::0
stop_server
