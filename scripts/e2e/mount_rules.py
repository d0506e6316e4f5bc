#!/usr/bin/env python3
"""mount_rules.py MOUNT LOCAL -- does the same calls in a directory of a mount and in a local one: valid and
invalid uses of all rules of POSIX for names, permissions, attributes and times. The results must be equal,
and those that a rule requires with "must".

As root it also acts as other users, otherwise as the present one.
"""

import ctypes
import errno
import itertools
import os
import pickle
import socket
import stat
import struct
import sys
import time

USER, OTHER, MEMBER = (65534, 65534), (65533, 65533), (65532, 65532, 65534)
IS_ROOT = os.geteuid() == 0
OLD = 1_000_000_000
NAME_MAX, PATH_MAX = 255, 4096


class Place:
    """One of the two directories, and the results of all calls there."""

    def __init__(self, base):
        self.base = base
        self.found = []

    def path(self, *parts):
        return os.path.join(self.base, *parts)

    def note(self, what, result):
        self.found.append((what, result))
        return result

    def attempt(self, what, function, *arguments, must=None, **named):
        """Notes the result of a call: "ok" with its value, or the name of its error."""
        result = outcome(function, *arguments, **named)
        if must is not None:
            assert result == must, f"{self.base}: {what}: {result}, and the rule is {must}"
        return self.note(what, result)

    def by(self, user, what, function, *arguments, must=None, **named):
        """The same as another user, or as this one if it is not root."""
        if not IS_ROOT:
            return self.attempt(what, function, *arguments, **named)
        result = in_child(user, lambda: outcome(function, *arguments, **named))
        if must is not None:
            assert result == must, f"{self.base}: {what} as {user}: {result}, and the rule is {must}"
        return self.note(f"{what} as {user}", result)

    def look(self, what, path):
        """Notes all attributes except times, inode numbers, and those that depend on the file system."""
        found = os.lstat(path)
        size = None if stat.S_ISDIR(found.st_mode) else found.st_size
        self.note(what, (oct(found.st_mode), found.st_nlink, found.st_uid, found.st_gid, size))
        return found


def outcome(function, *arguments, **named):
    try:
        result = function(*arguments, **named)
        return "ok" if result is None or isinstance(result, (int, os.stat_result)) else result
    except OSError as error:
        return errno.errorcode[error.errno]


def in_child(user, function):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            os.setgroups(user[2:])
            os.setgid(user[1])
            os.setuid(user[0])
            with os.fdopen(writer, "wb") as out:
                pickle.dump(function(), out)
            os._exit(0)
        except BaseException as error:
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as said:
        text = said.read()
    assert os.waitpid(child, 0)[1] == 0, "the other user's process failed"
    return pickle.loads(text)


def touch(path, mode=0o644, content=b""):
    with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o666), "wb") as file:
        file.write(content)
    os.chmod(path, mode)


def opened(path, flags, mode=0o666):
    os.close(os.open(path, flags, mode))


def bind(path):
    # The name of a socket is short: it is bound from where it is to be.
    with socket.socket(socket.AF_UNIX) as end:
        here = os.getcwd()
        os.chdir(os.path.dirname(path))
        try:
            end.bind(os.path.basename(path))
        finally:
            os.chdir(here)


MAKERS = {
    "file": touch,
    "directory": os.mkdir,
    "fifo": os.mkfifo,
    "link": lambda path: os.symlink("nowhere", path),
    "socket": bind,
}
if IS_ROOT:
    MAKERS["device"] = lambda path: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))

