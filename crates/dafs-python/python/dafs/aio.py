"""Reads and writes for asyncio: any number in flight, in memory of the caller's.

    async with dafs.aio.Group(client) as group:
        counts = await asyncio.gather(*(group.read_into(file, part, at) for at, part in parts))

A group belongs to the event loop that first uses it. Other calls of a client are quick or rare; where
they must not hold up the loop, `asyncio.to_thread` runs them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno

from ._file import CompletionGroup, _raw

# Pauses before asking a server again that was short of room, in seconds, and for how long to ask.
_PAUSE_MIN = 0.001
_PAUSE_MAX = 0.1
_PATIENCE = 60.0


class Group:
    """Asynchronous operations of one client."""

    def __init__(self, client):
        self._group = CompletionGroup(client)
        # Each turn of the loop that submits ends with a poll.
        self._group._promise_polls()
        self._loop = None
        self._scheduled = False
        self._closed = False
        # Calls that have begun and not returned; they may be between two operations.
        self._running = 0
        # Futures of those who wait for the end of all.
        self._waiting = []

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        await self.aclose()

    async def aclose(self):
        """Waits for what has begun and leaves the loop; what begins later is refused."""
        self._closed = True
        while self._is_busy():
            done = asyncio.get_running_loop().create_future()
            self._waiting.append(done)
            self._drain()
            await done
        if self._loop is not None:
            self._loop.remove_reader(self._group.fileno())
            self._loop = None

    def _is_busy(self):
        return self._running > 0 or (self._loop is not None and self._group.in_flight > 0)

    @contextlib.contextmanager
    def _begun(self):
        """A call that `aclose` waits for."""
        if self._closed:
            raise RuntimeError("the group is closed")
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            self._tell_waiting()

    def _tell_waiting(self):
        if self._waiting and not self._is_busy():
            waiting, self._waiting = self._waiting, []
            for done in waiting:
                if not done.done():
                    done.set_result(None)

    async def read_into(self, file, target, offset):
        """Fills a writable buffer from `offset`, or as far as the file goes; returns the bytes read.

        The buffer cannot be resized meanwhile. When this is cancelled, it may be written to until the
        server has answered.
        """
        with self._begun():
            view = _target(target).cast("B")
            done = 0
            while done < len(view):
                count = await self._run(self._group.read_into, file, view[done:], offset + done)
                if count == 0:
                    break
                done += count
            return done

    async def read(self, file, size, offset):
        """Up to `size` bytes from `offset`, as a bytearray; fewer only at the end of the file."""
        data = bytearray(size)
        view = memoryview(data)
        count = await self.read_into(file, view, offset)
        view.release()
        # Its exports end with the completions, which have been fetched.
        del data[count:]
        return data

    async def write(self, file, source, offset):
        """Writes all of a buffer at `offset`; returns its length. `commit` makes it stable."""
        with self._begun():
            view = _source(source).cast("B")
            done = 0
            while done < len(view):
                done += await self._run(self._group.write, file, view[done:], offset + done)
            return done

    async def append(self, file, source):
        """Writes all of a buffer at the end of the file, in one piece and stable; returns where that was.

        When this is cancelled, as by `asyncio.wait_for`, it may be carried out all the same: who calls it
        again may have appended twice. An empty buffer is a ValueError.
        """
        with self._begun():
            return await self._run(self._group.append, file, _source(source).cast("B"))

    async def commit(self, file, offset=0, length=0):
        """Makes what was written survive a crash of the server."""
        with self._begun():
            await self._run(self._group.commit, file, offset, length)

    async def _run(self, start, file, *arguments):
        """One operation, from its start to its result."""
        file = _raw(file)
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            loop.add_reader(self._group.fileno(), self._drain)
        elif self._loop is not loop:
            raise RuntimeError("the group belongs to another event loop")
        pause = _PAUSE_MIN
        until = loop.time() + _PATIENCE
        while True:
            future = loop.create_future()
            try:
                operation = start(file, *arguments, future)
                if not self._scheduled:
                    # All that this turn of the loop submits is sent together at its end.
                    self._scheduled = True
                    loop.call_soon(self._drain)
                return await future
            except asyncio.CancelledError:
                self._group.cancel(operation)
                raise
            except OSError as error:
                if error.errno != errno.EAGAIN or loop.time() >= until:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, _PAUSE_MAX)

    def _drain(self):
        self._scheduled = False
        for completion in self._group.poll():
            future = completion.user_data
            if future.done():
                continue
            try:
                future.set_result(completion.result())
            except OSError as error:
                future.set_exception(error)
        self._tell_waiting()


def _source(memory):
    """The memory itself, or for a tensor the array that shares it."""
    try:
        return memoryview(memory)
    except TypeError:
        if hasattr(memory, "numpy"):
            return memoryview(memory.numpy())
        raise


def _target(memory):
    """As `_source`; never a copy, which would be filled in vain."""
    try:
        return memoryview(memory)
    except TypeError:
        if not hasattr(memory, "numpy"):
            raise
    array = memory.numpy()
    view = memoryview(array)
    if view.nbytes and not _shares_memory(memory, array):
        raise TypeError("the array that the object gives may be a copy; give one with a buffer")
    return view


def _shares_memory(tensor, array):
    try:
        return tensor.data_ptr() == array.ctypes.data
    except AttributeError:
        return False
