"""Finds out whether gRPC or another protocol answers at an address.

gRPC retries an address until its deadline and does not report the cause, so a client first checks once: it opens a plain
connection, sends HTTP/2's preface and recognises another protocol by its answer.

A listener that accepts and stays silent passes the check; only the client's own time limit finds out that it does not serve.
"""

from __future__ import annotations

import asyncio

from storage_tiers.errors import InvalidRequest, LeaderNotAvailable

#: Time limit in seconds of connecting, and of the first bytes of the answer.
PATIENCE_S = 2.0
#: An empty SETTINGS frame follows the preface (RFC 9113, section 3.4).
_SETTINGS_TYPE = 4
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, _SETTINGS_TYPE, 0, 0, 0, 0, 0))
_FRAME_HEADER = 9
_REMEDY = "name a node's gRPC listener, by default port 9093"


async def require_grpc(address: str) -> None:
    """Returns if gRPC answers at HOST:PORT, or nothing answers in time. Raises LeaderNotAvailable if the connection is refused
    or fails, InvalidRequest for another protocol."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except TimeoutError:
        return
    except OSError as error:
        reason = error.strerror or str(error)
        raise LeaderNotAvailable(f"no node answers at {address} ({reason}): start one, or {_REMEDY}") from None
    try:
        protocol = _other_protocol(await _first_bytes(reader, writer))
    finally:
        writer.close()
    if protocol is not None:
        raise InvalidRequest(f"{address} is not a gRPC listener: {protocol}; {_REMEDY}")


async def _first_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:
    """The first bytes of the answer, as many as a frame's header has; fewer if the peer closes the connection, None if nothing
    arrives in time."""
    writer.write(_PREFACE)
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await reader.readexactly(_FRAME_HEADER)
    except TimeoutError:
        return None
    except asyncio.IncompleteReadError as ended:
        return ended.partial
    except OSError:
        return b""


def _other_protocol(first: bytes | None) -> str | None:
    """The protocol that the first bytes of an answer show; None for HTTP/2, and for silence."""
    if first is None or (len(first) == _FRAME_HEADER and first[3] == _SETTINGS_TYPE and first[5:] == bytes(4)):
        return None
    if first.startswith((b"HTTP/", b"<")):
        return "it speaks HTTP"
    if first[:2] in (b"\x15\x03", b"\x16\x03"):
        return "it speaks TLS"
    if not first:
        # A gRPC listener does this too, beyond `tidelog.grpc.max.connections` plus REFUSED_CONNECTIONS.
        return "it closes the connection, like a Kafka listener, or a gRPC listener with too many connections"
    return f"it speaks another protocol, and answers {first!r}"
