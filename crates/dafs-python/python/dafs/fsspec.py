"""The file system `dafs://` for fsspec, and so for pandas, pyarrow, zarr and others.

    >>> import pandas
    >>> pandas.read_parquet("dafs://server/tree/table.parquet")     # doctest: +SKIP
"""

from __future__ import annotations

import datetime
import os
import shutil
import stat as _stat

from fsspec import AbstractFileSystem
from fsspec.utils import stringify_path

import dafs

_KINDS = {_stat.S_IFDIR: "directory", _stat.S_IFREG: "file", _stat.S_IFLNK: "link"}


class DafsFileSystem(AbstractFileSystem):
    """Files of one server. Paths are absolute, from the server's root.

    Parameters
    ----------
    host, port, user
        The server, as in the URL.
    auto_mkdir
        Make the directories above a file that is written, where they are missing: programs that know
        object stores rely on it.
    options
        All that `dafs.connect` takes.
    """

    protocol = "dafs"
    root_marker = "/"

    def __init__(self, host="127.0.0.1", port=None, user=None, auto_mkdir=True, **options):
        own = ("asynchronous", "loop", "batch_size", "use_listings_cache", "skip_instance_cache")
        super().__init__(**{key: options.pop(key) for key in own if key in options})
        for key in ("listings_expiry_time", "max_paths"):
            options.pop(key, None)
        host = f"[{host}]" if ":" in host else host
        self._server = (f"{user}@" if user else "") + host + (f":{port}" if port else "")
        self.auto_mkdir = auto_mkdir
        self.client = dafs.connect(f"dafs://{self._server}/", **options)

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        path = stringify_path(path)
        if path.startswith("dafs://"):
            path = path[len("dafs://") :].partition("/")[2]
        elif path.startswith("dafs::"):
            path = path[len("dafs::") :]
        parts = [part for part in path.split("/") if part not in ("", ".")]
        return "/" + "/".join(parts)

    @staticmethod
    def _get_kwargs_from_urls(path):
        from urllib.parse import urlsplit

        if not path.startswith("dafs://"):
            return {}
        parts = urlsplit(path)
        found = {"host": parts.hostname, "port": parts.port, "user": parts.username}
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
        """What a symbolic link leads to, under its name; itself when it leads nowhere."""
        if found is None or _stat.S_ISLNK(found.st_mode):
            try:
                entry = self._entry(path, self.client.stat(path))
                entry["islink"] = True
                return entry
            except OSError:
                if found is None:
                    return {"name": path, "size": None, "type": "other"}
        return self._entry(path, found)

    def info(self, path, **kwargs):
        path = self._strip_protocol(path)
        return self._followed(path, self.client.stat(path, follow_symlinks=False))

    def ls(self, path, detail=True, **kwargs):
        path = self._strip_protocol(path)
        info = self.info(path)
        if info["type"] == "directory":
            top = path.rstrip("/")
            infos = [
                self._followed(f"{top}/{entry.name}", entry.stat)
                for entry in self.client.scandir(path)
            ]
            infos.sort(key=lambda info: info["name"])
        else:
            infos = [info]
        return infos if detail else [info["name"] for info in infos]

    def exists(self, path, **kwargs):
        return self.client.exists(self._strip_protocol(path))

    def lexists(self, path, **kwargs):
        try:
            self.client.stat(self._strip_protocol(path), follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
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
        self.client.rmdir(self._strip_protocol(path))

    def _rm(self, path):
        path = self._strip_protocol(path)
        if _stat.S_ISDIR(self.client.stat(path, follow_symlinks=False).st_mode):
            self.client.rmdir(path)
        else:
            self.client.unlink(path)

    def rm_file(self, path):
        self.client.unlink(self._strip_protocol(path))

    def rm(self, path, recursive=False, maxdepth=None):
        paths = path if isinstance(path, list) else [path]
        for each in self.expand_path(paths, recursive=recursive, maxdepth=maxdepth)[::-1]:
            self._rm(each)

    def mv(self, path1, path2, recursive=None, maxdepth=None, **kwargs):
        # One request where a name is moved to a name; patterns and lists are copied and removed.
        simple = isinstance(path1, (str, os.PathLike)) and isinstance(path2, (str, os.PathLike))
        if simple and maxdepth is None and not any(c in os.fspath(path1) for c in "*?["):
            target = self._strip_protocol(path2)
            source = self._strip_protocol(path1)
            if self.isdir(target) or os.fspath(path2).endswith("/"):
                target = target.rstrip("/") + "/" + source.rpartition("/")[2]
            if self.auto_mkdir:
                self.makedirs(self._parent(target), exist_ok=True)
            self.client.rename(source, target)
        else:
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)

    def cp_file(self, path1, path2, **kwargs):
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(source):
            self.makedirs(target, exist_ok=True)
            return
        with self.client.open(source, "rb", 0) as old, self._made(target, "wb", 0) as new:
            shutil.copyfileobj(old, new, 1 << 22)

    def created(self, path):
        return self._time(self.info(path)["created"])

    def modified(self, path):
        return self._time(self.info(path)["mtime"])

    @staticmethod
    def _time(seconds):
        return datetime.datetime.fromtimestamp(seconds, tz=datetime.timezone.utc)

    def touch(self, path, truncate=True, **kwargs):
        path = self._strip_protocol(path)
        with self._made(path, "wb" if truncate else "ab", 0):
            pass
        if not truncate:
            import time

            now = time.time_ns()
            self.client.set_attributes(path, times_ns=(now, now))

    def ukey(self, path):
        """Differs after every change of the file."""
        info = self.info(path)
        return f"{info['ino']}-{info['change']}"

    # Content.

    def _made(self, path, mode, buffering):
        """An open file. What is missing above it is made first if it is to be written."""
        try:
            return self.client.open(path, mode, buffering)
        except FileNotFoundError:
            if "r" in mode or not self.auto_mkdir:
                raise
            self.makedirs(self._parent(path), exist_ok=True)
            return self.client.open(path, mode, buffering)

    def _open(
        self, path, mode="rb", block_size=None, autocommit=True, cache_options=None, **kwargs
    ):
        path = self._strip_protocol(path)
        if not autocommit:
            return _Transaction(self, path, mode)
        return self._opened(path, mode, block_size)

    def _opened(self, path, mode, block_size=None):
        mode = mode.replace("t", "")
        file = self._made(path, mode if "b" in mode else mode + "b", block_size or -1)
        # Parts of fsspec ask for the size of what they read.
        if "r" in mode:
            file = _Sized(file)
        return file

    def cat_file(self, path, start=None, end=None, **kwargs):
        with self.client.open(self._strip_protocol(path), "rb", 0) as file:
            if (start or 0) < 0 or (end or 0) < 0 or end is None:
                size = file.stat().st_size
            start = 0 if start is None else (max(size + start, 0) if start < 0 else start)
            end = size if end is None else (size + end if end < 0 else end)
            return file.pread(max(end - start, 0), start)

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        path = self._strip_protocol(path)
        with self._made(path, "xb" if mode == "create" else "wb", 0) as file:
            file.pwrite(value, 0)


class _Wrapper:
    """A file with something more; all else is the file's."""

    def __init__(self, file):
        self._wrapped = file

    def __getattr__(self, name):
        return getattr(self._wrapped, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def __iter__(self):
        return iter(self._wrapped)

    def __next__(self):
        return next(self._wrapped)


class _Sized(_Wrapper):
    """A file that knows its size."""

    @property
    def size(self):
        return self._wrapped.raw.stat().st_size


class _Transaction(_Wrapper):
    """A file that has its name only when the transaction succeeds."""

    def __init__(self, fs, path, mode):
        self._fs = fs
        self._path = path
        self._temporary = f"{path}.{os.urandom(8).hex()}.part"
        super().__init__(fs._opened(self._temporary, mode))

    def commit(self):
        self._fs.client.rename(self._temporary, self._path)

    def discard(self):
        self._fs.client.unlink(self._temporary)
