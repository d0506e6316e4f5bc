"""Contents of many files at once, for the file system of fsspec.

Invariants
* Each item has one result: its bytes, or the exception that reading it alone raises.
* Beside the results, transfers need memory for one batch or one group of short files.
* A copied tree stays below its local directory: symbolic links there are replaced, never followed. Those of the
  tree are made when all else has been copied, so that no path leads through them, whatever the server lists.
"""

import contextlib
import os

import dafs
from fsspec.callbacks import DEFAULT_CALLBACK

from ._dafs import read_parts
from ._path import asked

# Longer ranges, in bytes, are fast enough one by one.
_BATCHED_BYTES_MAX = 256 << 10

# Bytes and open files of one batch.
_LOT_BYTES_MAX = 16 << 20
_LOT_FILES_MAX = 128

# A file is opened for so many ranges of it.
_RANGES_OPEN_MIN = 3

# Files that are copied together.
_COPIED_TOGETHER = 256


def contents(fs, ranges):
    """The bytes of ranges, given as path, start and end of `cat_file`, in their order. In place of one that
    cannot be read stands its exception."""
    found = [None] * len(ranges)
    by_path = {}
    for place, (path, start, end) in enumerate(ranges):
        by_path.setdefault(path, []).append((place, start or 0, end))
    short, batched = [], []
    for path, wanted in by_path.items():
        path = asked(fs._strip_protocol(path))
        for place, start, end in wanted:
            size = dafs.SHORT_BYTES if end is None else end - start
            if start < 0 or size <= 0:
                continue
            if size <= dafs.SHORT_BYTES and len(wanted) < _RANGES_OPEN_MIN:
                short.append((place, path, start, size, end is None))
            elif end is not None and size <= _BATCHED_BYTES_MAX:
                batched.append((place, path, start, size))
    _read_short(fs, short, found)
    _read_batched(fs, batched, found)
    for place, (path, start, end) in enumerate(ranges):
        if found[place] is None:
            try:
                found[place] = fs.cat_file(path, start, end)
            except Exception as error:
                found[place] = error
    return found


def _read_short(fs, wanted, found):
    """Reads short parts without opening their files."""
    if not wanted:
        return
    try:
        parts = read_parts(fs.client, [(path, start, size) for _, path, start, size, _ in wanted])
    except OSError as error:
        # The server does not answer, for none of them.
        parts = [error] * len(wanted)
    for (place, _, _, _, to_end), part in zip(wanted, parts):
        if isinstance(part, Exception):
            found[place] = part
        elif part[1] or not to_end:
            found[place] = part[0]


def _read_batched(fs, wanted, found):
    """Reads ranges of open files by batches."""
    try:
        for lot in _lots(wanted):
            _read_lot(fs.client, lot, found)
    except (TimeoutError, ConnectionError) as error:
        # The server does not answer, for none of the rest.
        for place, *_ in wanted:
            found[place] = error if found[place] is None else found[place]
    except OSError:
        # Not possible together: they are read one by one.
        pass


def _lots(wanted):
    """Ranges that are read by one batch each. Those of one file follow each other."""
    lot, size, paths = [], 0, set()
    for each in wanted:
        _, path, _, length = each
        is_full = len(paths) == _LOT_FILES_MAX and path not in paths
        if size + length > _LOT_BYTES_MAX or is_full:
            yield lot
            lot, size, paths = [], 0, set()
        lot.append(each)
        size += length
        paths.add(path)
    if lot:
        yield lot


def _read_lot(client, lot, found):
    memory = memoryview(client.buffer(sum(length for *_, length in lot)))
    batch, files, at = client.batch(), {}, 0
    with contextlib.ExitStack() as opened:
        for place, path, start, length in lot:
            if path not in files:
                files[path] = _opened(client, path, opened)
            if isinstance(files[path], Exception):
                found[place] = files[path]
                continue
            batch.read_into(files[path], memory[at : at + length], start, user_data=(place, at))
            at += length
        completions = batch.run()
    for completion in completions:
        place, at = completion.user_data
        # One that has failed is read alone, and so raises an exception with the name of its file.
        with contextlib.suppress(OSError):
            found[place] = bytes(memory[at : at + completion.result()])


def _opened(client, path, opened):
    """An open file, or the exception of its open."""
    try:
        return opened.enter_context(client.open(path, "rb", 0))
    except (TimeoutError, ConnectionError):
        raise
    except (OSError, ValueError) as error:
        return error


def has_no_content(fs, path, error):
    """Whether an error of a file in a tree says that it has none: it is a directory, or a link that leads
    nowhere."""
    if isinstance(error, IsADirectoryError):
        return True
    return getattr(error, "errno", None) in dafs._NO_SUCH_PATH and _link_text(fs, path) is not None


def _link_text(fs, path):
    """The text of a symbolic link; `None` for all else."""
    try:
        return fs.client.readlink(path)
    except OSError:
        return None


def get(fs, pairs, tops, callback, options):
    """Copies pairs of remote and local paths: the files and directories that a copy of `tops` consists of.

    Below the tops, links to directories and links that lead nowhere are copied as links.
    """
    callback.set_size(len(pairs))
    made, links = set(), []
    for at in range(0, len(pairs), _COPIED_TOGETHER):
        lot = pairs[at : at + _COPIED_TOGETHER]
        wanted = [(asked(remote), 0, dafs.SHORT_BYTES) for remote, _ in lot]
        for (remote, local), start in zip(lot, read_parts(fs.client, wanted)):
            with _branched(callback, remote, local) as child:
                if not isinstance(local, (str, os.PathLike)):
                    # A file of Python.
                    fs.get_file(remote, local, callback=child, **options)
                else:
                    text = _get_one(fs, (remote, local), start, remote not in tops, made, child, options)
                    if text is not None:
                        links.append((text, local))
            callback.relative_update(1)
    for text, local in links:
        # Left there by an earlier copy.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(local)
        os.symlink(text, local)


def _branched(callback, remote, local):
    """The callback for one file. Old versions of fsspec have no such method."""
    branched = getattr(callback, "branched", None)
    return branched(remote, local) if branched else contextlib.nullcontext(DEFAULT_CALLBACK)


def _get_one(fs, pair, start, is_below, made, callback, options):
    """Copies one thing, of which `start` is the start of its content and whether that is all, or the
    exception. Returns the text of a symbolic link, which is not made yet, else `None`."""
    remote, local = pair
    if is_below and os.path.islink(local):
        os.unlink(local)
    folder = os.path.dirname(local) or "."
    if folder not in made:
        os.makedirs(folder, exist_ok=True)
        made.add(folder)
    if isinstance(start, Exception):
        is_link = is_below and has_no_content(fs, remote, start)
        text = _link_text(fs, remote) if is_link else None
        if text is None:
            if not isinstance(start, IsADirectoryError):
                raise start
            os.makedirs(local, exist_ok=True)
        return text
    content, is_whole = start
    if not is_whole:
        fs.get_file(remote, local, callback=callback, **options)
        return None
    callback.set_size(len(content))
    with open(local, "wb") as file:
        callback.relative_update(file.write(content))
    return None
