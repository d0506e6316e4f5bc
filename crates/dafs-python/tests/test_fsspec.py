"""The file system for fsspec: its own abstract suite, and programs that use it."""

import concurrent.futures
import copy
import io
import os
import pathlib
import pickle
import shutil
import subprocess

import dafs
import fsspec
import pytest
from conftest import Server
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


@pytest.fixture
def fs(server):
    return DafsFileSystem(**DafsFileSystem._get_kwargs_from_urls(server.url))


def test_removing_a_tree_stays_in_it(fs, folder):
    (folder / "important").mkdir()
    (folder / "important" / "file").write_bytes(b"x")
    (folder / "tree" / "sub").mkdir(parents=True)
    (folder / "tree" / "sub" / "file").write_bytes(b"x")
    (folder / "tree" / "out").symlink_to("../important")
    (folder / "tree" / "sub" / "loop").symlink_to("..")
    (folder / "tree" / "sub" / "again").symlink_to("..")
    (folder / "tree" / "nowhere").symlink_to("missing")
    (folder / "tree" / "other").symlink_to("sub/file")
    top = f"/{folder.name}"
    found = fs.find(f"{top}/tree", detail=True)
    names = {name.removeprefix(f"{top}/tree/"): info["type"] for name, info in found.items()}
    assert names == {
        "sub/file": "file",
        "other": "file",
        "nowhere": "link",
        "out": "link",
        "sub/loop": "link",
        "sub/again": "link",
    }
    assert found[f"{top}/tree/out"]["destination"] == "../important"
    assert fs.isdir(f"{top}/tree/out")
    assert fs.ls(f"{top}/tree/out", detail=False) == [f"{top}/tree/out/file"]
    assert fs.du(f"{top}/tree") < 20_000
    with pytest.raises(OSError):
        fs.rm(f"{top}/tree")
    with pytest.raises(OSError):
        fs.rm(f"{top}/tree", recursive=True, maxdepth=1)
    assert (folder / "tree" / "sub" / "file").exists()
    (folder / "link").symlink_to("important")
    fs.rm([f"{top}/tree", f"{top}/li*"], recursive=True)
    assert os.listdir(folder) == ["important"]
    assert os.listdir(folder / "important") == ["file"]
    with pytest.raises(FileNotFoundError):
        fs.rm(f"{top}/tree", recursive=True)


def test_a_file_is_not_copied_onto_itself(fs, folder):
    (folder / "a").write_bytes(b"content")
    (folder / "hard").hardlink_to(folder / "a")
    (folder / "soft").symlink_to("a")
    top = f"/{folder.name}"
    for other in "a", "hard", "soft":
        with pytest.raises(shutil.SameFileError):
            fs.cp_file(f"{top}/a", f"{top}/{other}")
        assert (folder / "a").read_bytes() == b"content"
    (folder / "longer").write_bytes(b"something longer")
    fs.cp_file(f"{top}/a", f"{top}/longer")
    assert (folder / "longer").read_bytes() == b"content"
    fs.mv(f"{top}/a", f"{top}/a")
    (folder / "dir").mkdir()
    fs.mv(f"{top}/dir", f"{top}/dir")
    assert (folder / "a").read_bytes() == b"content"
    assert os.listdir(folder / "dir") == []


