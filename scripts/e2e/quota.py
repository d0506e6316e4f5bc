#!/usr/bin/env python3
"""quota.py DIRECTORY PROJECT BYTES -- makes a directory the root of a project that may use so many bytes."""

import ctypes
import fcntl
import os
import struct
import sys

FS_IOC_FSGETXATTR = 0x801C581F
FS_IOC_FSSETXATTR = 0x401C5820
INHERITED = 0x200
SYS_QUOTACTL_FD = 443
SET_QUOTA = 0x800008 << 8
OF_PROJECT = 2
LIMITS_OF_SPACE = 1

directory, project, limit_bytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
# Flags, sizes of extents, project, and the size of extents of copies.
fields = list(struct.unpack("5I8x", fcntl.ioctl(fd, FS_IOC_FSGETXATTR, bytes(28))))
fields[0] |= INHERITED
fields[3] = project
fcntl.ioctl(fd, FS_IOC_FSSETXATTR, struct.pack("5I8x", *fields))
# The hard limit is the first of eight numbers. Its unit is 1 KiB.
block = ctypes.create_string_buffer(struct.pack("8QI4x", limit_bytes >> 10, *[0] * 7, LIMITS_OF_SPACE))
libc = ctypes.CDLL(None, use_errno=True)
if libc.syscall(SYS_QUOTACTL_FD, fd, ctypes.c_uint(SET_QUOTA | OF_PROJECT), project, block) != 0:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number), directory)
