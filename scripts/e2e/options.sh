#!/bin/bash
# The options of copies: named attributes, verification, stable storage, checksums on the wire; and
# the small commands.
source "$(dirname "$0")/lib.sh"

mkdir -p "$work/export" "$work/tree/inner"
echo text >"$work/tree/file"
head -c 5000000 /dev/urandom >"$work/tree/big"
truncate -s 3M "$work/tree/hole"
: >"$work/tree/empty"
echo inner >"$work/tree/inner/file"
serve "$work/export" --no-root-squash

for transport in shm iwarp; do
    for option in --verify --sync --checksums; do
        step "$option over $transport"
        "$dafs" --transport $transport put $option "$work/tree" "$url/"
        "$dafs" --transport $transport get $option "$url/tree" "$work/back"
        diff -r "$work/tree" "$work/export/tree"
        diff -r "$work/tree" "$work/back"
        rm -r "$work/back" "$work/export/tree"
    done
    step "no user-space copies of direct data over $transport"
    "$dafs" --transport $transport put --json "$work/tree/big" "$url/" >"$work/put.json"
    "$dafs" --transport $transport get --json "$url/big" "$work/back" >"$work/get.json"
    for file in put get; do
        # Messages are copied, the five million bytes of the file are not.
        perl -ne '
            my ($copies) = /"user_space_copies":\{([^}]*)\}/ or die "no counters: $_";
            my $sum = 0; $sum += $1 while $copies =~ /:(\d+)/g;
            $sum < 200_000 or die "$sum bytes were copied: $copies\n"' "$work/$file.json"
    done
    rm "$work/back" "$work/export/big"
done

step "named attributes"
case $(uname -m) in
x86_64) set=188 get=191 ;;
aarch64) set=5 get=8 ;;
*) skip "no numbers of system calls for $(uname -m)" ;;
esac
set_attribute() {
    perl -e 'my ($call, $path, $name, $value) = @ARGV;
        exit(syscall($call + 0, $path, $name, $value, length $value, 0) == 0 ? 0 : 1)' $set "$@"
}
attribute() {
    perl -e 'my ($call, $path, $name) = @ARGV; my $value = "\0" x 65536;
        my $length = syscall($call + 0, $path, $name, $value, length $value);
        exit 1 if $length < 0; print substr $value, 0, $length' $get "$@"
}
if set_attribute "$work/tree/file" user.colour green; then
    set_attribute "$work/tree/inner" user.shape round
    for transport in shm iwarp; do
        "$dafs" --transport $transport put --xattrs "$work/tree" "$url/"
        "$dafs" --transport $transport get --xattrs "$url/tree" "$work/back"
        for copy in "$work/export/tree" "$work/back"; do
            [[ $(attribute "$copy/file" user.colour) == green ]] || fail "no attribute in $copy"
            [[ $(attribute "$copy/inner" user.shape) == round ]] || fail "no attribute in $copy"
        done
        "$dafs" --transport $transport get "$url/tree" "$work/plain"
        ! attribute "$work/plain/file" user.colour || fail "an attribute nobody asked for"
        rm -r "$work/back" "$work/export/tree" "$work/plain"
    done
else
    echo "this file system has no named attributes"
fi

step "what goes where"
"$dafs" put "$work/tree/." "$url/dotted"
diff -r "$work/tree" "$work/export/dotted"
"$dafs" put "$work/tree/inner/." "$url/dotted"
[[ $(cat "$work/export/dotted/file") == inner ]] || fail "contents did not go into the directory"
"$dafs" get "$url/" "$work/root"
diff -r "$work/export" "$work/root"
"$dafs" get "$url/dotted/." "$url/dotted/big" "$work/root"
diff -r "$work/export/dotted/inner" "$work/root/inner"
(cd "$work/tree" && "$dafs" put . "$url/here" && "$dafs" get "$url/here/file" .)
[[ $(cat "$work/export/here/inner/file") == inner ]] || fail "the current directory was not copied"

step "small commands"
"$dafs" mkdir -m 750 "$url/new"
[[ $(stat -c %a "$work/export/new") == 750 ]] || fail "wrong mode"
"$dafs" mv "$url/here/file" "$url/new/moved"
"$dafs" mv "$url/new/moved" "$url/here/hole" "$url/new/"
"$dafs" ln "$url/new/moved" "$url/new/link"
"$dafs" ln -s ../here "$url/new/symlink"
[[ $(stat -c %h "$work/export/new/moved") == 2 && $(readlink "$work/export/new/symlink") == ../here ]] ||
    fail "links are missing"
[[ $("$dafs" cat "$url/new/symlink/inner/file") == inner ]] || fail "a symlink was not followed"
"$dafs" cat "$url/here/big" "$url/here/file" "$url/here/big" 2>"$work/said" >"$work/both" && fail "no error"
cmp "$work/both" <(cat "$work/tree/big" "$work/tree/big") || fail "cat stopped at an error"
step "files of all lengths, also those that come in one round trip"
for bytes in 0 1 8191 8192 8193 20000; do
    head -c $bytes /dev/urandom >"$work/export/length"
    for transport in shm iwarp; do
        "$dafs" --transport $transport cat "$url/length" >"$work/back"
        cmp "$work/back" "$work/export/length" || fail "$bytes bytes over $transport"
    done
done
rm "$work/export/length" "$work/back"
expect 1 "directory" "$dafs" cat "$url/here"
expect 1 "no such file" "$dafs" cat "$url/missing"
ln -s inner/file "$work/export/here/leads"
[[ $("$dafs" cat "$url/here/leads") == inner ]] || fail "a symlink at the end was not followed"
rm "$work/export/here/leads"

step "showing"
version=$("$dafs" --version)
[[ $version == dafs\ [0-9]* && $("$dafs" version) == "$version" ]] || fail "another version: $version"
expect 0 '"size":5000000' "$dafs" stat --json "$url/here/big"
expect 0 'symlink -> ../here' "$dafs" ls -l "$url/new"
expect 0 '"space_total":' "$dafs" df --json "$url"
[[ $("$dafs" ls --json "$url/new" | wc -l) == 4 ]] || fail "not one line for each entry"
"$dafs" ls -R "$url" | head -n 1 >"$work/first" || true
"$dafs" rm -rf "$url/new" "$url/missing"
[[ ! -e $work/export/new && -e $work/export/here/inner ]] || fail "rm removed the wrong things"
stop_server
