"""Files with a position, on top of `_dafs.RawFile`.

Invariants
* A forked child waits for no lock of a file that its parent had open.
* Data appended through `File.write` is never appended twice: once nobody knows whether it was done,
  nothing more is written to that file, also not by a buffer that tries again when it is closed.
* An exception of a signal's handler in an append leaves it in doubt, wherever it comes: from the moment it is
  begun until the one in which `File.write` returns.
"""

from __future__ import annotations

import errno
import io
import os
import threading

from . import _dafs

# Appends up to this need not ask the server how long they may be. In bytes.
_APPEND_BYTES_SURE = 1 << 16

# Bytes that are rather copied than asked for with one request more.
_COPY_BYTES_MAX = 1 << 16

# Asked for where a file says that there is nothing, in bytes.
_UNTOLD_BYTES = 1 << 16

# How often this process is a fork of a process that had imported this.
_forks = 0


def _count_fork():
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class CompletionGroup(_dafs.CompletionGroup):
    """Operations whose results are fetched together, by whichever thread asks.

    Operations are submitted with a `File` or a raw file; memory is used in place wherever that can be
    done, and cannot be resized until the completion of its operation has been fetched.
    """

    def read_into(self, file, target, offset, user_data=None):
        return super().read_into(_raw(file), target, offset, user_data)

    def write(self, file, source, offset, user_data=None):
        return super().write(_raw(file), source, offset, user_data)

    def append(self, file, source, user_data=None):
        return super().append(_raw(file), source, user_data)

    def commit(self, file, offset=0, length=0, user_data=None):
        return super().commit(_raw(file), offset, length, user_data)

    def submit(self, batch, window=None):
        """Sends a batch; each of its transfers has a completion of its own. Returns their numbers.

        With a `window`, in seconds, the server may gather and order them with others for so long, and
        reports each by itself.
        """
        return super().submit_batch(batch._batch, window)


class Batch:
    """Reads and writes, scattered in files and in memory, that are sent in few messages."""

    def __init__(self, client):
        self._batch = _dafs.Client.batch(client)

    def __len__(self):
        return len(self._batch)

    def read_into(self, file, target, offset, user_data=None):
        """Adds a read; returns its place in the batch.

        `target` is a writable buffer or a list of them. `offset` is where in the file they are filled
        from, or a list of ranges, as (offset, length) pairs, of the same sum.
        """
        targets, ranges = _scattered(target, offset)
        return self._batch.read(_raw(file), ranges, targets, user_data)

    def write(self, file, source, offset, user_data=None):
        """Adds a write, as `read_into` adds a read."""
        sources, ranges = _scattered(source, offset)
        return self._batch.write(_raw(file), ranges, sources, user_data)

    def run(self):
        """Sends all and waits; returns a `Completion` for each, in the order in which they were added.

        Fewer bytes than asked for are read at the end of a file; fewer may be written, too. Written
        bytes are stable after `File.commit`.
        """
        return self._batch.run()


class Chain:
    """Requests that travel together, each carried out only if the one before it has succeeded.

    Each method adds one and returns the chain. Without a `file` they work on the object that was found
    before. Behind one that reads content or attributes none may write, make or remove; locks may stand
    anywhere.
    """

    def __init__(self, client):
        self._chain = _dafs.Client.chain(client)

    def __len__(self):
        return len(self._chain)

    def lookup(self, path):
        """Finds the object at a path, without following links."""
        self._chain.lookup(path)
        return self

    def stat(self):
        """The attributes of what was found, as a `Stat`."""
        self._chain.stat()
        return self

    def read(self, size, offset=0, file=None):
        """Up to `size` bytes, as many as a message holds."""
        self._chain.read(size, offset, None if file is None else _raw(file))
        return self

    def write(self, source, offset=0, file=None):
        """Writes, as many bytes as a message holds; stable when it is done. The result is their number."""
        self._chain.write(bytes(source), offset, None if file is None else _raw(file))
        return self

    def lock(self, file, exclusive=True, offset=0, length=None):
        """Locks a range, and does not wait for others."""
        self._chain.lock(_raw(file), exclusive, offset, length)
        return self

    def unlock(self, file, offset=0, length=None):
        """Gives up what the file has locked in a range."""
        self._chain.unlock(_raw(file), offset, length)
        return self

    def mkdir(self, name, mode=0o777):
        """Makes a directory in the one that was found, in the root as the first request."""
        self._chain.mkdir(name, mode)
        return self

    def remove(self, name):
        """Removes a name, or an empty directory, as `mkdir` makes it."""
        self._chain.remove(name)
        return self

    def run(self):
        """Sends the requests and waits; returns one item for each: its result, `None` where there is none,
        or its exception."""
        return self._chain.run()


