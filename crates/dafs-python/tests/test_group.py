"""Asynchronous operations: completion groups and asyncio."""

import asyncio
import os
import select

import dafs
import dafs.aio
import pytest


@pytest.fixture
def blocks(client, folder):
    """A file of 16 blocks, and what is in it."""
    data = os.urandom(16 * 65536)
    (folder / "blocks").write_bytes(data)
    with client.open(f"/{folder.name}/blocks", "r+b", buffering=0) as file:
        yield file, data


def test_reads_arrive_in_their_places(client, blocks):
    file, data = blocks
    group = client.completion_group()
    target = bytearray(len(data))
    view = memoryview(target)
    for at in range(0, len(data), 65536):
        group.read_into(file, view[at : at + 65536], at, user_data=at)
    done = group.wait(None)
    assert sorted(each.user_data for each in done) == list(range(0, len(data), 65536))
    assert all(each.result() == 65536 for each in done)
    assert target == data
    assert group.in_flight == 0
    assert group.wait(None) == []


def test_memory_cannot_be_resized_before_its_completion_is_fetched(client, blocks):
    file, data = blocks
    group = client.completion_group()
    target = bytearray(65536)
    group.read_into(file, target, 0)
    with pytest.raises(BufferError):
        target.extend(b"more")
    (completion,) = group.wait()
    assert completion.result() == 65536
    target.extend(b"more")
    assert target == data[:65536] + b"more"


def test_memory_that_is_dropped_stays_until_the_end(client, blocks):
    file, data = blocks
    group = client.completion_group()
    for at in range(16):
        group.read_into(file, bytearray(65536), at * 65536)
        group.write(file, bytes(data[:65536]), 0)
    del group
    assert file.pread(65536, 0) == data[:65536]


def test_writes_of_constant_and_of_changeable_memory(client, blocks, folder):
    file, _ = blocks
    group = client.completion_group()
    group.write(file, b"a" * 10, 0, user_data="constant")
    group.write(file, bytearray(b"b" * 10), 10, user_data="changeable")
    own = client.buffer(10)
    memoryview(own)[:] = b"c" * 10
    group.write(file, own, 20, user_data="own")
    assert {each.user_data for each in group.wait(None)} == {"constant", "changeable", "own"}
    group.commit(file, user_data="commit")
    assert [each.result() for each in group.wait()] == [0]
    assert (folder / "blocks").read_bytes()[:30] == b"a" * 10 + b"b" * 10 + b"c" * 10


def test_bad_operations(server, client, blocks):
    file, _ = blocks
    group = client.completion_group()
    with pytest.raises(TypeError):
        group.read_into(file, b"constant", 0)
    with pytest.raises(ValueError):
        group.read_into(file, bytearray(), 0)
    with pytest.raises(TypeError):
        group.read_into("a name", bytearray(1), 0)
    with dafs.connect(server.url) as other:
        with pytest.raises(OSError):
            other.completion_group().read_into(file, bytearray(1), 0)
    with pytest.raises(ValueError):
        group.wait(timeout=-1)
    assert group.cancel(12345) in (True, False)


def test_the_descriptor_tells_of_completions(client, blocks):
    file, data = blocks
    group = client.completion_group()
    target = bytearray(65536)
    poll = select.poll()
    poll.register(group.fileno(), select.POLLIN)
    assert poll.poll(0) == []
    group.read_into(file, target, 65536)
    assert poll.poll(60_000)
    (completion,) = group.poll()
    assert completion.result() == 65536
    assert target == data[65536:131072]
    assert poll.poll(0) == []


def test_asyncio(client, blocks):
    file, data = blocks

    async def run():
        async with dafs.aio.Group(client) as group:
            parts = [bytearray(65536) for _ in range(16)]
            reads = (group.read_into(file, part, at * 65536) for at, part in enumerate(parts))
            assert await asyncio.gather(*reads) == [65536] * 16
            assert b"".join(parts) == data
            assert await group.read(file, 100, len(data) - 10) == data[-10:]
            assert await group.write(file, b"x" * 100, 50) == 100
            await group.commit(file)
            assert (await group.read(file, 100, 50)) == b"x" * 100
            with pytest.raises(TypeError):
                await group.read_into(file, b"constant", 0)

    asyncio.run(run())


def test_a_cancelled_task_leaves_the_group_usable(client, blocks):
    file, data = blocks

    async def run():
        async with dafs.aio.Group(client) as group:
            tasks = [asyncio.create_task(group.read(file, 65536, 0)) for _ in range(8)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(each, asyncio.CancelledError) for each in results[::2])
            assert all(each == data[:65536] for each in results[1::2])
            assert await group.read(file, 10, 0) == data[:10]

    asyncio.run(run())