# Calls with one path; the second path is that of an existing file.
CALLS = {
    "stat": lambda path, _: os.stat(path),
    "lstat": lambda path, _: os.lstat(path),
    "readlink": lambda path, _: os.readlink(path),
    "list": lambda path, _: sorted(os.listdir(path)),
    "open to read": lambda path, _: opened(path, os.O_RDONLY | os.O_NONBLOCK),
    "open to write": lambda path, _: opened(path, os.O_WRONLY | os.O_NONBLOCK),
    "open to make": lambda path, _: opened(path, os.O_CREAT | os.O_RDWR | os.O_NONBLOCK),
    "open to make anew": lambda path, _: opened(path, os.O_CREAT | os.O_EXCL | os.O_RDWR),
    "open to cut": lambda path, _: opened(path, os.O_RDONLY | os.O_TRUNC | os.O_NONBLOCK),
    "open no link": lambda path, _: opened(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK),
    "open a directory": lambda path, _: opened(path, os.O_RDONLY | os.O_DIRECTORY),
    "chmod": lambda path, _: os.chmod(path, 0o700),
    "chown": lambda path, _: os.chown(path, os.geteuid(), os.getegid()),
    "lchown": lambda path, _: os.lchown(path, os.geteuid(), os.getegid()),
    "truncate": lambda path, _: os.truncate(path, 3),
    "utime": lambda path, _: os.utime(path, (OLD, OLD)),
    "mkdir": lambda path, _: os.mkdir(path),
    "mkfifo": lambda path, _: os.mkfifo(path),
    "symlink": lambda path, _: os.symlink("x", path),
    "link from": lambda path, other: os.link(path, other + "-link", follow_symlinks=False),
    "link to": lambda path, other: os.link(other, path),
    "rename from": lambda path, other: os.rename(path, other + "-renamed"),
    "rename to": lambda path, other: os.rename(other, path),
    "unlink": lambda path, _: os.unlink(path),
    "rmdir": lambda path, _: os.rmdir(path),
}


def strange_paths(place):
    """Every call with paths that dangle, are too long, or loop."""
    for call, function in CALLS.items():
        top = place.path("strange-" + call.replace(" ", "-"))
        os.mkdir(top)
        touch(f"{top}/file")
        os.symlink("loop-b", f"{top}/loop-a")
        os.symlink("loop-a", f"{top}/loop-b")
        os.symlink(".", f"{top}/here")
        paths = {
            "missing": (f"{top}/missing", None),
            "below a missing one": (f"{top}/nowhere/name", "ENOENT"),
            "below a file": (f"{top}/file/name", "ENOTDIR"),
            "a name as long as may be": (f"{top}/{'n' * NAME_MAX}", None),
            "a name too long": (f"{top}/{'n' * (NAME_MAX + 1)}", "ENAMETOOLONG"),
            "below a name too long": (f"{top}/{'n' * (NAME_MAX + 1)}/name", "ENAMETOOLONG"),
            "a path too long": (f"{top}/{'./' * (PATH_MAX // 2)}name", "ENAMETOOLONG"),
            "round and round": (f"{top}/loop-a/name", "ELOOP"),
            "a link that leads to itself": (f"{top}/loop-a", None),
            "through a link": (f"{top}/here/here/through", None),
            "nothing": ("", "ENOENT"),
            "dot": (f"{top}/.", None),
            "two dots": (f"{top}/..", None),
            "a slash behind a file": (f"{top}/file/", None),
            "a slash behind nothing": (f"{top}/missing-too/", None),
        }
        for what, (path, must) in paths.items():
            touch(f"{top}/other")
            place.attempt(f"{call}: {what}", function, path, f"{top}/other", must=must)


def kinds_of_objects(place):
    """Every call with objects of every kind, and the state afterwards."""
    for call, function in CALLS.items():
        for kind, make in MAKERS.items():
            top = place.path(f"kind-{call}-{kind}".replace(" ", "-"))
            os.mkdir(top)
            make(f"{top}/object")
            touch(f"{top}/other", content=b"other")
            # Devices have no effect in a mount.
            if call.startswith("open") and kind == "device":
                continue
            place.attempt(f"{call} of a {kind}", function, f"{top}/object", f"{top}/other")
            for name in sorted(os.listdir(top)):
                place.look(f"{call} of a {kind}: {name}", f"{top}/{name}")


