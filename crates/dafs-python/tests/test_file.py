"""Files: what every file of Python does, and what these do beside it."""

import array
import errno
import faulthandler
import io
import os
import signal
import threading

import dafs
import pytest
from conftest import interrupted, stopped


def name(folder, file):
    return f"/{folder.name}/{file}"


def test_what_is_written_is_read(client, folder):
    data = os.urandom(3_000_001)
    with client.open(name(folder, "a"), "wb") as file:
        assert file.write(data) == len(data)
    assert (folder / "a").read_bytes() == data
    with client.open(name(folder, "a"), "rb") as file:
        assert file.read(10) == data[:10]
        assert file.tell() == 10
        file.seek(-5, os.SEEK_END)
        assert file.read() == data[-5:]
        file.seek(0)
        assert file.read() == data


def test_a_strict_key_excludes_those_without_it(client, folder):
    path = name(folder, "keyed")
    with client.open(path, "wb", share_key=2**64 - 1, strict_key=True) as file:
        file.write(b"data")
        file.flush()
        for options in [{}, {"share_key": 1}, {"share_key": 0, "strict_key": True}]:
            with pytest.raises(OSError) as caught:
                client.open(path, "rb", **options)
            assert caught.value.errno == errno.EBUSY
        with client.open(path, "rb", share_key=2**64 - 1) as other:
            assert other.read() == b"data"
    with client.open(path, "rb") as file:
        with pytest.raises(OSError):
            client.open(path, "rb", share_key=1, strict_key=True)
        with client.open(path, "rb", share_key=1):
            client.open(path, "rb").close()
    with pytest.raises(ValueError):
        client.open(path, "rb", strict_key=True)


def test_text_and_lines(client, folder):
    with client.open(name(folder, "t"), "w", encoding="utf-8") as file:
        print("one\ntw\u00f6", file=file)
    with client.open(name(folder, "t"), encoding="utf-8") as file:
        assert list(file) == ["one\n", "tw\u00f6\n"]


@pytest.mark.parametrize("size", [1, 100, 40_000, 3 << 20])
def test_reads_into_any_buffer(client, folder, size):
    data = os.urandom(size * 8)
    (folder / "b").write_bytes(data)
    with client.open(name(folder, "b"), "rb", buffering=0) as file:
        target = bytearray(size)
        assert file.readinto(target) == size
        assert target == data[:size]
        view = memoryview(bytearray(size + 2))[1:-1]
        assert file.pread_into(view, 7) == size
        assert view == data[7 : 7 + size]
        numbers = array.array("d", bytes(8 * size))
        assert file.pread_into(numbers, 0) == 8 * size
        assert numbers.tobytes() == data
        own = client.buffer(size)
        assert file.pread_into(own, 1) == size
        assert bytes(own) == data[1 : 1 + size]
        assert file.pread(size, len(data) - 1) == data[-1:]
        assert file.pread(size, len(data)) == b""


@pytest.mark.parametrize("size", [1, 100, 40_000, 3 << 20])
def test_writes_from_any_buffer(client, folder, size):
    data = os.urandom(size)
    own = client.buffer(size)
    memoryview(own)[:] = data
    for source in data, bytearray(data), memoryview(data), own:
        with client.open(name(folder, "c"), "wb", buffering=0) as file:
            assert file.pwrite(source, 3) == size
            file.commit()
        assert (folder / "c").read_bytes() == b"\0\0\0" + data


def test_arrays_of_numpy(client, folder):
    numpy = pytest.importorskip("numpy")
    numbers = numpy.arange(100_000, dtype="<f4").reshape(100, 1000)
    with client.open(name(folder, "n"), "wb", buffering=0) as file:
        assert file.write(numbers) == 400_000
    with client.open(name(folder, "n"), "rb", buffering=0) as file:
        back = numpy.zeros_like(numbers)
        assert file.readinto(back) == 400_000
        assert (back == numbers).all()
        over = numpy.frombuffer(client.buffer(400_000), dtype="<f4").reshape(100, 1000)
        assert file.pread_into(over[50:], 200_000) == 200_000
        assert (over[50:] == numbers[50:]).all()
        assert (over[:50] == 0).all()
        with pytest.raises(BufferError):
            file.pread_into(back[:, ::2], 0)


