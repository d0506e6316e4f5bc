"""Calls a server on this host as a user of this host that claims to be root.

Each probe prints one line: what the server took the caller for (root, or somebody else), or that it
refused the caller.
"""

import ctypes
import os
import socket
import struct
import sys

NFS, MOUNT = 100003, 100005
IP_LOCAL_PORT_RANGE = 51


def opaque(data):
    return struct.pack(">I", len(data)) + data + b"\0" * (-len(data) % 4)


def dial(server, source=("", 0), listener=None):
    """Connects from an address and port, which other sockets may use, too."""
    family = socket.AF_INET6 if ":" in server[0] else socket.AF_INET
    stream = socket.socket(family, socket.SOCK_STREAM)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if source != ("", 0):
        stream.bind(source)
    stream.settimeout(20)
    stream.connect(server)
    return stream


def call(stream, program, procedure, args, uid=0):
    credential = struct.pack(">I", 0) + opaque(b"host") + struct.pack(">3I", uid, uid, 0)
    head = struct.pack(">6I", 7, 0, 2, program, 4 if procedure is None else 3, procedure or 1)
    message = head + struct.pack(">I", 1) + opaque(credential) + struct.pack(">2I", 0, 0) + args
    stream.sendall(struct.pack(">I", 0x80000000 | len(message)) + message)
    return reply(stream)


def reply(stream):
    """The results, or nothing for a caller that is refused."""
    data = b""
    while len(data) < 4 or len(data) < 4 + (struct.unpack(">I", data[:4])[0] & 0x7FFFFFFF):
        more = stream.recv(65536)
        if not more:
            return None
        data += more
    _, _, state, *_ = struct.unpack(">3I", data[4:16])
    if state != 0:
        return None
    verifier = struct.unpack(">I", data[20:24])[0]
    return data[28 + verifier :]


def identity(stream, export):
    """Whom the server takes the caller for: root may make a directory in the export."""
    found = call(stream, MOUNT, 1, opaque(export.encode()))
    if found is None or struct.unpack(">I", found[:4])[0] != 0:
        return "refused"
    length = struct.unpack(">I", found[4:8])[0]
    handle = found[8 : 8 + length]
    name = b"by-%d" % os.getpid()
    nothing = struct.pack(">6I", 0, 0, 0, 0, 0, 0)
    made = call(stream, NFS, 9, opaque(handle) + opaque(name) + nothing)
    if made is None:
        return "refused"
    status = struct.unpack(">I", made[:4])[0]
    return {0: "root", 13: "a user"}.get(status, "status %d" % status)


def as_user(uid, work):
    """What a process of this user finds."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        text = "an exception"
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            text = work()
        finally:
            os.write(writer, text.encode())
            os._exit(0)
    os.close(writer)
    text = os.read(reader, 1000).decode()
    os.close(reader)
    os.waitpid(child, 0)
    return text


def probe(what, wanted, uid, server, export, source=("", 0)):
    found = as_user(uid, lambda: identity(dial(server, source), export))
    print("%s: %s" % (what, found), flush=True)
    return found == wanted


def main():
    user, port = int(sys.argv[1]), 2049
    good = []
    # Root has a connection from a port, and somebody else one from the same port to another address.
    roots = dial(("127.0.0.1", port), ("127.0.0.1", 700))
    good.append(identity(roots, "/default") == "root")
    high = dial(("127.0.0.1", port), ("127.0.0.1", 40000))
    good.append(identity(high, "/default") == "root")
    for source in (700, 40000):
        what = "a user with root's port %d" % source
        server = ("127.0.0.2", port)
        good.append(probe(what, "a user", user, server, "/default", ("127.0.0.1", source)))
    good.append(probe("a user with a low port", "a user", user, ("127.0.0.1", port), "/default", ("", 701)))
    for server in ("192.0.2.1", "2001:db8::1", "::1", "::ffff:192.0.2.1", "fe80::1%own"):
        what = "a user by %s" % server
        address = socket.getaddrinfo(server, port, type=socket.SOCK_STREAM)[0][4]
        good.append(probe(what, "a user", user, address, "/open"))
        good.append(probe("root by %s" % server, "root", 0, address, "/open"))
        good.append(probe("%s, low port" % what, "a user", user, address, "/open", ("", 702)))
    sys.exit(0 if all(good) else 1)


main()