def renaming(place):
    """All kinds over all kinds, directories with something in them, and into themselves."""
    kinds = dict(MAKERS)
    kinds["full directory"] = lambda path: (os.mkdir(path), touch(path + "/in"))
    for (a, make_a), (b, make_b) in itertools.product(kinds.items(), kinds.items()):
        top = place.path(f"rename-{a}-{b}".replace(" ", "-"))
        os.mkdir(top)
        make_a(f"{top}/a")
        make_b(f"{top}/b")
        place.attempt(f"a {a} over a {b}", os.rename, f"{top}/a", f"{top}/b")
        place.note("left", sorted(os.listdir(top)))
        place.look("the target", f"{top}/b")
        place.look("the directory", top)
    top = place.path("rename-rest")
    os.makedirs(f"{top}/directory/below")
    touch(f"{top}/file", content=b"x")
    os.link(f"{top}/file", f"{top}/second")
    attempt = place.attempt
    attempt("into itself", os.rename, f"{top}/directory", f"{top}/directory/below/x", must="EINVAL")
    attempt("over what it is in", os.rename, f"{top}/directory/below", f"{top}/directory",
            must="ENOTEMPTY")
    attempt("over itself", os.rename, f"{top}/file", f"{top}/file", must="ok")
    attempt("over its other name", os.rename, f"{top}/file", f"{top}/second", must="ok")
    place.note("both names stay", sorted(os.listdir(top)))
    place.look("links", f"{top}/file")
    os.mkdir(f"{top}/elsewhere")
    attempt("to another directory", os.rename, f"{top}/directory/below", f"{top}/elsewhere/below")
    place.look("links of the old directory", f"{top}/directory")
    place.look("links of the new directory", f"{top}/elsewhere")
    attempt("the other directory above", os.listdir, f"{top}/elsewhere/below/..", must=["below"])
    attempt("rmdir of a full one", os.rmdir, f"{top}/elsewhere", must="ENOTEMPTY")
    attempt("unlink of a directory", os.unlink, f"{top}/elsewhere", must="EISDIR")
    attempt("rmdir of a file", os.rmdir, f"{top}/file", must="ENOTDIR")
    attempt("rmdir of dot", os.rmdir, f"{top}/elsewhere/below/.", must="EINVAL")
    attempt("a name of a directory", os.link, f"{top}/elsewhere", f"{top}/again", must="EPERM")


def permissions(place):
    """The rights of others, for each call and each mode of the directory and of the object."""
    for call, function in CALLS.items():
        for rights, mode in itertools.product((0o777, 0o555, 0o666, 0o000), (0o777, 0o444, 0o000)):
            top = place.path(f"right-{call}-{rights:o}-{mode:o}".replace(" ", "-"))
            os.mkdir(top)
            touch(f"{top}/object", mode)
            touch(f"{top}/other", 0o666)
            os.chmod(top, rights)
            what = f"{call} of {mode:o} in {rights:o}"
            place.by(USER, what, function, f"{top}/object", f"{top}/other")
            place.by(USER, f"{what}: new", function, f"{top}/new", f"{top}/other")
            os.chmod(top, 0o777)
            place.note(f"{what}: left", sorted(os.listdir(top)))


def sticky_directories(place):
    """Removals and renames in a sticky directory: allowed to its owner, and to the object's."""
    users = [(0, 0), USER, OTHER]
    names = {(0, 0): "root", USER: "user", OTHER: "other"}
    for owner, of_object, kind in itertools.product(users, users, ("file", "directory")):
        for act in ("remove", "rename", "replace", "move"):
            top = place.path(f"sticky-{names[owner]}-{names[of_object]}-{kind}-{act}")
            os.mkdir(top)
            os.mkdir(f"{top}/open", 0o777)
            os.chmod(f"{top}/open", 0o777)
            MAKERS[kind](f"{top}/object")
            os.chown(f"{top}/object", *of_object)
            if kind == "directory":
                os.chmod(f"{top}/object", 0o777)
            MAKERS[kind](f"{top}/open/new")
            os.chown(f"{top}/open/new", *USER)
            os.chown(top, *owner)
            os.chmod(top, 0o1777)
            calls = {
                "remove": lambda: (os.rmdir if kind == "directory" else os.unlink)(f"{top}/object"),
                "rename": lambda: os.rename(f"{top}/object", f"{top}/renamed"),
                "replace": lambda: os.rename(f"{top}/open/new", f"{top}/object"),
                "move": lambda: os.rename(f"{top}/object", f"{top}/open/moved"),
            }
            may = owner == USER or of_object == USER
            what = f"{act} a {kind} of {names[of_object]} in a sticky directory of {names[owner]}"
            must = "ok" if may else None
            result = place.by(USER, what, calls[act], must=must)
            assert may or result in ("EPERM", "EACCES"), f"{place.base}: {what}: {result}"


