"""The client of a request, as coordinators see it."""

from __future__ import annotations

from typing import NamedTuple


class Caller(NamedTuple):
    """The client. `host` is as Kafka shows it, such as "/10.0.0.1". `principal` is "User:ANONYMOUS" without authentication."""

    principal: str
    client_id: str
    host: str
