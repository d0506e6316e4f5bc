"""Reads and writes for asyncio: any number in flight, in memory of the caller's.

    async with dafs.aio.Group(client) as group:
        counts = await asyncio.gather(*(group.read_into(file, part, at) for at, part in parts))

A group belongs to the event loop that first uses it. Other calls of a client are quick or rare; where
they must not hold up the loop, `asyncio.to_thread` runs them.
"""

from __future__ import annotations

import asyncio
import errno

from ._file import CompletionGroup, _raw

# Pauses before asking a server again that was short of room, in seconds.
_PAUSE_MIN = 0.001
_PAUSE_MAX = 0.1


class Group:
    """Asynchronous operations of one client."""

    def __init__(self, client):
        self._group = CompletionGroup(client)
        self._loop = None
        self._scheduled = False

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        await self.aclose()

    async def aclose(self):
        """Waits for what is in flight and leaves the loop."""
        if self._loop is None:
            return
        while self._group.in_flight:
            done = self._loop.create_future()
            self._idle = done
            self._drain()
            if self._group.in_flight:
                await done
        self._drain()
        self._loop.remove_reader(self._group.fileno())
        self._loop = None

    _idle = None

    async def read_into(self, file, target, offset):
        """Fills a writable buffer from `offset`, or as far as the file goes; returns the bytes read.

        The buffer cannot be resized meanwhile. When this is cancelled, it may be written to until the
        server has answered.
        """
        view = memoryview(_buffer(target)).cast("B")
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
        view = memoryview(_buffer(source)).cast("B")
        done = 0
        while done < len(view):
            done += await self._run(self._group.write, file, view[done:], offset + done)
        return done

    async def commit(self, file, offset=0, length=0):
        """Makes what was written survive a crash of the server."""
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
        while True:
            future = loop.create_future()
            try:
                operation = start(file, *arguments, future)
                if not self._scheduled:
                    # What this turn of the loop submits is sent together at its end.
                    self._scheduled = True
                    loop.call_soon(self._drain)
                return await future
            except asyncio.CancelledError:
                self._group.cancel(operation)
                raise
            except OSError as error:
                if error.errno != errno.EAGAIN:
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
        if self._idle is not None and not self._group.in_flight:
            idle, self._idle = self._idle, None
            if not idle.done():
                idle.set_result(None)


def _buffer(memory):
    """The memory itself, or for a tensor the array that shares it."""
    try:
        return memoryview(memory)
    except TypeError:
        if hasattr(memory, "numpy"):
            return memory.numpy()
        raise