def _scattered(memory, offset):
    """Pieces of memory, and the ranges of a file for them."""
    pieces = list(memory) if isinstance(memory, (list, tuple)) else [memory]
    if isinstance(offset, (list, tuple)):
        return pieces, list(offset)
    return pieces, [(offset, sum(_bytes_of(piece) for piece in pieces))]


def _bytes_of(memory):
    try:
        return memoryview(memory).nbytes
    except TypeError:
        if hasattr(memory, "nbytes"):
            # A tensor.
            return memory.nbytes
        raise


def _raw(file):
    """The raw file of whatever Client.open has given, with nothing left in the buffers above it."""
    if isinstance(file, io.IOBase) and not isinstance(file, File) and file.writable():
        file.flush()
    while not isinstance(file, _dafs.RawFile):
        if isinstance(file, File):
            return file._file
        if isinstance(file, io.TextIOBase):
            file = file.buffer
        elif isinstance(file, io.BufferedIOBase):
            file = file.raw
        else:
            raise TypeError("no file of a dafs client")
    return file


class File(io.RawIOBase):
    """An unbuffered binary file. Beside what every such file of Python has: reads and writes at an
    offset, for any number of threads at a time; appends; locks; `commit`."""

    def __init__(self, file, name, mode, access, appends):
        self._file = file
        self.name = name
        self.mode = mode
        self._access = access
        self._appends = appends
        self._position = 0
        # The position belongs to one call at a time. In the handler of a signal that comes in it only
        # appends go on, which need no position.
        self._lock = threading.RLock()
        self._born = _forks
        self._append_bytes_max = None
        # Why nobody knows what the last append has done.
        self._doubt = None
        self._was_interrupted = False
        if appends:
            self._position = file.stat().st_size

    def __repr__(self):
        return f"<dafs.File name={self.name!r} mode={self.mode!r}>"

    def readable(self):
        self._check()
        return "r" in self._access

    def writable(self):
        self._check()
        return "w" in self._access

    def seekable(self):
        self._check()
        return True

    def _check(self):
        if self.closed:
            raise ValueError("I/O operation on closed file")

    @property
    def _own_lock(self):
        if self._born != _forks:
            # Another thread of the parent may have had the lock, and nobody would release it here.
            # A file that the parent has opened says so by itself.
            self._file.stat()
        return self._lock

    @property
    def _turn(self):
        lock = self._own_lock
        if lock._is_owned():
            # The call that was interrupted moves the position when it is done.
            raise RuntimeError("reentrant call: a signal's handler uses the position of the same file")
        return lock

    def _may_read(self):
        if not self.readable():
            raise io.UnsupportedOperation("not readable")

    def _may_write(self):
        if not self.writable():
            raise io.UnsupportedOperation("not writable")

    def tell(self):
        self._check()
        return self._position

    def seek(self, offset, whence=os.SEEK_SET):
        self._check()
        with self._turn:
            if whence == os.SEEK_CUR:
                offset += self._position
            elif whence == os.SEEK_END:
                offset += self._file.stat().st_size
            elif whence != os.SEEK_SET:
                raise ValueError(f"invalid whence: {whence}")
            if offset < 0:
                raise OSError(22, "the position would be before the start of the file")
            self._position = offset
            return offset

    def readinto(self, target):
        self._may_read()
        with self._turn:
            position = self._position
            count = self._file.read_into(target, position)
            # Also when a handler has appended meanwhile: the next read goes on where this one ends.
            self._position = position + count
            return count

    def read(self, size=-1):
        if size is None or size < 0:
            return self.readall()
        self._may_read()
        with self._turn:
            position = self._position
            data = self._file.read(size, position)
            self._position = position + len(data)
            return data

    def readall(self):
        self._may_read()
        with self._turn:
            parts = []
            position = self._position
            while True:
                left = max(self._file.stat().st_size - position, 0)
                # One more than there should be tells whether the file has grown. A long object that
                # is not filled to its end would be copied, so there that byte is asked for alone.
                # Files of /proc say that they are empty, and give a number to a read at its start alone.
                more = (1 if left else _UNTOLD_BYTES) if left <= _COPY_BYTES_MAX else 0
                data = self._file.read(left + more, position)
                position += len(data)
                parts.append(data)
                if len(data) == left and not more:
                    data = self._file.read(1, position)
                    position += len(data)
                    parts.append(data)
                    left = 0
                self._position = position
                if len(data) <= left:
                    return b"".join(filter(None, parts))

    def write(self, source):
        self._may_write()
        if not self._appends:
            with self._turn:
                count = self._file.write(source, self._position)
                self._position += count
                return count
        # In as many pieces as the server wants. Nothing is called behind the last `except`, so that no
        # handler runs there.
        is_known = True
        try:
            with self._own_lock, memoryview(source) as whole, whole.cast("B") as view:
                self._check_doubt()
                piece = max(len(view), 1)
                if piece > _APPEND_BYTES_SURE:
                    piece = min(piece, self._append_max())
                done = 0
                while done < len(view):
                    part = view[done : done + piece]
                    is_known = False
                    try:
                        self._position = self._file.append(part) + len(part)
                    except OSError as error:
                        if _is_of_handler(error):
                            raise
                        if _is_in_doubt(error):
                            self._doubt = error
                        if done == 0:
                            is_known = True
                            raise
                        # The next call tells what was wrong.
                        break
                    done += len(part)
        except BaseException:
            if not is_known:
                self._was_interrupted = True
            raise
        return done

    def _check_doubt(self):
        if self._doubt is None and self._was_interrupted:
            text = "a signal has interrupted an append: nobody knows what of it was done"
            self._doubt = _dafs.InDoubtError(errno.EIO, text)
        if self._doubt is not None:
            raise self._doubt

    def _append_max(self):
        if self._append_bytes_max is None:
            self._append_bytes_max = self._file.append_bytes_max() or _APPEND_BYTES_SURE
        return self._append_bytes_max

    def truncate(self, size=None):
        self._may_write()
        with self._turn:
            size = self._position if size is None else size
            self._file.truncate(size)
            return size

    def close(self):
        if self.closed:
            return
        try:
            super().close()
        finally:
            try:
                self._file.close()
            except _dafs.ForkedError:
                # It is the parent's to close.
                pass

    # Beside what other files have.

    def pread(self, size, offset):
        """Up to `size` bytes from `offset`; fewer only at the end of the file."""
        return self._file.read(size, offset)

    def pread_into(self, target, offset):
        """Fills any writable buffer from `offset`, or as far as the file goes; returns the bytes read."""
        return self._file.read_into(target, offset)

    def pwrite(self, source, offset):
        """Writes all of a buffer at `offset`."""
        return self._file.write(source, offset)

    def append(self, source):
        """Writes all of a buffer at the end of the file, whole and stable; returns where that was."""
        return self._file.append(source)

    def commit(self, offset=0, length=0):
        """Makes what was written survive a crash of the server."""
        self._file.commit(offset, length)

    def hint(self, offset=0, length=0, *, pattern=None, hint=None):
        """Tells the server how the file, or `length` bytes of it from `offset` on (0: all), will be used.

        `pattern` is about the whole file: "sequential" or "random". `hint` is about the range: "done" lets
        it leave the server's cache, "cached" lets it leave first because this program keeps it itself,
        "again" takes that back. A pair of weights for further reads and writes, from 1 (surely not) to 7
        (surely) or 0, says it more finely.
        """
        self._file.hint(offset, length, pattern, hint)

    def prefetch(self, offset=0, length=0):
        """Asks the server to read a range ahead; it reads a bounded part, 16 MiB."""
        self._file.prefetch(offset, length)

    def set_hint(self, hint=None):
        """Sets the `hint` that rides on each later read and write, about the bytes that it moves."""
        self._file.set_hint(hint)

    def stat(self):
        """Attributes, also after the last name is gone."""
        return self._file.stat()

    def lock(
        self, exclusive=True, offset=0, length=None, timeout=None, persist=False,
        auto_recovery=False,
    ):
        """Locks a range; waits for others for `timeout` seconds, then raises LockedError.

        When the holder of a lock with `persist` fails, the next one gets BrokenLockError. With
        `auto_recovery` the server undoes all writes under the lock instead, also after `abort_lock`;
        `unlock` keeps them. Such a lock is exclusive and of the whole file.
        """
        self._file.lock(exclusive, offset, length, timeout, persist, auto_recovery)

    def try_lock(
        self, exclusive=True, offset=0, length=None, persist=False, auto_recovery=False
    ):
        """Locks a range as `lock` does, or raises LockedError at once."""
        self._file.try_lock(exclusive, offset, length, persist, auto_recovery)

    def abort_lock(self):
        """Undoes all writes since the file was locked with `auto_recovery`, and unlocks it."""
        self._file.abort_lock()

    def link(self, target):
        """Gives the file another name, or its first."""
        self._file.link(target)

    def lock_for_repair(self, offset=0, length=None):
        """Takes over what the holder of a broken lock left behind; `unlock` ends the repair."""
        self._file.lock_for_repair(offset, length)

    def unlock(self, offset=0, length=None):
        """Gives up what this file has locked in a range."""
        self._file.unlock(offset, length)


def _is_in_doubt(error):
    """Whether what failed may have been done all the same."""
    if isinstance(error, _dafs.NotSentError):
        return False
    return isinstance(error, (_dafs.InDoubtError, TimeoutError))


def _is_of_handler(error):
    """Whether a signal's handler has raised this, and not the call that it came in."""
    return error.__traceback__.tb_next is not None
