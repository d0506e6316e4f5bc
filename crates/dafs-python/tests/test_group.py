"""Asynchronous operations: completion groups and asyncio."""

import asyncio
import errno
import gc
import mmap
import os
import select
import sys
import threading
import time
import weakref

import dafs
import dafs.aio
import fsspec
import pytest
from conftest import stopped


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


def test_a_map_cannot_be_closed_before_its_completion_is_fetched(client, blocks):
    file, data = blocks
    group = client.completion_group()
    target = mmap.mmap(-1, 65536)
    group.read_into(file, target, 0)
    with pytest.raises(BufferError):
        target.close()
    with pytest.raises(BufferError):
        target.resize(1 << 20)
    (completion,) = group.wait()
    assert completion.result() == 65536
    assert target[:] == data[:65536]
    target.close()


def test_an_array_cannot_be_resized_before_its_completion_is_fetched(client, blocks):
    numpy = pytest.importorskip("numpy")
    file, data = blocks
    group = client.completion_group()
    target = numpy.zeros(65536, dtype="u1")
    group.read_into(file, target, 0)
    with pytest.raises(ValueError, match="cannot resize"):
        target.resize(1 << 20)
    (completion,) = group.wait()
    assert completion.result() == 65536
    assert target.tobytes() == data[:65536]


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
    end = (folder / "blocks").stat().st_size
    group.append(file, b"first", user_data="append")
    assert [each.result() for each in group.wait()] == [end]
    group.append(file, bytearray(b"second"))
    assert [each.result() for each in group.wait()] == [end + 5]
    assert (folder / "blocks").read_bytes()[end:] == b"firstsecond"
    with pytest.raises(ValueError):
        group.append(file, b"")


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


def test_two_threads_wait_for_one_group(client, blocks):
    file, data = blocks
    group = client.completion_group()
    parts = [bytearray(4096) for _ in range(256)]
    for at, part in enumerate(parts):
        group.read_into(file, part, at * 4096, user_data=at)
    fetched = [[], []]

    def fetch(mine):
        while done := group.wait():
            mine.extend(done)

    threads = [threading.Thread(target=fetch, args=(mine,)) for mine in fetched]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.user_data for each in fetched[0] + fetched[1]) == list(range(256))
    assert all(each.result() == 4096 for each in fetched[0] + fetched[1])
    assert b"".join(parts) == data


def test_what_belongs_to_a_closed_client_says_so(server, folder):
    (folder / "f").write_bytes(b"content")
    client = dafs.connect(server.url)
    file = client.open(f"/{folder.name}/f", "r+b", buffering=0)
    group, own, batch = client.completion_group(), client.buffer(4096), client.batch()
    memory = bytearray(4096)
    registered = client.register(memory)
    batch.read_into(file, own, 0)
    client.close()
    for use in (
        lambda: group.read_into(file, bytearray(7), 0),
        lambda: group.write(file, b"a", 0),
        lambda: group.commit(file),
        lambda: group.submit(batch),
        lambda: file.pread_into(own, 0),
        lambda: file.pwrite(b"a", 0),
    ):
        with pytest.raises((OSError, ValueError)):
            use()
    assert group.wait(None) == []
    # The memory is still there to be used.
    memoryview(own)[:4] = b"mine"
    registered.close()
    memory.append(1)


def test_a_buffer_of_another_client_is_memory_like_any_other(server, client, blocks):
    file, data = blocks
    with dafs.connect(server.url) as other:
        foreign = other.buffer(65536)
        assert file.pread_into(foreign, 65536) == 65536
        assert bytes(foreign) == data[65536:131072]
        group = client.completion_group()
        group.read_into(file, foreign, 0)
        assert group.wait(None)[0].result() == 65536
        assert bytes(foreign) == data[:65536]


