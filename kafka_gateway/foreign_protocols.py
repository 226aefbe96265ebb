"""Recognises clients of other protocols by their first four bytes, which hold a frame's size in Kafka's protocol.

Pure. The log can then name the client's mistake instead of an absurd frame size.
"""

from __future__ import annotations

_HTTP = {b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN"}
#: The start of HTTP/2's preface.
_HTTP2 = b"PRI "
#: The start of a TLS record that holds a handshake: its content type and the first byte of its version.
_TLS_HANDSHAKE = 0x1603


def foreign_protocol(size: int) -> str:
    """Describes the client's mistake, and for TLS the remedy; empty if the bytes match no known protocol."""
    if size >> 16 == _TLS_HANDSHAKE:
        return "a TLS hello, but this listener is plaintext; the client's security.protocol must be PLAINTEXT"
    first = (size & 0xFFFF_FFFF).to_bytes(4, "big")
    if first in _HTTP:
        return "an HTTP request, but this listener speaks Kafka's protocol"
    if first == _HTTP2:
        return "an HTTP/2 preface (perhaps of gRPC), but this listener speaks Kafka's protocol"
    return ""
