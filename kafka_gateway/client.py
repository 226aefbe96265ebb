"""The client of a connection, for the few handlers that need more than a request.

The server sets `RequestContext.client` before it starts a connection's requests. A handler reads the client when the handler is
called, and keeps it if the handler answers later.
"""

from __future__ import annotations

from collections.abc import Callable

from grpc_api.contract.caller import Caller

UNKNOWN = "unknown"
#: The default listener, as in Kafka.
PLAINTEXT = "PLAINTEXT"


class ConnectedClient:
    """`host` and `port` are the client's address. `listener` is the listener that it connected to; answers name that listener's
    addresses. `software_*` come from ApiVersions 3 and up (KIP-511). `left` is called once, when the connection has closed;
    `has_left` becomes true when answers are no longer read, which may be earlier."""

    __slots__ = ("caller", "has_left", "host", "left", "listener", "named", "port", "software_name", "software_version")

    def __init__(self, host: str = "", port: int = 0, listener: str = PLAINTEXT) -> None:
        self.host = host
        self.port = port
        self.listener = listener
        self.software_name = UNKNOWN
        self.software_version = UNKNOWN
        self.left: Callable[[], None] | None = None
        self.has_left = False
        #: The client id of the last request, encoded as in its header, and the `Caller` with that id.
        self.named = bytearray()
        self.caller: Caller | None = None

    def is_there(self) -> bool:
        return not self.has_left


class RequestContext:
    """The client whose request is being started. The server and its handlers share one instance."""

    __slots__ = ("client",)

    def __init__(self) -> None:
        self.client = ConnectedClient()
