"""Reads one file over and over: once to get warm, then when it is told to; says how often and how long."""

import sys
import time

import dafs

url, transport, memory = sys.argv[1:4]
read_bytes, file_bytes, milliseconds = map(int, sys.argv[4:])


def run(seconds):
    target = client.buffer(read_bytes) if memory == "own" else bytearray(read_bytes)
    count = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        offset = count * read_bytes % file_bytes
        if memory == "new":
            done = len(file.pread(read_bytes, offset))
        else:
            done = file.pread_into(target, offset)
        assert done == read_bytes
        count += 1
    return count, time.perf_counter() - start


with dafs.connect(url, transport=transport) as client:
    with client.open("data", "rb", buffering=0) as file:
        run(0.02)
        print("ready", flush=True)
        sys.stdin.readline()
        print(*run(milliseconds / 1000), flush=True)
        sys.stdin.readline()
