#!/bin/bash
# A tree with all properties that copies tend to lose survives put and get unchanged over both
# transports.
source "$(dirname "$0")/lib.sh"

tree=$work/tree
# The names of one directory, more than fit in any message of the protocol.
many=20000
[[ ! ${DAFS_TEST_LONG:-} ]] || many=100000
mkdir "$tree"
step "make the tree"
perl -e '
    use strict;
    my ($tree, $root, $many) = @ARGV;
    chdir $tree or die;
    sub put { my ($name, $text) = @_; open my $f, ">", $name or die "$name: $!"; print $f $text; }
    mkdir $_ for qw(modes names many links directories deep);
    # Without read permission only root could read the source.
    for my $mode (0 .. 07777) {
        next if !$root && !($mode & 0400);
        my $name = sprintf "modes/%04o", $mode;
        put($name, $name);
        chmod $mode, $name or die;
    }
    put("names/" . "n" x 255, "long");
    put("names/" . "\xc3\xa4" x 127 . "x", "long in UTF-8");
    put("names/$_", "x") for
        "\xff\xfe", "\x80", "a\xe4b", "new\nline", " ", "-rf", "*", "\\", "\"\x27", "\x1b[31m",
        "a%2Fb", "#?", "...", ".hidden", ".dafs-notours.part", "\xed\xa0\x80";
    mkdir "names/\xc0\xaf";
    put("names/\xc0\xaf/file", "in a directory that is no UTF-8");
    put("many/$_", "") for 1 .. $many;
    put("empty", "");
    put("one", "1");
    put("block", "b" x 4096);
    put("piece", "p" x (1 << 20));
    put("piece1", "q" x ((1 << 20) + 1));
    put("pieces", join "", map { chr($_ * 7 % 251) x 4093 } 1 .. 3000);
    put("links/file", "with five names");
    link "links/file", $_ or die for "links/second", "links/third", "directories/fourth", "fifth";
    put("links/other", "another");
    link "links/other", "modes/other" or die;
    symlink "links/file", "to-file";
    symlink "nowhere", "dangling";
    symlink "loop-b", "loop-a";
    symlink "loop-a", "loop-b";
    symlink ".", "links/here";
    symlink "../..", "links/above";
    symlink "/", "links/root";
    symlink "\xff" . "t" x 4000, "links/long";
    link "dangling", "links/dangling" or die;
    for my $mode (0, 0111, 0500, 0555, 0700, 0777, 01777, 02755, 06711) {
        next if !$root && ($mode & 0500) != 0500;
        my $name = sprintf "directories/%04o", $mode;
        mkdir $name or die;
        put("$name/inside", "x");
        utime 1, 2, $name;
        chmod $mode, $name or die;
    }
    my $deep = "deep";
    mkdir $deep .= "/d" for 1 .. 200;
    put("$deep/bottom", "200 directories down");
    utime 981173106.25, 951782400.123456789, "piece";
    utime 0, 0, "one";
    utime 4102444800, 4102444800, "block";
    utime -86400, -86400, "empty";
    ' "$tree" "$(is_root && echo 1 || echo 0)" "$many"
mkfifo -m 640 "$tree/fifo"
touch -d '2001-02-03 04:05:06.123456789' "$tree/piece1" "$tree/names" "$tree/deep/d/d"
touch -h -d '2002-03-04 05:06:07.987654321' "$tree/dangling"
# Sparse: data at the start, in the middle beyond 4 GiB, and a hole at the end.
truncate -s 4300M "$tree/huge"
dd if=/dev/urandom of="$tree/huge" bs=4k count=3 conv=notrunc status=none
dd if=/dev/urandom of="$tree/huge" bs=64k count=2 seek=$((4200 * 16)) conv=notrunc status=none
truncate -s 64M "$tree/huge-hole"
truncate -s 1000001 "$tree/hole"
if is_root; then
    mknod "$tree/device" c 1 3
    chown 1234:4321 "$tree/one" "$tree/deep"
    chown -h 1234:4321 "$tree/loop-a"
fi
find "$tree" >"$work/names"
echo "$(wc -l <"$work/names") names"
hard_links "$tree" >"$work/links-before"
contents "$tree" >"$work/contents-before"
cat "$tree"/huge* | wc -c
# All files have been read once before, so that reading them again changes no time of access.
listing "$tree" >"$work/before"
access_times "$tree" >"$work/times-before"

options=()
squash=()
if is_root; then
    options=(--owner)
    squash=(--no-root-squash)
fi
mkdir "$work/export"
serve "$work/export" ${squash[@]+"${squash[@]}"}

# check TREE WHAT -- is the copy like the original?
check() {
    hard_links "$1" >"$work/links"
    same "$work/links-before" "$work/links" "hard links after $2"
    contents "$1" >"$work/contents"
    same "$work/contents-before" "$work/contents" "contents after $2"
    local file
    for file in huge huge-hole hole; do
        cmp "$tree/$file" "$1/$file" || fail "$file differs after $2"
        [[ $(stat -c %b "$1/$file") -le $(($(stat -c %b "$tree/$file") + 128)) ]] ||
            fail "the holes of $file were filled by $2"
    done
}

for transport in shm iwarp; do
    step "put over $transport"
    "$dafs" --transport "$transport" put "$tree" "$url/$transport" --json ${options[@]+"${options[@]}"}
    step "get over $transport"
    "$dafs" --transport "$transport" get "$url/$transport" "$work/back" --json ${options[@]+"${options[@]}"}
    access_times "$work/back" >"$work/times"
    same "$work/times-before" "$work/times" "times of access over $transport"
    listing "$work/export/$transport" >"$work/listing"
    same "$work/before" "$work/listing" "listings after put over $transport"
    check "$work/export/$transport" "put over $transport"
    listing "$work/back" >"$work/listing"
    same "$work/before" "$work/listing" "listings after get over $transport"
    check "$work/back" "get over $transport"
    no_parts "$work/back/many"
    step "list and remove over $transport"
    [[ $("$dafs" --transport "$transport" ls -a "$url/$transport/many" | wc -l) == "$many" ]] ||
        fail "the listing is not complete"
    "$dafs" --transport "$transport" rm -r "$url/$transport"
    [[ ! -e $work/export/$transport ]] || fail "rm -r left something"
    is_root || chmod -R u+rwX "$work/back"
    rm -rf "$work/back"
done
stop_server