def owners_and_modes(place):
    """The right to change mode and owner, and the bits that such changes and writes clear."""
    for mode in (0o4755, 0o2755, 0o6777, 0o4644, 0o1777, 0o0000, 0o2644, 0o6767):
        file = place.path(f"bits-{mode:o}")
        touch(file, content=b"12345")
        place.attempt("chmod", os.chmod, file, mode)
        place.look("mode", file)
        place.attempt("chown to oneself", os.chown, file, os.geteuid(), os.getegid())
        place.look("after chown", file)
        os.chmod(file, mode)
        place.attempt("chown of nothing", os.chown, file, -1, -1)
        place.look("after chown of nothing", file)
        os.chmod(file, mode)
        place.by(OTHER, f"chown of nothing under {mode:o}", os.chown, file, -1, -1)
        place.look(f"after that under {mode:o}", file)
        for who, act in itertools.product((MEMBER, OTHER), ("write", "truncate", "open to cut")):
            if IS_ROOT:
                os.chown(file, *USER)
            os.chmod(file, mode | 0o666)
            place.by(who, f"{act} under {mode:o}", change_content, act, file)
            place.look(f"after {act} by {who[0]} under {mode:o}", file)
        os.unlink(file)
    directory = place.path("set-group")
    os.mkdir(directory)
    os.chmod(directory, 0o2777)
    if IS_ROOT:
        os.chown(directory, 0, 4321)
        os.chmod(directory, 0o2777)
    place.by(USER, "a file", touch, f"{directory}/file")
    place.by(USER, "a directory", os.mkdir, f"{directory}/below")
    place.by(USER, "a link", os.symlink, "x", f"{directory}/link")
    for name in ("file", "below", "link"):
        place.look(f"the group of the {name}", f"{directory}/{name}")
    file = place.path("owned")
    touch(file)
    if not IS_ROOT:
        place.attempt("give away", os.chown, file, 0, -1, must="EPERM")
        place.attempt("give to a group of others", os.chown, file, -1, 0, must="EPERM")
        return
    os.chown(file, *USER)
    os.chmod(file, 0o6777)
    for user in (USER, OTHER):
        place.by(user, "give away", os.chown, file, OTHER[0], -1, must="EPERM")
        place.by(user, "give to a group", os.chown, file, -1, 4321, must="EPERM")
        place.by(user, "change the mode", os.chmod, file, 0o644,
                 must="ok" if user == USER else "EPERM")
    # A user outside the group of a file cannot set its set-group-id bit.
    os.chown(file, USER[0], 4321)
    place.by(USER, "set-group-id of a strange group", os.chmod, file, 0o2755, must="ok")
    assert not place.look("the bit", file).st_mode & stat.S_ISGID
    for (uid, gid), mode in itertools.product([(USER[0], -1), (-1, 5), (7, 8)], (0o6777, 0o2644)):
        os.chmod(file, mode)
        os.chown(file, uid, gid)
        place.look(f"{mode:o} given to {uid}:{gid}", file)


