"""Calls a server under a false identity, and checks that the server does not accept it.

callers.py users UID   a user of this host claims to be root
callers.py hosts       hosts give the name of another host's client
"""

import os
import socket
import struct
import sys

NFS, MOUNT = 100003, 100005
PORT = 2049
EXCHANGE_ID, CREATE_SESSION, SEQUENCE = 42, 43, 53
CLID_INUSE = 10017


def opaque(data):
    return struct.pack(">I", len(data)) + data + b"\0" * (-len(data) % 4)


def dial(server, source=("", 0)):
    """Connects from an address and port, which other sockets may share."""
    family = socket.AF_INET6 if ":" in server[0] else socket.AF_INET
    stream = socket.socket(family, socket.SOCK_STREAM)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if source != ("", 0):
        stream.bind(source)
    stream.settimeout(20)
    stream.connect(server)
    return stream


def message(program, version, procedure, args, xid=7):
    """A call as root, as it goes over TCP."""
    credential = struct.pack(">I", 0) + opaque(b"host") + struct.pack(">3I", 0, 0, 0)
    head = struct.pack(">6I", xid, 0, 2, program, version, procedure)
    body = head + struct.pack(">I", 1) + opaque(credential) + struct.pack(">2I", 0, 0) + args
    return struct.pack(">I", 0x80000000 | len(body)) + body


def call(stream, program, version, procedure, args, xid=7):
    """The results of a call as root."""
    stream.sendall(message(program, version, procedure, args, xid))
    return reply(stream)


def reply(stream):
    """The results, or None for a refused caller."""
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
    """The identity that the server assumes: only root may make a directory in the export."""
    found = call(stream, MOUNT, 3, 1, opaque(export.encode()))
    if found is None or struct.unpack(">I", found[:4])[0] != 0:
        return "refused"
    length = struct.unpack(">I", found[4:8])[0]
    handle = found[8 : 8 + length]
    name = b"by-%d" % os.getpid()
    nothing = struct.pack(">6I", 0, 0, 0, 0, 0, 0)
    made = call(stream, NFS, 3, 9, opaque(handle) + opaque(name) + nothing)
    if made is None:
        return "refused"
    status = struct.unpack(">I", made[:4])[0]
    return {0: "root", 13: "a user"}.get(status, "status %d" % status)


def as_user(uid, work):
    """The results of a process of this user."""
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


def users(user):
    """Root and a user have connections from the same port to different addresses; and so on."""
    port, good = PORT, []
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
    return all(good)


def operation(stream, number, args):
    """Status and result of a compound of one operation; no status for a refused caller."""
    found = call(stream, NFS, 4, 1, opaque(b"") + struct.pack(">3I", 1, 1, number) + args)
    if found is None:
        return None, b""
    return struct.unpack(">I", found[16:20])[0], found[20:]


def exchange_id(stream, verifier):
    args = bytes([verifier] * 8) + opaque(b"victim") + struct.pack(">3I", 0, 0, 0)
    return operation(stream, EXCHANGE_ID, args)


def create_session(stream, client_id, sequence):
    channel = struct.pack(">7I", 0, 4096, 4096, 4096, 8, 8, 0)
    head = client_id + struct.pack(">2I", sequence, 0)
    return operation(stream, CREATE_SESSION, head + channel * 2 + struct.pack(">3I", 0, 1, 0))


def hosts():
    """198.51.100.2 and .3 are admitted from privileged ports, .4 is not."""
    server, good = ("198.51.100.1", PORT), []

    def expect(what, found, wanted):
        print("%s: %s" % (what, found), flush=True)
        good.append(found == wanted)

    victim = dial(server, ("198.51.100.2", 700))
    status, result = exchange_id(victim, 1)
    client_id, sequence = result[:8], struct.unpack(">I", result[8:12])[0]
    status, result = create_session(victim, client_id, sequence)
    expect("a session", status, 0)
    session = result[:16]
    strangers = [
        ("a host that no export admits", ("198.51.100.4", 700), None),
        ("a user of the client's host", ("198.51.100.2", 50000), None),
        ("another host", ("198.51.100.3", 700), CLID_INUSE),
    ]
    for number, (what, source, wanted) in enumerate(strangers):
        stream = dial(server, source)
        status, result = exchange_id(stream, 2)
        expect(what + " with the client's name", status, wanted)
        if status == 0:
            create_session(stream, result[:8], struct.unpack(">I", result[8:12])[0])
        status, _ = create_session(stream, client_id, sequence + 1)
        expect(what + " with the client's id", status, wanted)
        args = session + struct.pack(">4I", number + 1, 0, 0, 0)
        expect("the client", operation(victim, SEQUENCE, args)[0], 0)
    stranger = dial(server, ("198.51.100.4", 701))
    expect("NULL", call(stranger, NFS, 4, 0, b""), b"")
    for what, program, procedure in [("GETATTR", NFS, 1), ("DUMP", MOUNT, 2), ("EXPORT", MOUNT, 5)]:
        expect(what, call(stranger, program, 3, procedure, opaque(b"handle")), None)
    return all(good)


if __name__ == "__main__":
    sys.exit(0 if (hosts() if sys.argv[1] == "hosts" else users(int(sys.argv[2]))) else 1)
