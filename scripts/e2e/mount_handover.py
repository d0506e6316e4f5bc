#!/usr/bin/env python3
"""mount_handover.py MOUNT OTHER COUNT COMMAND... -- runs the command COUNT times, which hands the mount over to a
new process, while programs use the mount: writers and readers, open files with and without names, a directory
listing, held locks and waiting lock requests. OTHER is another mount of the same directory.
"""

import fcntl
import os
import subprocess
import sys
import threading
import traceback

MOUNT, OTHER, COUNT, COMMAND = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
# The listing goes on over all handovers, and ends after the last one.
ENTRIES, FIRST_LISTED = 2000, 300
LISTED_PER_HANDOVER = (ENTRIES - FIRST_LISTED) // (COUNT + 1)


def is_free(path):
    child = os.fork()
    if child == 0:
        with open(path, "r+b", buffering=0) as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os._exit(0)
            except OSError:
                os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class Busy:
    """Threads that work until they are stopped; a failure in one fails the test."""

    def __init__(self):
        self.done = threading.Event()
        self.failed = []
        self.turns = {}
        kinds = (self.append, self.rewrite, self.make_and_remove, self.lock_and_count)
        self.threads = [threading.Thread(target=self.work, args=(kind,)) for kind in kinds]
        for thread in self.threads:
            thread.start()

    def work(self, kind):
        name = kind.__name__
        try:
            for turn in kind():
                self.turns[name] = turn
                if self.done.is_set():
                    return
        except BaseException as error:
            self.failed.append(f"{name}: {error!r}")

    def append(self):
        with open(f"{MOUNT}/appended", "ab", buffering=0) as file:
            for turn in range(1 << 60):
                file.write(b"%15d\n" % turn)
                yield turn + 1

    def rewrite(self):
        with open(f"{MOUNT}/rewritten", "w+b", buffering=0) as file:
            for turn in range(1 << 60):
                data = b"%8d" % turn * 8192
                assert os.pwrite(file.fileno(), data, 4096 * (turn % 7)) == len(data)
                assert os.pread(file.fileno(), len(data), 4096 * (turn % 7)) == data
                yield turn + 1

    def make_and_remove(self):
        for turn in range(1 << 60):
            path = f"{MOUNT}/made-{turn}"
            os.mkdir(path)
            with open(f"{path}/file", "x") as file:
                file.write("x")
            os.rename(f"{path}/file", f"{path}/renamed")
            os.unlink(f"{path}/renamed")
            os.rmdir(path)
            yield turn + 1

    def lock_and_count(self):
        with open(f"{MOUNT}/counted", "w+b", buffering=0) as file:
            for turn in range(1 << 60):
                fcntl.flock(file, fcntl.LOCK_EX)
                os.pwrite(file.fileno(), b"%15d" % turn, 0)
                fcntl.flock(file, fcntl.LOCK_UN)
                yield turn + 1

    def stop(self):
        self.done.set()
        for thread in self.threads:
            thread.join()
        assert not self.failed, self.failed
        # Every written line is there, once.
        with open(f"{MOUNT}/appended", "rb") as file:
            lines = file.read().split()
        assert lines == [b"%d" % turn for turn in range(self.turns["append"])], "lines were lost"


def main():
    for number in range(ENTRIES):
        open(f"{MOUNT}/entry-{number:04}", "x").close()
    listing = os.scandir(MOUNT)
    listed = [next(listing).name for _ in range(FIRST_LISTED)]
    nameless = os.open(f"{MOUNT}/nameless", os.O_CREAT | os.O_RDWR)
    os.write(nameless, b"without a name")
    os.unlink(f"{MOUNT}/nameless")
    refused = os.open(f"{MOUNT}/without-rights", os.O_CREAT | os.O_RDWR, 0)
    locked = open(f"{MOUNT}/locked", "x+b", buffering=0)
    fcntl.lockf(locked, fcntl.LOCK_EX, 100, 50)
    shared = open(f"{MOUNT}/shared", "x+b", buffering=0)
    fcntl.flock(shared, fcntl.LOCK_SH)
    wanted = open(f"{OTHER}/wanted", "x+b", buffering=0)
    fcntl.lockf(wanted, fcntl.LOCK_EX)
    waiting = open(f"{MOUNT}/wanted", "r+b", buffering=0)
    got = threading.Event()
    waiter = threading.Thread(target=lambda: (fcntl.lockf(waiting, fcntl.LOCK_EX), got.set()))
    waiter.start()
    busy = Busy()
    for turn in range(COUNT):
        before = dict(busy.turns)
        subprocess.run(COMMAND, check=True)
        # They have all gone on.
        while not busy.failed and any(
            busy.turns.get(kind, 0) <= before.get(kind, 0) for kind in ("append", "rewrite")
        ):
            pass
        assert not busy.failed, busy.failed
        assert os.pread(nameless, 100, 0) == b"without a name"
        assert os.pwrite(refused, b"x", turn) == 1
        assert not is_free(f"{OTHER}/locked") and not is_free(f"{OTHER}/shared"), "a lock is gone"
        assert not got.is_set()
        listed += [next(listing).name for _ in range(LISTED_PER_HANDOVER)]
        print(f"handed over: {busy.turns}")
    busy.stop()
    fcntl.lockf(wanted, fcntl.LOCK_UN)
    waiter.join()
    assert not is_free(f"{OTHER}/wanted"), "who waited has not got the lock"
    listed += [entry.name for entry in listing]
    entries = [name for name in listed if name.startswith("entry-")]
    assert sorted(entries) == [f"entry-{number:04}" for number in range(ENTRIES)], "the listing is not whole"
    for file in (locked, shared, waiting, wanted):
        file.close()
    for name in ("locked", "shared", "wanted"):
        while not is_free(f"{OTHER}/{name}"):
            pass
    assert os.fstat(refused).st_size == COUNT
    os.close(refused)
    os.close(nameless)


try:
    main()
except BaseException:
    # The threads that are still busy do not keep the failure back.
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)
