"""Keys as paths: every key has one path, no two keys share one, and no key leaves the store's root.

A key's components become directories and its last one a file, under their own names where possible:
`topics/flights/.../00000000000000000000-0-ab.log` has exactly that path. S3 allows more names than a file system does. The
exceptions are marked with `%`; a `%` in a key itself is escaped:

    bytes below 32, 127 and `%`   %09 ... %25            . and .. as components         %2E   %2E%2E
    an empty component            %e                     upload not finished yet        NAME%up-TOKEN
    a last component without one of OBJECT_SUFFIXES, or another component with one of them, ends in %

The last rule allows both keys `a` and `a/b`: one is the file `a%`, the other lies in the directory `a`. Changing
OBJECT_SUFFIXES therefore changes the paths of keys.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from storage_tiers.cold.stores.port import check_key
from storage_tiers.errors import StoreRefused

#: Suffixes of tidelog's own objects, which keep their plain names as files.
OBJECT_SUFFIXES = (".gz", ".idx", ".json", ".log")
#: The directory of the lock files under the root. No key maps to it.
LOCKS = "%locks"

_UPLOAD = "%up-"
_MAX_NAME_BYTES = 255
_UPLOAD_BYTES = len(_UPLOAD) + 16
_ESCAPED = re.compile(r"[%\x00-\x1f\x7f]")
_ESCAPE = re.compile(r"%([0-9A-F]{2})")
_TOKEN = re.compile(r"[0-9a-f]{16}")


class DecodedName(NamedTuple):
    """A decoded file name: the last component of a key, and the token of an unfinished upload or None."""

    component: str
    token: str | None = None


def object_path(root: str, key: str) -> str:
    """The path of a key's object. `StoreRefused` for a key that S3 refuses too, or that has a component too long for a file
    name."""
    check_key(key)
    *folders, last = key.split("/")
    names = [*map(folder_name, folders), object_name(last)]
    # Only files have a longer temporary name, so a folder may use the full length, for example for a topic of 249 characters.
    lengths = [*(len(os.fsencode(name)) for name in names[:-1]), len(os.fsencode(names[-1])) + _UPLOAD_BYTES]
    if max(lengths) > _MAX_NAME_BYTES:
        raise StoreRefused(f"a component of the key {key} is too long for a file name in a directory store")
    return os.path.join(root, *names)


def upload_path(root: str, key: str, token: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise StoreRefused(f"{token!r} is not the id of an upload to this store")
    return object_path(root, key) + _UPLOAD + token


def object_name(component: str) -> str:
    name = _escape(component)
    return name if name.endswith(OBJECT_SUFFIXES) else name + "%"


def folder_name(component: str) -> str:
    name = _escape(component)
    return name + "%" if name.endswith(OBJECT_SUFFIXES) else name


def parse_file(name: str) -> DecodedName | None:
    """Decodes a file's name; None for a file that is not an object of the store (a README, for example)."""
    name, _, token = name.partition(_UPLOAD)
    component = _unescape(name.removesuffix("%"))
    if component is None or object_name(component) != name:
        return None
    return DecodedName(component, token or None)


def parse_folder(name: str) -> str | None:
    component = _unescape(name.removesuffix("%"))
    return component if component is not None and folder_name(component) == name else None


def _escape(component: str) -> str:
    if component == "":
        return "%e"
    if component in (".", ".."):
        return component.replace(".", "%2E")
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", component)


def _unescape(name: str) -> str | None:
    if name == "%e":
        return ""
    try:
        name.encode()
    except UnicodeEncodeError:
        return None
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), name)
