"""Opens that exclude others, files without names, whole files at once, locks that are undone."""

import errno
import os

import dafs
import pytest


def name(folder, file):
    return f"/{folder.name}/{file}"


def busy(call):
    with pytest.raises(OSError) as caught:
        call()
    return caught.value.errno == errno.EBUSY


def test_what_is_denied_to_others(client, server, folder):
    path = name(folder, "denied")
    (folder / "denied").write_bytes(b"data")
    with dafs.connect(server.url) as other:
        for deny, denied in (("read", ["rb", "r+b"]), ("write", ["r+b"]), ("both", ["rb", "r+b"])):
            with client.open(path, "rb", deny=deny):
                assert all(busy(lambda: other.open(path, mode)) for mode in denied)
            other.open(path, "r+b").close()
        with client.open(path, "rb", deny="write"), other.open(path, "rb") as file:
            assert file.read() == b"data"
        with other.open(path, "r+b"):
            assert busy(lambda: client.open(path, "rb", deny="write"))
        with client.open(path, "rb", deny_delete=True):
            with pytest.raises(OSError):
                other.unlink(path)
            assert (folder / "denied").exists()
        other.unlink(path)
    with pytest.raises(ValueError, match="deny is"):
        client.open(path, "rb", deny="delete")


def test_a_file_gets_its_name_when_it_is_done(client, folder):
    path, data = name(folder, "named"), os.urandom(300_000)
    with client.open_unlinked(f"/{folder.name}") as file:
        file.write(data)
        assert os.listdir(folder) == []
        # Also of what is in its buffer.
        client.link(file, path)
        assert (folder / "named").read_bytes() == data
        file.seek(5)
        assert file.read(10) == data[5:15]
    with client.open_unlinked(f"/{folder.name}", "w", encoding="utf-8", permissions=0o600) as file:
        file.write("text\n")
        client.link(file, name(folder, "text"))
    assert (folder / "text").read_text() == "text\n"
    assert (folder / "text").stat().st_mode & 0o777 == 0o600
    with client.open_unlinked(f"/{folder.name}", buffering=0) as file:
        file.write(b"lost")
        with pytest.raises(FileExistsError):
            file.link(path)
    assert sorted(os.listdir(folder)) == ["named", "text"]
    with pytest.raises(ValueError, match="without a name"):
        client.open_unlinked(f"/{folder.name}", "rb")
    with client.open(path, "rb") as file:
        client.link(file, name(folder, "again"))
    client.link(path, name(folder, "third"))
    assert (folder / "named").stat().st_nlink == 3
    with pytest.raises(TypeError):
        client.link(open(os.devnull, "rb"), name(folder, "foreign"))


def test_whole_files_without_an_open(client, folder):
    contents = [os.urandom(length) for length in (0, 1, 4096, 8192, 8193, 100_000)]
    for number, content in enumerate(contents):
        client.create_file(name(folder, number), content, permissions=0o640)
        assert (folder / f"{number}").read_bytes() == content
        assert client.read_file(name(folder, number)) == content
    assert (folder / "1").stat().st_mode & 0o777 == 0o640
    (folder / "link").symlink_to("5")
    (folder / "dangling").symlink_to("nowhere")
    names = [*range(len(contents)), "link", "missing", "dangling", "", "nul\0"]
    found = client.read_files(name(folder, each) for each in names)
    assert found[: len(contents) + 1] == [*contents, contents[-1]]
    kinds = [FileNotFoundError, FileNotFoundError, (IsADirectoryError, NotADirectoryError), ValueError]
    assert all(map(isinstance, found[len(contents) + 1 :], kinds))
    assert found[len(contents) + 1].filename == name(folder, "missing")
    for wrong, kind in zip(names[-4:], kinds):
        with pytest.raises(kind):
            client.read_file(name(folder, wrong))
    with pytest.raises(FileExistsError):
        client.create_file(name(folder, 0), b"other")
    assert client.read_files([]) == []


def test_many_short_files_come_in_few_round_trips(client, folder):
    for number in range(1000):
        (folder / f"{number}").write_bytes(f"{number}".encode() * 100)
    found = client.read_files([name(folder, number) for number in range(1000)])
    assert found == [f"{number}".encode() * 100 for number in range(1000)]


def test_writes_under_a_lock_are_undone(client, server, folder):
    (folder / "locked").write_bytes(b"before" * 1000)
    with client.open(name(folder, "locked"), "r+b", buffering=0) as file:
        for lock in (file.lock, file.try_lock):
            lock(auto_recovery=True)
            file.pwrite(b"changed", 3)
            file.truncate(10)
            file.abort_lock()
            assert (folder / "locked").read_bytes() == b"before" * 1000
            # It was unlocked, too.
            with pytest.raises(OSError):
                file.abort_lock()
        file.lock(auto_recovery=True)
        with dafs.connect(server.url) as other:
            with other.open(name(folder, "locked"), "r+b", buffering=0) as second:
                with pytest.raises(dafs.LockedError):
                    second.try_lock(persist=True)
        file.pwrite(b"kept", 0)
        file.unlock()
    assert (folder / "locked").read_bytes().startswith(b"keptre")


