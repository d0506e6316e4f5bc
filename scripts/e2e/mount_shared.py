#!/usr/bin/env python3
"""mount_shared.py ONE TWO -- two mounts of one directory: a lock on one excludes the other, a new holder sees
earlier writes, appends overwrite no data, and every lock ends with its descriptor or process.
"""

import errno
import fcntl
import os
import struct
import sys
import threading

ONE, TWO = sys.argv[1:3]


def lock_of_file_description(file, kind):
    fcntl.fcntl(file, 37, struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0))  # F_OFD_SETLK


def is_locked(path):
    """True if another owner holds a lock: tested by a process of its own, which has none."""
    child = os.fork()
    if child == 0:
        with open(path, "r+b", buffering=0) as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os._exit(0)
            except OSError as error:
                os._exit(1 if error.errno in (errno.EAGAIN, errno.EACCES) else 2)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status < 2, "the question for a lock failed"
    return status == 1


def eventually_free(path):
    """The kernel reports the last close after the program has gone on."""
    while is_locked(path):
        pass


def locks_make_changes_visible():
    """A counter that both increment under a lock, from pages that their kernels cache."""
    with open(f"{ONE}/counter", "wb") as file:
        file.write(bytes(8192))
    one, two = (open(f"{top}/counter", "r+b", buffering=0) for top in (ONE, TWO))
    for whole_file in (False, True):
        for turn in range(20):
            file = (one, two)[turn % 2]
            (fcntl.flock if whole_file else fcntl.lockf)(file, fcntl.LOCK_EX)
            count = struct.unpack("q", os.pread(file.fileno(), 8, 4096))[0]
            assert count == turn, f"turn {turn} read {count}"
            os.pwrite(file.fileno(), struct.pack("q", count + 1), 4096)
            (fcntl.flock if whole_file else fcntl.lockf)(file, fcntl.LOCK_UN)
        os.pwrite(one.fileno(), struct.pack("q", 0), 4096)
        os.fsync(one.fileno())
        fcntl.lockf(two, fcntl.LOCK_SH)
        fcntl.lockf(two, fcntl.LOCK_UN)
    one.close()
    two.close()


def appending_overwrites_nothing():
    files = [os.open(f"{top}/log", os.O_WRONLY | os.O_APPEND | os.O_CREAT) for top in (ONE, TWO)]
    lines = [f"line {number}\n".encode() * (1 + number % 7) for number in range(100)]
    for number, line in enumerate(lines):
        assert os.write(files[number % 2], line) == len(line)
    found = os.open(f"{ONE}/log", os.O_RDONLY)
    assert os.read(found, 1 << 20) == b"".join(lines), "something appended was overwritten"
    # The same with descriptors that are set to append later.
    later = os.open(f"{TWO}/log", os.O_WRONLY)
    fcntl.fcntl(later, fcntl.F_SETFL, os.O_APPEND)
    os.write(files[0], b"first\n")
    os.write(later, b"second\n")
    again = os.open(f"{ONE}/log", os.O_RDONLY)
    assert os.read(again, 1 << 20).endswith(b"first\nsecond\n")
    for file in files + [found, later, again]:
        os.close(file)


def locks_end_with_their_open_file():
    path = f"{TWO}/described"
    with open(f"{ONE}/described", "wb") as file:
        lock_of_file_description(file, fcntl.F_WRLCK)
        assert is_locked(path)
        # Another open file of the same process is another owner.
        open(f"{ONE}/described", "rb").close()
        assert is_locked(path), "a lock ended with another open file"
    eventually_free(path)


def locks_of_a_process_end_with_any_close():
    path = f"{TWO}/owned"
    with open(f"{ONE}/owned", "wb") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        assert is_locked(path)
        open(f"{ONE}/owned", "rb").close()
        eventually_free(path)


def a_waiting_thread_gets_its_lock_whatever_others_close():
    """One thread waits for a lock while another one of its process closes and unlocks the same file."""
    with open(f"{ONE}/wanted", "wb"), open(f"{TWO}/wanted", "r+b") as other:
        fcntl.lockf(other, fcntl.LOCK_EX)
        file = open(f"{ONE}/wanted", "r+b")
        got = threading.Event()

        def wait():
            fcntl.lockf(file, fcntl.LOCK_EX)
            got.set()

        thread = threading.Thread(target=wait)
        thread.start()
        for _ in range(50):
            open(f"{ONE}/wanted", "rb").close()
            fcntl.lockf(file, fcntl.LOCK_UN)
        assert not got.is_set()
        fcntl.lockf(other, fcntl.LOCK_UN)
        thread.join()
        assert is_locked(f"{TWO}/wanted"), "a lock that was given is not held"
        file.close()
    eventually_free(f"{TWO}/wanted")


def what_cannot_be_done_in_one_step_is_refused():
    libc = __import__("ctypes").CDLL(None, use_errno=True)
    get_errno = __import__("ctypes").get_errno
    for name in ("a", "b"):
        open(f"{ONE}/{name}", "wb").close()
    for flag in (1, 2):  # RENAME_NOREPLACE, RENAME_EXCHANGE
        done = libc.renameat2(-100, f"{ONE}/a".encode(), -100, f"{ONE}/b".encode(), flag)
        # The kernel itself sees an existing target.
        wanted = (errno.EEXIST, errno.EINVAL) if flag == 1 else (errno.EINVAL,)
        assert done == -1 and get_errno() in wanted, get_errno()
    assert os.path.exists(f"{ONE}/a") and os.path.exists(f"{ONE}/b")


def main():
    for test in (locks_make_changes_visible, appending_overwrites_nothing,
                 locks_end_with_their_open_file, locks_of_a_process_end_with_any_close,
                 a_waiting_thread_gets_its_lock_whatever_others_close,
                 what_cannot_be_done_in_one_step_is_refused):
        test()
        print(test.__name__.replace("_", " "))


main()
