"""The identity of a file or directory: tells the original from a copy, a restored backup or a move to another disk.

An identity is device, inode and birth time. The birth time comes from statx(2), because Python's `os.stat` omits it. It is None
where the kernel, C library or file system reports none; a copy that gets the same device and inode then goes undetected.

Even birth times do not reveal a volume whose snapshot was restored as a whole, or a file whose bytes were replaced in place.
"""

from __future__ import annotations

import ctypes
import os
import struct
from functools import cache
from typing import Any, NamedTuple

_AT_FDCWD = -100
_STATX_BTIME = 0x800
#: `struct statx` of linux/stat.h: mask at 0, the seconds and nanoseconds of birth at 80.
_STATX_BYTES = 256
_BIRTH_AT = 80


class FileIdentity(NamedTuple):
    """`device` and `inode` as stat(2) reports them; `born_ns` is the birth time in ns since 1970, None where unknown."""

    device: int
    inode: int
    born_ns: int | None


def file_identity(path: str) -> FileIdentity:
    """The identity of the file or directory at `path`. OSError if it does not exist."""
    status = os.stat(path)
    return FileIdentity(status.st_dev, status.st_ino, _born_ns(path))


def machine_id() -> str:
    """The id of this installation of the operating system; empty if it has none."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                found = file.read().strip()
        except OSError:
            continue
        if found:
            return found
    return ""


@cache
def _statx() -> Any:
    return getattr(ctypes.CDLL(None, use_errno=True), "statx", None)


def _born_ns(path: str) -> int | None:
    statx = _statx()
    if statx is None:
        return None
    found = ctypes.create_string_buffer(_STATX_BYTES)
    if statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, found) != 0:
        return None
    (mask,) = struct.unpack_from("=I", found)
    seconds, nanoseconds = struct.unpack_from("=qI", found, _BIRTH_AT)
    return seconds * 1_000_000_000 + nanoseconds if mask & _STATX_BTIME else None
