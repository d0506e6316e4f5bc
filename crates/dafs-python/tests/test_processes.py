"""Forked and spawned processes."""

import multiprocessing
import os
import signal
import threading

import dafs
import pytest
from conftest import stopped


def read(client, path):
    with client.open(path, "rb") as file:
        return file.read()


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_read_with_a_client_of_the_parent(client, folder, method):
    names = []
    for number in range(8):
        (folder / str(number)).write_bytes(bytes([number]) * 100_000)
        names.append(f"/{folder.name}/{number}")
    read(client, names[0])
    with multiprocessing.get_context(method).Pool(2) as pool:
        found = pool.starmap(read, [(client, name) for name in names])
        pool.close()
        pool.join()
    assert found == [bytes([number]) * 100_000 for number in range(8)]
    # The parent's own session has come to no harm.
    assert read(client, names[7]) == found[7]


def in_child(work):
    """What `work` returns in a forked child, as text."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # A process that waits for something that never comes is ended.
        signal.alarm(60)
        try:
            text = repr(work())
        except BaseException as error:
            text = f"raised {type(error).__name__}"
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as said:
        text = said.read()
    assert os.waitpid(child, 0)[1] == 0
    return text


def test_files_and_groups_of_the_parent_say_what_is_wrong(client, folder):
    (folder / "f").write_bytes(b"content")
    with client.open(f"/{folder.name}/f", "rb", buffering=0) as file:
        group = client.completion_group()
        assert in_child(lambda: file.pread(7, 0)) == "raised ForkedError"
        assert in_child(lambda: group.read_into(file, bytearray(7), 0)) == "raised ForkedError"
        assert in_child(lambda: group.wait(None)) == "raised ForkedError"
        assert in_child(file.close) == "None"
        assert in_child(lambda: client.stat(f"/{folder.name}/f").st_size) == "7"
        assert in_child(client.close) == "None"
        assert file.pread(7, 0) == b"content"


@pytest.mark.parametrize("transport", ["shm", "iwarp"])
def test_who_closes_what_is_the_sessions_is_told(server, folder, transport):
    (folder / "f").write_bytes(b"content")
    path = f"/{folder.name}/f"
    mine = folder / "mine"
    mine.write_bytes(b"what is here stays here")

    def work():
        before = set(os.listdir("/proc/self/fd"))
        client = dafs.connect(server.url, transport=transport)
        file = client.open(path, "rb", buffering=0)
        group = client.completion_group()
        group.fileno()
        # Without that of the list itself.
        names = [name for name in os.listdir("/proc/self/fd") if name not in before]
        numbers = [int(name) for name in names if os.path.exists(f"/proc/self/fd/{name}")]
        assert file.pread(7, 0) == b"content"
        for number in numbers:
            os.close(number)
        replaced = os.open(mine, os.O_RDWR)
        for number in numbers:
            if number != replaced:
                os.dup2(replaced, number)
        with pytest.raises(OSError, match="has closed descriptors of the session"):
            file.pread(7, 0)
        with pytest.raises(OSError, match="has closed descriptors of the session"):
            group.read_into(file, bytearray(7), 0)
        assert os.lseek(replaced, 0, os.SEEK_CUR) == 0
        # Another session, beside what has taken the place of the first.
        size = client.stat(path).st_size
        client.close()
        for number in numbers:
            os.fstat(number)
        return size

    assert in_child(work) == "7"
    assert mine.read_bytes() == b"what is here stays here"


def test_a_fork_waits_for_no_thread_of_the_parent(server, client, folder):
    (folder / "f").write_bytes(bytes(100_000))
    own = client.buffer(50_000)
    with client.open(f"/{folder.name}/f", "rb", buffering=0) as file:
        # It holds the place in the file until the server answers.
        thread = threading.Thread(target=file.readinto, args=(own,))
        with stopped(server):
            thread.start()
            while file._lock.acquire(blocking=False):
                file._lock.release()
            for use in (
                lambda: file.read(1),
                lambda: file.seek(0),
                lambda: file.pread_into(own, 0),
            ):
                assert in_child(use) == "raised ForkedError"
            assert in_child(file.close) == "None"
        thread.join()
        assert file.tell() == 50_000


def test_a_fork_can_drop_what_the_parent_uses(client, folder):
    (folder / "f").write_bytes(bytes(100_000))
    over = threading.Event()
    with client.open(f"/{folder.name}/f", "rb", buffering=0) as file:

        def read():
            own = client.buffer(65536)
            while not over.is_set():
                file.pread_into(own, 0)

        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(20):
                buffers = [client.buffer(4096)]
                assert in_child(buffers.clear) == "None"
        finally:
            over.set()
            for thread in threads:
                thread.join()
