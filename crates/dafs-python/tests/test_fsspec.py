"""The file system for fsspec: its own abstract suite, and programs that use it."""

import os

import dafs
import fsspec
import pytest
from dafs.fsspec import DafsFileSystem
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)


class DafsFixtures(AbstractFixtures):
    @pytest.fixture
    def fs(self, server):
        return fsspec.filesystem("dafs", auto_mkdir=True, **DafsFileSystem._get_kwargs_from_urls(server.url))

    @pytest.fixture
    def fs_path(self, folder):
        return f"/{folder.name}"

    @pytest.fixture
    def fs_sanitize_path(self):
        return DafsFileSystem._strip_protocol


class TestCopy(DafsFixtures, AbstractCopyTests):
    pass


class TestGet(DafsFixtures, AbstractGetTests):
    pass


class TestPut(DafsFixtures, AbstractPutTests):
    pass


class TestPipe(DafsFixtures, AbstractPipeTests):
    pass


class TestOpen(DafsFixtures, AbstractOpenTests):
    pass


@pytest.fixture
def top(server, folder):
    return f"{server.url}{folder.name}"


def test_urls(server, folder):
    with fsspec.open(f"{server.url}{folder.name}/a", "wb") as file:
        file.write(b"hello")
    fs, path = fsspec.core.url_to_fs(f"{server.url}{folder.name}/a")
    assert path == f"/{folder.name}/a"
    assert fs.unstrip_protocol(path) == f"{server.url}{folder.name}/a"
    assert fs.cat(path) == b"hello"
    assert fs.cat_file(path, 1, -1) == b"ell"
    assert fs.cat_file(path, -2) == b"lo"
    key = fs.ukey(path)
    fs.pipe(path, b"other")
    assert fs.ukey(path) != key
    with fs.open(path, "rt") as file:
        assert file.read() == "other"
    fs.mv(path, path + "2")
    assert os.listdir(folder) == ["a2"]
    assert fs.glob(f"/{folder.name}/*") == [path + "2"]


def test_a_transaction_that_fails_leaves_nothing(server, folder):
    fs = DafsFileSystem(**DafsFileSystem._get_kwargs_from_urls(server.url))
    with pytest.raises(RuntimeError):
        with fs.transaction:
            with fs.open(f"/{folder.name}/x", "wb") as file:
                file.write(b"x")
            raise RuntimeError
    assert os.listdir(folder) == []
    with fs.transaction:
        with fs.open(f"/{folder.name}/x", "wb") as file:
            file.write(b"x")
    assert (folder / "x").read_bytes() == b"x"


def test_pandas_and_pyarrow(top):
    pandas = pytest.importorskip("pandas")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pandas.DataFrame({"number": range(1000), "text": [str(n) for n in range(1000)]})
    table.to_csv(f"{top}/table.csv", index=False)
    assert (pandas.read_csv(f"{top}/table.csv", dtype={"text": str}) == table).all().all()
    table.to_parquet(f"{top}/table.parquet")
    assert (pandas.read_parquet(f"{top}/table.parquet") == table).all().all()
    fs, path = fsspec.core.url_to_fs(f"{top}/set")
    parts = pandas.DataFrame({"part": [1, 2] * 500, **table})
    parts.to_parquet(f"{top}/set", partition_cols=["part"])
    found = parquet.read_table(path, filesystem=fs)
    assert sorted(found["number"].to_pylist()) == list(range(1000))


def test_zarr(top):
    zarr = pytest.importorskip("zarr")
    numpy = pytest.importorskip("numpy")
    array = zarr.open_array(f"{top}/array.zarr", mode="w", shape=(100, 100), chunks=(30, 30), dtype="i4")
    array[:] = numpy.arange(10_000).reshape(100, 100)
    again = zarr.open_array(f"{top}/array.zarr", mode="r")
    assert (again[40:60, 10:95] == numpy.arange(10_000).reshape(100, 100)[40:60, 10:95]).all()