def test_bad_buffers_are_refused(client, folder):
    (folder / "d").write_bytes(b"x" * 100)
    with client.open(name(folder, "d"), "rb", buffering=0) as file:
        with pytest.raises(TypeError):
            file.pread_into(b"constant", 0)
        with pytest.raises(TypeError):
            file.pread_into(17, 0)
        assert file.pread_into(bytearray(), 0) == 0
        with pytest.raises(OverflowError):
            file.pread_into(bytearray(1), -1)
        with pytest.raises(OSError):
            file.pwrite(b"x", 0)


def test_modes(client, folder):
    with pytest.raises(FileNotFoundError) as caught:
        client.open(name(folder, "m"), "rb")
    assert caught.value.filename == name(folder, "m")
    with client.open(name(folder, "m"), "xb") as file:
        file.write(b"0123456789")
    with pytest.raises(FileExistsError):
        client.open(name(folder, "m"), "xb")
    with client.open(name(folder, "m"), "r+b") as file:
        assert file.read(2) == b"01"
        file.write(b"AB")
        file.seek(0)
        assert file.read() == b"01AB456789"
        file.truncate(5)
    assert (folder / "m").read_bytes() == b"01AB4"
    with client.open(name(folder, "m"), "ab") as one, client.open(name(folder, "m"), "ab") as two:
        for file in one, two, one:
            file.write(b"-")
            file.flush()
        one.write(b"!")
    assert (folder / "m").read_bytes() == b"01AB4---!"
    with client.open(name(folder, "m"), "wb"):
        pass
    assert (folder / "m").read_bytes() == b""
    with client.open(name(folder, "m"), "rb", buffering=0) as file:
        with pytest.raises(io.UnsupportedOperation):
            file.write(b"x")
    for bad in "", "rw", "q", "rbt", "r++":
        with pytest.raises(ValueError):
            client.open(name(folder, "m"), bad)
    assert (folder / "m").stat().st_mode & 0o777 == 0o666 & ~current_umask()


def current_umask():
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def test_a_closed_file_says_so(client, folder):
    (folder / "e").write_bytes(b"x")
    file = client.open(name(folder, "e"), "rb", buffering=0)
    file.close()
    file.close()
    for use in (lambda: file.read(1), lambda: file.pread(1, 0), file.stat, file.fileno, file.tell):
        with pytest.raises((ValueError, io.UnsupportedOperation)):
            use()