def removed_directories(place):
    """A removed directory, for processes that are in it."""
    directory = place.path("gone")
    os.mkdir(directory, 0o750)
    os.chdir(directory)
    os.rmdir(directory)
    libc = ctypes.CDLL(None, use_errno=True)
    found = ctypes.create_string_buffer(256)
    # AT_FDCWD, AT_STATX_FORCE_SYNC, and the number of links behind 16 bytes.
    place.note("statx", libc.statx(-100, b".", 0x2000, 0x7FF, found) or ctypes.get_errno())
    place.note("what it is", struct.unpack_from("IIIH", found, 16))
    place.attempt("list", os.listdir, ".", must=[])
    place.attempt("make", opened, "f", os.O_CREAT | os.O_WRONLY, must="ENOENT")
    os.chdir("/")


def change_content(act, file):
    if act == "truncate":
        os.truncate(file, 2)
    elif act == "open to cut":
        opened(file, os.O_WRONLY | os.O_TRUNC)
    else:
        with open(file, "r+b", buffering=0) as out:
            out.write(b"changed")


def making(place):
    """Modes of new objects under masks, and other effects of opens."""
    for mask, mode in itertools.product((0, 0o022, 0o077, 0o777), (0o777, 0o644, 0o6755, 0o1666)):
        top = place.path(f"made-{mask:o}-{mode:o}")
        os.mkdir(top)
        before = os.umask(mask)
        try:
            opened(f"{top}/file", os.O_CREAT | os.O_RDWR, mode)
            os.mkdir(f"{top}/directory", mode)
            os.mkfifo(f"{top}/fifo", mode)
            os.mknod(f"{top}/node", stat.S_IFREG | mode)
        finally:
            os.umask(before)
        for name in ("file", "directory", "fifo", "node"):
            place.look(f"{name} {mode:o} under {mask:o}", f"{top}/{name}")
    file = place.path("opened")
    # The creating open can write whatever the mode is.
    made = os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0)
    place.attempt("write to a file without rights", os.write, made, b"12345", must="ok")
    os.chmod(file, 0o644)
    place.note("read it", os.pread(made, 10, 0))
    place.attempt("cut by a descriptor", os.ftruncate, made, 2, must="ok")
    place.attempt("cut to less than nothing", os.ftruncate, made, -1, must="EINVAL")
    place.attempt("extend", os.ftruncate, made, 10, must="ok")
    place.note("zeros", os.pread(made, 20, 0))
    os.unlink(file)
    place.note("without a name", (os.fstat(made).st_nlink, os.pread(made, 20, 0)))
    place.attempt("write without a name", os.pwrite, made, b"x", 3, must="ok")
    place.attempt("chmod without a name", os.fchmod, made, 0o600, must="ok")
    os.close(made)
    touch(file, content=b"abc")
    reader = os.open(file, os.O_RDONLY)
    place.attempt("write to what is open to read", os.write, reader, b"x", must="EBADF")
    place.attempt("cut what is open to read", os.ftruncate, reader, 0, must="EINVAL")
    place.attempt("cut by opening to read", opened, file, os.O_RDONLY | os.O_TRUNC, must="ok")
    place.look("it is empty", file)
    os.close(reader)
    adder = os.open(file, os.O_WRONLY | os.O_APPEND)
    os.write(adder, b"one")
    with open(file, "ab", buffering=0) as second:
        second.write(b"two")
    os.write(adder, b"three")
    os.lseek(adder, 0, os.SEEK_SET)
    os.write(adder, b"four")
    os.close(adder)
    with open(file, "rb") as whole:
        place.note("appended", whole.read())
    os.symlink("opened", place.path("to-opened"))
    os.symlink("to-be-made", place.path("to-nothing"))
    anew = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    for name in ("to-opened", "to-nothing"):
        place.attempt(f"make over {name}", opened, place.path(name), anew, must="EEXIST")
    place.attempt("make through a link", opened, place.path("to-nothing"), os.O_CREAT | os.O_WRONLY)
    place.look("what was made", place.path("to-be-made"))
    text = "t" * 1000
    os.symlink(text, place.path("long"))
    place.note("a long link", os.readlink(place.path("long")) == text)
    place.look("its size", place.path("long"))


