#!/bin/bash
# git: a repository is cloned and checked out, looked through, changed in a tenth of its files, and
# committed.
source "$(dirname "$0")/lib.sh"
case $1 in
input)
    tree
    git config --global user.name 'A Tester'
    git config --global user.email tester@example.org
    git config --global --add safe.directory '*'
    git init -q -b main "$W/repository"
    cp -r "$W/tree" "$W/repository/tree"
    git -C "$W/repository" add .
    git -C "$W/repository" commit -qm one
    ;;
prepare) ;;
run)
    git clone -q --no-local "$W/repository" "$D/clone"
    cd "$D/clone" || exit
    [[ ! $(git status --porcelain) ]] || fail "git sees changes"
    for file in tree/folder*5/*; do echo '// changed' >>"$file"; done
    git commit -qam two
    git status --porcelain >"$T/status"
    ;;
check)
    [[ ! -s $T/status ]] || fail "git sees changes after the commit"
    git -C "$E/clone" fsck --strict --no-progress || fail "git finds faults"
    cp -r "$W/tree" "$T/tree"
    for file in "$T"/tree/folder*5/*; do echo '// changed' >>"$file"; done
    diff -r "$T/tree" "$E/clone/tree" || fail "something else was changed"
    git -C "$E/clone" checkout -q HEAD~1
    diff -r "$W/tree" "$E/clone/tree" || fail "something else was checked out"
    ;;
esac
