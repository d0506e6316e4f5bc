"""Contents of many files at once through fsspec, and copies of trees with links."""

import os

import pytest
from dafs.fsspec import DafsFileSystem
from fsspec.callbacks import Callback


@pytest.fixture
def fs(server):
    return DafsFileSystem(**DafsFileSystem._get_kwargs_from_urls(server.url))


@pytest.fixture
def opens(fs, monkeypatch):
    """The paths that are opened."""
    seen, real = [], type(fs.client).open

    def counted(self, path, *arguments, **options):
        seen.append(path)
        return real(self, path, *arguments, **options)

    monkeypatch.setattr(type(fs.client), "open", counted)
    return seen


def made(folder, count, length=4096):
    """Files with random content, by their path on the server."""
    found = {}
    for number in range(count):
        content = os.urandom(length)
        (folder / f"{number:04}").write_bytes(content)
        found[f"/{folder.name}/{number:04}"] = content
    return found


def test_ranges_of_many_files_open_none(fs, folder, opens):
    files = made(folder, 500)
    starts = [number * 7 for number in range(500)]
    ends = [start + 100 for start in starts]
    found = fs.cat_ranges(list(files), starts, ends)
    assert found == [content[at : at + 100] for content, at in zip(files.values(), starts)]
    assert fs.cat(list(files)) == files
    assert fs.cat(f"/{folder.name}/000?") == dict(list(files.items())[:10])
    assert opens == []


def test_ranges_of_one_file_open_it_once(fs, folder, opens):
    data = os.urandom(2_000_000)
    (folder / "data").write_bytes(data)
    path = f"/{folder.name}/data"
    # More than one message, and the last ones end behind the file.
    starts = list(range(0, 2_000_000, 1500))
    ends = [start + 4096 for start in starts]
    found = fs.cat_ranges([path] * len(starts), starts, ends)
    assert found == [data[start:end] for start, end in zip(starts, ends)]
    assert opens == [path]


def test_ranges_of_all_kinds(fs, folder):
    lengths = (0, 1, 8192, 8193, 300_000, 20_000_000)
    data = [os.urandom(length) for length in lengths]
    for number, content in enumerate(data):
        (folder / f"{number}").write_bytes(content)
    ranges = [(None, None), (0, 0), (0, 10), (5, 100_000), (10, None), (-7, None), (0, -3), (-9, -2)]
    ranges += [(0, 500_000), (200_000, 210_000), (9, 5)]
    asked = [(number, *each) for number in range(len(data)) for each in ranges]
    paths = [f"/{folder.name}/{number}" for number, _, _ in asked]
    found = fs.cat_ranges(paths, [start for _, start, _ in asked], [end for *_, end in asked])
    for (number, start, end), content in zip(asked, found):
        wanted = data[number][slice(start, end)]
        assert content == wanted, f"{start} to {end} of {lengths[number]} bytes"


def test_errors_stay_with_their_file(fs, folder):
    files = made(folder, 3)
    (folder / "dir").mkdir()
    (folder / "link").symlink_to("0001")
    top = f"/{folder.name}"
    paths = [f"{top}/0000", f"{top}/missing", f"{top}/dir", f"{top}/link", f"{top}/0002/", "nul\0"]
    kinds = [bytes, FileNotFoundError, IsADirectoryError, bytes, NotADirectoryError, ValueError]
    for end in (10, None, 100_000):
        found = fs.cat_ranges(paths, 0, end)
        assert all(map(isinstance, found, kinds)), found
        assert found[3] == files[f"{top}/0001"][:end]
        # As many ranges of each as are read by batches.
        found = fs.cat_ranges(paths * 3, 0, end)
        assert all(map(isinstance, found, kinds * 3)), found
    assert found[1].filename == f"{top}/missing"
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(paths, 0, 10, on_error="raise")
    with pytest.raises(FileNotFoundError):
        fs.cat([f"{top}/0000", f"{top}/missing"])
    named = [f"{top}/0000", f"{top}/missing"]
    assert list(fs.cat(named, on_error="omit")) == named[:1]
    assert isinstance(fs.cat(named, on_error="return")[named[1]], FileNotFoundError)
    for wrong in ((paths, [0], 10), (paths, 0, [1, 2])):
        with pytest.raises(ValueError):
            fs.cat_ranges(*wrong)


