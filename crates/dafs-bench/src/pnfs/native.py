"""A client of CephFS itself, as a load and as the one that prepares directories.

    native.py CONFIG prepare DIRECTORY=POOL... -- makes directories whose files have units of 256 KiB
    native.py CONFIG remove DIRECTORY          -- removes the files in it
    native.py CONFIG write|read PATH OFFSET BYTES BLOCK CLIENTS TREE
        says "ready", waits for a line, writes or reads, says "done", waits for the end of its input
    native.py CONFIG atlas|oltp|postmark|btio|unpack|configure|build PATH SEED BYTES BLOCK CLIENTS TREE
        the same with a pattern of patterns.rs, and "done BYTES TRANSACTIONS"

With CEPHFS_CACHE=no in its environment it caches no content.

Content is that of the other loads: every 8 KiB begin with their place in the file.
"""

import os
import struct
import subprocess
import sys
import tempfile
import time

import cephfs

STAMP = 8192
UNIT = 262144

# As in build.rs.
COPIES, FEATURES = 4, 48
FEATURE_SOURCE = b"int main(void)\n{\n    return 0;\n}\n"

config, action, *rest = sys.argv[1:]
fs = cephfs.LibCephFS(conffile=config)
if os.environ.get("CEPHFS_CACHE") == "no":
    fs.conf_set("client_oc", "false")
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
    path, (begin, length, block) = rest[0], map(int, rest[1:4])
    write = action == "write"
    fd = fs.open(path, os.O_WRONLY | os.O_CREAT if write else os.O_RDONLY, 0o666)
    go()
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


def go():
    print("ready", flush=True)
    sys.stdin.readline()


class Random:
    def __init__(self, seed):
        self.state = (seed * 0x9E3779B97F4A7C15 & (1 << 64) - 1) | 1

    def below(self, end):
        self.state ^= self.state << 13 & (1 << 64) - 1
        self.state ^= self.state >> 7
        self.state ^= self.state << 17 & (1 << 64) - 1
        return self.state % end


def create(path):
    return fs.open(path, os.O_RDWR | os.O_CREAT, 0o666)


def fill(fd, begin, length):
    for offset in range(begin, begin + length, UNIT):
        part = min(UNIT, begin + length - offset)
        if fs.write(fd, bytes(part), offset) != part:
            raise SystemExit("a short write")
    return length


def atlas(path, random, length):
    requests, offset = [], 0
    while offset < length:
        size = 4 << 20 if len(requests) % 20 == 10 else 1 + random.below(23_000)
        requests.append((offset, min(size, length - offset)))
        offset += size
    for last in range(len(requests) - 1, 0, -1):
        other = random.below(last + 1)
        requests[last], requests[other] = requests[other], requests[last]
    fd = create(path)
    go()
    done = sum(fill(fd, *request) for request in requests)
    fs.fsync(fd, 0)
    fs.close(fd)
    return done, len(requests)


