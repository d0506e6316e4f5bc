"""Times 5,000 reads of 4 KiB through fsspec, of one file and of as many files, and checks their contents.

    python3 measure_many.py dafs://server/ DIRECTORY

DIRECTORY is what the server exports, on this host; 40 MB are written there. The best of some rounds is printed.
"""

import os
import pathlib
import sys
import time

from dafs.fsspec import DafsFileSystem

READS = 5000
READ_BYTES = 4096
ROUNDS = 5


def best_milliseconds(fs, paths, starts, contents):
    """The shortest time of some rounds. AssertionError: a content is another one."""
    ends = [start + READ_BYTES for start in starts]
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        found = fs.cat_ranges(paths, starts, ends)
        times.append(time.perf_counter() - begin)
        assert found == contents
    return min(times) * 1000


def main():
    url, directory = sys.argv[1], pathlib.Path(sys.argv[2])
    contents = [os.urandom(READ_BYTES) for _ in range(READS)]
    (directory / "one").write_bytes(b"".join(contents))
    (directory / "many").mkdir(exist_ok=True)
    for number, content in enumerate(contents):
        (directory / "many" / str(number)).write_bytes(content)
    places = [number * READ_BYTES for number in range(READS)]
    for transport in ("shm", "iwarp"):
        fs = DafsFileSystem(**DafsFileSystem._get_kwargs_from_urls(url), transport=transport)
        of_one = best_milliseconds(fs, ["/one"] * READS, places, contents)
        paths = [f"/many/{number}" for number in range(READS)]
        of_many = best_milliseconds(fs, paths, [0] * READS, contents)
        print(f"{transport}: {READS} reads of {READ_BYTES} bytes: {of_one:.0f} ms of one file, {of_many:.0f} ms of as many files")


if __name__ == "__main__":
    main()
