#!/bin/bash
# A file handle works after a kill and restart of the server, and after the file was renamed
# meanwhile; it fails as stale when the file is gone. Another key makes all handles fail.
source "$(dirname "$0")/lib.sh"

handle=${DAFS_TARGET:-$(dirname "$dafs")}/examples/handle
[[ -x $handle ]] || fail "there is no $handle; build it with: cargo build --examples"
mkdir "$work/export" "$work/export/directory"
echo hello >"$work/export/directory/file"
serve "$work/export"
port=${url##*:}
file=$("$handle" "$url/directory/file")
directory=$("$handle" "$url/directory")
[[ $("$handle" "$url" "$file") == 'file of 6 bytes' ]] || fail "the handle means nothing"

step "killed and started again"
kill_server
mv "$work/export/directory" "$work/export/renamed"
mv "$work/export/renamed/file" "$work/export/moved"
serve "$work/export" --listen "127.0.0.1:$port"
for transport in shm iwarp; do
    [[ $("$handle" "$url" "$file" $transport) == 'file of 6 bytes' ]] || fail "by $transport"
    [[ $("$handle" "$url" "$directory" $transport) == 'directory'* ]] || fail "by $transport"
done

step "the file is gone"
stop_server
rm "$work/export/moved"
echo other >"$work/export/another"
serve "$work/export" --listen "127.0.0.1:$port"
expect 1 'STALE' "$handle" "$url" "$file"
stop_server

step "another key"
rm -r "$work/state"
serve "$work/export" --listen "127.0.0.1:$port"
expect 1 'HANDLE' "$handle" "$url" "$directory"
stop_server