# Changes, and the objects whose times they change: the object "f", the directory "d", another directory "e".
CHANGES = {
    "write": lambda top: change_content("write", f"{top}/d/f"),
    "cut": lambda top: os.truncate(f"{top}/d/f", 1),
    "cut to the same size": lambda top: os.truncate(f"{top}/d/f", 5),
    "open to cut": lambda top: opened(f"{top}/d/f", os.O_WRONLY | os.O_TRUNC),
    "open": lambda top: opened(f"{top}/d/f", os.O_RDWR),
    "chmod": lambda top: os.chmod(f"{top}/d/f", 0o600),
    "link": lambda top: os.link(f"{top}/d/f", f"{top}/e/second"),
    "rename": lambda top: os.rename(f"{top}/d/f", f"{top}/d/renamed"),
    "move": lambda top: os.rename(f"{top}/d/f", f"{top}/e/moved"),
    "replace": lambda top: os.rename(f"{top}/d/f", f"{top}/e/other"),
    "unlink": lambda top: os.unlink(f"{top}/d/f"),
    "make a file": lambda top: touch(f"{top}/d/new"),
    "make a directory": lambda top: os.mkdir(f"{top}/d/new"),
    "make a fifo": lambda top: os.mkfifo(f"{top}/d/new"),
    "make a link": lambda top: os.symlink("x", f"{top}/d/new"),
    "remove a directory": lambda top: os.rmdir(f"{top}/d/below"),
    "fail to make": lambda top: outcome(os.mkdir, f"{top}/d/f"),
    "fail to remove": lambda top: outcome(os.rmdir, f"{top}/d"),
    "set times": lambda top: os.utime(f"{top}/d/f", ns=(5, 7)),
}


if IS_ROOT:
    CHANGES["chown"] = lambda top: os.chown(f"{top}/d/f", 1, 2)


def wait_for_a_later_time(place, than):
    """Waits until the clock of file times has advanced."""
    clock = place.path("clock")
    while True:
        touch(clock)
        if os.stat(clock).st_ctime_ns > than:
            return


