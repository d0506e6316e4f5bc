"""Calls of NFSv3 and its family over one connection to the server on this host."""

import socket
import struct

NFS, MOUNT = 100003, 100005


def opaque(data):
    return struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)


def number(*values):
    return struct.pack(f">{len(values)}I", *values)


class Server:
    """A connection, with calls by RPC."""

    def __init__(self, port, uid=0):
        self.uid = uid
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
        credential = number(0) + opaque(b"test") + number(self.uid, self.uid, 0)
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

    def file(self, path):
        """Returns the handle of a path in the export `/`."""
        mounted = self.results(MOUNT, 3, 1, opaque(b"/"))
        (status, count) = struct.unpack(">2I", mounted[:8])
        if status:
            raise SystemExit(f"no mount: {status}")
        handle = mounted[8 : 8 + count]
        for name in path.split("/"):
            found = self.results(NFS, 3, 3, opaque(handle) + opaque(name.encode()))
            (status, count) = struct.unpack(">2I", found[:8])
            if status:
                raise SystemExit(f"no file: {status}")
            handle = found[8 : 8 + count]
        return handle
