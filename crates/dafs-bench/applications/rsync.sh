#!/bin/bash
# rsync: a tree of sources is copied, and once more when nothing has changed.
source "$(dirname "$0")/lib.sh"
case $1 in
input) tree ;;
prepare) ;;
run)
    rsync -a "$W/tree/" "$D/tree/"
    rsync -ai "$W/tree/" "$D/tree/" >"$T/again"
    ;;
check)
    [[ ! -s $T/again ]] || fail "rsync saw changes where there are none"
    [[ ! $(rsync -ain --checksum --delete "$W/tree/" "$E/tree/") ]] || fail "rsync copied something else"
    ;;
esac
