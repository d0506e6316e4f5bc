"""The results of calls on paths below a directory, a line for each: for comparison between file systems.

Run as: preload_paths.py DIRECTORY, an empty one."""

import ctypes
import errno
import fcntl
import os
import struct
import sys

top = sys.argv[1]
os.umask(0)


def at(path):
    return top + "/" + path


def fill(path, text="hello"):
    with open(at(path), "w") as file:
        file.write(text)


def told(what, call):
    try:
        result = call()
    except OSError as error:
        result = errno.errorcode[error.errno]
    print(what, str(result).replace(top, "TOP"))


def opened(path, flags):
    descriptor = os.open(at(path), flags, 0o640)
    os.close(descriptor)
    return "opened"


def opened_here(path):
    with os.scandir(os.open(path, READ)) as found:
        return list(found)


def mode(path):
    return oct(os.lstat(at(path)).st_mode)


fill("f")
os.makedirs(at("dir/sub"))
os.symlink("f", at("to-f"))
os.symlink("dir/sub", at("to-dir"))
os.symlink("nowhere", at("dangling"))
READ, WRITE, CREATE = os.O_RDONLY, os.O_WRONLY, os.O_WRONLY | os.O_CREAT
CUT = CREATE | os.O_TRUNC

# A path that ends in a slash or a dot names a directory (POSIX 4.13).
for path in ("f/", "f//", "f/.", "f/./", "to-f/", "none/", "none/.", "dangling/", "dir/", "dir/.", "to-dir/"):
    for name, flags in ("read", READ), ("write", WRITE), ("create", CREATE), ("cut", CUT):
        told(f"open {path} {name}", lambda: opened(path, flags))
    told(f"open {path} O_DIRECTORY", lambda: opened(path, READ | os.O_DIRECTORY))
    told(f"open {path} O_NOFOLLOW", lambda: opened(path, READ | os.O_NOFOLLOW))
    told(f"truncate {path}", lambda: os.truncate(at(path), 0))
    told(f"access {path}", lambda: os.access(at(path), os.F_OK))
    told(f"lstat {path}", lambda: mode(path))
    told(f"readlink {path}", lambda: os.readlink(at(path)))
    told(f"chmod {path}", lambda: os.chmod(at(path), 0o777))
    told(f"chown {path}", lambda: os.lchown(at(path), -1, -1))
    told(f"utime {path}", lambda: os.utime(at(path), (1, 2)))
    told(f"chdir {path}", lambda: os.chdir(at(path)))
    told(f"unlink {path}", lambda: os.unlink(at(path)))
    told(f"mkdir {path}", lambda: path.startswith("none") or os.mkdir(at(path)))
    told(f"symlink to {path}", lambda: os.symlink("f", at(path)))
    told(f"link to {path}", lambda: os.link(at("f"), at(path)))
    told(f"link from {path}", lambda: os.link(at(path), at("second")))
    told(f"rename to {path}", lambda: os.rename(at("f"), at(path)))
    if not path.startswith("dir") and not path.startswith("to-dir"):
        told(f"rename from {path}", lambda: os.rename(at(path), at("moved")))
    told("f", lambda: os.path.getsize(at("f")))
os.chdir("/")
told("mkdir new/", lambda: os.mkdir(at("new/")))
told("rename new/ newer/", lambda: os.rename(at("new/"), at("newer/")))
told("rmdir newer/", lambda: os.rmdir(at("newer/")))
told("mkdir new/.", lambda: os.mkdir(at("new/.")))
for path in ("dir/.", "dir/..", "to-dir/", "f/", "f/.", "dir"):
    told(f"rmdir {path}", lambda: os.rmdir(at(path)))
    told(f"unlink {path}", lambda: os.unlink(at(path)))

# Conflicting flags, and those with which a directory cannot be opened.
for path in "dir", "dir/", "dir/.", "to-dir", "f", "none":
    told(f"open {path} O_TRUNC", lambda: opened(path, READ | os.O_TRUNC | os.O_DIRECTORY))
    told(f"open {path} O_TMPFILE", lambda: opened(path, READ | os.O_TMPFILE))
    told(f"open {path} O_PATH", lambda: opened(path, CUT | os.O_PATH))
    if [int(part) for part in os.uname().release.split(".")[:2]] >= [6, 4]:
        told(f"open {path} O_CREAT and O_DIRECTORY", lambda: opened(path, CREATE | os.O_DIRECTORY))
