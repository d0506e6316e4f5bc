#!/bin/bash
# Refused objects get their error, the rest of a copy goes on: read-only exports, missing
# permissions, a directory removed under the server, names in the way.
source "$(dirname "$0")/lib.sh"

mkdir "$work/export" "$work/export/data" "$work/tree"
echo hello >"$work/export/data/file"
echo more >"$work/tree/more"

step "a read-only export"
serve "$work/export" --read-only
for command in "put $work/tree $url/" "rm $url/data/file" "mkdir $url/new" \
    "mv $url/data/file $url/data/other" "ln $url/data/file $url/link" "ln -s x $url/link"; do
    # shellcheck disable=SC2086
    expect 1 'read-only' "$dafs" $command
done
expect 0 hello "$dafs" cat "$url/data/file"
[[ $(find "$work/export" | wc -l) == 3 ]] || fail "something changed: $(find "$work/export")"
stop_server

step "names that are there, or not"
serve "$work/export" --no-root-squash --nfs 127.0.0.1:0 --nfs-unprivileged-ports
expect 1 'there is no such file' "$dafs" ls "$url/missing"
expect 1 'there is no such file' "$dafs" get "$url/missing" "$work/"
expect 1 'No such file' "$dafs" put "$work/missing" "$url/"
expect 1 'No such file' "$dafs" get "$url/data" "$work/missing/name"
expect 1 'dafs mkdir -p' "$dafs" put "$work/tree" "$url/missing/name"
expect 1 'is a directory; use rm -r' "$dafs" rm "$url/data"
expect 1 'EXIST' "$dafs" mkdir "$url/data"
expect 1 '-p makes its parents' "$dafs" mkdir "$url/data/a/b/c"
expect 0 '' "$dafs" mkdir -p "$url/data/a/b/c"
expect 0 '' "$dafs" mkdir -p "$url/data/a/b/c"
# Habits of cp.
expect 0 '' "$dafs" put -r "$work/tree" "$url/data/a/put"
expect 0 '' "$dafs" get -r "$url/data/a/put" "$work/got"
same "$work/tree/more" "$work/got/more" "the copies by put -r and get -r"
expect 0 '' "$dafs" rm -r "$url/data/a/put"
expect 0 '' "$dafs" ln -s nowhere "$url/data/a/dangling"
for name in dangling dangling/ dangling/below b/../dangling; do
    expect 1 '' "$dafs" mkdir -p "$url/data/a/$name"
done
expect 0 'dangling -> nowhere' "$dafs" ls -l "$url/data/a/dangling"
expect 1 'there is no such file' "$dafs" ls -l "$url/data/a/dangling/"
expect 0 '' "$dafs" rm "$url/data/a/dangling"
expect 0 '' "$dafs" rm -f "$url/data/file/" "$url/data/file/below" "$url/missing/below"
expect 1 'NOTDIR' "$dafs" rm "$url/data/file/"
[[ -f $work/export/data/file ]] || fail "the file was removed"
# A symlink that demands a directory and leads to a file is no target for a copy, on either side.
ln -s file/ "$work/export/data/slashed"
echo kept >"$work/file"
ln -s file/ "$work/slashed"
expect 1 'NOTDIR' "$dafs" put "$work/file" "$url/data/slashed"
expect 1 'Not a directory' "$dafs" get "$url/data/file" "$work/slashed"
[[ -L $work/export/data/slashed && -L $work/slashed ]] || fail "a symlink was replaced"
rm "$work/export/data/slashed" "$work/slashed"
mkfifo "$work/export/data/fifo"
expect 1 'BADTYPE' "$dafs" cat "$url/data/fifo"
rm "$work/export/data/fifo"
expect 2 'several things cannot go to one name' "$dafs" put "$work/tree" "$work/export" "$url/name"
expect 2 'several things cannot go to one name' "$dafs" get "$url/data" "$url/data/a" "$work/name"

step "one failure does not keep the others from being copied"
expect 1 'No such file' "$dafs" put "$work/missing" "$work/tree" "$url/"
[[ $(cat "$work/export/tree/more") == more ]] || fail "the rest was not copied"

step "copies replace files, and never directories"
echo newer >"$work/tree/more"
"$dafs" put "$work/tree" "$url/"
[[ $(cat "$work/export/tree/more") == newer ]] || fail "the file was not replaced"
rm "$work/export/tree/more"
mkdir "$work/export/tree/more"
expect 1 "$url/tree/more" "$dafs" put "$work/tree" "$url/"
no_parts "$work/export"
mkdir -p "$work/here/tree/more"
rmdir "$work/export/tree/more"
echo x >"$work/export/tree/more"
expect 1 "$work/here/tree/more" "$dafs" get "$url/tree" "$work/here"
no_parts "$work/here"

