"""Optimistic reads: blocks that the server shows are read without requests, and are never older than a write."""

import os
import time

import dafs
import pytest
from conftest import Server

BLOCK = 4096
# More than the 64 KiB of a file that shares memory with others.
BLOCKS = 64
SECONDS_MAX = 60


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A server that shows files."""
    server = Server(os.environ["DAFS"], tmp_path_factory.mktemp("shown"), more=["--optimistic=remote"])
    yield server
    server.stop()


def new_blocks(count):
    return [os.urandom(BLOCK) for _ in range(count)]


def ways_to_read(client, file):
    """Functions that read the block with a number."""
    own = client.buffer(BLOCK)
    group = client.completion_group()

    def at_an_offset(number):
        return file.pread(BLOCK, number * BLOCK)

    def into_memory(number):
        memory = bytearray(BLOCK)
        assert file.pread_into(memory, number * BLOCK) == BLOCK
        return bytes(memory)

    def into_memory_of_the_client(number):
        assert file.pread_into(own, number * BLOCK) == BLOCK
        return bytes(memoryview(own))

    def asynchronously(number):
        memory = bytearray(BLOCK)
        group.read_into(file, memory, number * BLOCK)
        (completion,) = group.wait(None)
        assert completion.result() == BLOCK
        return bytes(memory)

    return [at_an_offset, into_memory, into_memory_of_the_client, asynchronously]


def read_until_all_are_hits(client, read, blocks):
    """Reads all blocks again and again, until none costs a request. A server that is held up is asked."""
    end = time.monotonic() + SECONDS_MAX
    while time.monotonic() < end:
        before = client.optimistic_stats()
        for number, block in enumerate(blocks):
            assert read(number) == block, number
        after = client.optimistic_stats()
        if after["hits"] - before["hits"] == len(blocks):
            assert after["bytes"] - before["bytes"] == len(blocks) * BLOCK
            return
        time.sleep(0.02)
    pytest.fail(f"the server does not show all blocks: {client.optimistic_stats()}")


@pytest.mark.parametrize("transport", ["shm", "iwarp"])
def test_blocks_are_read_without_requests_and_as_others_write_them(shown, transport):
    blocks = new_blocks(BLOCKS)
    (shown.root / transport).write_bytes(b"".join(blocks))
    with (
        dafs.connect(f"{shown.url}?optimistic=yes", transport=transport) as client,
        dafs.connect(shown.url) as other,
        client.open(f"/{transport}", "rb", buffering=0) as file,
        other.open(f"/{transport}", "r+b", buffering=0) as written,
    ):
        assert client.transport == transport
        for at, read in enumerate(ways_to_read(client, file)):
            read_until_all_are_hits(client, read, blocks)
            # Each block changes once, because the server leaves out those that change often.
            for number in range(at, BLOCKS, 8):
                (blocks[number],) = new_blocks(1)
                assert written.pwrite(blocks[number], number * BLOCK) == BLOCK
                assert read(number) == blocks[number]
                assert read(number ^ 1) == blocks[number ^ 1]
        read_until_all_are_hits(client, read, blocks)
        assert other.optimistic_stats()["hits"] == 0
    assert (shown.root / transport).read_bytes() == b"".join(blocks)


def reads_of_few_blocks(url, root):
    blocks = new_blocks(4)
    (root / "few").write_bytes(b"".join(blocks))
    with (
        dafs.connect(url, transport="shm") as client,
        client.open("/few", "rb", buffering=0) as file,
    ):
        for _ in range(200):
            for number, block in enumerate(blocks):
                assert file.pread(BLOCK, number * BLOCK) == block
        return client.optimistic_stats()


def test_without_the_option_all_are_requests(shown):
    stats = reads_of_few_blocks(shown.url, shown.root)
    assert set(stats) == {"hits", "bytes", "absent", "stale", "unknown", "dead", "lost"}
    assert not any(stats.values())


def test_a_server_that_shows_nothing_is_asked(server):
    stats = reads_of_few_blocks(f"{server.url}?optimistic=yes", server.root)
    assert stats["hits"] == stats["bytes"] == 0
