#!/bin/bash
# Synchronisation and comparison of trees: only differences are copied, nothing else is removed, and
# killed runs, full disks and odd names lose no data.
source "$(dirname "$0")/lib.sh"

mkdir "$work/export" "$work/a" "$work/empty"
nfs=(--nfs 127.0.0.1:0 --nfs-rdma 127.0.0.1:0 --nfs-unprivileged-ports)
serve "$work/export" --lease 3 --no-root-squash "${nfs[@]}"

# A tree with names that are no UTF-8, links, a pipe, an empty file, holes and a deep directory.
mkdir -p "$work/a/deep/er" "$work/a/build"
printf one >"$work/a/one"
printf two >"$work/a/deep/two.txt"
printf three >"$work/a/deep/er/"$'\xff\n three'
: >"$work/a/none"
head -c 3M /dev/urandom >"$work/a/large"
truncate -s 20M "$work/a/hole"
printf x >"$work/a/build/x.o"
ln -s nowhere "$work/a/dangling"
ln "$work/a/one" "$work/a/deep/one-again"
mkfifo "$work/a/pipe"
chmod 640 "$work/a/one"
find "$work/a" -exec touch -h -d '2024-02-03 04:05:06.789' {} +

# number KEY COMMAND... -- a number of the JSON summary of the command.
number() {
    local key=$1
    shift
    "$@" --json | sed -E "s/.*\"$key\":([0-9]+).*/\1/"
}
# inodes DIRECTORY -- which objects its tree has.
inodes() { (cd "$1" && find . -not -type d -printf '%i %p\n' | sort); }
same_trees() { diff <(list "$1") <(list "$2") && diff -r --no-dereference --exclude=pipe "$1" "$2"; }
list() {
    (cd "$1" && find . '(' -type d -printf '%P %y %m %T@\n' ')' -o -printf '%P %y %m %s %T@ %l\n' | LC_ALL=C sort)
}

for way in put get; do
    case $way in
    put) from=$work/a to=$url/b at=$work/export/b ;;
    get) from=$url/b to=$work/back at=$work/back ;;
    esac
    step "$way: a dry run changes nothing"
    "$dafs" sync -n "$from" "$to" >"$work/plan"
    grep -q '^copy one$' "$work/plan" && grep -q '^make deep$' "$work/plan" || fail "$(cat "$work/plan")"
    [[ ! -e $at ]] || fail "$at was made"

    step "$way: the whole tree, then nothing"
    "$dafs" sync "$from" "$to"
    same_trees "$work/a" "$at" || fail "the trees differ"
    [[ $(stat -c %h "$at/one") == 2 ]] || fail "the hard link is lost"
    before=$(inodes "$at")
    [[ $(number bytes "$dafs" sync "$from" "$to") == 0 ]] || fail "bytes were copied again"
    [[ $(inodes "$at") == "$before" ]] || fail "files were made again"
    [[ $(number bytes "$dafs" sync --checksum "$from" "$to") == 0 ]] || fail "the same contents were copied"
done

step "two trees are compared, on either side"
for pair in "$work/a $url/b" "$url/b $work/a" "$work/a $work/back" "$url/b $url/b"; do
    # shellcheck disable=SC2086
    "$dafs" check $pair >"$work/said" || { cat "$work/said"; fail "check $pair: $?"; }
    [[ ! -s $work/said ]] || fail "check $pair says: $(cat "$work/said")"
done
cp -a "$work/a" "$work/c"
rm "$work/c/one"
printf tWo >"$work/c/deep/two.txt"
touch -d '2024-02-03 04:05:06.789' "$work/c/deep/two.txt"
printf longer >>"$work/c/large"
ln -sf elsewhere "$work/c/dangling"
rm "$work/c/pipe" && printf x >"$work/c/pipe"
printf x >"$work/c/more"
for first in "$work/a" "$url/b"; do
    expect 1 '' "$dafs" check "$first" "$work/c"
    diff <(printf '%s\n' 'content: deep/two.txt' 'link: dangling' 'only in the first: one' \
        'only in the second: more' 'size: large' 'type: pipe') <(LC_ALL=C sort "$work/said") || fail "other differences"
    expect 1 '' "$dafs" check --quick "$first" "$work/c"
    ! grep -q two.txt "$work/said" || fail "--quick reads contents"