told("open dir to cut it", lambda: opened("dir", READ | os.O_TRUNC))
for path in "dir/.", "dir/..", "dir/", "f/.", "f/", "none/x/", "f/x/":
    told(f"create {path} anew", lambda: opened(path, CREATE | os.O_EXCL))

# An open link itself, and one whose text demands a directory.
libc = ctypes.CDLL(None, use_errno=True)
libc.realpath.restype = ctypes.c_char_p


def called(function, *arguments):
    result = function(*arguments)
    if result in (None, -1):
        raise OSError(ctypes.get_errno(), "call")
    return result


os.symlink("f/", at("slash"))
os.symlink("dir/./", at("dots"))
for name in "to-f", "f":
    for flags in os.O_PATH | os.O_NOFOLLOW, READ:
        descriptor = os.open(at(name), flags)
        for path in ".", "x", "x" * 256, "../f":
            told(f"open {path} from {name} {flags}", lambda: os.open(path, READ, dir_fd=descriptor))
            told(f"create {path} from {name} {flags}", lambda: os.open(path, CREATE, dir_fd=descriptor))
        os.close(descriptor)
for name in "to-f", "f", "dir":
    descriptor = os.open(at(name), os.O_PATH | os.O_NOFOLLOW)
    told(f"readlink of {name} that is open", lambda: os.readlink("", dir_fd=descriptor))
    os.close(descriptor)
for path in "slash", "slash/x", "dots", "dots/sub", "f/.", "f/..", "f/", "to-f", "to-f/..", "dir/.":
    told(f"realpath {path}", lambda: called(libc.realpath, at(path).encode(), None).decode())

# Errors of both parents come first, then those of existing targets.
long = "x" * 256
for source in "f", "f/", "none", "dir/.", "none/x", "f/x", long, "f/" + long:
    for target in "dir/.", "dir/..", "none/.", "f/.", "none/x", "f/x", "dir/", "f/", "f", "dangling/", long, "none/" + long:
        for flags in 0, 1, 3, 6, 8:
            pair = at(source).encode(), -100, at(target).encode(), flags
            if source != target and (source, target) != ("f", "f/"):
                told(f"rename {source} {target} {flags}", lambda: called(libc.renameat2, -100, *pair))

# Objects other than devices, by mknod.
told("mknod", lambda: os.mknod(at("node"), 0o100640))
told("mode", lambda: mode("node"))
for path in "node", "node/", "dir", "dir/.", "f/.", "f/x", "none/x", "none/", "dangling":
    for kind in 0o100600, 0, 0o010600, 0o140600:
        told(f"mknod {path} {kind:o}", lambda: os.mknod(at(path), kind))
told("mknod of a directory", lambda: os.mknod(at("made"), 0o040755))

# Copies of ranges.
fill("range", "0123456789")
os.mkdir(at("no-range"))
file, directory = os.open(at("range"), os.O_RDWR), os.open(at("no-range"), READ)
writes, reads = os.open(at("range"), WRITE), os.open(at("range"), READ)
copies = (
    (file, file, 3, 0, 1), (file, file, 3, 0, 3), (file, file, 30, 8, 6), (file, file, 3, 2, 0),
    (file, file, 2, 4, 0), (file, file, 9, 10, 5), (file, directory, 3, 0, 0), (directory, file, 3, 0, 0),
    (writes, file, 3, 0, 5), (file, reads, 3, 0, 5), (reads, writes, 3, 0, 1), (reads, writes, 2, 0, 5),
)
for number, (source, target, count, start, end) in enumerate(copies):
    told(f"copy {number}", lambda: os.copy_file_range(source, target, count, start, end))
told("the range", lambda: os.pread(file, 100, 0))

# Locks of directories.
second = os.open(at("no-range"), READ)
EXCLUSIVE, SHARED = fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_SH | fcntl.LOCK_NB
for name, descriptor, how in (
    ("exclusive", directory, EXCLUSIVE), ("another", second, SHARED), ("shared", directory, SHARED),
    ("another", second, SHARED), ("both", second, EXCLUSIVE), ("none", directory, fcntl.LOCK_UN),
    ("alone", second, EXCLUSIVE), ("another", directory, EXCLUSIVE), ("nonsense", directory, 77),
):
    told(f"flock of a directory: {name}", lambda: fcntl.flock(descriptor, how))