def positions_of_a_listing(place):
    """Removals do not move the other entries."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.opendir.restype = libc.readdir.restype = ctypes.c_void_p
    libc.opendir.argtypes = [ctypes.c_char_p]
    for function in (libc.readdir, libc.closedir, libc.telldir, libc.rewinddir):
        function.argtypes = [ctypes.c_void_p]
    libc.telldir.restype = ctypes.c_long
    libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
    directory = place.path("listed")
    os.mkdir(directory)
    names = {f"name-{number:04}-{'x' * 200}" for number in range(500)}
    for name in names:
        touch(f"{directory}/{name}")
    stream = libc.opendir(directory.encode())

    def following(count=None):
        found = []
        while count is None or len(found) < count:
            entry = libc.readdir(stream)
            if not entry:
                break
            # Behind number, position, length and kind.
            name = ctypes.string_at(entry + 19).decode()
            if name not in (".", ".."):
                found.append(name)
        return found

    first = following(170)
    middle = libc.telldir(stream)
    second = following(150)
    later = libc.telldir(stream)
    third = following()
    end = libc.telldir(stream)
    assert set(first + second + third) == names, f"{place.base}: not all are listed"
    for name in first + second[1::2]:
        os.remove(f"{directory}/{name}")
    libc.seekdir(stream, middle)
    left = [name for name in following() if os.path.exists(f"{directory}/{name}")]
    assert left == second[::2] + third, f"{place.base}: a listing goes on elsewhere"
    libc.seekdir(stream, later)
    assert following() == third, f"{place.base}: a listing goes on elsewhere"
    libc.seekdir(stream, end)
    assert following() == [], f"{place.base}: there is something behind the end"
    libc.rewinddir(stream)
    assert sorted(following()) == sorted(second[::2] + third)
    libc.closedir(stream)
    # Removed while they are listed.
    with os.scandir(directory) as listed:
        for entry in listed:
            os.remove(entry.path)
    place.attempt("removing what was listed and removed", os.rmdir, directory, must="ok")


def times(place):
    """The times that each change updates, and those that stay."""
    for change, function in CHANGES.items():
        top = place.path("times-" + change.replace(" ", "-"))
        os.makedirs(f"{top}/d/below")
        os.mkdir(f"{top}/e")
        touch(f"{top}/d/f", content=b"12345")
        touch(f"{top}/e/other")
        paths = {name: f"{top}/{name}" for name in ("d", "d/f", "e", "e/other")}
        for path in paths.values():
            os.utime(path, (OLD, OLD))
        held = os.open(paths["d/f"], os.O_RDONLY)
        before = {name: os.stat(path) for name, path in paths.items()}
        before["held"] = os.fstat(held)
        wait_for_a_later_time(place, max(found.st_ctime_ns for found in before.values()))
        place.attempt(change, function, top)
        after = {"held": os.fstat(held)}
        for name, path in paths.items():
            if os.path.lexists(path):
                after[name] = os.stat(path)
        os.close(held)
        for name, found in after.items():
            moved = [field for field in ("st_mtime_ns", "st_ctime_ns")
                     if getattr(found, field) != getattr(before[name], field)]
            place.note(f"{change}: times of {name}", moved)


def setting_times(place):
    """Times that are set are returned exactly; and the right to set them."""
    file = place.path("timed")
    touch(file)
    if IS_ROOT:
        os.chown(file, *USER)
    for moment in (0, 1, 999_999_999, OLD * 10**9 + 123_456_789, -1, -1_500_000_000,
                   -10**9 * 86400 * 365 - 250_000_000, 2**31 * 10**9 + 5, 2**33 * 10**9 + 999_999_999):
        os.utime(file, ns=(moment, moment + 1))
        found = os.stat(file)
        place.note(f"times of {moment}", (found.st_atime_ns, found.st_mtime_ns))
    os.chmod(file, 0o644)
    place.by(USER, "set by the owner", os.utime, file, (1, 2), must="ok")
    if IS_ROOT:
        place.by(OTHER, "set by another", os.utime, file, (1, 2), must="EPERM")
        place.by(OTHER, "now by another", os.utime, file, None, must="EACCES")
        os.chmod(file, 0o666)
        place.by(OTHER, "set by who may write", os.utime, file, (1, 2), must="EPERM")
        place.by(OTHER, "now by who may write", os.utime, file, None, must="ok")
    os.symlink("timed", place.path("timed-link"))
    os.utime(place.path("timed-link"), ns=(3, 4), follow_symlinks=False)
    place.note("of the link", os.lstat(place.path("timed-link")).st_mtime_ns)
    before = time.time() - 2
    os.utime(file)
    place.note("now is now", before <= os.stat(file).st_mtime <= time.time() + 2)


def main():
    scenes = [strange_paths, kinds_of_objects, renaming, permissions, owners_and_modes, making,
              positions_of_a_listing, times, setting_times, removed_directories]
    if IS_ROOT:
        scenes.append(sticky_directories)
    os.umask(0o022)
    count, wrong = 0, 0
    for scene in scenes:
        places = []
        for base in sys.argv[1:3]:
            place = Place(os.path.join(os.path.abspath(base), scene.__name__))
            os.mkdir(place.base)
            os.chmod(place.base, 0o777)
            scene(place)
            places.append(place)
        mount, local = (place.found for place in places)
        assert len(mount) == len(local), f"{scene.__name__}: {len(mount)} results, not {len(local)}"
        for (what, found), (same, wanted) in zip(mount, local):
            assert what == same
            count += 1
            if found != wanted:
                wrong += 1
                print(f"{scene.__name__}: {what}: {found}, and locally {wanted}")
    print(f"{count} results compared, {wrong} differ")
    sys.exit(wrong > 0)


main()