done
expect 1 '"difference":"type"' "$dafs" check --json "$work/a" "$work/c"
expect 0 '' "$dafs" check --include '*.o' "$work/a" "$work/a"
expect 2 'is no directory' "$dafs" check "$work/a" "$work/a/one"

step "du, find and tree"
for top in "$work/a" "$url/b"; do
    "$dafs" du --apparent-size --json "$top" >"$work/said"
    grep -q '"bytes":[1-9]' "$work/said" || fail "du: $(cat "$work/said")"
    [[ $(wc -l <"$work/said") == 4 ]] || fail "du shows other directories: $(cat "$work/said")"
    [[ $("$dafs" du -sh "$top" | wc -l) == 1 ]] || fail "du -s shows more than the total"
    [[ $("$dafs" find --name '*.txt' "$top") == "$top/deep/two.txt" ]] || fail "find --name"
    [[ $("$dafs" find --type l "$top") == "$top/dangling" ]] || fail "find --type"
    [[ $("$dafs" find --type f --min-size 1m "$top" | wc -l) == 2 ]] || fail "find --min-size"
    "$dafs" tree "$top" >"$work/said"
    grep -qF 'dangling -> nowhere' "$work/said" && grep -qF '|   |-- er' "$work/said" || fail "tree: $(cat "$work/said")"
done
[[ $("$dafs" ls -lh "$url/b/large") == *' 3.0M '* ]] || fail "ls -lh shows no unit"
expect 0 human-readable "$dafs" ls --help

step "cp is get or put"
"$dafs" cp "$work/a/large" "$url/copied"
"$dafs" cp "$url/copied" "$work/copied"
cmp "$work/a/large" "$work/copied"
expect 2 'both on this host' "$dafs" cp "$work/a/large" "$work/other"
"$dafs" cp "$url/copied" "$url/other"
cmp "$work/a/large" "$work/export/other"
rm "$work/export/copied" "$work/copied" "$work/export/other"

step "warmup"
[[ $(number files "$dafs" warmup "$url/b") == 8 ]] || fail "warmup read another number of files"

step "only the differences are copied"
printf 'uno' >"$work/a/one"
touch -d '2024-02-03 04:05:06.789' "$work/a/one"
chmod 600 "$work/a/large"
printf extra >"$work/export/b/extra"
mkdir -p "$work/export/b/gone/deep"
printf extra >"$work/export/b/gone/deep/extra"
[[ $(number bytes "$dafs" sync "$work/a" "$url/b") == 0 ]] || fail "a file of the same size and time was copied"
[[ $(stat -c %a "$work/export/b/large") == 600 ]] || fail "the permissions were not copied"
[[ $(number bytes "$dafs" sync --checksum "$work/a" "$url/b") == 3 ]] || fail "another content was not seen"
[[ $(cat "$work/export/b/one") == uno ]] || fail "another content was not copied"
[[ -e $work/export/b/extra && -e $work/export/b/gone/deep/extra ]] || fail "removed without --delete"

step "--delete removes others, and nothing on a dry run or behind a pattern"
"$dafs" sync -n --delete "$work/a" "$url/b" >"$work/plan"
diff <(printf 'delete extra\ndelete gone\n') <(sort "$work/plan") || fail "another plan"
"$dafs" sync --delete --exclude 'ext*' "$work/a" "$url/b"
[[ -e $work/export/b/extra && -e $work/export/b/gone/deep/extra ]] || fail "removed behind a pattern"
printf part >"$work/export/b/.dafs-abcdef.part"
[[ $(number deleted "$dafs" sync --delete "$work/a" "$url/b") == 2 ]] || fail "another number of removals"
[[ ! -e $work/export/b/extra && ! -e $work/export/b/gone ]] || fail "not removed"
[[ -e $work/export/b/.dafs-abcdef.part ]] || fail "the unfinished file of another copy was removed"
rm "$work/export/b/.dafs-abcdef.part"
"$dafs" sync "$work/a" "$url/b"
same_trees "$work/a" "$work/export/b" || fail "the trees differ"

