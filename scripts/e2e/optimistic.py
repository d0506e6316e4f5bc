"""Readers and writers of one file for optimistic.sh: no read finds bytes older than the last finished change.

Each word of a block is the number of its last change. STATE, a file of this host, has for each block the
last change that has begun and the last one that has finished.

Run as: optimistic.py make FILE STATE
        optimistic.py write FILE STATE CHANGES       (of single blocks, in turn)
        optimistic.py cut FILE STATE CHANGES         (of all: the file is emptied and written again)
        optimistic.py read FILE STATE READS          (0: until optimistic.py stop STATE)
        optimistic.py direct FILE STATE READS        (the same, past the cache of the kernel)
        optimistic.py fill DIRECTORY FILES           (with small files)
        optimistic.py look DIRECTORY ROUNDS          (opens, reads and closes each file in each round)
        optimistic.py reads STATE                    (prints how many there were)
        optimistic.py stop STATE"""

import mmap
import os
import random
import sys
import time

BLOCK_BYTES = 4096
BLOCKS = 256
STOP, READS, BEGUN, FINISHED = 0, 1, 2, 2 + BLOCKS
PAUSE_SECONDS = 0.005


def words_of(path):
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    os.ftruncate(descriptor, 8 * (2 + 2 * BLOCKS))
    return memoryview(mmap.mmap(descriptor, 0)).cast("Q")


def block(change):
    return change.to_bytes(8, sys.byteorder) * (BLOCK_BYTES // 8)


def write(file, state, changes):
    descriptor = os.open(file, os.O_WRONLY)
    for number in range(changes):
        at = number % BLOCKS
        change = state[FINISHED + at] + 1
        state[BEGUN + at] = change
        if os.pwrite(descriptor, block(change), at * BLOCK_BYTES) != BLOCK_BYTES:
            sys.exit("a short write")
        state[FINISHED + at] = change
        time.sleep(PAUSE_SECONDS)
    os.close(descriptor)


def cut(file, state, changes):
    descriptor = os.open(file, os.O_WRONLY)
    for _ in range(changes):
        change = max(state[FINISHED:FINISHED + BLOCKS]) + 1
        for at in range(BLOCKS):
            state[BEGUN + at] = change
        os.ftruncate(descriptor, 0)
        if os.pwrite(descriptor, block(change) * BLOCKS, 0) != BLOCK_BYTES * BLOCKS:
            sys.exit("a short write")
        for at in range(BLOCKS):
            state[FINISHED + at] = change
        time.sleep(PAUSE_SECONDS)
    os.close(descriptor)


def read(file, state, reads):
    descriptor = os.open(file, os.O_RDONLY)
    check(state, reads, lambda at: os.pread(descriptor, BLOCK_BYTES, at * BLOCK_BYTES))
    os.close(descriptor)


def direct(file, state, reads):
    descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)
    # Whole pages, as O_DIRECT may demand.
    page = mmap.mmap(-1, BLOCK_BYTES)
    check(state, reads, lambda at: page[: os.preadv(descriptor, [page], at * BLOCK_BYTES)])
    os.close(descriptor)


def check(state, reads, read_block):
    count = 0
    while count < reads or (reads == 0 and not state[STOP]):
        at = random.randrange(BLOCKS)
        finished = state[FINISHED + at]
        data = read_block(at)
        begun = state[BEGUN + at]
        found = set(memoryview(data[: len(data) // 8 * 8]).cast("Q"))
        if begun == finished:
            is_right = len(data) == BLOCK_BYTES and found == {finished}
        else:
            # Of a change under way any part may be found. Cut and not written again: zeros, or nothing.
            is_right = all(word == 0 or finished <= word <= begun for word in found)
        if not is_right:
            sys.exit(f"block {at} has {sorted(found)[:9]}, {len(data)} bytes; finished {finished}, begun {begun}")
        count += 1
        state[READS] += 1


def small_file(number):
    return f"file {number} ".encode() * (number % 3000 + 7)


def fill(directory, files):
    for number in range(files):
        with open(f"{directory}/{number}", "wb") as new:
            new.write(small_file(number))


def look(directory, rounds):
    for _ in range(rounds):
        for name in os.listdir(directory):
            descriptor = os.open(f"{directory}/{name}", os.O_RDONLY)
            if os.read(descriptor, 1 << 20) != small_file(int(name)):
                sys.exit(f"file {name} has other bytes")
            os.close(descriptor)


def main():
    command, *arguments = sys.argv[1:]
    if command in ("fill", "look"):
        {"fill": fill, "look": look}[command](arguments[0], int(arguments[1]))
    elif command == "stop":
        words_of(arguments[0])[STOP] = 1
    elif command == "reads":
        print(words_of(arguments[0])[READS])
    else:
        file, state = arguments[0], words_of(arguments[1])
        if command == "make":
            with open(file, "wb") as new:
                new.write(block(0) * BLOCKS)
        else:
            state[STOP] = 0
            commands = {"write": write, "cut": cut, "read": read, "direct": direct}
            commands[command](file, state, int(arguments[2]))


main()