def test_trees_as_with_os(client, folder):
    (folder / "tree" / "sub" / "deep").mkdir(parents=True)
    (folder / "tree" / "file").write_bytes(b"x")
    (folder / "tree" / "sub" / "other").write_bytes(b"y")
    (folder / "tree" / "sub" / "out").symlink_to("../../kept")
    (folder / "kept").mkdir()
    (folder / "kept" / "file").write_bytes(b"z")
    top = name(folder, "tree")
    found = [(path, *map(sorted, names)) for path, *names in client.walk(top)]
    assert found == [
        (top, ["sub"], ["file"]),
        (f"{top}/sub", ["deep"], ["other", "out"]),
        (f"{top}/sub/deep", [], []),
    ]
    errors = []
    assert list(client.walk(f"{top}/none")) == []
    assert list(client.walk(f"{top}/none", onerror=errors.append)) == []
    assert isinstance(errors[0], FileNotFoundError)
    for _, directories, _ in client.walk(top):
        directories.clear()
    entries = client.scandir(f"{top}/sub")
    kinds = {each.name: (each.is_dir(), each.is_file(), each.is_symlink()) for each in entries}
    assert kinds == {
        "deep": (True, False, False), "other": (False, True, False), "out": (False, False, True),
    }
    for end in "", "/":
        paths = {each.path for each in client.scandir(f"{top}/sub{end}")}
        assert paths == {f"{top}/sub/{name}" for name in kinds}
    client.chmod(f"{top}/file", 0o604)
    assert (folder / "tree" / "file").stat().st_mode & 0o777 == 0o604
    client.utime(f"{top}/file", (1, 2.5))
    assert (folder / "tree" / "file").stat().st_mtime_ns == 2_500_000_000
    client.utime(f"{top}/file", ns=(3, 4))
    assert (folder / "tree" / "file").stat().st_mtime_ns == 4
    client.utime(f"{top}/file")
    assert (folder / "tree" / "file").stat().st_mtime_ns > 10**18
    with pytest.raises(ValueError):
        client.utime(f"{top}/file", (1, 2), ns=(3, 4))
    with pytest.raises(OSError):
        client.rmtree(f"{top}/sub/out")
    client.rmtree(top)
    assert os.listdir(folder) == ["kept"] and os.listdir(folder / "kept") == ["file"]


def test_an_unknown_option_is_named_with_those_there_are(server):
    with pytest.raises(TypeError, match="dafs.connect has no option 'deadlin'; there are: transport"):
        dafs.connect(server.url, deadlin=3)


def test_a_chain_is_one_round_trip(client, folder):
    (folder / "dir").mkdir()
    (folder / "dir" / "file").write_bytes(b"content")
    found, stat, content = client.chain().lookup(name(folder, "dir/file")).stat().read(4, 3).run()
    assert found is None and stat.st_size == 7 and content == b"tent"
    results = client.chain().lookup(name(folder, "dir")).mkdir("sub", 0o750).mkdir("deep").run()
    assert results == [None, None, None]
    assert (folder / "dir" / "sub" / "deep").is_dir()
    assert client.chain().lookup(name(folder, "dir/sub")).remove("deep").run() == [None, None]
    with client.open(name(folder, "dir/file"), "r+b", buffering=0) as file:
        chain = client.chain().lock(file).write(b"CON", 0, file).read(5, 0, file).unlock(file)
        assert len(chain) == 4
        assert chain.run() == [None, 3, b"CONte", None]
        assert len(chain) == 0 and chain.run() == []


def test_a_chain_ends_at_the_first_failure(client, folder):
    (folder / "file").write_bytes(b"content")
    missing, broken = client.chain().lookup(name(folder, "none")).read(4).run()
    assert isinstance(missing, FileNotFoundError) and isinstance(broken, OSError)
    for wrong in (
        client.chain().lookup(name(folder, "file")).read(4).write(b"behind a read"),
        client.chain().lookup(name(folder, "..")),
        client.chain().lookup(name(folder, "file")).read(1 << 30),
    ):
        with pytest.raises(OSError) as caught:
            wrong.run()
        assert caught.value.errno == errno.EINVAL
    with pytest.raises(TypeError):
        client.chain().read(4, 0, open(os.devnull, "rb"))
    assert (folder / "file").read_bytes() == b"content"
