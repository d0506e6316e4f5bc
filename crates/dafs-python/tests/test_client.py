"""Names, attributes and listings."""

import os
import pathlib
import pickle
import signal
import stat
import subprocess

import dafs
import pytest
from conftest import Server, interrupted, stopped


def test_a_bad_url_is_refused():
    with pytest.raises(ValueError):
        dafs.connect("nfs://server/")
    with pytest.raises(ValueError):
        dafs.connect("dafs://127.0.0.1/", transport="pigeon")
    with pytest.raises(ValueError):
        dafs.connect("dafs://127.0.0.1/", password="secret")
    with pytest.raises(ValueError, match="no password"):
        dafs.connect("dafs://anna@127.0.0.1/")
    with pytest.raises(OSError):
        dafs.connect("dafs://127.0.0.1:1/", connect_timeout=1)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to others")
@pytest.mark.parametrize("transport", ["shm", "iwarp"])
def test_who_proves_to_be_a_user_acts_as_that_user(tmp_path, transport):
    command = os.environ["DAFS"]
    known = [command, "passwd", str(tmp_path / "users"), "anna", "--uid", "4242", "--gid", "4242"]
    subprocess.run(known, input=b"secret\n", check=True)
    config = tmp_path / "dafs.toml"
    config.write_text(
        'listen = ["127.0.0.1:0"]\npassword_file = "users"\n'
        '[[export]]\nname = "data"\npath = "export"\nsquash = "none"\n'
    )
    server = Server(command, tmp_path, config=config)
    server.root.chmod(0o777)
    try:
        url = server.url.replace("//", "//anna@", 1) + "data"
        with dafs.connect(url, transport=transport, password="secret") as client:
            with client.open("file", "wb") as file:
                file.write(b"hers")
        assert (server.root / "file").stat().st_uid == 4242
        with pytest.raises(OSError, match="not accepted"):
            dafs.connect(url, transport=transport, password="other")
    finally:
        server.stop()


def test_names(client, folder):
    top = "/" + folder.name
    client.mkdir(top + "/dir")
    client.makedirs(top + "/dir/a/b/c")
    client.makedirs(top + "/dir/a/b/c", exist_ok=True)
    with pytest.raises(FileExistsError):
        client.makedirs(top + "/dir/a/b/c")
    with client.open(top + "/dir/file", "wb") as file:
        file.write(b"hello")
    client.link(top + "/dir/file", top + "/dir/second")
    client.symlink("file", top + "/dir/link")
    assert client.readlink(top + "/dir/link") == "file"
    assert sorted(client.listdir(top + "/dir")) == ["a", "file", "link", "second"]
    found = {entry.name: entry.stat for entry in client.scandir(top + "/dir")}
    assert stat.S_ISDIR(found["a"].st_mode)
    assert stat.S_ISLNK(found["link"].st_mode)
    assert found["file"].st_nlink == 2
    real = os.stat(folder / "dir" / "file")
    seen = client.stat(top + "/dir/link")
    for field in "st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_mtime_ns", "st_mtime":
        assert getattr(seen, field) == getattr(real, field), field
    assert stat.S_ISLNK(client.stat(top + "/dir/link", follow_symlinks=False).st_mode)
    client.rename(top + "/dir/file", top + "/moved")
    assert not client.exists(top + "/dir/file")
    with pytest.raises(IsADirectoryError):
        client.unlink(top + "/dir")
    with pytest.raises(NotADirectoryError):
        client.rmdir(top + "/moved")
    with pytest.raises(OSError):
        client.rmdir(top + "/dir")
    with pytest.raises(NotADirectoryError):
        client.scandir(top + "/moved")
    client.unlink(top + "/moved")
    assert os.listdir(folder) == ["dir"]


def test_attributes(client, folder):
    (folder / "file").write_bytes(b"12345")
    path = f"/{folder.name}/file"
    client.set_attributes(path, mode=0o640, size=2, times_ns=(-1, 1_500_000_000_123_456_789))
    real = os.stat(folder / "file")
    assert real.st_mode & 0o777 == 0o640
    assert real.st_size == 2
    assert (real.st_atime_ns, real.st_mtime_ns) == (-1, 1_500_000_000_123_456_789)
    assert client.statvfs(path)["space_total"] > 0


