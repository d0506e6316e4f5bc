"""A client of CephFS itself, as a load and as the one that prepares directories.

    native.py CONFIG prepare DIRECTORY=POOL... -- makes directories whose files have units of 256 KiB
    native.py CONFIG remove DIRECTORY          -- removes the files in it
    native.py CONFIG write|read PATH OFFSET BYTES BLOCK
        says "ready", waits for a line, writes or reads, says "done", waits for the end of its input

Content is that of the other loads: every 8 KiB begin with their place in the file.
"""

import os
import struct
import sys
import time

import cephfs

STAMP = 8192
UNIT = 262144

config, action, *rest = sys.argv[1:]
fs = cephfs.LibCephFS(conffile=config)
fs.mount()


def prepare():
    for text in rest:
        directory, pool = text.split("=")
        fs.mkdir(directory, 0o777)
        fs.chmod(directory, 0o777)
        layout = f"stripe_unit={UNIT} stripe_count=1 object_size={UNIT} pool={pool}".encode()
        # The metadata server hears of a new pool after the monitors.
        for attempt in range(100):
            try:
                fs.setxattr(directory, "ceph.dir.layout", layout, 0)
                break
            except cephfs.Error:
                if attempt == 99:
                    raise
                time.sleep(0.1)


def remove():
    directory = fs.opendir(rest[0])
    names = []
    while entry := fs.readdir(directory):
        if entry.d_name not in (b".", b".."):
            names.append(entry.d_name)
    fs.closedir(directory)
    for name in names:
        fs.unlink(rest[0].encode() + b"/" + name)


def load():
    path, (begin, length, block) = rest[0], map(int, rest[1:])
    write = action == "write"
    fd = fs.open(path, os.O_WRONLY | os.O_CREAT if write else os.O_RDONLY, 0o666)
    print("ready", flush=True)
    sys.stdin.readline()
    buffer = bytearray(block)
    for offset in range(begin, begin + length, block):
        if write:
            for at in range(0, block, STAMP):
                struct.pack_into("<Q", buffer, at, offset + at)
            if fs.write(fd, bytes(buffer), offset) != block:
                raise SystemExit("a short write")
        else:
            got = fs.read(fd, offset, block)
            if len(got) != block:
                raise SystemExit(f"{len(got)} bytes of {block} at {offset}")
            for at in range(0, block, STAMP):
                if struct.unpack_from("<Q", got, at)[0] != offset + at:
                    raise SystemExit(f"wrong content at {offset + at}")
    if write:
        fs.fsync(fd, 0)
    print("done", flush=True)
    sys.stdin.read()
    fs.close(fd)


{"prepare": prepare, "remove": remove}.get(action, load)()
fs.shutdown()
