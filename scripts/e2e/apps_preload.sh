#!/bin/bash
# Whole applications, unchanged, on files of a server under `dafs run`: git, rsync, Berkeley DB, and
# gzip in two processes.
source "$(dirname "$0")/lib.sh"

here=$PWD
needs_preload

missing=()
for program in git rsync sqlite3 db5.3_load db5.3_verify db5.3_dump gzip; do
    command -v "$program" >/dev/null || missing+=("$program")
done
[[ -f /usr/include/db.h ]] || missing+=(libdb5.3-dev)
[[ ${#missing[@]} == 0 ]] || skip "there is no ${missing[*]}; install them with: make setup"

export=$work/tree
mkdir "$export" "$work/home"
serve "$work/tree" ${squash[@]+"${squash[@]}"}
served() { timeout 200 "$dafs" run --at "/data=$url" "$@"; }

step "git"
export HOME=$work/home GIT_CONFIG_NOSYSTEM=1
git config --global user.name 'A Tester'
git config --global user.email tester@example.org
git config --global init.defaultBranch main
# The reference is git's own view of the tree, as the server's owner.
git config --global --add safe.directory '*'
served sh -euc '
    mkdir /data/repository
    cd /data/repository
    git init -q
    seq 1 1000 >numbers
    mkdir directory
    seq 1 5000 >directory/more
    ln -s numbers link
    chmod +x directory/more
    git add .
    git commit -qm one
    seq 1 1001 >numbers
    git commit -qam two
    git gc -q
    git fsck --strict
    git clone -q /data/repository /data/clone
    cd /data/clone
    git checkout -q HEAD~1
    [ "$(git status --porcelain)" = "" ]
    [ "$(tail -n 1 numbers)" = 1000 ]
    git checkout -q main' || fail "git failed under dafs run"
for tree in repository clone; do
    git -C "$work/tree/$tree" fsck --strict || fail "git finds faults in the $tree"
    [[ $(git -C "$work/tree/$tree" rev-list --count HEAD) == 2 ]] || fail "the $tree lacks a commit"
    [[ $(tail -n 1 "$work/tree/$tree/numbers") == 1001 ]] || fail "the $tree is not checked out"
    git -C "$work/tree/$tree" diff --exit-code || fail "git sees a difference in the $tree"
done

step "rsync"
served rsync -a "$here/scripts/" /data/scripts/
diff -r "$here/scripts" "$work/tree/scripts" || fail "rsync put something else"
cp -a "$work/tree/scripts" "$work/changed"
rm "$work/changed/e2e/lib.sh"
echo more >>"$work/changed/setup.sh"
served rsync -a --checksum --delete --itemize-changes "$work/changed/" /data/scripts/ >"$work/said"
diff -r "$work/changed" "$work/tree/scripts" || fail "rsync did not bring it up to date"
[[ $(grep -c '^[>*]' "$work/said") == 2 ]] || { cat "$work/said"; fail "rsync moved more than changed"; }
served rsync -a --inplace --no-whole-file /data/scripts/ "$work/back/"
diff -r "$work/changed" "$work/back" || fail "rsync fetched something else"

step "Berkeley DB"
seq 1 5000 | awk '{ printf "key%06d\nvalue of %d\n", $1, $1 }' >"$work/records"
for kind in btree hash; do
    served db5.3_load -T -t "$kind" -f "$work/records" "/data/$kind.db" || fail "no $kind was loaded"
    served db5.3_verify -q "/data/$kind.db" || fail "the $kind is not right"
    db5.3_verify -q "$work/tree/$kind.db" || fail "the $kind is not right on the server"
    served db5.3_dump -p "/data/$kind.db" | sed -n '/^HEADER=END/,/^DATA=END/{s/^ //p}' |
        paste - - | sort >"$work/dumped"
    paste - - <"$work/records" | cmp - "$work/dumped" || fail "the $kind holds something else"
done
# An environment of several processes is shared memory, which no server can provide.
mkdir "$work/tree/environment"
expect 1 'mmap: No such device' served db5.3_recover -e -h /data/environment

step "Berkeley DB, with a cache of its own"
own_cache /data/own.db served
db5.3_verify -q "$work/tree/own.db" || fail "the table is not right on the server"

step "gzip in two processes"
mkdir "$work/tree/packed"
for number in 1 2 3 4; do seq "$number" 200000 >"$work/tree/packed/$number"; done
cp -r "$work/tree/packed" "$work/plain"
served gzip /data/packed/1 /data/packed/2 &
first=$!
served gzip /data/packed/3 /data/packed/4 &
second=$!
wait "$first" || fail "the first gzip failed"
wait "$second" || fail "the second gzip failed"
[[ $(ls "$work/tree/packed") == $'1.gz\n2.gz\n3.gz\n4.gz' ]] || fail "gzip left something else"
served gzip -d /data/packed/1.gz /data/packed/2.gz &
first=$!
served gzip -d /data/packed/3.gz /data/packed/4.gz &
second=$!
wait "$first" || fail "the first gzip failed to unpack"
wait "$second" || fail "the second gzip failed to unpack"
diff -r "$work/plain" "$work/tree/packed" || fail "gzip unpacked something else"

# As in docs/applications.md.
application gzip run
[[ $(zcat "$export/gzip/first.gz" | tail -n 1) == 200000 ]] || fail "gzip packed something else"
application "tar and rsync" run
[[ ! -s $work/said ]] || { cat "$work/said"; fail "rsync or tar finds a difference"; }
diff -r /usr/share/common-licenses "$export/$folder/copy" || fail "rsync put something else"
application git run
git -C "$export/git/clone" fsck --strict || fail "git finds faults"
application "Berkeley DB" run
db5.3_verify -q "$export/$folder/table.db" || fail "the table is not right on the server"
application sqlite3 run
[[ $(cat "$work/said") == $'100\nok' ]] || { cat "$work/said"; fail "rows are missing"; }
stop_server
