"""An honest client of each protocol, which measures each of its operations; and the judgement of the results.

honest.py PROTOCOL SERVER DAFS_PORT NFS_PORT METRICS_PORT   works until it is killed, or refused; PROTOCOL may be
                                                            `idle`, a service of its own that has nothing else to do
honest.py judge LONG BEFORE START END LOG...                prints each p99 before and during a flood

A line of its output is the end time of an operation, its kind, and its duration in seconds.
"""

import os
import socket
import statistics
import struct
import sys
import threading
import time

from callers import CREATE_SESSION, EXCHANGE_ID, MOUNT, NFS, SEQUENCE, call, dial, message, opaque

PUTFH, PUTROOTFH, LOOKUP, GETFH = 22, 24, 15, 10
OPEN, CLOSE, READ, WRITE, REMOVE = 18, 4, 25, 38, 28
LOCK, UNLOCK, LAYOUT_GET, LAYOUT_RETURN = 12, 14, 50, 51
RECLAIM_COMPLETE, DESTROY_SESSION, DESTROY_CLIENT = 58, 44, 57
# Statuses by which a server asks for a retry: a grace period, or a recall in progress.
COME_AGAIN = (10008, 10013)
PATIENCE_SECONDS = 20
PAUSE_SECONDS = 0.004
# Below this, below the median wait of the kinds before the flood, and below the wait of an idle service during it, a
# measurement is mostly the scheduling delay of a busy machine. A kind with few operations may not have met that before.
FLOOR_SECONDS = 0.010
BUSY_SECONDS_MAX = 0.030
FACTOR_MAX = 5
# Waits of one measurement, one after the other; each may be that long. The calls of a mount; for a scrape, that of the
# listener and that of the counts.
WAITS = {"mount4": 3, "scrape": 2}
BLOCK = bytes(range(256)) * 16


class Refused(Exception):
    """The server refused an operation of an honest client."""


class Results:
    """Reads results one after the other."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def fixed(self, length):
        self.at += length
        return self.data[self.at - length : self.at]

    def number(self):
        return struct.unpack(">I", self.fixed(4))[0]

    def opaque(self):
        length = self.number()
        return self.fixed(length + -length % 4)[:length]

    def operation(self):
        """Goes to the next result of a compound, which must be a success."""
        self.fixed(8)
        return self


def size_of(data):
    """Length of the record that begins with this mark."""
    return struct.unpack(">I", data[:4])[0] & 0x7FFFFFFF


class Nfs4:
    """A client of NFSv4.1 with one session and one slot."""

    def __init__(self, server, name, sessions=1, verifier=None):
        self.stream, self.xid, self.turn, self.slot = dial(server), 0, 0, None
        self.data = b""
        verifier = verifier or os.urandom(8)
        made = self.compound((EXCHANGE_ID, verifier + opaque(name) + struct.pack(">3I", 0, 0, 0)))
        self.client = made.operation().fixed(8)
        first = made.number()
        channel = struct.pack(">7I", 0, 65536, 65536, 4096, 8, 2, 0)
        for number in range(sessions):
            # With callbacks, without which there are no layouts.
            head = self.client + struct.pack(">2I", first + number, 2)
            args = head + channel * 2 + struct.pack(">3I", 0, 1, 0)
            self.slot = None
            self.slot = self.compound((CREATE_SESSION, args)).operation().fixed(16)
        self.compound((RECLAIM_COMPLETE, struct.pack(">I", 0)))

    def compound(self, *operations):
        """The results of operations that all succeed; retries if the server asks for it."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            status, results = self.attempt(operations)
            if status == 0:
                return results
            if status not in COME_AGAIN or time.monotonic() > until:
                raise Refused("NFSv4: status %d of operations %s" % (status, [o[0] for o in operations]))
            time.sleep(0.01)

    def attempt(self, operations):
        if self.slot:
            self.turn += 1
            args = self.slot + struct.pack(">4I", self.turn, 0, 0, 0)
            operations = ((SEQUENCE, args), *operations)
        body = b"".join(struct.pack(">I", number) + args for number, args in operations)
        self.xid += 1
        head = opaque(b"") + struct.pack(">2I", 1, len(operations))
        self.stream.sendall(message(NFS, 4, 1, head + body, self.xid))
        results = Results(self.reply())
        status = results.number()
        results.fixed(8)
        if self.slot:
            results.fixed(8 + 36)
        return status, results

    def reply(self):
        """The results of the outstanding call. Of the callbacks of the server, only NULL is answered."""
        while True:
            while len(self.data) < 4 or len(self.data) < 4 + (length := size_of(self.data)):
                more = self.stream.recv(65536)
                if not more:
                    raise Refused("NFSv4: the connection was closed")
                self.data += more
            record, self.data = self.data[4 : 4 + length], self.data[4 + length :]
            xid, is_reply = struct.unpack(">2I", record[:8])
            if is_reply and struct.unpack(">I", record[8:12])[0] == 0:
                return record[24:]
            if is_reply:
                raise Refused("NFSv4: the call was denied")
            if struct.unpack(">I", record[20:24])[0] == 0:
                self.stream.sendall(struct.pack(">7I", 0x80000000 | 24, xid, 1, 0, 0, 0, 0))

    def root(self, *names):
        """The handle of a directory by its path."""
        steps = [(LOOKUP, opaque(name)) for name in names]
        results = self.compound((PUTROOTFH, b""), *steps, (GETFH, b""))
        results.fixed(8 * (1 + len(steps)))
        return results.operation().opaque()

    def open(self, directory, name):
        """Makes and opens a file; its handle and state."""
        owner = self.client + opaque(b"owner")
        how = struct.pack(">5I", 1, 0, 0, 0, 0) + opaque(name)
        args = struct.pack(">3I", 0, 0x403, 0) + owner + how
        results = self.compound((PUTFH, opaque(directory)), (OPEN, args), (GETFH, b""))
        state = results.operation().operation().fixed(16)
        results.fixed(24)
        results.fixed(4 * results.number())
        if results.number() == 3 and results.number() in (1, 2):
            results.fixed(4)
        return results.operation().opaque(), state

    def on(self, handle, number, args):
        return self.compound((PUTFH, opaque(handle)), (number, args)).operation().operation()

    def lock(self, handle, state, offset, length):
        owner = struct.pack(">I", 0) + self.client + opaque(b"locker")
        span = struct.pack(">IIQQI", 2, 0, offset, length, 1)
        return self.on(handle, LOCK, span + struct.pack(">I", 0) + state + owner).fixed(16)

    def layout(self, handle, state):
        args = struct.pack(">3I3Q", 0, 1, 2, 0, (1 << 64) - 1, 4096) + state + struct.pack(">I", 4096)
        return self.on(handle, LAYOUT_GET, args).fixed(20)[4:]

    def leave(self):
        session, self.slot = self.slot, None
        self.compound((DESTROY_SESSION, session))
        self.compound((DESTROY_CLIENT, self.client))
        self.stream.close()


