"""Frames that no client should send: both brokers close the connection and keep serving others."""

from __future__ import annotations

import struct

from tests.differential import message_trees
from tests.differential.judge import SERVED, session
from tests.differential.peer import Peer


def header(key: int, version: int, *, flexible: bool = False) -> bytes:
    return struct.pack(">hhih", key, version, 7, -1) + (b"\0" if flexible else b"")


@session("api_versions", versions=(0,))
def lengths(peer: Peer, version: int) -> None:
    for label, size in (
        ("0", 0),
        ("1", 1),
        ("-1", -1),
        ("lowest", -(2**31)),
        ("too large", 104_857_601),
        ("highest", 2**31 - 1),
    ):
        peer.raw(f"a frame of {label}", struct.pack(">i", size) + b"\0" * min(max(size, 0), 7))
    peer.raw("an HTTP request", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    peer.raw("a TLS hello", bytes.fromhex("160301020001000001fc0303") + bytes(500))
    peer.ask("api_versions", version, "still there")


@session("api_versions", versions=(0,))
def keys_and_versions(peer: Peer, version: int) -> None:
    for key in (-1, 4, 5, 6, 7, 99, 1000, 32767):
        peer.raw(f"key {key}", message_trees.framed(header(key, 0)))
    for name, (key, low, high) in SERVED.items():
        if name == "api_versions":
            continue
        peer.raw(f"{name} above its versions", message_trees.framed(header(key, high + 1, flexible=True)))
        peer.raw(f"{name} below its versions", message_trees.framed(header(key, low - 1)))
    peer.ask("api_versions", version, "still there")


@session("api_versions", versions=(0,))
def half_requests(peer: Peer, version: int) -> None:
    """A body that ends before it should."""
    for name, (_, low, high) in SERVED.items():
        for of in sorted({low, (low + high) // 2, high}):
            whole = message_trees.request(name, of, 7, {})
            start = len(message_trees.request(name, of, 7, {})) - _body_bytes(name, of)
            for place in sorted({start, (start + len(whole)) // 2, len(whole) - 1}):
                if start <= place < len(whole):
                    peer.raw(f"{name} v{of}, {len(whole) - place} bytes short", message_trees.framed(whole[:place]))
    peer.ask("api_versions", version, "still there")


def _body_bytes(name: str, version: int) -> int:
    flexible = bool(message_trees.message(name, version, "request").__flexible__)
    head = 10 + len(message_trees.CLIENT_ID) + (1 if flexible else 0)
    return len(message_trees.request(name, version, 7, {})) - head
