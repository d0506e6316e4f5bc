"""Runs a command to which the kernel gives no ring of io_uring, as in many containers.

no_io_uring.py COMMAND ARGUMENT...
"""

import ctypes
import errno
import os
import struct
import sys

# The same number on all machines.
IO_URING_SETUP = 425
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38
SECCOMP_MODE_FILTER = 2
SECCOMP_RET_ERRNO, SECCOMP_RET_ALLOW = 0x00050000, 0x7FFF0000
LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06


def prctl(option, *arguments):
    padded = [*arguments, 0, 0, 0, 0][:4]
    values = [value if isinstance(value, ctypes.Array) else ctypes.c_ulong(value) for value in padded]
    if ctypes.CDLL(None, use_errno=True).prctl(option, *values) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def main():
    steps = [
        (LOAD_WORD, 0, 0, 0),
        (JUMP_IF_EQUAL, 0, 1, IO_URING_SETUP),
        (RETURN, 0, 0, SECCOMP_RET_ERRNO | errno.EPERM),
        (RETURN, 0, 0, SECCOMP_RET_ALLOW),
    ]
    code = b"".join(struct.pack("=HBBI", *step) for step in steps)
    code = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(steps), ctypes.addressof(code))
    program = ctypes.create_string_buffer(program, len(program))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program)
    os.execvp(sys.argv[1], sys.argv[1:])


main()
