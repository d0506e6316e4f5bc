#!/bin/bash
# tar: a tree of sources is unpacked, and packed again.
source "$(dirname "$0")/lib.sh"
case $1 in
input)
    tree
    tar -C "$W" --sort=name -cf "$W/tree.tar" tree
    ;;
prepare) ;;
run)
    tar -C "$D" -xf "$W/tree.tar"
    tar -C "$D" --sort=name -cf "$T/back.tar" tree
    ;;
check)
    diff -r "$W/tree" "$E/tree" || fail "tar unpacked something else"
    tar -C "$W" -df "$T/back.tar" || fail "tar packed something else"
    ;;
esac