step "another type of object"
rm "$work/export/b/one" && mkdir "$work/export/b/one" && printf x >"$work/export/b/one/x"
rm -r "$work/export/b/deep" && printf x >"$work/export/b/deep"
expect 1 '--delete removes it' "$dafs" sync "$work/a" "$url/b"
[[ -e $work/export/b/one/x && -f $work/export/b/deep ]] || fail "removed without --delete"
"$dafs" sync --delete "$work/a" "$url/b"
same_trees "$work/a" "$work/export/b" || fail "the trees differ"

step "patterns"
"$dafs" sync --exclude build --exclude '/deep/er' --exclude '*e' "$work/a" "$url/some"
diff <(printf '%s\n' . ./dangling ./deep ./deep/one-again ./deep/two.txt) \
    <(cd "$work/export/some" && find . | LC_ALL=C sort) || fail "other names"
"$dafs" sync --include '*.txt' "$work/a" "$url/texts"
[[ $(cd "$work/export/texts" && find . -type f) == ./deep/two.txt ]] || fail "other files"
expect 2 '--exclude [a: a [ has no ]' "$dafs" sync --exclude '[a' "$work/a" "$url/texts"

step "wrong operands"
expect 2 'both directories are on this host' "$dafs" sync "$work/a" "$work/b"
expect 2 'no directory' "$dafs" sync "$work/a/one" "$url/b"
expect 2 'no directory' "$dafs" sync "$url/b/one" "$work/back"
expect 2 'no directory' "$dafs" sync "$work/a" "$url/b/one"
expect 1 'No such file' "$dafs" sync "$work/missing" "$url/b"
expect 1 '' "$dafs" sync "$url/missing" "$work/back"
expect 2 '' "$dafs" sync --bwlimit 0 "$work/a" "$url/b"

step "a bandwidth limit"
head -c 2M /dev/urandom >"$work/empty/two"
begin=$(date +%s%N)
"$dafs" sync --bwlimit 1m "$work/empty" "$url/slow"
[[ $(($(date +%s%N) - begin)) -ge 1500000000 ]] || fail "2 MiB took less than 1.5 s at 1 MiB/s"
rm "$work/empty/two"

step "a later run goes on with a long file of a killed one"
# killed SOURCE TARGET DIRECTORY -- kills a synchronisation when 200 MiB of its file are in DIRECTORY.
killed() {
    "$dafs" sync --bwlimit 100m "$1" "$2" &
    client=$!
    started+=("$client")
    is_long() { find "$1" -name '.dafs-*.part' -size +200M | grep . >/dev/null; }
    eventually is_long "$3"
    kill -9 "$client"
    wait "$client" 2>/dev/null || true
}
head -c 300M /dev/urandom >"$work/empty/long"
mkdir "$work/export/long"
killed "$work/empty" "$url/long" "$work/export/long"
[[ $(number resumed_bytes "$dafs" sync "$work/empty" "$url/long") -gt 100000000 ]] || fail "put began again"
cmp "$work/empty/long" "$work/export/long/long"
[[ $(ls -A "$work/export/long") == long ]] || fail "left behind: $(ls -A "$work/export/long")"
mkdir "$work/got"
killed "$url/long" "$work/got" "$work/got"
[[ $(number resumed_bytes "$dafs" sync "$url/long" "$work/got") -gt 100000000 ]] || fail "get began again"
cmp "$work/empty/long" "$work/got/long"
[[ $(ls -A "$work/got") == long ]] || fail "left behind: $(ls -A "$work/got")"
step "another original begins again"
rm "$work/got/long"
killed "$url/long" "$work/got" "$work/got"
head -c 299M "$work/empty/long" >"$work/export/long/long"
[[ $(number resumed_bytes "$dafs" sync "$url/long" "$work/got") == 0 ]] || fail "it went on with another file"
cmp "$work/export/long/long" "$work/got/long"