os.close(second)
second = os.open(at("no-range"), os.O_PATH)
told("flock of a name", lambda: fcntl.flock(second, SHARED))
os.close(second)
for command in fcntl.F_SETLK, fcntl.F_OFD_SETLK, fcntl.F_GETLK, fcntl.F_OFD_GETLK:
    for kind in fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK, 7:
        asked = struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0)
        if (command, kind) != (fcntl.F_OFD_GETLK, fcntl.F_UNLCK):  # Only newer kernels know that.
            told(f"lock of a directory {command} {kind}", lambda: fcntl.fcntl(directory, command, asked)[0])
for descriptor in file, directory, writes, reads:
    os.close(descriptor)
told("link of a directory", lambda: os.link(at("dir"), at("second")))
told("rename into itself", lambda: os.rename(at("dir"), at("dir/sub/x")))
told("rename over a directory", lambda: os.rename(at("f"), at("dir")))
told("rename over a file", lambda: os.rename(at("dir"), at("f")))
told("open .. create", lambda: opened("dir/..", CREATE))
told("truncate dir", lambda: os.truncate(at("dir"), 0))

told("long create with a slash", lambda: opened(long + "/", CREATE))
for path in (long, long + "/y", "x/" * 2100, "none/" + long, "f/" + long, "to-f/" + long + "/y"):
    told("long stat", lambda: os.stat(at(path)))
    told("long create", lambda: opened(path, CREATE))
    told("long mkdir", lambda: os.mkdir(at(path)))
    told("long unlink", lambda: os.unlink(at(path)))
    told("long rename", lambda: os.rename(at("f"), at(path)))
    told("long link", lambda: os.link(at("f"), at(path)))
told("long text", lambda: os.symlink("x" * 4096, at("second")))
told("empty text", lambda: os.symlink("", at("second")))

os.chdir(top)
calls = {
    "open": lambda: os.open("", READ),
    "create": lambda: os.open("", CREATE),
    "stat": lambda: os.stat(""),
    "mkdir": lambda: os.mkdir(""),
    "unlink": lambda: os.unlink(""),
    "rmdir": lambda: os.rmdir(""),
    "rename from": lambda: os.rename("", at("second")),
    "rename to": lambda: os.rename(at("f"), ""),
    "link from": lambda: os.link("", at("second")),
    "link to": lambda: os.link(at("f"), ""),
    "symlink": lambda: os.symlink("f", ""),
    "chdir": lambda: os.chdir(""),
    "truncate": lambda: os.truncate("", 0),
}
for name, call in calls.items():
    told(f"empty {name}", call)

for bits in (0o777, 0o1777, 0o2755, 0o4755, 0o6755, 0o7777):
    told(f"mkdir {bits:o}", lambda: os.mkdir(at(f"d{bits:o}"), bits))
    told(f"mode {bits:o}", lambda: mode(f"d{bits:o}"))

# The present owner.
for name, owner, group in ("both", 0, 0), ("owner", 0, -1), ("group", -1, 0), ("neither", -1, -1):
    fill("own")
    os.chmod(at("own"), 0o6755)
    before = os.stat(at("own")).st_ctime_ns
    told(f"chown {name}", lambda: os.geteuid() == 0 and os.chown(at("own"), owner, group))
    told("mode", lambda: os.geteuid() != 0 or mode("own"))
    moved = os.geteuid() != 0
    for _ in range(100000):
        if moved:
            break
        os.chown(at("own"), owner, group)
        moved = os.stat(at("own")).st_ctime_ns > before
    told("the time of change has moved", lambda: moved)

# Data and holes.
with open(at("sparse"), "w+b") as file:
    file.truncate(1 << 20)
    os.pwrite(file.fileno(), b"x" * 4096, 1 << 19)
    for offset in (0, 1 << 19, (1 << 19) + 1, (1 << 19) + 4096, (1 << 20) - 1, 1 << 20, 1 << 21):
        for whence in (os.SEEK_DATA, os.SEEK_HOLE):
            told(f"seek {offset} {whence}", lambda: os.lseek(file.fileno(), offset, whence))

