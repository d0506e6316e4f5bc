from __future__ import annotations

import datetime
import os
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from fsspec import AbstractFileSystem
from typing_extensions import Buffer as _AnyBuffer

from . import Client

_Path = str | os.PathLike[str]

class DafsFileSystem(AbstractFileSystem):
    auto_mkdir: bool
    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int | None = None,
        user: str | None = None,
        auto_mkdir: bool = True,
        *,
        transport: Literal["auto", "shm", "verbs", "iwarp"] = "auto",
        password: str | None = None,
        deadline: float | None = 60.0,
        recovery: float | None = 120.0,
        connect_timeout: float = 10.0,
        checksums: bool = False,
        client_id: str | None = None,
        fence_id: str | None = None,
        cache_bytes: int = 0,
        **storage_options: Any,
    ) -> None: ...
    @property
    def client(self) -> Client: ...
    @property
    def fsid(self) -> str: ...
    def unstrip_protocol(self, name: str) -> str: ...
    def info(self, path: _Path, **kwargs: Any) -> dict[str, Any]: ...
    def ls(self, path: _Path, detail: bool = True, **kwargs: Any) -> list[Any]: ...
    def walk(
        self,
        path: _Path,
        maxdepth: int | None = None,
        topdown: bool = True,
        on_error: Any = "omit",
        **kwargs: Any,
    ) -> Iterator[tuple[str, Any, Any]]: ...
    def exists(self, path: _Path, **kwargs: Any) -> bool: ...
    def lexists(self, path: _Path, **kwargs: Any) -> bool: ...
    def mkdir(self, path: _Path, create_parents: bool = True, **kwargs: Any) -> None: ...
    def makedirs(self, path: _Path, exist_ok: bool = False) -> None: ...
    def rmdir(self, path: _Path) -> None: ...
    def rm_file(self, path: _Path) -> None: ...
    def rm(
        self, path: _Path | Sequence[_Path], recursive: bool = False, maxdepth: int | None = None
    ) -> None: ...
    def mv(
        self,
        path1: _Path | Sequence[_Path],
        path2: _Path | Sequence[_Path],
        recursive: bool | None = None,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None: ...
    def copy(
        self, path1: _Path | list[str], path2: _Path | list[str], *arguments: Any, **options: Any
    ) -> None: ...
    def get(
        self,
        rpath: _Path | list[str],
        lpath: _Path | list[str],
        recursive: bool = False,
        callback: Any = ...,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None: ...
    def get_file(
        self, rpath: _Path, lpath: Any, callback: Any = ..., outfile: Any = None, **kwargs: Any
    ) -> None: ...
    def put(
        self, lpath: _Path | list[str], rpath: _Path | list[str], *arguments: Any, **options: Any
    ) -> None: ...
    def put_file(
        self,
        lpath: _Path,
        rpath: _Path,
        callback: Any = ...,
        mode: Literal["overwrite", "create"] = "overwrite",
        **kwargs: Any,
    ) -> None: ...
    def cp_file(self, path1: _Path, path2: _Path, **kwargs: Any) -> None: ...
    def created(self, path: _Path) -> datetime.datetime: ...
    def modified(self, path: _Path) -> datetime.datetime: ...
    def touch(self, path: _Path, truncate: bool = True, **kwargs: Any) -> None: ...
    def ukey(self, path: _Path) -> str: ...
    def cat_file(
        self, path: _Path, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes: ...
    def cat(
        self,
        path: _Path | list[str],
        recursive: bool = False,
        on_error: Literal["raise", "omit", "return"] = "raise",
        **kwargs: Any,
    ) -> Any: ...
    def cat_ranges(
        self,
        paths: list[str],
        starts: int | Sequence[int | None] | None,
        ends: int | Sequence[int | None] | None,
        max_gap: int | None = None,
        on_error: Literal["raise", "return"] = "return",
        **kwargs: Any,
    ) -> list[Any]: ...
    def tail(self, path: _Path, size: int = 1024) -> bytes: ...
    def pipe_file(
        self,
        path: _Path,
        value: _AnyBuffer,
        mode: Literal["overwrite", "create"] = "overwrite",
        **kwargs: Any,
    ) -> None: ...