@pytest.fixture
def tree(folder):
    """A tree with links of all kinds."""
    (folder / "tree" / "sub").mkdir(parents=True)
    (folder / "tree" / "empty").mkdir()
    (folder / "tree" / "file").write_bytes(b"content")
    (folder / "tree" / "sub" / "long").write_bytes(b"long" * 10_000)
    (folder / "tree" / "nowhere").symlink_to("missing")
    (folder / "tree" / "sub" / "round").symlink_to("round")
    (folder / "tree" / "sub" / "again").symlink_to("..")
    (folder / "tree" / "other").symlink_to("sub/long")
    return f"/{folder.name}/tree"


def test_a_tree_is_copied_past_links_that_lead_nowhere(fs, tree, tmp_path):
    copy = tmp_path / "copy"
    # Again over the first copy, too.
    for _ in range(2):
        fs.get(f"{tree}/", str(copy), recursive=True)
        names = {str(path.relative_to(copy)) for path in copy.rglob("*") if not path.is_symlink()}
        assert names == {"sub", "empty", "file", "other", "sub/long"}
        assert (copy / "file").read_bytes() == b"content"
        assert (copy / "other").read_bytes() == (copy / "sub/long").read_bytes() == b"long" * 10_000
        for name, text in (("nowhere", "missing"), ("sub/round", "round"), ("sub/again", "..")):
            assert os.readlink(copy / name) == text
    found = fs.cat(tree, recursive=True)
    assert {path.removeprefix(tree): len(content) for path, content in found.items()} == {
        "/file": 7, "/other": 40_000, "/sub/long": 40_000,
    }
    # One that is named is missing.
    with pytest.raises(FileNotFoundError):
        fs.get(f"{tree}/nowhere", str(tmp_path / "named"))
    with pytest.raises(FileNotFoundError):
        fs.get([f"{tree}/file", f"{tree}/nowhere"], [str(tmp_path / "one"), str(tmp_path / "two")])
    assert (tmp_path / "one").read_bytes() == b"content"


def test_a_copied_tree_writes_to_no_place_beside_it(fs, folder, tree, tmp_path):
    copy, outside = tmp_path / "copy", tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"mine")
    (folder / "tree" / "nowhere").unlink()
    (folder / "tree" / "nowhere").symlink_to(outside / "file")
    (folder / "tree" / "away").symlink_to(outside)
    fs.get(f"{tree}/", str(copy), recursive=True)
    for name in ("nowhere", "away"):
        (folder / "tree" / name).unlink()
    (folder / "tree" / "nowhere").write_bytes(b"theirs")
    (folder / "tree" / "away").mkdir()
    (folder / "tree" / "away" / "file").write_bytes(b"theirs")
    fs.get(f"{tree}/", str(copy), recursive=True)
    assert (copy / "nowhere").read_bytes() == (copy / "away" / "file").read_bytes() == b"theirs"
    assert (outside / "file").read_bytes() == b"mine"


class Progress(Callback):
    """Sums up what it is told, also of its branches."""

    def __init__(self, sums, **options):
        super().__init__(**options)
        self.sums = sums

    def relative_update(self, inc=1):
        self.sums.append(inc)
        super().relative_update(inc)

    def branched(self, path_1, path_2, **kwargs):
        return Progress(self.sums)


def test_progress_is_told(fs, folder, tmp_path):
    files = made(folder, 10)
    progress = Progress([])
    fs.get(f"/{folder.name}", str(tmp_path / "copy"), recursive=True, callback=progress)
    # Each file's bytes, and one for each file and the directory.
    assert sorted(progress.sums) == [1] * 11 + [4096] * 10
    assert progress.size == progress.value == 11
    copied = {f"/{folder.name}/{path.name}": path.read_bytes() for path in (tmp_path / "copy").iterdir()}
    assert copied == files
