#!/usr/bin/env python3
"""exercise.py DIRECTORY SEED OPERATIONS [private] -- does random operations on one file and checks each
answer against a model: reads, writes, appends, truncates, maps, renames it, opens and closes it again.
With `private`, maps are not shared with the file, and are not written.

The same seed gives the same operations. A failure is printed with the operations before it.
"""

import collections
import mmap
import os
import random
import sys

BYTES_MAX = 256 << 10
TRANSFER_MAX = 64 << 10


class Exercise:
    def __init__(self, directory, seed, is_private):
        self.is_private = is_private
        self.random = random.Random(seed)
        self.path = os.path.join(directory, f"exercise-{seed}")
        self.model = bytearray()
        self.history = collections.deque(maxlen=30)
        self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)

    def check(self, what, found, wanted):
        if found == wanted:
            return
        place = next((i for i, (a, b) in enumerate(zip(found, wanted)) if a != b), None)
        for line in self.history:
            print(line)
        sys.exit(f"{what}: {len(found)} bytes, not {len(wanted)}; the first other one: {place}")

    def range(self, end):
        offset = self.random.randint(0, end)
        return offset, self.random.randint(0, min(TRANSFER_MAX, BYTES_MAX - offset))

    def put(self, offset, data):
        if not data:
            return
        self.model.extend(bytes(max(0, offset - len(self.model))))
        self.model[offset : offset + len(data)] = data

    def read(self):
        offset, length = self.range(len(self.model))
        self.history.append(f"read {offset} {length}")
        found = os.pread(self.file, length, offset)
        self.check("read", found, self.model[offset : offset + length])

    def write(self):
        offset, length = self.range(min(BYTES_MAX, len(self.model) + TRANSFER_MAX))
        data = self.random.randbytes(length)
        self.history.append(f"write {offset} {length}")
        done = os.pwrite(self.file, data, offset)
        assert done == length, f"wrote {done} of {length}"
        self.put(offset, data)

    def append(self):
        length = self.random.randint(0, min(4096, BYTES_MAX - len(self.model)))
        data = self.random.randbytes(length)
        self.history.append(f"append {length}")
        with open(self.path, "ab", buffering=0) as file:
            assert not data or file.write(data) == length
        self.put(len(self.model), data)

    def cut(self):
        size = self.random.randint(0, BYTES_MAX)
        self.history.append(f"cut {size}")
        if self.random.random() < 0.5:
            os.ftruncate(self.file, size)
        else:
            os.truncate(self.path, size)
        del self.model[size:]
        self.model.extend(bytes(size - len(self.model)))

    def read_map(self):
        if self.model:
            offset, length = self.range(len(self.model))
            self.history.append(f"read by map {offset} {length}")
            how = mmap.MAP_PRIVATE if self.is_private else mmap.MAP_SHARED
            with mmap.mmap(self.file, len(self.model), how, mmap.PROT_READ) as seen:
                self.check("map", seen[offset : offset + length], self.model[offset : offset + length])

    def write_map(self):
        if self.model:
            offset, length = self.range(len(self.model) - 1)
            data = self.random.randbytes(min(length, len(self.model) - offset))
            self.history.append(f"write by map {offset} {len(data)}")
            with mmap.mmap(self.file, len(self.model)) as seen:
                seen[offset : offset + len(data)] = data
                if self.random.random() < 0.5:
                    seen.flush()
            self.put(offset, data)

    def open_again(self):
        self.history.append("open again")
        os.close(self.file)
        self.file = os.open(self.path, os.O_RDWR)
        size = os.fstat(self.file).st_size
        assert size == len(self.model), f"{size} bytes, not {len(self.model)}"

    def sync(self):
        self.history.append("sync")
        os.fsync(self.file)

    def rename(self):
        self.history.append("rename")
        other = self.path + "-renamed"
        os.rename(self.path, other)
        self.path, other = other, self.path
        if self.random.random() < 0.5:
            os.rename(self.path, other)
            self.path = other
        else:
            os.link(self.path, other)
            os.unlink(self.path)
            self.path = other

    def run(self, operations):
        kinds = {self.read: 30, self.write: 30, self.append: 5, self.cut: 8, self.read_map: 8,
                 self.write_map: 8, self.open_again: 5, self.sync: 2, self.rename: 2}
        if self.is_private:
            del kinds[self.write_map]
        for operation in self.random.choices(list(kinds), kinds.values(), k=operations):
            operation()
        self.open_again()
        self.check("the end", os.pread(self.file, BYTES_MAX, 0), self.model)
        os.close(self.file)
        os.unlink(self.path)


def main():
    directory, seed, operations = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    exercise = Exercise(directory, seed, sys.argv[4:] == ["private"])
    exercise.run(operations)
    print(f"seed {seed}: {operations} operations")


main()
