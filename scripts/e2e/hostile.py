"""Floods of a server, each from several hosts.

hostile.py FLOOD SECONDS DAFS_COMMAND PORT...   PORT: of DAFS, NFS, NFS over RDMA, metrics, and of nodes

It prints its counts, and fails if a host has had no effect on the server. The address of the called server selects the
calling host; nodes have one address, so the calls to them come from the host itself.
"""

import collections
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time

import honest
from callers import CREATE_SESSION, EXCHANGE_ID, NFS, dial, message, opaque

ADMITTED = ["203.0.113.%d" % number for number in range(2, 6)]
STRANGERS = ["203.0.113.%d" % number for number in range(102, 104)]
NODES = "198.51.100.1"
# The server counters that each flood must increase.
NEEDED = {
    "strangers": ["EXCHANGE_ID 10017", "EXCHANGE_ID denied"],
    "dead": ["opens", "layouts", "locks", "DAFS clients"],
    "guesses": ["guesses refused"],
    "silent": [],
    "clients": ["EXCHANGE_ID 0"],
    "unread": ["writers stopped"],
}
# The state of hosts that have ended goes with their leases.
EFFECT_SECONDS = 30
BATCH = 500
CONNECTIONS = 400
WRITERS = 5


class Flood:
    """The parameters and the counts of one flooding process."""

    def __init__(self, seconds, needed, command, ports):
        self.end, self.needed, self.command = time.monotonic() + seconds, needed, command
        self.dafs, self.nfs, self.rdma = ports[:3]
        self.ports, self.nodes = ports[:4], ports[4:]
        self.done = collections.Counter()

    def is_idle(self):
        return not any(self.done[what] for what in self.needed)

    def goes_on(self):
        """For its time, and until it had an effect: a host may find that others have taken all there is."""
        now = time.monotonic()
        return now < self.end or (self.is_idle() and now < self.end + EFFECT_SECONDS)

    def note(self, what, count=1):
        self.done[what] += count


def compounds(numbered):
    """Calls of one operation each, as TCP records."""
    head = opaque(b"") + struct.pack(">2I", 1, 1)
    return b"".join(
        message(NFS, 4, 1, head + struct.pack(">I", number) + args, xid)
        for xid, (number, args) in enumerate(numbered)
    )


def answers(stream, count):
    """The results of so many calls; None for denied ones."""
    data, found = b"", []
    while len(found) < count:
        while len(data) < 4 or len(data) < 4 + (length := struct.unpack(">I", data[:4])[0] & 0x7FFFFFFF):
            more = stream.recv(1 << 18)
            if not more:
                raise ConnectionError("closed")
            data += more
        record, data = data[4 : 4 + length], data[4 + length :]
        # Behind a verifier of no bytes, the results of a compound with one operation.
        accepted = struct.unpack(">I", record[8:12])[0] == 0
        found.append(record[24:] if accepted else None)
    return found


def name_of(owner):
    return EXCHANGE_ID, os.urandom(8) + opaque(owner) + struct.pack(">3I", 0, 0, 0)


def session_of(client, sequence):
    channel = struct.pack(">7I", 0, 4096, 4096, 4096, 8, 1, 0)
    head = client + struct.pack(">2I", sequence, 0)
    return CREATE_SESSION, head + channel * 2 + struct.pack(">3I", 0, 1, 0)


def register(flood, stream, owners):
    """Requests records and sessions for clients of these names, and sessions for guessed client ids."""
    stream.sendall(compounds(name_of(owner) for owner in owners))
    sessions = [session_of(os.urandom(8), 1)]
    for found in answers(stream, len(owners)):
        status = None if found is None else struct.unpack(">I", found[:4])[0]
        flood.note("EXCHANGE_ID %s" % ("denied" if status is None else status))
        if status == 0:
            sessions.append(session_of(found[20:28], struct.unpack(">I", found[28:32])[0]))
    stream.sendall(compounds(sessions))
    for found in answers(stream, len(sessions)):
        status = None if found is None else struct.unpack(">I", found[:4])[0]
        flood.note("CREATE_SESSION %s" % ("denied" if status is None else status))


def strangers(flood, server):
    """Requests under the name of the honest host's client, and with guessed ids."""
    with dial((server, flood.nfs)) as stream:
        while flood.goes_on():
            register(flood, stream, [b"victim"] * BATCH)


def clients(flood, server):
    """As many clients as the server allows."""
    with dial((server, flood.nfs)) as stream:
        number = 0
        while flood.goes_on():
            number += BATCH
            owners = [b"%d-%d" % (os.getpid(), number + at) for at in range(BATCH)]
            register(flood, stream, owners)


def dead(flood, server):
    """Clients that take all state that they get, and disappear: of NFSv4, and some of DAFS."""
    number = 0
    honest.PATIENCE_SECONDS = 0
    while flood.goes_on():
        number += 1
        if number % 8 == 1:
            dead_dafs(flood, server)
        name, client = b"dead-%d-%d" % (os.getpid(), number), None
        try:
            client = honest.Nfs4((server, flood.nfs), name, sessions=16)
            flood.note("sessions", 16)
            grab(flood, client, name)
        except honest.Refused as refusal:
            flood.note("refused (%s)" % str(refusal).split(" of ")[0])
        if client:
            client.stream.close()


def grab(flood, client, name):
    """Files of its own and some shared ones: those of the striped export with layouts, others with locks."""
    wide, data = client.root(b"wide"), client.root(b"data")
    for at in range(200):
        file = b"shared-%d" % at if at >= 150 else name + b"-%d" % at
        handle, state = client.open(wide if at % 2 else data, file)
        flood.note("opens")
        if at % 2:
            client.layout(handle, state)
            flood.note("layouts")
        else:
            client.lock(handle, state, 2 * int.from_bytes(os.urandom(6)), 1)
            flood.note("locks")
        if not flood.goes_on():
            return