@pytest.fixture
def slow_switches():
    """Threads of Python take turns only where one lets go of its lock."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(120)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.parametrize("what", ["stat", "wait", "connect", "fsspec"])
def test_others_run_while_one_waits(server, client, blocks, slow_switches, what):
    file, _ = blocks
    group = client.completion_group()
    begun, failures = threading.Event(), []
    works = {
        "stat": lambda: client.stat("/"),
        "wait": lambda: group.wait(None)[0].result(),
        "connect": lambda: dafs.connect(server.url, transport="iwarp").close(),
        "fsspec": lambda: files.ls("/"),
    }
    files, _ = fsspec.core.url_to_fs(server.url, skip_instance_cache=True)
    files.ls("/")

    def work():
        begun.set()
        try:
            # With the lock it would be over before the server goes on.
            with dafs.within(5):
                works[what]()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    with stopped(server):
        group.read_into(file, bytearray(10), 0)
        thread.start()
        assert begun.wait(60)
    thread.join()
    assert failures == []
    group.wait(None)


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
            assert await group.append(file, b"the end") == len(data)
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


def test_a_batch_is_scattered_in_files_and_in_memory(client, blocks, folder):
    file, data = blocks
    (folder / "other").write_bytes(b"0123456789")
    batch = client.batch()
    parts = [bytearray(10), bytearray(20)]
    batch.read_into(file, parts, [(5, 7), (100, 23)], user_data="scattered")
    with client.open(f"/{folder.name}/other", "r+b", buffering=0) as other:
        short = bytearray(20)
        batch.read_into(other, short, 4, user_data="short")
        batch.write(other, [b"AB", bytearray(b"CD")], [(0, 1), (2, 3)], user_data="written")
        assert len(batch) == 3
        done = batch.run()
        assert [each.user_data for each in done] == ["scattered", "short", "written"]
        assert [each.result() for each in done] == [30, 6, 4]
    assert bytes(parts[0]) + bytes(parts[1]) == data[5:12] + data[100:123]
    assert short[:6] == b"456789"
    assert (folder / "other").read_bytes() == b"A1BCD56789"
    parts[0].extend(b"free again")
    with pytest.raises(ValueError):
        batch.run()
    with pytest.raises(OSError):
        client.batch().read_into(file, bytearray(3), [(0, 4)])


@pytest.mark.parametrize("window", [None, 0.001])
def test_a_batch_may_tell_a_group(client, blocks, window):
    file, data = blocks
    group, batch = client.completion_group(), client.batch()
    parts = [bytearray(100) for _ in range(16)]
    for number, part in enumerate(parts):
        batch.read_into(file, part, number * 65536, user_data=number)
    assert len(group.submit(batch, window)) == 16
    with pytest.raises(BufferError):
        parts[0].append(1)
    done = group.wait(None)
    assert sorted(each.user_data for each in done) == list(range(16))
    for number, part in enumerate(parts):
        assert part == data[number * 65536 :][:100]
        part.append(1)


def test_the_server_takes_out_what_it_has_not_begun(client, blocks):
    file, data = blocks
    group, batch = client.completion_group(), client.batch()
    parts = [bytearray(100) for _ in range(2)]
    for number, part in enumerate(parts):
        batch.read_into(file, part, number * 65536, user_data=number)
    operations = group.submit(batch, 9)
    group.read_into(file, bytearray(1), 0)
    group.wait(1)
    for operation in operations:
        group.cancel(operation)
    done = group.wait(None)
    assert sorted(each.user_data for each in done) == [0, 1]
    for each in done:
        with pytest.raises(OSError) as caught:
            each.result()
        assert caught.value.errno == errno.ECANCELED
    assert all(part == bytes(100) for part in parts)


def test_a_window_can_be_cut_short(client, blocks):
    file, data = blocks
    group, batch = client.completion_group(), client.batch()
    parts = [bytearray(100) for _ in range(2)]
    for number, part in enumerate(parts):
        batch.read_into(file, part, number * 65536)
    for operation in group.submit(batch, 60):
        group.expedite(operation)
    done = group.wait(None, timeout=30)
    assert [each.result() for each in done] == [100, 100]
    assert parts == [data[:100], data[65536:65636]]
    # It is over, so there is nothing to ask for.
    group.expedite(done[0].operation)


def test_memory_can_stay_registered(client, blocks):
    file, data = blocks
    memory = bytearray(200_000)
    with client.register(memory):
        for at in range(0, 16 * 65536, 200_000):
            count = min(200_000, len(data) - at)
            assert file.pread_into(memory, at) == count
            assert memory[:count] == data[at : at + count]
        assert file.pread_into(memoryview(memory)[7:50_007], 3) == 50_000
        assert memory[7:50_007] == data[3:50_003]
        with pytest.raises(BufferError):
            memory.append(1)
        group = client.completion_group()
        group.read_into(file, memoryview(memory)[:100_000], 0)
        again = client.register(memory)
    again.close()
    again.close()
    assert group.wait(None)[0].result() == 100_000
    assert memory[:100_000] == data[:100_000]
    memory.append(1)
    with pytest.raises(TypeError):
        client.register(b"constant")


def test_a_wait_for_a_group_can_be_limited(server, client, blocks):
    file, _ = blocks
    group = client.completion_group()
    with stopped(server):
        group.read_into(file, bytearray(10), 0)
        with dafs.within(0.1):
            assert group.wait(None) == []
    assert group.wait(None)[0].result() == 10


def test_a_buffer_of_an_operation_that_was_given_up_is_not_used_again(server, folder):
    (folder / "f").write_bytes(bytes(65536))
    client = dafs.connect(server.url, transport="shm", recovery=1)
    file = client.open(f"/{folder.name}/f", "rb", buffering=0)
    own, other = client.buffer(65536), client.buffer(65536)
    batch, group = client.batch(), client.completion_group()
    assert file.pread_into(own, 0) == 65536
    with stopped(server), dafs.within(0.1), pytest.raises(OSError):
        file.pread_into(own, 0)
    for use in (
        lambda: file.pread_into(own, 0),
        lambda: file.pwrite(memoryview(own)[5:], 0),
        lambda: group.read_into(file, own, 0),
        lambda: batch.read_into(file, [bytearray(3), own], 0),
    ):
        with pytest.raises(BufferError):
            use()
    batch.read_into(file, other, 0)
    # Nor by the session that takes the place of the one that is over, nor by that of another client.
    other = dafs.connect(server.url, transport="shm", cache_bytes=1 << 20)
    for client in client, other:
        batch, group = client.batch(), client.completion_group()
        with client.open(f"/{folder.name}/f", "r+b", buffering=0) as file:
            for use in (
                lambda: file.pread_into(own, 0),
                lambda: file.pwrite(memoryview(own)[5:], 0),
                lambda: group.read_into(file, own, 0),
                lambda: batch.read_into(file, [own], 0),
            ):
                with pytest.raises(BufferError):
                    use()


def test_a_buffer_of_a_group_that_went_away_is_not_used_again(server, folder):
    (folder / "f").write_bytes(bytes(65536))
    client = dafs.connect(server.url, transport="shm", recovery=1)
    file = client.open(f"/{folder.name}/f", "rb", buffering=0)
    own, other = client.buffer(65536), client.buffer(65536)
    group = client.completion_group()
    with stopped(server):
        group.read_into(file, own, 0)
        del group
        # The session ends with this.
        with dafs.within(0.1), pytest.raises(OSError):
            file.pread_into(other, 0)
    with client.open(f"/{folder.name}/f", "rb", buffering=0) as again:
        with pytest.raises(BufferError):
            again.pread_into(own, 0)


def test_the_memory_of_a_group_that_went_away_is_let_go_of_by_the_next_calls(server, client, blocks):
    file, _ = blocks
    target = bytearray(4096)
    group = client.completion_group()
    with stopped(server):
        group.read_into(file, target, 0)
        del group
        with pytest.raises(BufferError):
            target.append(1)
    for _ in range(1000):
        client.stat("/")
        try:
            target.append(1)
            return
        except BufferError:
            time.sleep(0.01)
    pytest.fail("the memory is never free again")


def test_a_group_that_its_own_futures_lead_to_is_collected(client, blocks):
    file, _ = blocks

    class Future:
        pass

    future = Future()
    future.group = client.completion_group()
    future.group.read_into(file, bytearray(10), 0, user_data=future)
    gone = weakref.ref(future)
    del future
    gc.collect()
    assert gone() is None


def test_two_may_close_an_asyncio_group_and_nothing_begins_afterwards(server, client, blocks):
    file, data = blocks

    async def run():
        group = dafs.aio.Group(client)
        with stopped(server):
            reading = asyncio.create_task(group.read(file, 10, 0))
            await asyncio.sleep(0)
            closing = [asyncio.create_task(group.aclose()) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError):
                await group.read(file, 10, 0)
        assert await reading == data[:10]
        await asyncio.wait_for(asyncio.gather(*closing), 60)
        await group.aclose()
        with pytest.raises(RuntimeError):
            await group.read(file, 10, 0)
        with pytest.raises(RuntimeError):
            await group.commit(file)

    asyncio.run(run())


def test_what_is_buffered_is_written_before_an_operation_of_a_group(client, folder):
    group = client.completion_group()
    with client.open(f"/{folder.name}/mixed", "wb") as file:
        file.write(b"first, and long")
        group.write(file, b"later", 0)
        group.wait(None)
    assert (folder / "mixed").read_bytes() == b"later, and long"


class Copies:
    """Gives a copy of what it has, as the tensors of some libraries do."""

    def __init__(self, content):
        self.content = content

    def numpy(self):
        return bytearray(self.content)


def test_a_copy_is_nothing_to_read_into(client, blocks, folder):
    file, _ = blocks
    with pytest.raises(TypeError):
        file.pread_into(Copies(bytes(10)), 0)
    with pytest.raises(TypeError):
        client.completion_group().read_into(file, Copies(bytes(10)), 0)

    async def run():
        async with dafs.aio.Group(client) as group:
            with pytest.raises(TypeError):
                await group.read_into(file, Copies(bytes(10)), 0)
            assert await group.write(file, Copies(b"from a copy"), 0) == 11

    asyncio.run(run())
    assert file.pwrite(Copies(b"1"), 0) == 1
    assert (folder / "blocks").read_bytes()[:11] == b"1rom a copy"


def test_nobody_waits_for_a_group_that_is_dropped(server, client, blocks):
    file, data = blocks
    target = client.buffer(65536) if client.transport == "shm" else bytearray(65536)
    group = client.completion_group()
    with stopped(server):
        group.read_into(file, target, 0)
        start = time.monotonic()
        del group
        gc.collect()
        assert time.monotonic() - start < 3
        if isinstance(target, bytearray):
            with pytest.raises(BufferError):
                target.append(1)
    # The end is noticed with the next group.
    until = time.monotonic() + 30
    while bytes(memoryview(target)[:65536]) != data[:65536]:
        assert time.monotonic() < until
        client.completion_group()
    while isinstance(target, bytearray):
        client.completion_group()
        try:
            target.append(1)
            break
        except BufferError:
            assert time.monotonic() < until