# Locks of both kinds, which are independent.
def control(command, kind, start, length, process=0):
    asked = struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, process)
    kind, _, start, length, _ = struct.unpack("hhqqi4x", fcntl.fcntl(second, command, asked))
    return kind, start, length


def test_lock(offset):
    os.lseek(second, offset, os.SEEK_SET)
    if libc.lockf(second, os.F_TEST, ctypes.c_long(1)) != 0:
        raise OSError(ctypes.get_errno(), "lockf")


fill("locked")
first, second = os.open(at("locked"), os.O_RDWR), os.open(at("locked"), os.O_RDWR)
told("flock", lambda: fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB))
told("fcntl beside flock", lambda: control(fcntl.F_SETLK, fcntl.F_WRLCK, 0, 0))
told("flock beside flock", lambda: fcntl.flock(second, fcntl.LOCK_SH | fcntl.LOCK_NB))
told("lock of the open file", lambda: fcntl.lockf(first, fcntl.LOCK_UN))
ready, stop = os.pipe(), os.pipe()
if os.fork() == 0:
    fcntl.lockf(os.open(at("locked"), os.O_RDWR), fcntl.LOCK_SH, 0, 5)
    fcntl.lockf(os.open(at("locked"), os.O_RDWR), fcntl.LOCK_EX, 10, 100)
    os.write(ready[1], b"x")
    os.close(stop[1])
    os.read(stop[0], 1)
    os._exit(0)
os.read(ready[0], 1)
last = (1 << 63) - 1
told("flock still", lambda: fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB))
for command in fcntl.F_GETLK, fcntl.F_OFD_GETLK:
    for kind in fcntl.F_RDLCK, fcntl.F_WRLCK:
        for start, length in (0, 1), (0, 0), (5, 0), (99, 1), (105, 0), (110, 0), (last, 1), (last, 2):
            told(f"{command} {kind} {start} {length}", lambda: control(command, kind, start, length))
    told(f"{command} with a process", lambda: control(command, fcntl.F_RDLCK, 0, 1, 5))
for command in fcntl.F_SETLK, fcntl.F_OFD_SETLK:
    for start, length in (50, 10), (last, 1), (last, 2), (5, 0):
        told(f"{command} {start} {length}", lambda: control(command, fcntl.F_WRLCK, start, length))
    told(f"{command} with a process", lambda: control(command, fcntl.F_WRLCK, 200, 1, 5))
for offset in 3, 50, 200:
    told(f"lockf at {offset}", lambda: test_lock(offset))
os.close(stop[1])
os.wait()
os.close(first)
os.close(second)

# The working directory, by its real path.
for path in ("to-dir", "to-dir/..", "dir/../to-dir/../sub", "dir/./sub//"):
    told(f"chdir {path}", lambda: (os.chdir(at(path)), os.getcwd()))
    os.chdir(top)
    told(f"relative {path}", lambda: (os.chdir(path), os.getcwd()))
    told(f"realpath {path}", lambda: os.path.realpath(at(path)))
    descriptor = os.open(at(path), READ)
    os.chdir("/")
    told(f"fchdir {path}", lambda: (os.fchdir(descriptor), os.getcwd()))
    os.close(descriptor)

os.mkdir(at("gone"))
os.chdir(at("gone"))
os.rmdir(at("gone"))
told("create in what is gone", lambda: os.open("f", CREATE))
told("exclusively", lambda: os.open("f", CREATE | os.O_EXCL))
told("open in what is gone", lambda: os.open("f", READ))
told("stat in what is gone", lambda: os.stat("f"))
told("mkdir in what is gone", lambda: os.mkdir("sub"))
told("symlink in what is gone", lambda: os.symlink("f", "g"))
told("link into what is gone", lambda: os.link(at("f"), "g"))
told("rename into what is gone", lambda: os.rename(at("f"), "g"))
told("unlink in what is gone", lambda: os.unlink("f"))
told("what is in it", lambda: os.listdir("."))
told("open it", lambda: opened_here("."))
told("make it", lambda: os.open(".", CREATE))
told("where it is", os.getcwd)
