"""Cache hints: what is accepted, and that no content depends on them."""

import contextlib
import os

import pytest


def name(folder, file):
    return f"/{folder.name}/{file}"


@pytest.mark.parametrize("hint", [None, "done", "cached", "again", (0, 0), (7, 1), (4, 4)])
@pytest.mark.parametrize("pattern", [None, "sequential", "random"])
def test_hints_at_open_and_for_ranges_change_no_content(client, folder, pattern, hint):
    data = os.urandom(300_000)
    path = name(folder, "a")
    with client.open(path, "wb", hint=hint) as file:
        file.write(data)
    with client.open(path, "rb", buffering=0, pattern=pattern, hint=hint) as file:
        assert file.read() == data
        file.hint(pattern=pattern, hint=hint)
        file.hint(1000, 5000, hint=hint)
        file.set_hint("done")
        assert file.pread(len(data), 0) == data
        file.set_hint(hint)
        assert file.pread(10, 5) == data[5:15]
        file.set_hint()
    with client.open(path, encoding="latin-1", pattern=pattern) as file:
        assert len(file.read()) > 0


def test_a_prefetch_is_done_or_refused(client, folder):
    (folder / "b").write_bytes(bytes(100_000))
    with client.open(name(folder, "b"), "rb", buffering=0) as file:
        for part in [(), (10, 50)]:
            # A file system in memory has nothing to prefetch from.
            with contextlib.suppress(OSError):
                file.prefetch(*part)
        assert file.read() == bytes(100_000)
        with pytest.raises(OSError):
            file.prefetch((1 << 64) - 1, 1)


@pytest.mark.parametrize("hint", ["", "Done", "prefetch", (8, 0), (0, 99)])
def test_unknown_hints_are_refused(client, folder, hint):
    (folder / "c").write_bytes(b"c")
    with pytest.raises(ValueError):
        client.open(name(folder, "c"), "rb", hint=hint)
    with client.open(name(folder, "c"), "rb", buffering=0) as file:
        with pytest.raises(ValueError):
            file.hint(hint=hint)
        with pytest.raises(ValueError):
            file.set_hint(hint)
        with pytest.raises(ValueError):
            file.hint(pattern="backwards")
        with pytest.raises((TypeError, ValueError)):
            file.set_hint(7)
        assert file.read() == b"c"