def dead_dafs(flood, server):
    has_locks, locked = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            import dafs

            url = "dafs://mallory@%s:%d/data?danger-clear-passwords=yes" % (server, flood.dafs)
            client = dafs.connect(url, transport="iwarp", password="hers", deadline=2, recovery=0)
            kept = []
            for at in range(100):
                file = client.open("dafs-%d" % at, "w+b", buffering=0)
                file.try_lock(True, 2 * os.getpid(), 1)
                kept.append(file)
            os.write(locked, b"+")
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.close(locked)
    flood.note("DAFS clients" if os.read(has_locks, 1) else "DAFS clients without locks")
    os.close(has_locks)
    os.waitpid(child, 0)


def guesses(flood, server):
    """Wrong passwords, for an existing name and others."""
    children = []
    while flood.goes_on():
        for child in children:
            if child.poll() is not None:
                is_refused = b"proof of identity was not accepted" in child.stderr.read()
                flood.note("guesses refused" if is_refused else "guesses that ended otherwise")
                child.stderr.close()
        children = [child for child in children if child.returncode is None]
        if len(children) >= 6:
            time.sleep(0.01)
            continue
        name = ["anna", "mallory", "nobody"][flood.done["guesses"] % 3]
        url = "dafs://%s:%d/data?danger-clear-passwords=yes" % (server, flood.dafs)
        arguments = [flood.command, "--transport", "iwarp", "--user", name, "ls", url]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        wrong = dict(os.environ, DAFS_PASSWORD="wrong")
        children.append(subprocess.Popen(arguments, env=wrong, **quiet))
        flood.note("guesses")
    for child in children:
        child.kill()
        child.wait()


def silent(flood, server):
    """Silent connections, and partial messages; those that the server closes are made again."""
    openings = [b"", b"\x80", b"MPA ID Req Frame", b"MPA ID Req Frame\x00\x01\x00\x00", b"GET /"]
    host = ("192.0.2." + server.rsplit(".", 1)[1], 0)
    places = [((server, port), ("", 0)) for port in flood.ports]
    places += [((NODES, port), host) for port in flood.nodes]
    held = collections.deque()
    number = 0
    while flood.goes_on():
        number += 1
        (_, port), _ = place = places[number % len(places)]
        try:
            stream = dial(*place)
            stream.sendall(openings[number // len(places) % len(openings)])
            held.append(stream)
            flood.note("connections to %d" % port)
        except OSError as error:
            flood.note(type(error).__name__)
            time.sleep(0.01)
        if len(held) > CONNECTIONS:
            held.popleft().close()
            time.sleep(0.002)


def unread(flood, server):
    """Clients that offer data, and stop before the server has read it. Half of the hosts use DAFS: their
    passwords are right, so their logins occupy the server, too."""
    large = os.path.join(os.environ["HOSTILE_WORK"], "large")
    writers, by_dafs = collections.deque(), int(server.rsplit(".", 1)[1]) % 2
    place = os.path.join(os.environ["HOSTILE_WORK"], "data", server)
    while flood.goes_on():
        # Unfinished files of killed writers take memory.
        shutil.rmtree(place, ignore_errors=True)
        os.makedirs(place, exist_ok=True)
        os.chmod(place, 0o777)
        while len(writers) < WRITERS:
            name = "%s/unread-%d" % (server, len(writers))
            url = "dafs://mallory@%s:%d/data/%s?danger-clear-passwords=yes" % (server, flood.dafs, name)
            if not by_dafs:
                url = "nfs+rdma://%s:%d/data/%s?transport=iwarp" % (server, flood.rdma, name)
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            mine = dict(os.environ, DAFS_PASSWORD="hers")
            arguments = [flood.command, "--transport", "iwarp", "put", large, url]
            writers.append(subprocess.Popen(arguments, env=mine, **quiet))
            flood.note("writers")
        time.sleep(0.4)
        for writer in writers:
            writer.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        while writers:
            writer = writers.popleft()
            writer.kill()
            flood.note("writers stopped" if writer.wait() == -signal.SIGKILL else "writers that were done")


def main():
    which, seconds, command = sys.argv[1], float(sys.argv[2]), sys.argv[3]
    ports = [int(port) for port in sys.argv[4:]]
    work = {
        "strangers": strangers,
        "dead": dead,
        "guesses": guesses,
        "silent": silent,
        "clients": clients,
        "unread": unread,
    }[which]
    servers = ADMITTED + (STRANGERS if which in ("strangers", "silent") else [])
    needed = NEEDED[which] or ["connections to %d" % port for port in ports]
    children = []
    for server in servers:
        told, tell = os.pipe()
        child = os.fork()
        if child == 0:
            flood = Flood(seconds, needed, command, ports)
            while flood.goes_on():
                try:
                    work(flood, server)
                except (OSError, honest.Refused) as error:
                    flood.note("%s: %s" % (type(error).__name__, error))
                    time.sleep(0.05)
            said = ", ".join("%s %d" % pair for pair in sorted(flood.done.items()))
            os.write(1, ("from %s: %s\n" % (server, said)).encode())
            os.write(tell, json.dumps(flood.done).encode())
            os._exit(0)
        os.close(tell)
        children.append((child, told))
    total, idle = collections.Counter(), 0
    for child, told in children:
        with open(told, "rb") as told:
            done = json.loads(told.read() or "{}")
        os.waitpid(child, 0)
        total.update(done)
        idle += not any(done.get(what) for what in needed)
    missing = [what for what in needed if not total[what]]
    if missing or idle:
        sys.exit("nothing of %s; %d hosts did nothing" % (missing, idle))


if __name__ == "__main__":
    main()
