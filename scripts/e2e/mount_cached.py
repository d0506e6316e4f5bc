#!/usr/bin/env python3
"""mount_cached.py ONE TWO LOCAL [both] -- two mounts of a directory, and the directory itself: one drops its
cache of a file before the other one changes the file in any way.
"""

import os
import sys
import threading

ONE, TWO, LOCAL = sys.argv[1:4]


def read(path):
    with open(path, "rb") as file:
        return file.read()


def keep(name, content):
    """A file that ONE and TWO have read so often that they send no requests for it any more."""
    with open(f"{LOCAL}/{name}", "wb") as file:
        file.write(content)
    for top in (ONE, TWO):
        for _ in range(3):
            os.stat(f"{top}/{name}")
            assert read(f"{top}/{name}") == content


def what_is_written_is_seen_at_once():
    keep("written", b"a" * 10000)
    kept_open = os.open(f"{TWO}/written", os.O_RDONLY)
    assert os.pread(kept_open, 10, 0) == b"a" * 10
    with open(f"{ONE}/written", "r+b", buffering=0) as file:
        file.write(b"b" * 10)
        assert os.pread(kept_open, 20, 0) == b"b" * 10 + b"a" * 10, "an open file shows what was"
        assert read(f"{TWO}/written")[:10] == b"b" * 10
    os.close(kept_open)
    for turn in range(10):
        writer, reader = (ONE, TWO) if turn % 2 else (TWO, ONE)
        with open(f"{writer}/written", "wb") as file:
            file.write(bytes([turn]) * (turn + 5))
        assert read(f"{reader}/written") == bytes([turn]) * (turn + 5), f"turn {turn}"


def what_is_mapped_is_seen_at_once():
    import mmap

    keep("mapped", b"a" * 8192)
    with open(f"{TWO}/mapped", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    assert mapped[4096] == ord("a")
    with open(f"{ONE}/mapped", "r+b", buffering=0) as file:
        file.seek(4096)
        file.write(b"b")
    assert mapped[4096] == ord("b"), "a map shows what was"
    mapped.close()


def attributes_and_names_as_well():
    for name in ("mode", "cut", "linked"):
        keep(name, b"0123456789")
    os.chmod(f"{ONE}/mode", 0o640)
    assert os.stat(f"{TWO}/mode").st_mode & 0o777 == 0o640
    os.truncate(f"{ONE}/cut", 3)
    with open(f"{TWO}/cut", "rb") as file:
        assert file.read() == b"012"
    os.link(f"{ONE}/linked", f"{ONE}/second")
    with open(f"{TWO}/linked", "rb") as file:
        assert os.fstat(file.fileno()).st_nlink == 2

    def replace(path):
        with open(f"{ONE}/other", "wb") as file:
            file.write(b"9876543210")
        os.replace(f"{ONE}/other", path)

    # Open files that were never read: the server must know of them before the name is removed.
    for name, change in (
        ("removed", lambda path: os.remove(path)),
        ("renamed", lambda path: os.rename(path, f"{path}-now")),
        ("replaced", replace),
    ):
        for reader, changer in ((TWO, ONE), (ONE, ONE)):
            name = f"{name}-{changer == reader}"
            keep(name, b"0123456789")
            file = os.open(f"{reader}/{name}", os.O_RDONLY)
            # The kernel must not use its cached pages.
            change(f"{changer}/{name}")
            if changer == reader:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(file, 100, 0) == b"0123456789", f"{name} is gone though it is open"
            os.close(file)


def who_changes_it_on_the_servers_host_is_seen():
    keep("local", b"before")
    with open(f"{LOCAL}/local", "wb") as file:
        file.write(b"after!")
    # The server learns of it, and notifies the other mount.
    while read(f"{TWO}/local") != b"after!" or read(f"{ONE}/local") != b"after!":
        pass


def an_append_goes_to_the_end_also_if_that_was_decided_later():
    import fcntl

    keep("appended", b"a" * 5000)
    file = os.open(f"{ONE}/appended", os.O_RDWR)
    assert os.pread(file, 10, 4990) == b"a" * 10
    # The kernel of the first believes that the file ends at 5000.
    other = os.open(f"{TWO}/appended", os.O_WRONLY | os.O_APPEND)
    os.write(other, b"b" * 100)
    fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
    os.write(file, b"c" * 100)
    wanted = b"a" * 5000 + b"b" * 100 + b"c" * 100
    assert os.pread(file, 6000, 0) == wanted, "what the kernel keeps is not what there is"
    assert read(f"{ONE}/appended") == wanted and read(f"{TWO}/appended") == wanted
    os.write(other, b"d")
    os.close(other)
    os.close(file)
    assert read(f"{LOCAL}/appended") == wanted + b"d"


def nobody_waits_for_ever():
    """Readers and writers of the same files on both mounts."""
    names = [f"busy-{number}" for number in range(4)]
    for name in names:
        keep(name, bytes(100000))
    failed = []

    def work(top, seed):
        try:
            for turn in range(40):
                name = f"{top}/{names[(turn * 7 + seed) % len(names)]}"
                if (turn + seed) % 3 == 0:
                    with open(name, "r+b", buffering=0) as file:
                        file.write(bytes([seed]) * 100000)
                else:
                    with open(name, "rb", buffering=0) as file:
                        assert len(file.read(200000)) == 100000
        except BaseException as error:
            failed.append(error)

    threads = [
        threading.Thread(target=work, args=((ONE, TWO)[seed % 2], seed)) for seed in range(12)
    ]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failed, failed


def both_want_what_the_other_one_reads():
    """Each opens a file for writing while the other one reads a part of it."""
    size = 8 << 20
    for name in ("of-one", "of-two"):
        keep(name, bytes(size))
    ends = threading.Event()
    failed = []

    def reads(path):
        try:
            with open(path, "rb", buffering=0) as file:
                while not ends.is_set():
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                    os.lseek(file.fileno(), 0, os.SEEK_SET)
                    while file.read(1 << 17):
                        pass
            with open(path, "rb", buffering=0) as file:
                file.read(10)
        except BaseException as error:
            failed.append(error)

    readers = [
        threading.Thread(target=reads, args=(path,))
        for path in (f"{ONE}/of-one", f"{TWO}/of-two")
        for _ in range(3)
    ]
    [thread.start() for thread in readers]

    def writes(path):
        try:
            for _ in range(40):
                os.close(os.open(path, os.O_RDWR))
                # Cached again.
                read(path)
        except BaseException as error:
            failed.append(error)

    writers = [
        threading.Thread(target=writes, args=(path,)) for path in (f"{ONE}/of-two", f"{TWO}/of-one")
    ]
    [thread.start() for thread in writers]
    [thread.join() for thread in writers]
    ends.set()
    [thread.join() for thread in readers]
    assert not failed, failed


if sys.argv[4:] == ["both"]:
    both_want_what_the_other_one_reads()
    nobody_waits_for_ever()
    sys.exit()
what_is_written_is_seen_at_once()
what_is_mapped_is_seen_at_once()
attributes_and_names_as_well()
who_changes_it_on_the_servers_host_is_seen()
an_append_goes_to_the_end_also_if_that_was_decided_later()
nobody_waits_for_ever()
