"""The file system `dafs://` for fsspec, and so for pandas, pyarrow, zarr and others.

    >>> import pandas
    >>> pandas.read_parquet("dafs://server/tree/table.parquet")     # doctest: +SKIP
"""

from __future__ import annotations

import datetime
import errno
import io
import os
import posixpath
import shutil
import stat as _stat
import threading
import time
from urllib.parse import quote, unquote, urlsplit

from fsspec import AbstractFileSystem
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.core import has_magic
from fsspec.utils import stringify_path

import dafs

from . import _many
from ._path import DirectoryPath as _DirectoryPath
from ._path import asked as _asked
from ._path import target as _target

_KINDS = {_stat.S_IFDIR: "directory", _stat.S_IFREG: "file", _stat.S_IFLNK: "link"}

# The server lists such a name and does not lead into it: another file system is mounted there.
_MOUNT_POINT = "mount point"

# Bytes that are copied at a time.
_COPY_BYTES = 1 << 22

_OPTIONS = dafs._OPTIONS

# Symbolic links followed from one path.
_LINKS_MAX = 40


class DafsFileSystem(AbstractFileSystem):
    """Files of one server. Paths are absolute, from the server's root.

    Parameters
    ----------
    host, port, user
        The server, as in the URL. An IPv6 address may have a zone (`fe80::1%eth0`). fsspec takes the `::` of a
        URL for a chain of file systems: such an address is given as `host`.
    auto_mkdir
        Make the directories above a file that is written, where they are missing: programs that know
        object stores rely on it.
    options
        All that `dafs.connect` takes.

    The first use connects, so a file system can be made, and pickled, where no server is in reach.
    """

    protocol = "dafs"
    root_marker = "/"

    def __init__(self, host="127.0.0.1", port=None, user=None, auto_mkdir=True, **options):
        own = ("asynchronous", "loop", "batch_size", "use_listings_cache", "skip_instance_cache")
        super().__init__(**{key: options.pop(key) for key in own if key in options})
        for key in ("listings_expiry_time", "max_paths"):
            options.pop(key, None)
        for key in options:
            if key not in _OPTIONS:
                raise TypeError(f"DafsFileSystem has no option {key!r}; there are: {', '.join(_OPTIONS)}")
        host = f"[{host}]" if ":" in host else host
        self._server = (f"{quote(user, safe='')}@" if user else "") + host + (f":{port}" if port else "")
        self.auto_mkdir = auto_mkdir
        self._options = options
        self._client = None
        self._connecting = threading.Lock()

    @property
    def client(self):
        """The session, which the first use makes."""
        if self._client is None:
            with self._connecting:
                if self._client is None:
                    self._client = dafs.connect(f"dafs://{self._server}/", **self._options)
        return self._client

    def __repr__(self):
        return f"<dafs.fsspec.DafsFileSystem dafs://{self._server}/>"

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        path = stringify_path(path)
        if isinstance(path, _DirectoryPath):
            return path
        if path.startswith("dafs://"):
            path = path[len("dafs://") :].partition("/")[2]
        elif path.startswith("dafs::"):
            path = path[len("dafs::") :]
        parts = [part for part in path.split("/") if part not in ("", ".")]
        kind = _DirectoryPath if parts and path.rpartition("/")[2] in ("", ".") else str
        return kind("/" + "/".join(parts))

    def _given(self, path):
        """As `_strip_protocol`, for changes of names: the empty path is not the root there."""
        if stringify_path(path) == "":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._strip_protocol(path)

    def _named(self, path):
        """As `_given`, for what is moved or removed: a tree is not known by a name in it."""
        stripped = self._given(path)
        if stripped.rpartition("/")[2] == "..":
            raise OSError(errno.EINVAL, "a path that ends in .. is not moved or removed", path)
        return stripped

    @staticmethod
    def _get_kwargs_from_urls(path):
        if not path.startswith("dafs://"):
            return {}
        parts = urlsplit(path)
        found = {"host": parts.hostname, "port": parts.port}
        found["user"] = parts.username and unquote(parts.username)
        found["password"] = parts.password and unquote(parts.password)
        return {key: value for key, value in found.items() if value is not None}

    def unstrip_protocol(self, name):
        return f"dafs://{self._server}{self._strip_protocol(name)}"

    @property
    def fsid(self):
        return f"dafs://{self._server}"

    # Names.

    def _entry(self, path, found):
        kind = _KINDS.get(_stat.S_IFMT(found.st_mode), "other")
        return {
            "name": path,
            "size": found.st_size,
            "type": kind,
            "mode": found.st_mode,
            "uid": found.st_uid,
            "gid": found.st_gid,
            "ino": found.st_ino,
            "nlink": found.st_nlink,
            "created": found.st_ctime,
            "mtime": found.st_mtime,
            "change": found.change,
            "islink": kind == "link",
        }

    def _followed(self, path, found):
        """The target of a symbolic link, under its name; itself when it leads nowhere."""
        if found is None or _stat.S_ISLNK(found.st_mode):
            try:
                entry = self._entry(path, self.client.stat(_asked(path)))
                entry["islink"] = True
                return entry
            except OSError as error:
                if found is None:
                    kind = _MOUNT_POINT if error.errno == errno.EXDEV else "other"
                    return {"name": path, "size": None, "type": kind}
        return self._entry(path, found)

    def _listed(self, path, found):
        """As `_followed`, but a link to a directory stays a link: who walks a tree stays in it, and
        comes to an end."""
        entry = self._followed(path, found)
        if entry.get("islink"):
            if entry["type"] == "directory":
                entry["type"] = "link"
            try:
                entry["destination"] = self.client.readlink(path)
            except OSError:
                # It is gone, or something else by now.
                pass
        return entry

    def info(self, path, **kwargs):
        path = self._strip_protocol(path)
        found = self.client.stat(_asked(path), follow_symlinks=False)
        return self._followed(str(path), found)

    def ls(self, path, detail=True, **kwargs):
        path = self._strip_protocol(path)
        info = self.info(path)
        if info["type"] == "directory":
            top = path.rstrip("/")
            infos = [
                self._listed(f"{top}/{entry.name}", entry.stat)
                for entry in self.client.scandir(path)
            ]
            if kwargs.get("without_mount_points"):
                infos = [info for info in infos if info["type"] != _MOUNT_POINT]
            infos.sort(key=lambda info: info["name"])
        else:
            infos = [info]
        return infos if detail else [info["name"] for info in infos]

    def walk(self, path, maxdepth=None, topdown=True, on_error="omit", **kwargs):
        # A file system mounted on the server is neither a file nor a directory of this one.
        kwargs["without_mount_points"] = True
        yield from super().walk(path, maxdepth, topdown, on_error, **kwargs)

    def exists(self, path, **kwargs):
        try:
            return self.client.exists(_asked(self._strip_protocol(path)))
        except PermissionError:
            return False

    def lexists(self, path, **kwargs):
        try:
            self.client.stat(_asked(self._strip_protocol(path)), follow_symlinks=False)
        except OSError as error:
            if error.errno == errno.EXDEV:
                return True
            if error.errno not in dafs._NO_SUCH_PATH:
                raise
            return False
        return True

    def mkdir(self, path, create_parents=True, **kwargs):
        path = self._strip_protocol(path)
        if self.client.exists(path):
            raise FileExistsError(17, "there is something of that name already", path)
        if create_parents:
            self.client.makedirs(path, exist_ok=True)
        else:
            self.client.mkdir(path)

    def makedirs(self, path, exist_ok=False):
        self.client.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path):
        self.client.rmdir(_asked(self._named(path)))

    def _is_directory(self, path, found=None):
        found = found or self.client.stat(_asked(path), follow_symlinks=False)
        return _stat.S_ISDIR(found.st_mode)

    def _rm(self, path):
        path = self._named(path)
        if self._is_directory(path):
            self.client.rmdir(_asked(path))
        else:
            self.client.unlink(_asked(path))

    def rm_file(self, path):
        self.client.unlink(_asked(self._named(path)))

    def rm(self, path, recursive=False, maxdepth=None):
        paths = path if isinstance(path, (list, tuple)) else [path]
        for each in map(self._named, paths):
            found = sorted(self.glob(each)) if has_magic(each) else [each]
            if not found:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), each)
            for top in found:
                if recursive:
                    self._empty(top, maxdepth)
                self._rm(top)

    def _empty(self, top, maxdepth):
        """Removes what is in a directory, down to a depth. Symbolic links are never followed."""
        if not self._is_directory(top):
            return
        # Directories to be removed, each after what is in it.
        found, stack = [], [(top, 1)]
        while stack:
            path, depth = stack.pop()
            try:
                entries = self.client.scandir(path, follow_symlinks=False)
                entries = [(f"{path.rstrip('/')}/{entry.name}", entry.stat) for entry in entries]
            except NotADirectoryError:
                # Another client has put something else there meanwhile.
                entries = []
            for below, stat in entries:
                if not self._is_directory(below, stat):
                    self.client.unlink(below)
                else:
                    found.append(below)
                    if maxdepth is None or depth < maxdepth:
                        stack.append((below, depth + 1))
        for path in reversed(found):
            self.client.rmdir(path)

    def mv(self, path1, path2, recursive=None, maxdepth=None, **kwargs):
        # One request where a name is moved to a name; patterns and lists are copied and removed.
        simple = isinstance(path1, (str, os.PathLike)) and isinstance(path2, (str, os.PathLike))
        if not simple or maxdepth is not None or has_magic(os.fspath(path1)):
            super().mv(path1, _target(path2), recursive=recursive, maxdepth=maxdepth, **kwargs)
            return
        source, target = self._named(path1), self._given(path2)
        if source == target:
            # Nothing is to be done, if there is such a thing.
            self.info(source)
            self.info(target)
            return
        if isinstance(target, _DirectoryPath) or self.isdir(target):
            target = target.rstrip("/") + "/" + source.rpartition("/")[2]
        try:
            self.client.rename(_asked(source), target)
        except FileNotFoundError:
            if not self.auto_mkdir:
                raise
            # Nothing is made for a source that is missing.
            self.client.stat(_asked(source), follow_symlinks=False)
            self.makedirs(self._parent(target), exist_ok=True)
            self.client.rename(_asked(source), target)

    def copy(self, path1, path2, *arguments, **options):
        super().copy(path1, _target(path2), *arguments, **options)

    def get(self, rpath, lpath, recursive=False, callback=DEFAULT_CALLBACK, maxdepth=None, **kwargs):
        # The paths are those of fsspec; the copies are made afterwards, many at a time.
        pairs = []
        super().get(rpath, lpath, recursive=recursive, maxdepth=maxdepth, _pairs=pairs)
        given = rpath if isinstance(rpath, (list, tuple)) else [rpath]
        named = {path for path, _ in pairs} if not recursive or isinstance(lpath, list) else set()
        tops = named | {self._strip_protocol(path) for path in given}
        _many.get(self, pairs, tops, callback, kwargs)

    def get_file(self, rpath, lpath, callback=DEFAULT_CALLBACK, outfile=None, **kwargs):
        pairs = kwargs.pop("_pairs", None)
        if pairs is None:
            super().get_file(rpath, lpath, callback=callback, outfile=outfile, **kwargs)
        else:
            pairs.append((self._strip_protocol(rpath), lpath))

    def put(self, lpath, rpath, *arguments, **options):
        super().put(lpath, _target(rpath), *arguments, **options)

    def put_file(self, lpath, rpath, callback=DEFAULT_CALLBACK, mode="overwrite", **kwargs):
        if os.path.isdir(lpath):
            self.makedirs(rpath, exist_ok=True)
            return
        with open(lpath, "rb") as source:
            callback.set_size(os.fstat(source.fileno()).st_size)
            # To its end, whatever its size is said to be; nothing is made for what cannot be read.
            part = source.read(self.blocksize)
            self.makedirs(self._parent(os.fspath(rpath)), exist_ok=True)
            with self.open(rpath, "xb" if mode == "create" else "wb", **kwargs) as target:
                while part:
                    callback.relative_update(target.write(part))
                    part = source.read(self.blocksize)

    def cp_file(self, path1, path2, **kwargs):
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(source):
            self.makedirs(target, exist_ok=True)
            return
        with self.client.open(_asked(source), "rb", 0) as old:
            if self._intrans:
                with self.open(target, "wb") as new:
                    shutil.copyfileobj(old, new, _COPY_BYTES)
                return
            # Not cut before it is certain that this is another file.
            with self._made(target, "ab", 0) as new:
                if _identity(old.stat()) == _identity(new.stat()):
                    raise shutil.SameFileError(f"{source} and {target} are the same file")
                new.truncate(0)
                at = 0
                while part := old.read(_COPY_BYTES):
                    at += new.pwrite(part, at)

    def created(self, path):
        return self._time(self.info(path)["created"])

    def modified(self, path):
        return self._time(self.info(path)["mtime"])

    @staticmethod
    def _time(seconds):
        return datetime.datetime.fromtimestamp(seconds, tz=datetime.timezone.utc)

    def touch(self, path, truncate=True, **kwargs):
        path = self._strip_protocol(path)
        if self._intrans and (truncate or not self.client.exists(path)):
            self.open(path, "wb").close()
            return
        with self._made(path, "wb" if truncate else "ab", 0):
            pass
        if not truncate:
            now = time.time_ns()
            self.client.set_attributes(path, times_ns=(now, now))

    def ukey(self, path):
        """Differs after every change of the file."""
        info = self.info(path)
        return f"{info['ino']}-{info['change']}"

    # Content.

    def _made(self, path, mode, buffering):
        """An open file. Missing directories above it are made first if it is to be written."""
        try:
            return self.client.open(_asked(path), mode, buffering)
        except FileNotFoundError:
            if "r" in mode or not self.auto_mkdir:
                raise
            self.makedirs(self._parent(path), exist_ok=True)
            return self.client.open(_asked(path), mode, buffering)

    def _open(
        self, path, mode="rb", block_size=None, autocommit=True, cache_options=None, **kwargs
    ):
        path, mode = self._strip_protocol(path), mode.replace("t", "")
        mode = mode if "b" in mode else mode + "b"
        size = block_size or dafs.BUFFER_BYTES
        if autocommit or "r" in mode:
            return _buffered(self._made(path, mode, 0), size)
        # Appends cannot be taken back without taking back what others have appended since.
        if "a" in mode:
            return _Appending(self._made(path, mode, 0), size)
        if isinstance(path, _DirectoryPath):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if "x" not in mode:
            path = self._end_of_links(path)
        elif self.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        temporary = f"{path}.{os.urandom(8).hex()}.part"
        kind = _HeldBackRandom if "+" in mode else _HeldBack
        file = kind(self._made(temporary, mode, 0), size)
        file.begin(self.client, temporary, path, "x" in mode)
        return file

    def _end_of_links(self, path):
        """The file that is written when this path is: a symbolic link stays what it is."""
        for _ in range(_LINKS_MAX):
            try:
                found = self.client.stat(path, follow_symlinks=False)
            except FileNotFoundError:
                return path
            if self._is_directory(path, found):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            if not _stat.S_ISLNK(found.st_mode):
                return path
            path = posixpath.join(posixpath.dirname(path), self.client.readlink(path))
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)

    def cat_file(self, path, start=None, end=None, **kwargs):
        with self.client.open(_asked(self._strip_protocol(path)), "rb", 0) as file:
            if (start or 0) < 0 or (end or 0) < 0:
                size = _content_bytes(file)
            start = 0 if start is None else (max(size + start, 0) if start < 0 else start)
            if end is None:
                file.seek(start)
                return file.readall()
            end = size + end if end < 0 else end
            return file.pread(max(end - start, 0), start)

    def cat(self, path, recursive=False, on_error="raise", **kwargs):
        paths = self.expand_path(path, recursive=recursive)
        if not isinstance(path, (list, tuple)) and paths == [self._strip_protocol(path)]:
            return self.cat_file(paths[0], **kwargs)
        ranges = [(each, kwargs.get("start"), kwargs.get("end")) for each in paths]
        found = {}
        for each, content in zip(paths, _many.contents(self, ranges)):
            if not isinstance(content, Exception) or on_error == "return":
                found[each] = content
            elif on_error == "raise" and not (
                recursive and _many.has_no_content(self, each, content)
            ):
                raise content
        return found

    def cat_ranges(self, paths, starts, ends, max_gap=None, on_error="return", **kwargs):
        if max_gap is not None:
            raise NotImplementedError("ranges are not merged: leave max_gap out")
        if not isinstance(paths, list):
            raise TypeError("paths is not a list")
        starts, ends = (
            list(each) if hasattr(each, "__iter__") else [each] * len(paths)
            for each in (starts, ends)
        )
        if not len(paths) == len(starts) == len(ends):
            raise ValueError("there are not as many starts and ends as paths")
        found = _many.contents(self, list(zip(paths, starts, ends)))
        if on_error != "return":
            for content in found:
                if isinstance(content, Exception):
                    raise content
        return found

    def tail(self, path, size=1024):
        return self.cat_file(path, -size) if size else b""

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        path, mode = self._strip_protocol(path), "xb" if mode == "create" else "wb"
        if self._intrans:
            with self.open(path, mode) as file:
                file.write(value)
            return
        with self._made(path, mode, 0) as file:
            file.pwrite(value, 0)


