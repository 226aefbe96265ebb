"""Checks that a Kafka listener answers at an address, and recognises other protocols.

librdkafka retries forever and cannot say why a connection fails. Each command therefore first opens one plain connection and
sends the smallest Kafka request.

The check does not show that the node works. If the listener accepts the connection and stays silent, the command's own timeouts
apply.
"""

from __future__ import annotations

import socket
import struct

from service.cli.errors import NodeUnreachable

#: Timeout of the connection and of each read, in seconds. Usually one read receives the whole answer.
PATIENCE_S = 2.0
#: This many bytes identify a protocol.
_ENOUGH = 16
#: At most this many bytes of an answer are read.
_MOST = 1 << 16
#: The correlation id contains two line ends, so that an HTTP server sees a complete request and answers.
_CORRELATION = b"\r\n\r\n"
_CLIENT_ID = b"tidelog-cli"
#: ApiVersions, version 0, which every Kafka node answers.
_BODY = struct.pack(">hh4sh", 18, 0, _CORRELATION, len(_CLIENT_ID)) + _CLIENT_ID
REQUEST = struct.pack(">i", len(_BODY)) + _BODY
_HTTP2_SETTINGS, _HTTP2_GOAWAY = 4, 7


def split_address(address: str) -> tuple[str, int]:
    """(host, port) of HOST:PORT, in which an IPv6 address has brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def require_reachable(bootstrap: str) -> str:
    """The first address with a Kafka listener or a silent listener. If there is none, raises NodeUnreachable with the reason
    for each address."""
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
            f"no Kafka listener: {', '.join(reasons)}; give a node's Kafka listener with --bootstrap-server HOST:PORT"
        )
    raise NodeUnreachable(
        f"cannot reach a node at {', '.join(reasons)}; start one with `tidelog serve`, or give another address with "
        "--bootstrap-server HOST:PORT"
    )


def other_protocol(first: bytes | None) -> str | None:
    """The protocol that answered `REQUEST`, by its first bytes. None for Kafka's protocol and for silence (`first` is None)."""
    if first is None or (len(first) >= 8 and first[4:8] == _CORRELATION):
        return None
    if first.startswith((b"HTTP/", b"<")):  # some servers answer without headers
        return "it speaks HTTP"
    if len(first) >= 9 and first[3] in (_HTTP2_SETTINGS, _HTTP2_GOAWAY) and first[5:9] == bytes(4):
        return "it speaks gRPC, or another HTTP/2 protocol"
    if first[:2] in (b"\x15\x03", b"\x16\x03"):
        return "it speaks TLS"
    if not first:
        return "it closes the connection without an answer, as a TLS listener does"
    return f"it speaks another protocol, and answers {first[:_ENOUGH]!r}"


def _first_bytes(address: str) -> bytes | None:
    """The first bytes of the answer; empty if the peer closes the connection first, None after `PATIENCE_S` of silence."""
    with socket.create_connection(split_address(address), PATIENCE_S) as connection:
        received = b""
        try:
            connection.sendall(REQUEST)
            while len(received) < _wanted(received) and (piece := connection.recv(_MOST)):
                received += piece
        except TimeoutError:
            return received or None
        except OSError:  # the connection was closed; the received bytes say more
            pass
        return received


def _wanted(received: bytes) -> int:
    """The number of bytes to read. Kafka's answer is read to its end; otherwise the node would log a disconnected client."""
    if received[4:8] != _CORRELATION:
        return _ENOUGH
    return min(_MOST, 4 + int.from_bytes(received[:4], "big"))
