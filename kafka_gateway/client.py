"""What a connection knows of who is at its other end, for the few handlers that need more than a request.

The server sets `Asking.client` before it starts the requests of a connection, so a handler reads it when it is called, and
keeps what it found if it goes on later.
"""

from __future__ import annotations

from collections.abc import Callable

UNKNOWN = "unknown"


class ConnectedClient:
    """`software_*` are what ApiVersions 3 and up said (KIP-511). `left` is called once, when the connection has closed;
    `has_left` may be true before, once nobody reads answers."""

    __slots__ = ("has_left", "host", "left", "port", "software_name", "software_version")

    def __init__(self, host: str = "", port: int = 0) -> None:
        self.host = host
        self.port = port
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
