"""Files with a position, on top of `_dafs.RawFile`."""

from __future__ import annotations

import io
import os
import threading

from . import _dafs


class CompletionGroup(_dafs.CompletionGroup):
    """Operations whose results are fetched together, by whichever thread asks.

    Operations are submitted with a `File` or a raw file; memory is used in place wherever that can be
    done, and cannot be resized until the completion of its operation has been fetched.
    """

    def read_into(self, file, target, offset, user_data=None):
        return super().read_into(_raw(file), target, offset, user_data)

    def write(self, file, source, offset, user_data=None):
        return super().write(_raw(file), source, offset, user_data)

    def commit(self, file, offset=0, length=0, user_data=None):
        return super().commit(_raw(file), offset, length, user_data)


def _raw(file):
    """The raw file of whatever Client.open has given."""
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
        # The position belongs to one call at a time.
        self._turn = threading.Lock()
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
            count = self._file.read_into(target, self._position)
            self._position += count
            return count

    def read(self, size=-1):
        if size is None or size < 0:
            return self.readall()
        self._may_read()
        with self._turn:
            data = self._file.read(size, self._position)
            self._position += len(data)
            return data

    def readall(self):
        self._may_read()
        with self._turn:
            parts = []
            while True:
                # One more than there should be tells whether the file has grown.
                left = max(self._file.stat().st_size - self._position, 0)
                data = self._file.read(left + 1, self._position)
                self._position += len(data)
                parts.append(data)
                if len(data) <= left:
                    return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, source):
        self._may_write()
        with self._turn:
            if self._appends:
                count = memoryview(source).nbytes
                self._position = self._file.append(source) + count
                return count
            count = self._file.write(source, self._position)
            self._position += count
            return count

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

    def stat(self):
        """Attributes, also after the last name is gone."""
        return self._file.stat()

    def lock(self, exclusive=True, offset=0, length=None, timeout=None, persist=False):
        """Locks a range; waits for others for `timeout` seconds, then raises LockedError."""
        self._file.lock(exclusive, offset, length, timeout, persist)

    def try_lock(self, exclusive=True, offset=0, length=None):
        """Locks a range, or raises LockedError at once."""
        self._file.try_lock(exclusive, offset, length)

    def lock_for_repair(self, offset=0, length=None):
        """Takes over what the holder of a broken lock left behind; `unlock` ends the repair."""
        self._file.lock_for_repair(offset, length)

    def unlock(self, offset=0, length=None):
        """Gives up what this file has locked in a range."""
        self._file.unlock(offset, length)