def test_what_else_is_done_in_a_transaction(fs, folder):
    top = f"/{folder.name}"
    for name in "read", "appended", "changed", "piped", "copied", "cut":
        (folder / name).write_bytes(b"old")

    def work():
        with fs.open(f"{top}/read", "rb") as file:
            assert file.read() == b"old"
        with fs.open(f"{top}/appended", "ab") as file:
            file.write(b"+new")
        with fs.open(f"{top}/changed", "r+b") as file:
            file.write(b"new")
        fs.pipe(f"{top}/piped", b"new")
        fs.cp_file(f"{top}/appended", f"{top}/copied")
        fs.touch(f"{top}/cut", truncate=True)
        fs.touch(f"{top}/made")
        with pytest.raises(FileExistsError):
            fs.open(f"{top}/read", "xb")
        # Closed by the transaction, if by nobody else.
        fs.open(f"{top}/exclusive", "xb").write(b"x")
        fs.open(f"{top}/text", "w").write("x")

    with pytest.raises(RuntimeError):
        with fs.transaction:
            work()
            raise RuntimeError
    here = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name in "read", "piped", "copied", "cut":
        assert here.pop(name) == b"old"
    # Appends and changes in place are no part of it.
    assert here == {"appended": b"old+new", "changed": b"new"}
    with fs.transaction:
        work()
    here = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert here["piped"] == b"new"
    assert here["copied"] == b"old+new+new"
    assert here["cut"] == here["made"] == b""
    assert here["exclusive"] == b"x"
    assert len(here) == 9
    with pytest.raises(FileExistsError):
        with fs.transaction:
            fs.open(f"{top}/late", "xb").write(b"mine")
            (folder / "late").write_bytes(b"theirs")
    assert (folder / "late").read_bytes() == b"theirs"


def test_opened_files_are_files_of_python(fs, folder):
    fs.pipe(f"/{folder.name}/f", b"content")
    with fs.open(f"/{folder.name}/f") as file:
        assert isinstance(file, io.BufferedIOBase)
        assert file.size == 7
        with pytest.raises(TypeError):
            copy.copy(file)
    with fs.open(f"/{folder.name}/f", "r+b") as file:
        assert file.size == 7


def test_what_cannot_be_looked_at_does_not_exist(fs, folder):
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    assert not fs.exists(f"/{folder.name}/a")
    assert fs.lexists(f"/{folder.name}/a")
    assert not fs.exists(f"/{folder.name}/{'x' * 300}")
    fs.rm(f"/{folder.name}/a")
    assert os.listdir(folder) == ["b"]


def test_a_transaction_writes_what_a_link_leads_to(fs, folder):
    top = f"/{folder.name}"
    (folder / "dir").mkdir()
    (folder / "file").write_bytes(b"old")
    for name, text in (("to-dir", "dir"), ("to-file", "file"), ("to-new", "dir/new"), ("round", "round")):
        (folder / name).symlink_to(text)
    with fs.transaction:
        for name, error in (("dir", IsADirectoryError), ("to-dir", IsADirectoryError), ("round", OSError)):
            with pytest.raises(error):
                fs.open(f"{top}/{name}", "wb")
        for name in ("to-file", "to-new"):
            with pytest.raises(FileExistsError):
                fs.open(f"{top}/{name}", "xb")
            fs.pipe(f"{top}/{name}", b"new")
    assert (folder / "file").read_bytes() == (folder / "dir" / "new").read_bytes() == b"new"
    assert all((folder / name).is_symlink() for name in ("to-dir", "to-file", "to-new", "round"))
    assert os.listdir(folder / "dir") == ["new"]


@pytest.mark.parametrize("source", ["/proc/version", "/sys/class/net/lo/address"])
def test_put_ends_where_the_data_ends(fs, folder, source):
    if not os.path.exists(source):
        pytest.skip("this kernel shows no such file")
    content = pathlib.Path(source).read_bytes()
    fs.put(source, f"/{folder.name}/copy")
    assert (folder / "copy").read_bytes() == content
    with pytest.raises(FileExistsError):
        fs.put_file(source, f"/{folder.name}/copy", mode="create")
    fs.put_file(source, f"/{folder.name}/new/copy", mode="create")
    assert (folder / "new" / "copy").read_bytes() == content
    with pytest.raises(FileNotFoundError):
        fs.put_file(str(folder / "missing"), f"/{folder.name}/none")
    assert not (folder / "none").exists()