def test_paths_of_all_kinds(server, client, folder):
    odd = b"not \xff text"
    (folder / os.fsdecode(odd)).write_bytes(b"x")
    top = pathlib.PurePosixPath("/" + folder.name)
    assert client.listdir(top) == [os.fsdecode(odd)]
    assert client.stat(os.fsencode(top) + b"/" + odd).st_size == 1
    assert client.stat(top / os.fsdecode(odd)).st_size == 1
    with dafs.connect(f"{server.url}{folder.name}") as below:
        assert below.listdir() == [os.fsdecode(odd)]
        assert below.base == str(top)
        assert below.stat(odd).st_size == 1
    with pytest.raises(TypeError):
        client.stat(17)


def test_an_option_that_does_not_exist_is_named(server):
    with pytest.raises(TypeError, match="dafs.connect has no option 'deadlin'; there are: transport"):
        dafs.connect(server.url, deadlin=3)


def test_a_client_can_be_pickled(client, folder):
    other = pickle.loads(pickle.dumps(client))
    assert other.url == client.url
    assert other.transport == client.transport
    assert folder.name in other.listdir("/")
    other.close()


def test_a_closed_client_says_so(server):
    client = dafs.connect(server.url)
    assert client.ping() > 0
    client.close()
    client.close()
    with pytest.raises(ValueError):
        client.ping()


def test_calls_can_be_limited(server, client):
    client.stat("/")
    with stopped(server):
        with dafs.within(0.1), pytest.raises(TimeoutError):
            client.stat("/")
        with dafs.within(0.1), dafs.within(60), pytest.raises(TimeoutError):
            client.stat("/")
        with dafs.within(60), dafs.within(0.1), pytest.raises(TimeoutError):
            client.stat("/")
        with dafs.within(0.1):
            with dafs.within(60):
                pass
            with pytest.raises(TimeoutError):
                client.stat("/")
    client.stat("/")


def test_fences(server, folder):
    (folder / "fenced").write_bytes(b"content")
    path = f"/{folder.name}/fenced"
    client = dafs.connect(server.url, fence_id="mine")
    assert client.fence_list(path) is None
    with dafs.connect(server.url, fence_id="other") as other:
        client.set_fence(path, "set", ["mine"])
        assert client.fence_list(path) == ["mine"]
        with pytest.raises(OSError):
            other.open(path, "rb")
        client.set_fence(path, "add", ["other"])
        assert sorted(client.fence_list(path)) == ["mine", "other"]
        with other.open(path, "rb") as file:
            assert file.read() == b"content"
        client.set_fence(path, "remove", [b"other"])
        assert client.fence_list(path) == ["mine"]
        with pytest.raises(OSError):
            other.open(path, "rb")
        client.set_fence(path, "clear")
    assert client.fence_list(path) is None
    assert client.fence_list(path, file_system=True) is None
    for bad in ("pardon", []), ("clear", ["name"]):
        with pytest.raises(ValueError):
            client.set_fence(path, *bad)
    client.close()


def test_links_are_not_listed_through_unless_asked_for(client, folder):
    (folder / "dir").mkdir()
    (folder / "link").symlink_to("dir")
    path = f"/{folder.name}/link"
    assert client.listdir(path) == []
    with pytest.raises(NotADirectoryError):
        client.scandir(path, follow_symlinks=False)
    assert list(client.scandir(f"/{folder.name}/dir", follow_symlinks=False)) == []


