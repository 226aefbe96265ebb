"""Parses the head of an HTTP/1.x request, for the node's own pages. Pure.

A request that two readers could understand differently is refused: a proxy in front of the node would see other requests than
the node does. So a head has no folded lines and no stray control characters, and its body has a single length. Chunked bodies
are refused, because no page takes a body.
"""

from __future__ import annotations

import re
from typing import NamedTuple

#: The maximum number of bytes of a head, and of the body that is discarded.
MAX_HEAD_BYTES = MAX_BODY_BYTES = 16 << 10

_REQUEST = re.compile(rb"([A-Z]+) (\S+) HTTP/1\.([01])")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_LENGTH = re.compile(r"[0-9]{1,9}")


class BadRequest(Exception):
    """The head is malformed; the connection must be closed."""


class PageRequest(NamedTuple):
    """A request. `keeps` says whether the client keeps the connection; `body` is the number of bytes of the request's body."""

    method: str
    path: str
    accept: str
    keeps: bool
    body: int


def parse_head(head: bytes) -> PageRequest:
    """Parses a head that ends with an empty line. Raises BadRequest."""
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    request = _REQUEST.fullmatch(first)
    if request is None:
        raise BadRequest("the request line is malformed")
    fields: dict[str, list[str]] = {}
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None:
            raise BadRequest("a header is malformed")
        fields.setdefault(header[1].decode().lower(), []).append(header[2].decode("latin-1").strip(" \t"))
    method, target, minor = request[1].decode(), request[2].decode("latin-1"), request[3]
    options = {each.strip().lower() for field in fields.get("connection", ()) for each in field.split(",")}
    keeps = "close" not in options and (minor == b"1" or "keep-alive" in options)
    return PageRequest(method, _path_of(target), ",".join(fields.get("accept", ())), keeps, _body(fields))


def _path_of(target: str) -> str:
    """The path of a target, which may be a whole URL."""
    _, scheme, rest = target.partition("://")
    if scheme and not target.startswith("/"):
        target = "/" + rest.partition("/")[2]
    return target.partition("?")[0]


def _body(fields: dict[str, list[str]]) -> int:
    if "transfer-encoding" in fields:
        raise BadRequest("the pages take no chunked body")
    lengths = set(fields.get("content-length", ("0",)))
    length = lengths.pop()
    if lengths or not _LENGTH.fullmatch(length) or int(length) > MAX_BODY_BYTES:
        raise BadRequest("the length of the body is malformed or too large")
    return int(length)