step "unfinished files of killed copies are removed, those of live ones are not"
left=("$work/got/".dafs-*.part)
[[ -e ${left[0]} ]] || fail "the killed copy has left no file"
printf x >"$work/got/.dafs-not-mine.part"
"$dafs" clean -n "$work/got" >"$work/said"
grep -qF "would be removed: ${left[0]}" "$work/said" && [[ -e ${left[0]} ]] || fail "clean -n: $(cat "$work/said")"
"$dafs" clean "$work/got"
[[ ! -e ${left[0]} && -e $work/got/.dafs-not-mine.part && -e $work/got/long ]] || fail "clean removed others"
printf x >"$work/export/long/.dafs-abcdef.part"
for side in put get; do
    case $side in
    put) from=$work/empty to=$url/live at=$work/export/live ;;
    get) from=$url/long to=$work/live at=$work/live ;;
    esac
    "$dafs" sync --bwlimit 1m "$from" "$to" &
    client=$!
    started+=("$client")
    has_part() { find "$at" -name '.dafs-*.part' | grep . >/dev/null; }
    eventually has_part
    "$dafs" clean "$to" >"$work/said"
    grep -q '^left, a copy may be writing it' "$work/said" && has_part || fail "clean: $(cat "$work/said")"
    kill -9 "$client"
    wait "$client" 2>/dev/null || true
    is_clean() { "$dafs" clean "$to" && ! has_part; }
    eventually is_clean
done
"$dafs" clean "$url/long"
[[ $(ls -A "$work/export/long") == long ]] || fail "not removed at the server: $(ls -A "$work/export/long")"

step "a disk that fills"
if is_root; then
    mkdir "$work/small"
    if mount -t tmpfs -o size=16m,mode=777 tmpfs "$work/small" 2>/dev/null; then
        undo+=("umount -l '$work/small'")
        mkdir "$work/export/wide"
        head -c 30M /dev/urandom >"$work/export/wide/big"
        printf small >"$work/export/wide/small"
        expect 1 'No space left' "$dafs" sync "$url/wide" "$work/small"
        [[ $(ls -A "$work/small") == small ]] || fail "not the small file alone: $(ls -A "$work/small")"
        head -c 1M "$work/export/wide/big" >"$work/cut" && mv "$work/cut" "$work/export/wide/big"
        "$dafs" sync "$url/wide" "$work/small"
        "$dafs" check "$url/wide" "$work/small"
    fi
fi

step "a source that cannot be listed removes nothing"
if is_root && command -v setpriv >/dev/null; then
    mkdir -m 700 "$work/a/closed"
    mkdir "$work/export/b/closed"
    printf kept >"$work/export/b/closed/kept"
    chmod -R a+rwX "$work/export/b"
    # Another user may not enter the folder of the program.
    install -m 755 "$dafs" "$work/program"
    setpriv --reuid daemon --regid daemon --clear-groups \
        "$work/program" sync --delete "$work/a" "$url/b" >"$work/said" 2>&1 && fail "it did not fail"
    grep -q 'a/closed: Permission denied' "$work/said" || fail "it failed elsewhere: $(cat "$work/said")"
    rm "$work/program"
    [[ -e $work/export/b/closed/kept ]] || fail "removed although the source was not read"
    rmdir "$work/a/closed"
    "$dafs" sync --delete "$work/a" "$url/b"
fi

# address WORDS -- where the server of the last `serve` listens for NFS.
address() { sed -n "s/.*listening for NFS$1 *address=//p" "$log" | head -n 1; }
addresses() { tcp=$(address '') rdma=$(address ' over RDMA (iWARP in software)'); }

