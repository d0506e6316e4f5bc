"""Files of a DAFS server.

    >>> import dafs
    >>> with dafs.connect("dafs://server/") as client:          # doctest: +SKIP
    ...     with client.open("file", "rb") as file:
    ...         head = file.read(100)

`connect` gives a `Client`: one session, for all threads. `Client.open` is as `open` of Python; with
`buffering=0` it gives a `File`, which has positional reads and writes, appends and locks too.
`CompletionGroup` keeps many operations in flight, `dafs.aio` does that for asyncio, `dafs.fsspec` is the
file system for fsspec.

Errors of the server are `OSError` and its kinds. A `Client` that is used in a forked child opens a
session of its own there; files and groups must be opened again, else they raise `ForkedError`.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import time

from ._dafs import (
    BrokenLockError,
    Buffer,
    Completion,
    DirEntry,
    ForkedError,
    InDoubtError,
    LockedError,
    NotSentError,
    Registration,
    Stat,
    WritesLostError,
    __version__,
)
from ._dafs import Client as _Client
from ._dafs import read_parts as _read_parts
from ._dafs import set_limit as _set_limit
from ._file import Batch, Chain, CompletionGroup, File, _raw

__all__ = [
    "Batch",
    "BrokenLockError",
    "Buffer",
    "Chain",
    "Client",
    "Completion",
    "CompletionGroup",
    "DirEntry",
    "File",
    "ForkedError",
    "InDoubtError",
    "LockedError",
    "NotSentError",
    "Registration",
    "Stat",
    "WritesLostError",
    "__version__",
    "connect",
    "within",
]

# Bytes that a buffered file fetches at a time.
BUFFER_BYTES = 1 << 18

# Bytes of a file that are asked for without opening it.
SHORT_BYTES = 1 << 13

# The options of `connect`.
_OPTIONS = (
    "transport",
    "password",
    "deadline",
    "recovery",
    "connect_timeout",
    "checksums",
    "client_id",
    "fence_id",
    "cache_bytes",
)

# With these errors a server says that nothing can be at a path.
_NO_SUCH_PATH = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL)


class Client(_Client):
    """A session with a server, shared by all threads. Relative paths start at the path of the URL."""

    def __new__(cls, url, **options):
        for key in options:
            if key not in _OPTIONS:
                raise TypeError(f"dafs.connect has no option {key!r}; there are: {', '.join(_OPTIONS)}")
        client = super().__new__(cls, url, **options)
        client._arguments = (url, options)
        return client

    def __init__(self, url, **options):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def __reduce__(self):
        # Another process connects by itself, as the spawn method of multiprocessing needs it.
        url, options = self._arguments
        return _reconnect, (type(self), url, options)

    def __repr__(self):
        state = " closed" if self.closed else ""
        return f"<dafs.Client {self.url}{state}>"

    def open(
        self,
        path,
        mode="r",
        buffering=-1,
        encoding=None,
        errors=None,
        newline=None,
        *,
        permissions=None,
        share_key=None,
        strict_key=False,
        deny=None,
        deny_delete=False,
        pattern=None,
        hint=None,
    ):
        """Opens a file as `open` of Python does, "x" and "+" and "a" included.

        A `share_key`, a number of 64 bits, excludes opens under another key while the file is open.
        With `strict_key` it also excludes everybody without the key, and a file that is open without it.
        `deny` ("read", "write" or "both") denies others these accesses while the file is open, and
        `deny_delete` keeps them from removing or replacing it. An open that conflicts with one of
        others raises an `OSError` with `errno.EBUSY`.
        Appends ("a") go to the end of the file at that moment, also when others append too. `pattern` and
        `hint` are as in `File.hint`; the hint rides on each read and write.
        """
        letters = _letters(mode)
        _check_text(letters, buffering, encoding, errors, newline)
        (kind,) = letters & set("rwxa")
        plus = "+" in letters
        access = "rw" if plus else ("r" if kind == "r" else "w")
        create = {"r": "never", "w": "if-missing", "a": "if-missing", "x": "new"}[kind]
        if permissions is None and kind != "r":
            permissions = 0o666 & ~_umask()
        raw = self.open_raw(
            path, access, create, kind == "w", None if kind == "r" else permissions,
            share_key=share_key, strict_key=strict_key, deny=deny, deny_delete=deny_delete,
            pattern=pattern, hint=hint,
        )
        file = File(raw, path, mode, access, kind == "a")
        return _buffered(file, access, "b" in letters, buffering, encoding, errors, newline)

    def open_unlinked(
        self,
        directory=".",
        mode="w+b",
        buffering=-1,
        encoding=None,
        errors=None,
        newline=None,
        *,
        permissions=None,
    ):
        """Makes and opens a file without a name, in the file system of a directory.

        `mode` is "w" or "w+", with or without "b". `link` gives the file a name, at once and whole: others
        never see it half written. Without a name it is gone when it is closed.
        """
        letters = _letters(mode)
        if "w" not in letters:
            raise ValueError(f"invalid mode for a file without a name: {mode!r}")
        _check_text(letters, buffering, encoding, errors, newline)
        access = "rw" if "+" in letters else "w"
        if permissions is None:
            permissions = 0o666 & ~_umask()
        raw = self.open_unlinked_raw(directory, access, permissions)
        file = File(raw, directory, mode, access, False)
        return _buffered(file, access, "b" in letters, buffering, encoding, errors, newline)

    def link(self, source, target):
        """Gives a file another name. `source` is a path, or an open file, such as one of
        `open_unlinked`, of which all that was written is sent first."""
        if isinstance(source, io.IOBase):
            _raw(source).link(target)
        else:
            super().link(source, target)

    def read_file(self, path):
        """All of a file. A short one costs one round trip, without an open."""
        (content,) = self._short_files([path])
        if isinstance(content, Exception):
            raise content
        return self._long_file(path) if content is None else content

    def create_file(self, path, content, *, permissions=None):
        """Makes a file with `content`, which must not exist. Short content costs one round trip."""
        permissions = 0o666 & ~_umask() if permissions is None else permissions
        self.create_raw(path, bytes(content), permissions)

    def read_files(self, paths):
        """The contents of many files, in the order of `paths`; in place of one that cannot be read its
        exception. Requests for many short files are in flight together, and open none."""
        paths = list(paths)
        contents = self._short_files(paths)
        for place, path in enumerate(paths):
            if contents[place] is None:
                try:
                    contents[place] = self._long_file(path)
                except OSError as error:
                    contents[place] = error
        return contents

    def _short_files(self, paths):
        """The content or the exception of each file, `None` for a long one."""
        return [_whole(found) for found in _read_parts(self, [(path, 0, SHORT_BYTES) for path in paths])]

    def _long_file(self, path):
        with self.open(path, "rb", buffering=0) as file:
            return file.readall()

    def listdir(self, path="."):
        """The names in a directory."""
        return [entry.name for entry in self.scandir(path)]

    def exists(self, path):
        """Whether there is something at a path."""
        try:
            self.stat(path)
        except ValueError:
            if self.closed:
                raise
            return False
        except OSError as error:
            # Another file system that the server has mounted there is something.
            if error.errno == errno.EXDEV:
                return True
            # A server that does not answer says nothing about a name.
            if error.errno not in _NO_SUCH_PATH:
                raise
            return False
        return True

    def makedirs(self, path, mode=0o777, exist_ok=False):
        """Makes a directory and those above it that are missing."""
        path = os.fspath(path)
        slash, dot = (b"/", b".") if isinstance(path, bytes) else ("/", ".")
        path = path.rstrip(slash) or path[:1]
        # From the last directory upwards to one whose parent exists, and then down again.
        missing = [path]
        while missing:
            path = missing[-1]
            try:
                self.mkdir(path, mode & ~_umask())
            except FileNotFoundError:
                head = path.rpartition(slash)[0].rstrip(slash)
                if not head:
                    raise
                if path.endswith(slash + dot):
                    missing.pop()
                missing.append(head)
                continue
            except OSError:
                # It is there, perhaps as the root, which cannot be made.
                if (not exist_ok and len(missing) == 1) or not self._is_directory(path):
                    raise
            missing.pop()

    def _is_directory(self, path):
        try:
            return self.stat(path).st_mode & 0o170000 == 0o040000
        except OSError:
            return False

    def walk(self, top=".", onerror=None):
        """The directories of a tree, from the top down, as `os.walk` yields them: a path, the names of
        directories in it, which the caller may cut, and all other names. Links are not followed. Directories
        that cannot be listed are left out, and `onerror` is called with the error."""
        top = os.fsdecode(top)
        stack = [top]
        while stack:
            path = stack.pop()
            directories, others = [], []
            try:
                for entry in self.scandir(path, follow_symlinks=path == top):
                    (directories if entry.is_dir() else others).append(entry.name)
            except OSError as error:
                if onerror is not None:
                    onerror(error)
                continue
            yield path, directories, others
            stack.extend(os.path.join(path, name) for name in reversed(directories))

    def rmtree(self, path):
        """Removes a directory with all that is in it. Links are removed, and not followed. Others must not put
        links in the place of directories meanwhile, for each name is looked up by its path."""
        emptied, stack = [], [os.fsdecode(path)]
        while stack:
            path = stack.pop()
            emptied.append(path)
            for entry in list(self.scandir(path, follow_symlinks=False)):
                below = os.path.join(path, entry.name)
                if entry.is_dir():
                    stack.append(below)
                else:
                    self.unlink(below)
        for path in reversed(emptied):
            self.rmdir(path)

    def chmod(self, path, mode, *, follow_symlinks=True):
        """Changes permission bits."""
        self.set_attributes(path, mode=mode, follow_symlinks=follow_symlinks)

    def utime(self, path, times=None, *, ns=None, follow_symlinks=True):
        """Changes the times of access and change: pairs of seconds or of nanoseconds, both now without."""
        if times is not None and ns is not None:
            raise ValueError("the times are given in seconds or in nanoseconds")
        if times is not None:
            ns = tuple(int(each * 1_000_000_000) for each in times)
        elif ns is None:
            ns = (time.time_ns(),) * 2
        self.set_attributes(path, times_ns=ns, follow_symlinks=follow_symlinks)

    def completion_group(self):
        """A group for asynchronous operations."""
        return CompletionGroup(self)

    def batch(self):
        """An empty batch of reads and writes."""
        return Batch(self)

    def chain(self):
        """An empty chain of requests."""
        return Chain(self)


def _whole(found):
    """A part that was read, as the content of a file: `None` if the file is longer."""
    if isinstance(found, Exception):
        return found
    content, is_end = found
    return content if is_end else None


def _letters(mode):
    """The letters of a mode of `open`."""
    letters = set(mode)
    if len(letters) != len(mode) or len(letters & set("rwxa")) != 1 or letters - set("rwxabt+"):
        raise ValueError(f"invalid mode: {mode!r}")
    return letters


def _check_text(letters, buffering, encoding, errors, newline):
    binary = "b" in letters
    if binary and ("t" in letters or encoding or errors or newline):
        raise ValueError("a binary file has no encoding, errors or newline")
    if not binary and buffering == 0:
        raise ValueError("text cannot be unbuffered")


def _buffered(file, access, binary, buffering, encoding, errors, newline):
    """A file as `open` of Python gives it, on an unbuffered one."""
    if buffering == 0:
        return file
    try:
        size = BUFFER_BYTES if buffering in (-1, 1) else buffering
        kind = {"rw": io.BufferedRandom, "r": io.BufferedReader, "w": io.BufferedWriter}[access]
        buffered = kind(file, size)
        if binary:
            return buffered
        text = io.TextIOWrapper(
            buffered, encoding, errors, newline, line_buffering=buffering == 1
        )
        text.mode = file.mode
        return text
    except BaseException:
        file.close()
        raise


def connect(url, **options):
    """Connects to the server of `dafs://[user@]host[:port]/path`.

    Options: `transport` ("auto", "shm" for shared memory, "verbs" for an RDMA device, "iwarp" for TCP),
    `password`, `deadline` (seconds for one operation, None for no limit), `recovery` (seconds for
    replacing a lost connection, None for not at all), `connect_timeout`, `checksums`, `client_id`, `fence_id`, `cache_bytes` (memory
    for file content that the server lets this client keep; 0 for none).
    """
    return Client(url, **options)


@contextlib.contextmanager
def within(seconds):
    """Limits the blocking calls that this thread makes inside of the `with`, all together.

    A call that is not over by then raises `NotSentError` if the server has certainly not done it, and
    `TimeoutError` if it may have.
    """
    start = time.monotonic()
    before = _set_limit(seconds)
    try:
        if before is not None and before < seconds:
            _set_limit(before)
        yield
    finally:
        # The outer limit ends when it would have ended.
        left = None if before is None else max(before - (time.monotonic() - start), 0.0)
        _set_limit(left)


def _reconnect(kind, url, options):
    return kind(url, **options)


def _umask():
    with open("/proc/self/status", "rb") as status:
        for line in status:
            if line.startswith(b"Umask:"):
                return int(line.split()[1], 8)
    return 0o022