def timed(kind, operation, *args):
    start = time.monotonic()
    result = operation(*args)
    print("%.3f %s %.6f" % (time.time(), kind, time.monotonic() - start), flush=True)
    time.sleep(PAUSE_SECONDS)
    return result


def names():
    number = 0
    while True:
        number += 1
        yield "honest-%d-%d" % (os.getpid(), number)


def expect(found, wanted, what):
    if found != wanted:
        raise Refused("%s: not what was written" % what)


def nfs4(server, _dafs_port, port, _metrics_port):
    client = Nfs4((server, port), b"victim")
    directory = client.root(b"data")
    wide = client.open(client.root(b"wide"), b"honest")
    for name in names():
        name = name.encode()
        handle, state = timed("nfs4", client.open, directory, name)
        for offset, stable in ((0, 0), (4096, 2)):
            args = state + struct.pack(">QI", offset, stable) + opaque(BLOCK)
            timed("nfs4", client.on, handle, WRITE, args)
        read = timed("nfs4", client.on, handle, READ, state + struct.pack(">QI", 4096, 4096))
        read.fixed(4)
        expect(read.opaque(), BLOCK, "NFSv4")
        lock = timed("nfs4", client.lock, handle, state, 0, 100)
        timed("nfs4", client.on, handle, UNLOCK, struct.pack(">2I", 2, 0) + lock + struct.pack(">2Q", 0, 100))
        timed("nfs4", client.on, handle, CLOSE, struct.pack(">I", 0) + state)
        timed("nfs4", client.on, directory, REMOVE, opaque(name))
        layout = timed("nfs4", client.layout, *wide)
        span = struct.pack(">4I2Q", 0, 1, 2, 1, 0, (1 << 64) - 1) + layout + opaque(b"")
        timed("nfs4", client.on, wide[0], LAYOUT_RETURN, span)


class Nfs3:
    """A client of NFSv3."""

    def __init__(self, server, export):
        self.stream, self.xid = dial(server), int.from_bytes(os.urandom(3))
        self.root = self.call(MOUNT, 1, opaque(export)).opaque()

    def call(self, program, procedure, args):
        self.xid += 1
        found = call(self.stream, program, 3, procedure, args, self.xid)
        if found is None:
            raise Refused("NFSv3: the connection was closed, or the call denied")
        results = Results(found)
        status = results.number()
        if status != 0:
            raise Refused("NFSv3: status %d of procedure %d" % (status, procedure))
        return results

    def make(self, name):
        nothing = struct.pack(">7I", 0, 0, 0, 0, 0, 0, 0)
        made = self.call(NFS, 8, opaque(self.root) + opaque(name) + nothing)
        made.number()
        return made.opaque()


def nfs3(server, _dafs_port, port, _metrics_port):
    client = Nfs3((server, port), b"/data")
    for name in names():
        name = name.encode()
        handle = timed("nfs3", client.make, name)
        for offset, stable in ((0, 0), (4096, 2)):
            args = opaque(handle) + struct.pack(">QII", offset, 4096, stable) + opaque(BLOCK)
            timed("nfs3", client.call, NFS, 7, args)
        read = timed("nfs3", client.call, NFS, 6, opaque(handle) + struct.pack(">QI", 4096, 4096))
        if read.number():
            read.fixed(84)
        read.fixed(8)
        expect(read.opaque(), BLOCK, "NFSv3")
        timed("nfs3", client.call, NFS, 12, opaque(client.root) + opaque(name))