def test_files_that_say_that_they_are_empty(tmp_path):
    random = pathlib.Path("/proc/sys/kernel/random")
    if not (random / "poolsize").exists():
        pytest.skip("this kernel shows no such file")
    config = tmp_path / "dafs.toml"
    config.write_text(
        'listen = ["127.0.0.1:0"]\n'
        f'[[export]]\nname = "random"\npath = "{random}"\nread_only = true\n'
    )
    server = Server(os.environ["DAFS"], tmp_path, config=config)
    try:
        fs = DafsFileSystem(**DafsFileSystem._get_kwargs_from_urls(server.url))
        for name in ("boot_id", "poolsize"):
            # The kernel gives a number to a read at its start alone.
            wanted, path = (random / name).read_bytes(), f"/random/{name}"
            for buffering in (0, -1):
                with fs.client.open(path, "rb", buffering) as file:
                    assert file.read() == wanted
            with fs.client.open(path, "rb", 0) as file:
                assert file.pread(1 << 40, 0) == wanted
            assert fs.cat(path) == fs.cat_file(path) == fs.cat_file(path, 0, 100) == wanted
            assert fs.cat_file(path, 0, -2) == wanted[:-2]
            assert fs.cat_ranges([path], [0], [3]) == [wanted[:3]]
            assert fs.head(path, 3) == wanted[:3]
            assert fs.read_block(path, 0, 100) == fs.read_block(path, 0, None) == wanted
            with fs.open(path) as file:
                assert file.size == len(wanted)
            fs.get(path, str(tmp_path / name))
            assert (tmp_path / name).read_bytes() == wanted
        assert fs.tail("/random/boot_id", 5) == (random / "boot_id").read_bytes()[-5:]
        fs.client.close()
    finally:
        server.stop()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
def test_a_mount_point_is_no_part_of_the_export(fs, folder, tmp_path):
    top = f"/{folder.name}"
    (folder / "file").write_bytes(b"content")
    (folder / "mnt").mkdir()
    command = ["mount", "-t", "tmpfs", "none", str(folder / "mnt")]
    if subprocess.run(command, capture_output=True).returncode != 0:
        assert os.environ.get("CI") != "true", "CI skips nothing: nothing can be mounted here"
        pytest.skip("nothing can be mounted here")
    try:
        (folder / "mnt" / "inside").write_bytes(b"hidden")
        for path in (f"{top}/mnt", f"{top}/mnt/inside"):
            with pytest.raises(OSError, match="is mounted there on the server"):
                fs.info(path)
            assert fs.exists(path) and fs.lexists(path) and fs.client.exists(path)
            assert not fs.isfile(path) and not fs.isdir(path)
        assert [info["type"] for info in fs.ls(top)] == ["file", "mount point"]
        assert fs.find(top) == [f"{top}/file"] and fs.du(top) == 7
        for detail in (False, True):
            assert [list(files) for _, _, files in fs.walk(top, detail=detail)] == [["file"]]
        fs.get(top, str(tmp_path / "copy"), recursive=True)
        assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["file"]
        with pytest.raises(OSError, match="is mounted there on the server"):
            fs.rm(top, recursive=True)
        assert (folder / "mnt" / "inside").read_bytes() == b"hidden"
    finally:
        subprocess.run(["umount", "-l", str(folder / "mnt")], check=True)


def test_addresses_with_zones():
    found = DafsFileSystem._get_kwargs_from_urls("dafs://[fe80:0:0:0:0:0:0:1%25lo]:1/path")
    assert found == {"host": "fe80:0:0:0:0:0:0:1%25lo", "port": 1}
    for host in ("fe80::1%lo", found["host"]):
        # It is understood, and nobody answers there.
        with pytest.raises(ConnectionError, match="fe80"):
            DafsFileSystem(host=host, port=1, connect_timeout=1, skip_instance_cache=True).ls("/")


def test_the_first_use_connects(server, folder):
    nowhere = DafsFileSystem(port=1, connect_timeout=1)
    assert pickle.loads(pickle.dumps(nowhere)) == nowhere
    assert repr(nowhere) == "<dafs.fsspec.DafsFileSystem dafs://127.0.0.1:1/>"
    with pytest.raises(ConnectionError):
        nowhere.ls("/")
    with pytest.raises(TypeError, match="no option 'deadlin'; there are: transport"):
        DafsFileSystem(deadlin=3)
    (folder / "file").write_bytes(b"content")
    options = DafsFileSystem._get_kwargs_from_urls(server.url)
    made = DafsFileSystem(skip_instance_cache=True, **options)
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        clients = list(threads.map(lambda _: made.client, range(64)))
    assert len({id(client) for client in clients}) == 1
    assert made.cat_file(f"/{folder.name}/file") == b"content"