step "a second server"
"$dafs" sync --delete "$work/a" "$url/b"
addresses
here=$url here_server=$server here_log=$log here_tcp=$tcp here_rdma=$rdma
mkdir "$work/there"
second=("$work/there" --lease 3 --no-root-squash --state-directory "$work/state-there")
serve "${second[@]}" "${nfs[@]}"
addresses
there=$url
[[ $here_tcp && $here_rdma && $tcp && $rdma ]] || fail "a log does not say where NFS is served"
while read -r from to at; do
    step "between servers: $from to $to"
    "$dafs" sync -n "$from" "$to" >"$work/plan"
    grep -q '^copy one$' "$work/plan" && grep -q '^make deep$' "$work/plan" || fail "$(cat "$work/plan")"
    [[ ! -e $at ]] || fail "$at was made"
    "$dafs" sync --verify "$from" "$to"
    same_trees "$work/a" "$at" || fail "the trees differ"
    [[ $(stat -c %h "$at/one") == 2 ]] || fail "the hard link is lost"
    [[ $(stat -c %b "$at/hole") -lt 4096 ]] || fail "the hole is filled"
    before=$(inodes "$at")
    [[ $(number bytes "$dafs" sync "$from" "$to") == 0 ]] || fail "bytes were copied again"
    [[ $(number bytes "$dafs" sync --checksum "$from" "$to") == 0 ]] || fail "the same contents were copied"
    [[ $(inodes "$at") == "$before" ]] || fail "files were made again"
    printf extra >"$at/extra"
    printf UNO >"$at/one"
    touch -d '2024-02-03 04:05:06.789' "$at/one"
    [[ $(number deleted "$dafs" sync --checksum --delete "$from" "$to") == 1 ]] || fail "another number of removals"
    same_trees "$work/a" "$at" || fail "the trees differ after a change"
done <<END
$here/b $there/dafs $work/there/dafs
nfs://$here_tcp/b $there/from-nfs $work/there/from-nfs
$here/b nfs://$tcp/to-nfs $work/there/to-nfs
nfs://$here_tcp/b?vers=3 nfs://$tcp/nfs?vers=4.2 $work/there/nfs
nfs+rdma://$here_rdma/b?transport=iwarp nfs+rdma://$rdma/rdma?transport=iwarp $work/there/rdma
nfs+rdma://$here_rdma/b?transport=iwarp $there/from-rdma $work/there/from-rdma
$here/b $here/same $work/export/same
nfs://$here_tcp/b nfs://$here_tcp/same-nfs $work/export/same-nfs
END

step "between servers: the memory of the read is that of the write"
"$dafs" --transport iwarp cp --json "$here/b/large" "$there/large" >"$work/said"
cmp "$work/a/large" "$work/there/large"
! grep -q client_staging "$work/said" || fail "data was copied: $(cat "$work/said")"

step "between servers: sources of several hosts, and patterns"
mkdir "$work/there/many"
"$dafs" cp "$here/b/large" "$work/a/one" "nfs://$here_tcp/b/dangling" "$there/dafs/deep" "$there/many"
diff <(printf '%s\n' dangling deep large one) <(LC_ALL=C ls "$work/there/many") || fail "other names"
diff -r --no-dereference "$work/a/deep" "$work/there/many/deep"
"$dafs" sync --exclude build --exclude '*e' "$here/b" "$there/some"
[[ ! -e $work/there/some/build && ! -e $work/there/some/large && -e $work/there/some/deep/two.txt ]] ||
    fail "other files"

step "between servers: files around the longest that take one round trip"
mkdir "$work/export/bounds"
for bytes in 0 1 8191 8192 8193 16384; do
    head -c $bytes /dev/urandom >"$work/export/bounds/$bytes"
done
chmod 640 "$work/export/bounds/1"
for from in "$here" "nfs://$here_tcp"; do
    for to in "$there" "nfs://$tcp" "$here/same" "nfs://$here_tcp/same"; do
        at=$work/there/bounds
        [[ $to != */same ]] || at=$work/export/same/bounds
        expect 0 '"files":6' "$dafs" cp --json "$from/bounds" "$to/bounds"
        same_trees "$work/export/bounds" "$at" || fail "the copies of $from at $to differ"
        rm -r "$at"
    done