def connect(server, port):
    import dafs

    url = "dafs://anna@%s:%d/data?danger-clear-passwords=yes" % (server, port)
    return dafs.connect(url, transport="iwarp", password="secret")


def write_stable(file, data, offset):
    file.pwrite(data, offset)
    file.commit()


def dafs(server, port, _nfs_port, _metrics_port):
    client = connect(server, port)
    large = BLOCK * 16
    for name in names():
        file = timed("dafs", lambda: client.open(name, "w+b", buffering=0))
        timed("dafs", file.pwrite, BLOCK, 0)
        timed("dafs", write_stable, file, BLOCK, 4096)
        timed("dafs", file.pwrite, large, 65536)
        expect(timed("dafs", file.pread, 4096, 4096), BLOCK, "DAFS")
        timed("dafs", file.lock, True, 0, 100)
        timed("dafs", file.unlock, 0, 100)
        timed("dafs", file.close)
        timed("dafs", client.unlink, name)


def scrape(server, port):
    with dial((server, port)) as stream:
        stream.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        if b"200 OK" not in stream.recv(4096):
            raise Refused("no metrics")
        while stream.recv(65536):
            pass


def arrivals(server, dafs_port, nfs_port, metrics_port):
    """Short-lived clients: each is a new one for the server."""
    for name in names():
        timed("login", lambda: connect(server, dafs_port)).close()
        timed("mount4", lambda: Nfs4((server, nfs_port), name.encode())).leave()
        timed("mount3", lambda: Nfs3((server, nfs_port), b"/data")).stream.close()
        timed("scrape", scrape, server, metrics_port)


def idle(_server, _dafs_port, _nfs_port, _metrics_port):
    """A client of an idle service on this machine: its waits are those for a processor."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer():
        while True:
            with listener.accept()[0] as stream:
                stream.sendall(stream.recv(4096))

    def ask():
        with dial(listener.getsockname()) as stream:
            stream.sendall(BLOCK[:100])
            expect(stream.recv(4096), BLOCK[:100], "the idle service")

    threading.Thread(target=answer, daemon=True).start()
    for _ in names():
        timed("idle", ask)


def percentile(values):
    values = sorted(values)
    return values[max(0, -(-len(values) * 99 // 100) - 1)]


def judge(is_long, before, start, end, logs):
    good = True
    spans = {}
    for log in logs:
        with open(log) as lines:
            for line in lines:
                at, kind, seconds = line.split()
                at, seconds = float(at), float(seconds)
                which = 0 if before <= at < start else 1 if start <= at <= end else None
                if which is not None:
                    spans.setdefault(kind, ([], []))[which].append(seconds)
    before_each = [percentile(span[0]) for kind, span in spans.items() if span[0] and kind != "idle"]
    usual = statistics.median(before_each or [0])
    # Other work of the machine delays an idle service as well, and is not the server's fault. So does a server that
    # takes all processors, which is one: hence the bound.
    busy = percentile(spans["idle"][1]) if "idle" in spans and spans["idle"][1] else 0
    busy = min(busy, BUSY_SECONDS_MAX)
    for kind in ("idle", "dafs", "nfs4", "nfs3", "login", "mount4", "mount3", "scrape"):
        quiet, flooded = spans.get(kind, ([], []))
        if not quiet or not flooded:
            print("%-7s did nothing: %d operations before, %d during" % (kind, len(quiet), len(flooded)))
            good = False
            continue
        p99 = percentile(quiet), percentile(flooded)
        limit = FACTOR_MAX * max(p99[0], usual, WAITS.get(kind, 1) * max(busy, FLOOR_SECONDS))
        is_slow = p99[1] > limit
        print(
            "%-7s p99 %7.1f ms before (%d), %7.1f ms during (%d), longest %7.1f ms%s"
            % (kind, 1e3 * p99[0], len(quiet), 1e3 * p99[1], len(flooded), 1e3 * max(flooded),
               ", over %.1f ms" % (1e3 * limit) if is_slow else "")
        )
        good = good and not (is_long and is_slow)
    return good


def main():
    if sys.argv[1] == "judge":
        times = [float(argument) for argument in sys.argv[3:6]]
        sys.exit(0 if judge(sys.argv[2] == "1", *times, sys.argv[6:]) else 1)
    kinds = {"dafs": dafs, "nfs4": nfs4, "nfs3": nfs3, "arrivals": arrivals, "idle": idle}
    work = kinds[sys.argv[1]]
    try:
        work(sys.argv[2], *(int(argument) for argument in sys.argv[3:6]))
    except (Refused, OSError, socket.timeout) as error:
        sys.exit("%s is refused: %s: %s" % (sys.argv[1], type(error).__name__, error))


if __name__ == "__main__":
    main()
