#!/usr/bin/env python3
"""A client of NFSv3's access control lists: nfs3_acl.py PORT UID STEP... carries out the steps as this user over
one connection to the server on this host, and ends at the first that goes otherwise.

A step is get,PATH=LISTS, set,PATH,LISTS=STATUS or access,PATH=BITS, about the path in the export `/`. LISTS is one
list, or two with a / between them: that for access and the default one. A list is entries with a + between them, each
TAG:ID:RIGHTS, with the tags u, g, m and o, and without an id for the owner and the group. STATUS is a number of NFSv3,
and BITS are the granted rights of ACCESS. garbage,PATH=STATUS sends a list with fewer bytes than it says.
"""

import struct
import sys

from nfs3_rpc import NFS, Server, number, opaque

ACL = 100227
TAGS = {("u", True): 1, ("u", False): 2, ("g", True): 4, ("g", False): 8, ("m", True): 0x10, ("o", True): 0x20}
NAMES = {tag: name for name, tag in TAGS.items()}


def encode(text, mark):
    """Returns the count and the array of a list."""
    entries = text.split("+") if text else []
    data = number(len(entries), len(entries))
    for entry in entries:
        tag, name, rights = entry.split(":")
        data += number(TAGS[tag, not name] | mark, int(name or 0), int(rights))
    return data


def decode(data):
    """Returns the text of a list and the bytes after it."""
    count, present = struct.unpack(">2I", data[:8])
    if count != present:
        raise SystemExit(f"{present} of {count} entries")
    entries = []
    for at in range(8, 8 + 12 * count, 12):
        tag, name, rights = struct.unpack(">3I", data[at : at + 12])
        kind, is_unnamed = NAMES[tag & ~0x1000]
        entries.append(f"{kind}:{'' if is_unnamed else name}:{rights}")
    return "+".join(entries), data[8 + 12 * count :]


def after_attributes(data):
    """Returns the bytes after the attributes of a result."""
    (present,) = struct.unpack(">I", data[:4])
    return data[4 + 84 * present :]


def step(server, text):
    """Returns the outcome of a step."""
    operation, path, *lists = text.split(",")
    handle = opaque(server.file(path))
    if operation == "garbage":
        return str(server.call(ACL, 3, 2, handle + number(1, 1024, 1024))[0])
    if operation == "access":
        results = server.results(NFS, 3, 4, handle + number(0x3F))
        return str(struct.unpack(">I", after_attributes(results[4:])[:4])[0])
    if operation == "set":
        access, is_both, default = lists[0].partition("/")
        args = number(5 if is_both else 1) + encode(access, 0) + encode(default, 0x1000)
        results = server.results(ACL, 3, 2, handle + args)
        return str(struct.unpack(">I", results[:4])[0])
    results = server.results(ACL, 3, 1, handle + number(5))
    (status,) = struct.unpack(">I", results[:4])
    if status:
        return str(status)
    access, rest = decode(after_attributes(results[4:])[4:])
    default, rest = decode(rest)
    if rest:
        raise SystemExit(f"bytes after the lists: {rest!r}")
    return f"{access}/{default}" if default else access


def main():
    server = Server(int(sys.argv[1]), int(sys.argv[2]))
    for text in sys.argv[3:]:
        what, _, wanted = text.partition("=")
        outcome = step(server, what)
        if outcome != wanted:
            raise SystemExit(f"{what}: {outcome}, not {wanted}")


main()
