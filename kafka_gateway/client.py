"""What a connection knows of who is at its other end, for the few handlers that need more than a request.

The server sets `Asking.client` before it starts the requests of a connection, so a handler reads it when it is called, and
keeps what it found if it goes on later.
"""

from __future__ import annotations

from collections.abc import Callable

UNKNOWN = "unknown"
#: The listener of who names none, as Kafka's.
PLAINTEXT = "PLAINTEXT"


class ConnectedClient:
    """`listener` is the one that it came in by, whose addresses it is told; `software_*` are what ApiVersions 3 and up said
    (KIP-511). `left` is called once, when the connection has closed; `has_left` may be true before, once nobody reads
    answers."""

    __slots__ = ("has_left", "host", "left", "listener", "port", "software_name", "software_version")

    def __init__(self, host: str = "", port: int = 0, listener: str = PLAINTEXT) -> None:
        self.host = host
        self.port = port
        self.listener = listener
        self.software_name = UNKNOWN
        self.software_version = UNKNOWN
        self.left: Callable[[], None] | None = None
        self.has_left = False

    def is_there(self) -> bool:
        return not self.has_left


class Asking:
    __slots__ = ("client",)

    def __init__(self) -> None:
        self.client = ConnectedClient()