def test_appends_of_threads_stay_whole(client, folder):
    def run(letter):
        with client.open(name(folder, "f"), "ab", buffering=0) as file:
            for _ in range(20):
                file.append(letter * 1000)

    threads = [threading.Thread(target=run, args=(letter,)) for letter in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    data = (folder / "f").read_bytes()
    pieces = [data[at : at + 1000] for at in range(0, len(data), 1000)]
    assert len(pieces) == 60
    assert all(len(set(piece)) == 1 for piece in pieces)


def test_locks(client, folder):
    (folder / "l").write_bytes(b"0123456789")
    with client.open(name(folder, "l"), "r+b", 0) as one, client.open(name(folder, "l"), "r+b", 0) as two:
        one.lock(offset=2, length=3)
        two.try_lock(offset=5, length=1)
        with pytest.raises(dafs.LockedError):
            two.try_lock(offset=4, length=1)
        with pytest.raises(BlockingIOError):
            two.lock(offset=4, length=1, timeout=0)
        with dafs.within(0.1), pytest.raises(dafs.LockedError):
            two.lock(offset=4, length=1)
        one.unlock(offset=2, length=3)
        two.lock(offset=4, length=1, timeout=5)
        one.lock(exclusive=False, offset=0, length=1)
        two.lock(exclusive=False, offset=0, length=1)


def test_a_lock_is_waited_for_without_the_lock_of_python(client, folder):
    (folder / "w").write_bytes(b"x")
    with client.open(name(folder, "w"), "r+b", 0) as one, client.open(name(folder, "w"), "r+b", 0) as two:
        one.lock()
        waits = threading.Event()

        def wait():
            waits.set()
            two.lock(timeout=60)

        thread = threading.Thread(target=wait)
        thread.start()
        assert waits.wait(60)
        one.unlock()
        thread.join()


def test_long_appends_are_cut_as_the_server_wants_it(client, folder):
    data = os.urandom(5 << 20)
    with client.open(name(folder, "long"), "ab") as file:
        assert file.write(data) == len(data)
    with client.open(name(folder, "long"), "ab", buffering=0) as file:
        assert file.write(data) == len(data)
        assert file.tell() == 2 * len(data)
    assert (folder / "long").read_bytes() == data + data


def test_an_append_in_doubt_is_not_done_again(server, client, folder):
    file = client.open(name(folder, "doubt"), "ab")
    file.write(b"once")
    with stopped(server):
        with dafs.within(1), pytest.raises(TimeoutError):
            file.flush()
    with pytest.raises(TimeoutError):
        file.close()
    client.stat(name(folder, "doubt"))
    assert (folder / "doubt").read_bytes() in (b"", b"once")


def test_an_append_that_a_signal_interrupts_is_not_done_again(server, client, folder):
    file = client.open(name(folder, "signal"), "ab")
    file.write(b"once")
    with stopped(server):
        assert interrupted(file.flush)
    with pytest.raises(dafs.InDoubtError):
        file.close()
    client.stat(name(folder, "signal"))
    assert (folder / "signal").read_bytes() in (b"", b"once")


class Handled(OSError):
    """An answer that no server gives."""


def raise_handled(number, frame):
    raise Handled(errno.EPERM, "handled")


class Signalling:
    """A raw file that a signal comes to just when an append has ended."""

    def __init__(self, file):
        self.file = file

    def append(self, part):
        at = self.file.append(part)
        signal.raise_signal(signal.SIGUSR1)
        return at

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.mark.parametrize("handler", [signal.default_int_handler, raise_handled])
def test_a_signal_right_behind_an_append_does_not_have_it_done_again(client, folder, handler):
    file = client.open(name(folder, "late"), "ab")
    file.raw._file = Signalling(file.raw._file)
    file.write(b"once")
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises((KeyboardInterrupt, Handled)):
            file.flush()
    finally:
        signal.signal(signal.SIGUSR1, before)
    with pytest.raises(dafs.InDoubtError):
        file.close()
    assert (folder / "late").read_bytes() == b"once"


def test_a_handler_may_use_the_file_that_it_has_interrupted(server, folder):
    (folder / "own").write_bytes(b"content")
    seen = []

    def looks(number, frame):
        server.process.send_signal(signal.SIGCONT)
        seen.append(file.tell())

    before = signal.signal(signal.SIGALRM, looks)
    try:
        with dafs.connect(server.url, transport="iwarp") as client:
            with client.open(name(folder, "own"), "rb", buffering=0) as file, stopped(server):
                signal.setitimer(signal.ITIMER_REAL, 0.3)
                # A call that waits for the file's lock, and not for the server, would never end.
                faulthandler.dump_traceback_later(60, exit=True)
                assert file.read(7) == b"content"
                file.seek(0)
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)
    assert seen == [0]


class Reentered:
    """A raw file in whose writes a handler writes to the same file."""

    def __init__(self, file, raw):
        self.file, self.raw = file, raw

    def write(self, source, offset):
        with pytest.raises(RuntimeError, match="reentrant"):
            self.file.write(b"handler")
        return self.raw.write(source, offset)

    def __getattr__(self, name):
        return getattr(self.raw, name)