done

step "between servers: no directory is copied into itself"
ln -s b/deep "$work/export/way"
for to in "$here" "nfs://$here_tcp"; do
    for pair in "$here/b $to/b/deep/new" "$here/b $to/b" "$here/b/deep $to/b" "$here/way $to/b" \
        "$here/b $to/way/new"; do
        # shellcheck disable=SC2086
        expect 2 'inside of the other' "$dafs" sync --delete $pair
    done
    expect 1 'into itself' "$dafs" cp "$here/b" "$to/b/deep"
done
rm "$work/export/way"
expect 1 'is the target of the copy' "$dafs" cp "$here/b" "$here/"
expect 2 'no directory' "$dafs" sync "$here/b/one" "$there/one"
same_trees "$work/a" "$work/export/b" || fail "the source was changed"

step "a target that is killed, and is back"
# begun TARGET -- starts a synchronisation, and waits for 200 MiB in that directory of the second server.
begun() {
    "$dafs" sync --bwlimit 100m "$here/long" "$there/$1" 2>"$work/said" &
    client=$!
    started+=("$client")
    is_long() { find "$work/there/${1%\?*}" -name '.dafs-*.part' -size +200M | grep . >/dev/null; }
    eventually is_long "$1"
}
begun long
kill_server
serve "${second[@]}" --listen "${there#dafs://}"
wait "$client" || fail "it ended with $?: $(cat "$work/said")"
cmp "$work/export/long/long" "$work/there/long/long"
[[ $(ls -A "$work/there/long") == long ]] || fail "left behind: $(ls -A "$work/there/long")"

step "a target that is killed, and a later run"
status=0
begun 'later?recovery=1'
kill_server
wait "$client" || status=$?
[[ $status == 3 ]] || fail "status $status: $(cat "$work/said")"
serve "${second[@]}"
there=$url
[[ $(number resumed_bytes "$dafs" sync "$here/long" "$there/later") -gt 100000000 ]] || fail "it began again"
cmp "$work/export/long/long" "$work/there/later/long"
[[ $(ls -A "$work/there/later") == long ]] || fail "left behind: $(ls -A "$work/there/later")"

step "a source that is killed"
status=0
"$dafs" sync --bwlimit 50m "$here/long?recovery=1" "$there/lost" 2>"$work/said" &
client=$!
started+=("$client")
has_part() { find "$work/there/lost" -name '.dafs-*.part' | grep . >/dev/null; }
eventually has_part
second_server=$server second_log=$log
server=$here_server log=$here_log
kill_server
wait "$client" || status=$?
[[ $status == 3 ]] || fail "status $status: $(cat "$work/said")"
[[ ! -e $work/there/lost/long ]] || fail "a part has the name of the file"
server=$second_server log=$second_log
stop_server
serve "$work/export" --lease 3 --no-root-squash

step "a narrow terminal, and one without a name"
if command -v script >/dev/null; then
    for terminal in TERM=xterm TERM=dumb TERM= --unset=TERM; do
        rm -rf "$work/back"
        env "$terminal" script -qec "stty cols 20; '$dafs' sync '$url/b' '$work/back'" /dev/null \
            >"$work/drawn" </dev/null || fail "it failed with $terminal"
        same_trees "$work/a" "$work/back" || fail "the trees differ"
        [[ $terminal == TERM=xterm ]] || ! grep -q $'\x1b' "$work/drawn" || fail "it draws with $terminal"
    done
    rm -rf "$work/got" "$work/export/shown"
    for copy in "get --verify $url/long $work/got" "put --verify $work/empty/long $url/shown"; do
        env TERM=xterm script -qec "stty cols 80; '$dafs' $copy" /dev/null >"$work/drawn" </dev/null
        grep -q '[0-9]% ' "$work/drawn" || fail "no percent: $copy"
    done
fi

stop_server