def scaled(paper, least, length):
    """A number of the paper for an amount of data, as in patterns.rs."""
    return max(paper * length // 500_000_000, least)


def oltp(path, random, length):
    fd = create(path)
    fill(fd, 0, length)
    fs.fsync(fd, 0)
    wanted = [0] * (length // STAMP)
    transactions = scaled(20_000, 128, length)
    go()
    for _ in range(transactions):
        at = random.below(len(wanted))
        record = bytearray(fs.read(fd, at * STAMP, STAMP))
        if len(record) != STAMP or struct.unpack_from("<Q", record)[0] != wanted[at]:
            raise SystemExit(f"record {at} is wrong")
        wanted[at] += 1
        struct.pack_into("<Q", record, 0, wanted[at])
        fs.write(fd, bytes(record), at * STAMP)
        fs.fsync(fd, 0)
    fs.close(fd)
    return transactions * 2 * STAMP, transactions


def make(path, random):
    fd = create(path)
    length = fill(fd, 0, 1 + random.below(500_000))
    fs.fsync(fd, 0)
    fs.close(fd)
    return length


def read_whole(path, length):
    fd = fs.open(path, os.O_RDONLY)
    got = 0
    while part := fs.read(fd, got, UNIT):
        got += len(part)
    if got != length:
        raise SystemExit(f"{path} has {got} bytes of {length}")
    fs.close(fd)
    return got


def postmark(path, random, length):
    transactions, made = scaled(2000, 64, length), scaled(100, 16, length)
    files = [[f"{path}-{number}", make(f"{path}-{number}", random)] for number in range(made)]
    done = 0
    go()
    for _ in range(transactions):
        file = files[random.below(len(files))]
        if random.below(2) == 0:
            done += read_whole(*file)
        else:
            more = 1 + random.below(65_536)
            fd = create(file[0])
            done += fill(fd, file[1], more)
            fs.fsync(fd, 0)
            fs.close(fd)
            file[1] += more
        if random.below(2) == 0 or len(files) < 2:
            name = f"{path}-{made}"
            made += 1
            files.append([name, make(name, random)])
            done += files[-1][1]
        else:
            fs.unlink(files.pop(0)[0])
    return done, transactions


ROW = 64 * 5 * 8
STEPS = 4


def row(number):
    return struct.pack("<320Q", *range((number + 1) << 16, ((number + 1) << 16) + 320))


def btio(path, rank, clients, length):
    rows = length // STEPS // ROW
    done = 0
    fd = create(path)
    for step in range(STEPS):
        go()
        for number in range(step * rows + rank, (step + 1) * rows, clients):
            if fs.write(fd, row(number), number * ROW) != ROW:
                raise SystemExit("a short write")
            done += 1
        fs.fsync(fd, 0)
    fs.close(fd)
    go()
    fd = fs.open(path, os.O_RDONLY)
    for step in range(STEPS):
        for number in range(step * rows + (rank + 1) % clients, (step + 1) * rows, clients):
            if fs.read(fd, number * ROW, ROW) != row(number):
                raise SystemExit(f"row {number} of the grid is wrong")
            done += 1
    fs.close(fd)
    return done * ROW, done


class Build:
    def __init__(self, path, folder):
        self.path, self.folder, self.known, self.done = path, folder, set(), 0

    def store(self, name, content):
        fd = create(f"{self.path}-{name}")
        for at in range(0, len(content), UNIT):
            part = content[at : at + UNIT]
            if fs.write(fd, part, at) != len(part):
                raise SystemExit("a short write")
        fs.fsync(fd, 0)
        fs.close(fd)
        self.done += len(content)

    def fetch(self, name):
        fd = fs.open(f"{self.path}-{name}", os.O_RDONLY)
        if name not in self.known:
            self.known.add(name)
            content = b""
            while part := fs.read(fd, len(content), UNIT):
                content += part
            self.done += len(content)
            with open(f"{self.folder}/{name}", "wb") as file:
                file.write(content)
        fs.close(fd)

    def give(self, name):
        made = f"{self.folder}/{name}"
        with open(made, "rb") as file:
            content = file.read()
        os.remove(made)
        self.store(name, content)

    def compile(self, *arguments):
        subprocess.run(["cc", *arguments], cwd=self.folder, check=True)


def sources(tree):
    files = {}
    for name in os.listdir(tree):
        if "." in name:
            with open(f"{tree}/{name}", "rb") as file:
                files[name] = file.read()
    return files


def unpack(path, tree, folder):
    run, files = Build(path, folder), sources(tree)
    go()
    for copy in range(COPIES):
        for name, content in files.items():
            run.store(f"{copy}-{name}", content)
    return run.done, COPIES * len(files)


def configure(path, _tree, folder):
    run = Build(path, folder)
    go()
    for feature in range(FEATURES):
        run.store(f"feature{feature}.c", FEATURE_SOURCE)
        run.fetch(f"feature{feature}.c")
        try:
            fs.open(f"{path}-feature{feature}.h", os.O_RDONLY)
            raise SystemExit(f"there is a file feature{feature}.h")
        except cephfs.ObjectNotFound:
            pass
        fs.unlink(f"{path}-feature{feature}.c")
    return run.done, FEATURES


def build(path, tree, folder):
    run = Build(path, folder)
    for name, content in sources(tree).items():
        run.store(name, content)
    with open(f"{tree}/units") as file:
        units = [line.split() for line in file]
    with open(f"{tree}/wanted") as file:
        wanted = file.read()
    run.done = 0
    go()
    for name, *headers in units:
        run.fetch(f"{name}.c")
        for header in headers:
            run.fetch(header)
        run.compile("-O1", "-c", f"{name}.c", "-o", f"{name}.o")
        run.give(f"{name}.o")
    objects = [f"{name}.o" for name, *_ in units]
    for name in objects:
        run.fetch(name)
    run.compile(*objects, "-o", "program")
    run.give("program")
    run.fetch("program")
    os.chmod(f"{folder}/program", 0o755)
    printed = subprocess.run([f"{folder}/program"], capture_output=True, text=True, check=True).stdout
    if printed != wanted:
        raise SystemExit(f"the program that was built prints {printed}, not {wanted}")
    return run.done, len(objects) + 1


STAGES = {"unpack": unpack, "configure": configure, "build": build}


def pattern():
    path, (seed, length, _, clients), tree = rest[0], map(int, rest[1:5]), rest[5]
    if action == "btio":
        done, transactions = btio(path, seed - 1, clients, length)
    elif action in STAGES:
        with tempfile.TemporaryDirectory(prefix="dafs-bench") as folder:
            done, transactions = STAGES[action](path, tree, folder)
    else:
        run = {"atlas": atlas, "oltp": oltp, "postmark": postmark}[action]
        done, transactions = run(path, Random(seed), length)
    print(f"done {done} {transactions}", flush=True)
    sys.stdin.read()


actions = {"prepare": prepare, "remove": remove, "write": load, "read": load}
actions.get(action, pattern)()
fs.shutdown()
