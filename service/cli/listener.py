"""Whether a Kafka listener answers at an address, or what answers there instead.

librdkafka would go on trying for ever and could not say why it fails, so each command asks once by itself before: a plain
connection and the smallest request of Kafka's protocol. What another protocol answers to it is recognised.

Does not promise that a node serves: one that stands still, and anything else that accepts a connection and says nothing, is
left to the command's own time limits.
"""

from __future__ import annotations

import socket
import struct

from service.cli.errors import NodeUnreachable

#: For the connection, and for each piece of the answer, which is one but for a trickle.
PATIENCE_S = 2.0
#: Bytes that are enough to recognise an answer.
_ENOUGH = 16
#: Bytes of an answer that are read at most.
_MOST = 1 << 16
#: As text two line ends: a server that reads lines, as HTTP's do, takes the request for a whole one and answers it.
_CORRELATION = b"\r\n\r\n"
_CLIENT_ID = b"tidelog-cli"
#: ApiVersions, version 0, which every Kafka node answers.
_BODY = struct.pack(">hh4sh", 18, 0, _CORRELATION, len(_CLIENT_ID)) + _CLIENT_ID
REQUEST = struct.pack(">i", len(_BODY)) + _BODY
_HTTP2_SETTINGS, _HTTP2_GOAWAY = 4, 7


def split_address(address: str) -> tuple[str, int]:
    """(host, port) of HOST:PORT, an IPv6 address in brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def require_reachable(bootstrap: str) -> str:
    """The first address where a Kafka listener answers, or where nothing is known against it. NodeUnreachable, with each
    one's reason, if there is none."""
    reasons, foreign = [], 0
    for address in bootstrap.split(","):
        try:
            protocol = other_protocol(_first_bytes(address))
        except OSError as error:
            reasons.append(f"{address} ({error.strerror or error})")
            continue
        if protocol is None:
            return address
        foreign += 1
        reasons.append(f"{address} ({protocol})")
    if foreign == len(reasons):
        raise NodeUnreachable(
            f"no Kafka listener: {', '.join(reasons)}; name a node's Kafka listener with --bootstrap-server HOST:PORT"
        )
    raise NodeUnreachable(
        f"cannot reach a node at {', '.join(reasons)}: start one with `tidelog serve`, or name another with "
        "--bootstrap-server HOST:PORT"
    )


def other_protocol(first: bytes | None) -> str | None:
    """What speaks, by the first bytes of its answer to `REQUEST`; None for Kafka's protocol, and for None: silence."""
    if first is None or (len(first) >= 8 and first[4:8] == _CORRELATION):
        return None
    if first.startswith((b"HTTP/", b"<")):  # some answer with a page alone
        return "it speaks HTTP"
    if len(first) >= 9 and first[3] in (_HTTP2_SETTINGS, _HTTP2_GOAWAY) and first[5:9] == bytes(4):
        return "it speaks gRPC, or else HTTP/2"
    if first[:2] in (b"\x15\x03", b"\x16\x03"):
        return "it speaks TLS"
    if not first:
        return "it ends the connection without an answer, as one of TLS does"
    return f"it speaks another protocol, and answers {first[:_ENOUGH]!r}"


def _first_bytes(address: str) -> bytes | None:
    """Of the answer; empty if the connection is ended without one, None if nothing comes within `PATIENCE_S`."""
    with socket.create_connection(split_address(address), PATIENCE_S) as connection:
        received = b""
        try:
            connection.sendall(REQUEST)
            while len(received) < _wanted(received) and (piece := connection.recv(_MOST)):
                received += piece
        except TimeoutError:
            return received or None
        except OSError:  # ended; what came before says more
            pass
        return received


def _wanted(received: bytes) -> int:
    """Kafka's answer is taken whole, or a node would log that its client was cut off."""
    if received[4:8] != _CORRELATION:
        return _ENOUGH
    return min(_MOST, 4 + int.from_bytes(received[:4], "big"))