def test_a_handler_does_not_take_the_position_of_the_write_that_it_interrupts(client, folder):
    with client.open(name(folder, "position"), "wb", buffering=0) as file:
        file._file = Reentered(file, file._file)
        assert file.write(b"one") == 3
        assert file.write(b"two") == 3
    assert (folder / "position").read_bytes() == b"onetwo"


class Interrupting:
    """A raw file in whose reads a handler comes that uses the same file."""

    def __init__(self, raw, handler):
        self.raw, self.handler = raw, handler

    def read(self, size, offset):
        data = self.raw.read(size, offset)
        self.handler()
        return data

    def read_into(self, target, offset):
        count = self.raw.read_into(target, offset)
        self.handler()
        return count

    def __getattr__(self, name):
        return getattr(self.raw, name)


def test_a_handler_that_appends_moves_no_read(client, folder):
    (folder / "appended").write_bytes(b"0123456789")
    with client.open(name(folder, "appended"), "a+b", buffering=0) as file:
        assert file.seek(0) == 0
        raw = file._file
        file._file = Interrupting(raw, lambda: file.write(b"+"))
        assert file.read(3) == b"012"
        assert file.readinto(bytearray(2)) == 2
        assert file.tell() == 5
        file._file = raw
        assert file.readall() == b"56789++"


def test_a_handler_that_reads_does_not_take_the_position_of_a_read(client, folder):
    def reads():
        with pytest.raises(RuntimeError, match="reentrant"):
            file.read(1)
        with pytest.raises(RuntimeError, match="reentrant"):
            file.seek(0)

    (folder / "both").write_bytes(b"0123456789")
    for mode in ("rb", "a+b"):
        with client.open(name(folder, "both"), mode, buffering=0) as file:
            file.seek(0)
            file._file = Interrupting(file._file, reads)
            assert file.read(3) == b"012"
            assert file.read(3) == b"345"


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 3_000_000])
def test_whole_files_are_read(client, folder, size):
    data = os.urandom(size)
    (folder / "whole").write_bytes(data)
    with client.open(name(folder, "whole"), "rb", buffering=0) as file:
        assert file.read() == data
        assert file.read() == b""
        assert file.pread(size, 0) == data
        assert file.pread(size + 1, 0) == data
        # Room for what there is, not for what was asked for.
        assert file.pread(1 << 40, 0) == data
        assert file.pread(1 << 40, size + 1) == b""
        with open(folder / "whole", "ab") as more:
            more.write(b"+")
        assert file.read() == b"+"
        file.seek(0)
        assert file.read() == data + b"+"


def test_a_slash_behind_a_name_asks_for_a_directory(client, folder):
    (folder / "file").write_bytes(b"content")
    (folder / "inner").mkdir()
    top = f"/{folder.name}"
    for path in ("file/", "file//", "file/."):
        with pytest.raises(NotADirectoryError):
            client.open(f"{top}/{path}", "rb")
        with pytest.raises(NotADirectoryError):
            client.stat(f"{top}/{path}")
        with pytest.raises(NotADirectoryError):
            client.unlink(f"{top}/{path}")
    for path in ("file/", "new/", "inner/"):
        for mode in ("wb", "ab", "xb"):
            with pytest.raises(IsADirectoryError):
                client.open(f"{top}/{path}", mode)
    for source, target in (("file/", "moved"), ("file", "moved/")):
        with pytest.raises(NotADirectoryError):
            client.rename(f"{top}/{source}", f"{top}/{target}")
    with pytest.raises(FileNotFoundError):
        client.symlink("file", f"{top}/new/")
    client.mkdir(f"{top}/made/")
    client.rename(f"{top}/made/", f"{top}/moved/")
    client.rmdir(f"{top}/moved/")
    assert sorted(os.listdir(folder)) == ["file", "inner"]
    assert (folder / "file").read_bytes() == b"content"
