#!/usr/bin/env python3
"""A client of NFSv3's locks: nlm.py PORT STEP... carries out the steps over one connection to the server on
this host, and ends at the first that goes otherwise.

A step is OPERATION,HOST,OFFSET,LENGTH=OUTCOME, with the operations lock, block, test, unlock, cancel and notify.
OUTCOME is the name of a status, or nothing for notify. HOST is the name that the lock manager gives itself.
The file is `file` in the export `/`. `garbage` sends what is no call of any lock.
"""

import struct
import sys
import time

from nfs3_rpc import Server, number, opaque

NLM, NSM = 100021, 100024
STATUS = ["granted", "denied", "nolocks", "blocked", "grace", "deadlock", "rofs", "stale", "fbig", "failed"]


def step(server, handle, text):
    """Returns the outcome of a step."""
    if text == "garbage":
        return {4: "garbage"}.get(server.call(NLM, 4, 2, b"\xff" * 16)[0], "?")
    operation, host, offset, length = text.split(",")
    if operation == "notify":
        server.results(NSM, 1, 6, opaque(host.encode()) + number(int(offset)))
        return ""
    lock = opaque(host.encode()) + opaque(handle) + opaque(b"1@" + host.encode()) + number(1)
    lock += struct.pack(">2Q", int(offset), int(length))
    cookie, block = opaque(b"cookie"), number(int(operation == "block"))
    procedure, args = {
        "test": (1, cookie + number(1) + lock),
        "lock": (2, cookie + block + number(1) + lock + number(0, 3)),
        "block": (2, cookie + block + number(1) + lock + number(0, 3)),
        "cancel": (3, cookie + number(1, 1) + lock),
        "unlock": (4, cookie + lock),
    }[operation]
    results = server.results(NLM, 4, procedure, args)
    if not results.startswith(cookie):
        raise SystemExit(f"another cookie: {results!r}")
    return STATUS[struct.unpack(">I", results[len(cookie) : len(cookie) + 4])[0]]


def main():
    server = Server(int(sys.argv[1]))
    handle = server.file("file")
    for text in sys.argv[2:]:
        what, _, wanted = text.partition("=")
        outcome = step(server, handle, what)
        # As other clients do, while the server waits for a delegation.
        until = time.monotonic() + 10
        while outcome == "grace" and time.monotonic() < until:
            time.sleep(0.1)
            outcome = step(server, handle, what)
        if outcome != wanted:
            raise SystemExit(f"{what}: {outcome}, not {wanted}")


main()
