#!/bin/bash
# nfs-direct.sh -- O_DIRECT by the kernel's client with NFSv4.2, which reads with READ_PLUS, on ext4
# and xfs with holes and with extents that are allocated and never written. Every reply fits the
# client's buffer, and has the content of the server's file.
source "$(dirname "$0")/../nfs.sh"

[[ $transport == tcp && ! $layouts && ${LAB_SERVER:-dafs} == dafs ]] ||
    skip "READ_PLUS is for TCP, and for files that are read through a dafs server"

OPERATIONS=500
ROUNDS=1
PIECES=2000
[[ ! ${DAFS_TEST_LONG:-} ]] || OPERATIONS=5000 ROUNDS=10
# The same seed gives the same operations.
seed=${LAB_SEED:-$RANDOM}
# The content of the server's page cache changes all the time.
FORGET_EVERY_SECONDS=0.05

gcc -O1 -Wall -static -o "$work/out/direct" "$lab/tests/guest/direct.c"
direct=$work/out/direct
# Blocks of another size make pieces smaller than a page.
image ext4 -b 4096
image xfs -b size=1024
more_exports='ext4 xfs'
serve
boot 1
guest 1 'cp /out/direct /job/bin/'

# lay_out FILE -- saves the content of FILE of the export in /out/wanted, and drops it from the
# server's cache.
lay_out() {
    cp "$work/$kind/$1" "$work/out/wanted"
    "$direct" forget "$work/$kind/$1"
}
forget_all_the_time() {
    while "$direct" forget "$1"; do sleep "$FORGET_EVERY_SECONDS"; done
}

for kind in "${images[@]}"; do
    cd "$work/$kind" || fail "no $kind"
    step "$kind: a short hole at the end of the range"
    head -c 4096 /dev/urandom >hole
    truncate -s 1M hole
    head -c 4096 /dev/urandom >allocated
    fallocate -l 1M allocated
    guest 1 "nfs_mount 4.2 a '' /$kind"
    for file in hole allocated; do
        lay_out $file
        guest 1 "direct lengths /mnt/a/$file /out/wanted 0 4090 4130
            direct lengths /mnt/a/$file /out/wanted 4000 90 130"
    done

    step "$kind: data beside what is allocated only"
    # Reads fill the server's cache with the following pages, which then count as data.
    for written in 1 2 3 8 31; do
        fallocate -l 1M "beside-$written"
        dd if=/dev/urandom of="beside-$written" bs=4k count=$written conv=notrunc,fsync status=none
        lay_out "beside-$written"
        guest 1 "direct lengths /mnt/a/beside-$written /out/wanted 0 65536 65538
            direct ranges /mnt/a/beside-$written /out/wanted 1 20"
    done

    step "$kind: $PIECES pieces with holes and with allocated space in between"
    for size in 1024 4096; do
        "$direct" lay "holes-$size" $size $PIECES
        fallocate -l $((2 * size * PIECES)) "pieces-$size"
        "$direct" lay "pieces-$size" $size $PIECES
        for file in "holes-$size" "pieces-$size"; do
            lay_out "$file"
            guest 1 "direct ranges /mnt/a/$file /out/wanted $seed 100"
        done
    done

    for ((round = 0; round < ROUNDS; round++)); do
        step "$kind: $OPERATIONS operations at random, seed $((seed + round))"
        touch random
        forget_all_the_time random &
        forgetting=$!
        # It must end, too, after a failure.
        started+=("$forgetting")
        guest 1 "direct fsx /mnt/a/random /out/wanted $((seed + round)) $OPERATIONS"
        kill "$forgetting"
        wait "$forgetting" || true
        cmp random "$work/out/wanted" || fail "the server's file has something else"
    done
    guest 1 '[[ $(calls a READ_PLUS) -gt 400 && $(calls a ALLOCATE) -gt 10 ]]
        umount /mnt/a'
    cd "$work" || fail "no $work"
done