def test_users_and_passwords_of_urls():
    found = DafsFileSystem._get_kwargs_from_urls("dafs://me%40home:se%3Acret@server:99/path")
    assert found == {"host": "server", "port": 99, "user": "me@home", "password": "se:cret"}


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


def test_a_slash_behind_a_name_asks_for_a_directory(fs, top, folder):
    (folder / "file").write_bytes(b"content")
    (folder / "inner").mkdir()
    for open_ in (fsspec.open, fs.open):
        for mode in ("wb", "ab", "xb", "rb"):
            with pytest.raises((IsADirectoryError, NotADirectoryError)):
                with open_(f"{top}/file/", mode) as file:
                    file.read() if mode == "rb" else file.write(b"other")
    name = f"/{folder.name}/file/"
    for wrong in (fs.info, fs.ls, fs.cat_file, fs.rm, fs.rm_file, fs.touch):
        with pytest.raises((IsADirectoryError, NotADirectoryError)):
            wrong(name)
    with pytest.raises((IsADirectoryError, NotADirectoryError)):
        fs.pipe_file(name, b"other")
    with pytest.raises(NotADirectoryError):
        fs.mv(name, f"/{folder.name}/moved")
    with fs.transaction, pytest.raises(IsADirectoryError):
        fs.open(name, "wb")
    assert not fs.exists(name) and not fs.isfile(name)
    assert fs.isdir(f"/{folder.name}/inner/") and fs.ls(f"/{folder.name}/inner/") == []
    assert os.listdir(folder) and (folder / "file").read_bytes() == b"content"


def test_a_dot_behind_a_name_asks_for_a_directory(fs, folder, tmp_path):
    top, source = f"/{folder.name}", tmp_path / "source"
    source.write_bytes(b"new")
    for copy_ in (fs.mv, fs.cp):
        (folder / "file").write_bytes(b"content")
        copy_(f"{top}/file", f"{top}/{copy_.__name__}/.")
        assert (folder / copy_.__name__ / "file").read_bytes() == b"content"
    fs.put(str(source), f"{top}/put/.")
    assert (folder / "put" / "source").read_bytes() == b"new"
    (folder / "link").symlink_to("missing")
    for wrong in (f"{top}/file/.", f"{top}/link/.", f"{top}/file/./", f"{top}/put/../file/."):
        with pytest.raises(OSError):
            fs.put(str(source), wrong)
        with pytest.raises(OSError):
            fs.mv(f"{top}/put/source", wrong)
    assert (folder / "file").read_bytes() == b"content"
    assert not (folder / "missing").exists() and (folder / "link").is_symlink()


def test_a_move_says_what_is_missing(fs, folder):
    top = f"/{folder.name}"
    (folder / "file").write_bytes(b"content")
    (folder / "tree").mkdir()
    for source, target in (
        ("file/", "file"),
        ("file/.", "file"),
        ("file", "file/"),
        ("missing", "missing"),
        ("missing", "new/"),
        ("file/", "new/"),
        ("file", "file/.."),
    ):
        with pytest.raises((FileNotFoundError, NotADirectoryError)):
            fs.mv(f"{top}/{source}", f"{top}/{target}")
    for removal in (fs.rm, fs.rm_file, fs.rmdir):
        with pytest.raises(FileNotFoundError):
            removal("")
        with pytest.raises(OSError):
            removal(f"{top}/tree/..")
    with pytest.raises(OSError):
        fs.rm(f"{top}/tree/..", recursive=True)
    with pytest.raises(FileNotFoundError):
        fs.mv(f"{top}/file", "")
    assert sorted(os.listdir(folder)) == ["file", "tree"]
    assert not fs.exists(f"{top}/{'x' * 256}") and not fs.lexists(f"{top}/{'x' * 256}")
