#!/usr/bin/env python3
"""mount_restarts.py POINT EXPORT PROCESS -- writes files on a mount while its server is killed. Before the server
is restarted, its unstable data is removed from its files, because a kill alone loses none. Prints "kill" or
"start" on standard output, and waits for an answer.
"""

import fcntl
import mmap
import os
import random
import sys
import threading

POINT, EXPORT, PROCESS = sys.argv[1:4]


def ask(wish):
    print(wish, flush=True)
    assert sys.stdin.readline() == "done\n"


class File:
    """A file on the mount, and its content at the server."""

    def __init__(self, name, flags=os.O_RDWR | os.O_CREAT):
        self.name = name
        self.descriptor = os.open(f"{POINT}/{name}", flags, 0o644)
        self.stable = b""
        self.content = bytearray()

    def write(self, offset, data):
        if len(self.content) < offset + len(data):
            self.content.extend(bytes(offset + len(data) - len(self.content)))
        self.content[offset : offset + len(data)] = data
        assert os.pwrite(self.descriptor, data, offset) == len(data)

    def sync(self):
        os.fsync(self.descriptor)
        self.stable = bytes(self.content)

    def lose(self):
        """Removes unstable data from the server's file."""
        with open(f"{EXPORT}/{self.name}", "r+b", buffering=0) as file:
            file.truncate(0)
            file.write(self.stable)

    def check(self):
        with open(f"{EXPORT}/{self.name}", "rb") as file:
            found = file.read()
        assert found == self.content, f"{self.name}: {len(found)} bytes, {len(self.content)} wanted"


def crash(*files):
    ask("kill")
    for file in files:
        file.lose()
    ask("start")


def short_and_long_writes_that_overlap():
    file = File("mixed")
    file.write(0, b"stable" * 1000)
    file.sync()
    for number in range(200):
        file.write(number * 37, bytes([number]) * 50)
    file.write(100_000, os.urandom(3 << 20))
    file.write(200_000, os.urandom(1 << 20))
    file.write(1_000_000, b"in the middle")
    file.write(99_990, b"over the beginning")
    crash(file)
    file.sync()
    file.check()
    os.close(file.descriptor)


def closing_is_enough():
    file = File("closed")
    file.write(0, b"data" * 5000)
    crash(file)
    os.close(file.descriptor)
    file.check()


def any_descriptor_makes_stable_what_was_written_through_any():
    file = File("several")
    other = os.open(f"{POINT}/several", os.O_RDONLY)
    file.write(0, b"one" * 4096)
    with mmap.mmap(file.descriptor, 8192) as memory:
        memory[100:106] = b"memory"
        file.content[100:106] = b"memory"
        crash(file)
        os.fsync(other)
        file.check()
    os.close(other)
    os.close(file.descriptor)


def cutting_counts_like_writing():
    file = File("cut")
    file.write(0, b"x" * 10_000)
    os.ftruncate(file.descriptor, 5_000)
    del file.content[5_000:]
    file.write(7_000, b"behind a hole")
    crash(file)
    file.sync()
    file.check()
    file.write(0, b"y" * 9_000)
    os.close(os.open(f"{POINT}/cut", os.O_WRONLY | os.O_TRUNC))
    file.content.clear()
    file.stable = b""
    file.write(10, b"new")
    crash(file)
    file.sync()
    file.check()
    os.close(file.descriptor)