step "a symlink in the way is replaced, not followed"
mkdir "$work/outside"
echo precious >"$work/outside/more"
rm -rf "$work/here/tree/more"
ln -s "$work/outside/more" "$work/here/tree/more"
"$dafs" get "$url/tree" "$work/here"
[[ $(cat "$work/outside/more") == precious ]] || fail "a file outside was changed"
[[ ! -L $work/here/tree/more && $(cat "$work/here/tree/more") == x ]] || fail "not replaced"
rm -rf "$work/here/tree"
ln -s "$work/outside" "$work/here/tree"
expect 1 'Not a directory' "$dafs" get "$url/tree" "$work/here"
[[ $(cat "$work/outside/more") == precious ]] || fail "a file outside was changed"
ln -s "$work/outside" "$work/export/to-outside"
mkdir "$work/export/victim"
ln -s "$work/outside" "$work/export/victim/link"
"$dafs" rm -r "$url/victim"
[[ $(cat "$work/outside/more") == precious ]] || fail "rm -r followed a symlink"

step "a slash or a dot behind a name asks for a directory"
slashes() {
    local url=$1 query=${2:-} in=$work/export/slashes here=$work/local
    mkdir "$in" "$in/d" "$here" "$here/d"
    echo content >"$in/f"
    echo local >"$here/f"
    ln -s d "$here/link"
    ln -s d "$in/link"
    for end in / // /.; do
        expect 1 '' "$dafs" put "$here/f" "$url/nd$end$query"
        expect 1 'NOTDIR' "$dafs" put "$here/f" "$url/f$end$query"
        expect 1 'Not a directory' "$dafs" put "$here/f$end" "$url/g$query"
        expect 1 '' "$dafs" get "$url/f$query" "$here/nd$end"
        expect 1 'Not a directory' "$dafs" get "$url/f$query" "$here/f$end"
        for command in "rm" "rm -r" ls stat "stat -L" cat; do
            # shellcheck disable=SC2086
            expect 1 'NOTDIR' "$dafs" $command "$url/f$end$query"
        done
        expect 1 'NOTDIR' "$dafs" get "$url/f$end$query" "$here/g"
        expect 1 'NOTDIR' "$dafs" mv "$url/f$end$query" "$url/g$query"
        expect 1 '' "$dafs" mv "$url/f$query" "$url/g$end$query"
        expect 1 'NOTDIR' "$dafs" ln "$url/f$end$query" "$url/g$query"
        expect 1 '' "$dafs" ln "$url/f$query" "$url/g$end$query"
        expect 1 '' "$dafs" ln -s f "$url/g$end$query"
    done
    expect 1 'NOTDIR' "$dafs" stat "$url/f/../d$query"
    expect 1 'NOTDIR' "$dafs" rm -r "$url/link/$query"
    expect 1 'NOENT' "$dafs" mkdir "$url/new/.$query"
    [[ $(cat "$in/f" "$here/f") == $'content\nlocal' ]] || fail "a file was replaced"
    [[ $(cd "$in" && echo *) == 'd f link' ]] || fail "something was made: $(ls "$in")"
    [[ $(cd "$here" && echo *) == 'd f link' ]] || fail "something was made: $(ls "$here")"
    # A present or future directory may have a slash behind its name.
    expect 0 '' "$dafs" mkdir "$url/new/$query"
    expect 0 '' "$dafs" mv "$url/new/$query" "$url/moved/$query"
    expect 0 'Type: directory' "$dafs" stat "$url/link/$query"
    expect 0 '' "$dafs" mkdir -p "$url/moved/./a/../b/$query"
    expect 0 '' "$dafs" put "$here/link/" "$url/copy/$query"
    expect 0 '' "$dafs" get "$url/link/$query" "$here/copy/"
    [[ -d $in/moved/b && -d $in/copy && ! -L $in/copy && -d $here/copy ]] || fail "$(ls "$in")"
    rm -r "$in" "$here"
}
tcp=$(sed -n "s/.*listening for NFS *address=//p" "$log" | head -n 1)
slashes "$url/slashes"
slashes "nfs://$tcp/slashes"
slashes "nfs://$tcp/slashes" "?vers=3"

step "a copy into itself"
expect 1 'target of the copy' "$dafs" get "$url/" "$work/export/data/a"
expect 1 'target of the copy' "$dafs" put "$work/export/data" "$url/data/a/b"
rm -rf "$work/export/data/a"

step "a directory removed under the server"
mkdir "$work/export/gone"
"$dafs" ls "$url/gone"
rmdir "$work/export/gone"
expect 1 'there is no such file' "$dafs" ls "$url/gone"
expect 0 data "$dafs" ls "$url"
rm -rf "$work/export"
for transport in shm iwarp; do
    expect 1 'dafs://' "$dafs" --transport $transport put "$work/tree" "$url/"
    expect 1 'dafs://' "$dafs" --transport $transport cat "$url/data/file"
done
stop_server