def _identity(found):
    """Two names are of one file exactly when these are equal."""
    return found.st_dev, found.st_ino


def _content_bytes(file):
    """How long a file is. Those of /proc say that they are empty."""
    return file.stat().st_size or len(file.pread(_COPY_BYTES, 0))


class _Sized:
    """A file that knows its size: parts of fsspec ask for the size of what they read."""

    @property
    def size(self):
        return _content_bytes(self.raw)


class _Reader(_Sized, io.BufferedReader):
    pass


class _Random(_Sized, io.BufferedRandom):
    pass


class _Appending(io.BufferedWriter):
    """A file that is appended to while a transaction goes on, which has no power over it."""

    def commit(self):
        self.close()

    def discard(self):
        self.close()


class _Held:
    """A file that has its name only when the transaction succeeds."""

    def begin(self, client, temporary, path, is_new):
        self._client = client
        self._temporary = temporary
        self._path = path
        self._is_new = is_new

    def commit(self):
        self.close()
        if self._is_new:
            # Fails when there is something of that name by now, which a rename would replace.
            self._client.link(self._temporary, self._path)
            self._client.unlink(self._temporary)
        else:
            self._client.rename(self._temporary, self._path)

    def discard(self):
        try:
            self.close()
        finally:
            self._client.unlink(self._temporary)


class _HeldBack(_Held, io.BufferedWriter):
    pass


class _HeldBackRandom(_Held, io.BufferedRandom):
    pass


def _buffered(file, size):
    if not file.writable():
        return _Reader(file, size)
    return (_Random if file.readable() else io.BufferedWriter)(file, size)