def what_was_appended_is_there_once():
    file = File("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in range(50):
        line = f"line {number}\n".encode()
        assert os.write(file.descriptor, line) == len(line)
        file.content += line
        if number % 20 == 10:
            ask("kill")
            ask("start")
    file.sync()
    file.check()
    os.close(file.descriptor)


def synchronous_writes_need_nothing():
    file = File("synchronous", os.O_RDWR | os.O_CREAT | os.O_DSYNC)
    plain = os.open(f"{POINT}/synchronous", os.O_WRONLY)
    file.content += b"old" * 100
    os.pwrite(plain, file.content, 0)
    file.write(50, b"new" * 20)
    ask("kill")
    file.check()
    ask("start")
    os.close(file.descriptor)
    os.close(plain)


def a_file_may_be_called_otherwise_by_then():
    file = File("before")
    file.write(0, b"renamed" * 100)
    os.rename(f"{POINT}/before", f"{POINT}/after")
    file.name = "after"
    crash(file)
    file.sync()
    file.check()
    os.close(file.descriptor)


def who_reads_sees_what_was_written():
    file = File("read")
    file.write(0, b"see " * 50_000)
    crash(file)
    # Not from the kernel's cache.
    os.posix_fadvise(file.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    assert os.pread(file.descriptor, 300_000, 0) == file.content
    file.check()
    os.close(file.descriptor)


def under_a_lock():
    file = File("locked")
    fcntl.lockf(file.descriptor, fcntl.LOCK_EX, 100)
    file.write(0, b"mine" * 100)
    crash(file)
    file.sync()
    file.check()
    file.write(0, b"more" * 100)
    # Others may lock it from now on, and their writes must survive.
    fcntl.lockf(file.descriptor, fcntl.LOCK_UN, 100)
    file.check()
    with open(f"{EXPORT}/locked", "r+b") as other:
        other.write(b"others")
    file.content[:6] = b"others"
    ask("kill")
    ask("start")
    file.sync()
    file.check()
    os.close(file.descriptor)


def any_close_gives_up_the_locks_of_a_process():
    with open(f"{POINT}/closing", "wb") as made:
        made.write(b"made")
    for _ in range(3):
        with open(f"{POINT}/closing", "rb") as reader:
            assert reader.read() == b"made"
    # As a reader that may still rely on the kernel's cache.
    reader = os.open(f"{POINT}/closing", os.O_RDONLY)
    file = File("closing")
    fcntl.lockf(file.descriptor, fcntl.LOCK_EX)
    file.write(0, b"mine" * 100)
    os.close(reader)
    with open(f"{EXPORT}/closing", "r+b") as other:
        other.write(b"others")
    file.content[:6] = b"others"
    ask("kill")
    ask("start")
    file.sync()
    file.check()
    os.close(file.descriptor)


def much_is_written_and_little_memory_used():
    files = [File(f"much{number}") for number in range(8)]
    block = os.urandom(1 << 20)
    for turn in range(20):
        for file in files:
            file.write(turn << 20, block[turn:] + block[:turn])
    with open(f"/proc/{PROCESS}/status") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    # 64 MiB are dirty data; the rest are the buffers of its threads and the program.
    assert peak < 260_000, f"{peak} KiB"
    ask("kill")
    ask("start")
    for file in files:
        file.sync()
        file.check()
        os.close(file.descriptor)
        os.unlink(f"{POINT}/{file.name}")


def while_somebody_writes_all_the_time():
    file = File("busy")
    size = 4 << 20
    file.write(0, bytes(size))
    file.sync()
    numbers = random.Random(5)
    is_over = threading.Event()

    def disturb():
        for _ in range(5):
            ask("kill")
            ask("start")
        is_over.set()

    thread = threading.Thread(target=disturb)
    thread.start()
    turns = 0
    while not is_over.is_set() or turns < 500:
        turns += 1
        length = numbers.choice([10, 5_000, 300_000])
        offset = numbers.randrange(size - length)
        file.write(offset, bytes([turns % 256]) * length)
        if turns % 50 == 0:
            os.fsync(file.descriptor)
    thread.join()
    file.sync()
    file.check()
    os.close(file.descriptor)


for test in [
    short_and_long_writes_that_overlap,
    closing_is_enough,
    any_descriptor_makes_stable_what_was_written_through_any,
    cutting_counts_like_writing,
    what_was_appended_is_there_once,
    synchronous_writes_need_nothing,
    a_file_may_be_called_otherwise_by_then,
    who_reads_sees_what_was_written,
    under_a_lock,
    any_close_gives_up_the_locks_of_a_process,
    much_is_written_and_little_memory_used,
    while_somebody_writes_all_the_time,
]:
    test()
    print(test.__name__.replace("_", " "), flush=True)
