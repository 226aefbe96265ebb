"""What a peer speaks that does not speak Kafka's protocol, told by the four bytes that stand for a frame's size.

Pure. A client with wrong settings is then called what it is in the log, not a frame of so many bytes.
"""

from __future__ import annotations

_HTTP = {b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN"}
#: The begin of HTTP/2's preface.
_HTTP2 = b"PRI "
#: Of a TLS record with a handshake in it: its kind, and the first byte of its version.
_TLS_HANDSHAKE = 0x1603


def stranger(size: int) -> str:
    """Empty if nothing is known of it."""
    if size >> 16 == _TLS_HANDSHAKE:
        return "a TLS hello, and this listener speaks plain text: the client's security.protocol has to be PLAINTEXT"
    first = (size & 0xFFFF_FFFF).to_bytes(4, "big")
    if first in _HTTP:
        return "an HTTP request, and this listener speaks Kafka's protocol"
    if first == _HTTP2:
        return "an HTTP/2 preface, as gRPC's, and this listener speaks Kafka's protocol"
    return ""