def test_what_waits_can_be_interrupted(server, folder):
    (folder / "file").write_bytes(b"content" * 10000)
    path = f"/{folder.name}/file"
    with dafs.connect(server.url, transport="iwarp") as client:
        with client.open(path, "r+b", buffering=0) as file:
            target = bytearray(70000)
            with stopped(server):
                assert interrupted(lambda: client.stat(path))
                assert interrupted(lambda: file.pread_into(target, 0))
                # Nothing reaches it any more.
                target.append(1)
                assert interrupted(lambda: file.pwrite(b"lost" * 20000, 0))
                assert interrupted(file.commit)
                assert interrupted(lambda: client.listdir(f"/{folder.name}"))
                assert interrupted(lambda: dafs.connect(server.url, transport="iwarp"))
                # Nor is another transport or address tried, which would take as long again.
                host = server.url.replace("127.0.0.1", "localhost")
                assert interrupted(lambda: dafs.connect(host, connect_timeout=30))
            # The session goes on.
            assert file.pread(7, 7) in (b"content", b"stlostl")
            assert client.stat(path).st_size >= 70000


def test_a_handler_that_raises_nothing_ends_nothing(server, folder):
    (folder / "file").write_bytes(b"content")
    seen = []

    def goes_on(number, frame):
        seen.append(number)
        server.process.send_signal(signal.SIGCONT)

    before = signal.signal(signal.SIGALRM, goes_on)
    try:
        with dafs.connect(server.url, transport="iwarp") as client, stopped(server):
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            assert client.stat(f"/{folder.name}/file").st_size == 7
    finally:
        signal.signal(signal.SIGALRM, before)
    assert seen == [signal.SIGALRM]


def test_a_session_that_is_over_is_replaced(tmp_path):
    own = Server(os.environ["DAFS"], tmp_path)
    (own.root / "file").write_bytes(b"content")
    # The session ends with its connection.
    client = dafs.connect(own.url, transport="iwarp", recovery=0)
    file = client.open("/file", "rb", buffering=0)
    own.stop()
    own = Server(os.environ["DAFS"], tmp_path, own.url.partition("//")[2].strip("/"))
    with pytest.raises(OSError):
        file.pread(7, 0)
    with client.open("/file", "rb") as again:
        assert again.read() == b"content"
    with pytest.raises(OSError):
        file.pread(7, 0)
    assert client.connected
    client.close()
    with pytest.raises(ValueError):
        client.stat("/file")
    own.stop()


def test_paths_that_name_no_entry(client, folder):
    """As the calls of `os` answer them."""
    top = "/" + folder.name
    (folder / "file").write_bytes(b"content")
    (folder / "tree").mkdir()
    for path in (f"{top}/tree/.", f"{top}/tree/..", "/", "."):
        for make in (
            client.mkdir,
            client.makedirs,
            lambda path: client.symlink("file", path),
            lambda path: client.link(f"{top}/file", path),
            lambda path: client.open(path, "xb"),
        ):
            with pytest.raises(FileExistsError):
                make(path)
        with pytest.raises(IsADirectoryError):
            client.unlink(path)
    for make in (lambda path: client.symlink("file", path), lambda path: client.link(f"{top}/file", path)):
        with pytest.raises(FileExistsError):
            make(f"{top}/file/")
        with pytest.raises(FileNotFoundError):
            make(f"{top}/new/")
    with pytest.raises(PermissionError):
        client.link(f"{top}/tree", f"{top}/new")
    with pytest.raises(FileExistsError):
        client.link(f"{top}/tree", f"{top}/file")
    client.makedirs(f"{top}/new/.")
    assert (folder / "new").is_dir()
    with pytest.raises(FileNotFoundError):
        client.stat(f"{top}/missing/{'x' * 256}")
    assert (folder / "file").read_bytes() == b"content"


def test_the_empty_path_names_nothing(client):
    for use in (
        client.stat,
        client.open,
        client.listdir,
        client.mkdir,
        client.makedirs,
        client.unlink,
        client.rmdir,
        client.readlink,
        client.set_attributes,
        client.statvfs,
        lambda path: client.rename(path, "new"),
        lambda path: client.rename("new", path),
    ):
        with pytest.raises(FileNotFoundError):
            use("")
        with pytest.raises(ValueError):
            use("a\0b")
    assert not client.exists("") and not client.exists("a\0b") and client.exists(".")
    assert not client.exists("x" * 256) and not client.exists("x/" * 2100)
