#!/usr/bin/env python3
"""A client of NFSv3's locks: nlm.py PORT STEP... carries out the steps over one connection to the server on
this host, and ends at the first that goes otherwise.

A step is OPERATION,HOST,OFFSET,LENGTH=OUTCOME, with the operations lock, block, test, unlock, cancel and notify.
OUTCOME is the name of a status, or nothing for notify. HOST is the name that the lock manager gives itself.
The file is `file` in the export `/`. `garbage` sends what is no call of any lock.
"""

import socket
import struct
import sys
import time

NFS, MOUNT, NLM, NSM = 100003, 100005, 100021, 100024
STATUS = ["granted", "denied", "nolocks", "blocked", "grace", "deadlock", "rofs", "stale", "fbig", "failed"]


def opaque(data):
    return struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)


def number(*values):
    return struct.pack(f">{len(values)}I", *values)


class Server:
    """A connection, with calls by RPC."""

    def __init__(self, port):
        self.stream = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.xid = 0

    def receive(self, count):
        data = b""
        while len(data) < count:
            more = self.stream.recv(count - len(data))
            if not more:
                raise SystemExit("the server has ended the connection")
            data += more
        return data

    def call(self, program, version, procedure, args):
        """Returns the accept status and the results."""
        self.xid += 1
        credential = number(0) + opaque(b"test") + number(0, 0, 0)
        head = number(self.xid, 0, 2, program, version, procedure, 1) + opaque(credential) + number(0, 0)
        message = head + args
        self.stream.sendall(number(0x80000000 | len(message)) + message)
        reply = b""
        while True:
            (mark,) = struct.unpack(">I", self.receive(4))
            reply += self.receive(mark & 0x7FFFFFFF)
            if mark & 0x80000000:
                break
        xid, _, denied = struct.unpack(">3I", reply[:12])
        if xid != self.xid or denied:
            raise SystemExit(f"refused: {reply!r}")
        (verifier,) = struct.unpack(">I", reply[16:20])
        at = 20 + verifier
        return struct.unpack(">I", reply[at : at + 4])[0], reply[at + 4 :]

    def results(self, *what):
        status, results = self.call(*what)
        if status:
            raise SystemExit(f"not carried out: {status}")
        return results

    def file(self):
        mounted = self.results(MOUNT, 3, 1, opaque(b"/"))
        (status, count) = struct.unpack(">2I", mounted[:8])
        if status:
            raise SystemExit(f"no mount: {status}")
        found = self.results(NFS, 3, 3, opaque(mounted[8 : 8 + count]) + opaque(b"file"))
        (status, count) = struct.unpack(">2I", found[:8])
        if status:
            raise SystemExit(f"no file: {status}")
        return found[8 : 8 + count]


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
    handle = server.file()
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
