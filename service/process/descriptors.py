"""The limit of open files, and the shares of logs and connections.

The soft limit is raised to the hard limit at the start. Logs come first: they have a reserve
(`storage_tiers.files.DescriptorReserve`), and connections may not use the descriptors that partitions need. The rest is for
Kafka connections and, in small shares, for gRPC and HTTP. If the rest is too small, an event logs the limit that would suffice.
"""

from __future__ import annotations

import logging
import os
import resource
from dataclasses import dataclass

from grpc_api.limits import MAX_CONNECTIONS, REFUSED_CONNECTIONS
from storage_tiers import events
from storage_tiers.files import DescriptorReserve

log = logging.getLogger(__name__)

#: Descriptors reserved for logs.
RESERVED = 64
#: Descriptors for everything except logs and connections: libraries, metadata, the event loop, listeners, the tier process,
#: cached chunks.
FIXED = 192
#: Descriptors of a partition: its active segment, and one more segment that is flushed, offloaded or read.
PER_PARTITION = 2
#: Most concurrent HTTP connections.
HTTP_CONNECTIONS = 64
#: gRPC connections that a node is expected to serve.
USUAL_GRPC_CONNECTIONS = 64
#: Kafka connections that a node is expected to serve if `max.connections` is not set.
USUAL_CONNECTIONS = 1000
TICK_S = 1.0


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of `limit` descriptors: the numbers of Kafka `connections`, `grpc` connections and `http` connections. `wanted` is
    the limit that would suffice for all of them."""

    limit: int
    wanted: int
    connections: int
    grpc: int
    http: int

    @property
    def few(self) -> bool:
        return self.limit < self.wanted


def shares(limit: int, *, partitions: int, max_connections: int, max_grpc: int = MAX_CONNECTIONS) -> Shares:
    """Computes the shares. Connections get at least a quarter of the limit, even if the partitions need more than the rest."""
    logs = FIXED + RESERVED + PER_PARTITION * partitions
    free = max(limit - logs, limit // 4)
    http = max(1, min(HTTP_CONNECTIONS, free // 8))
    usual = max_connections if max_connections < USUAL_CONNECTIONS * 100 else USUAL_CONNECTIONS
    grpc = max(1, min(max_grpc, free // 8 - REFUSED_CONNECTIONS))
    wanted = logs + HTTP_CONNECTIONS + min(max_grpc, USUAL_GRPC_CONNECTIONS) + REFUSED_CONNECTIONS + usual
    return Shares(limit, wanted, min(max_connections, max(1, free - http - grpc - REFUSED_CONNECTIONS)), grpc, http)


def open_limit() -> int:
    """The number of files that the process may currently open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_limit() -> int:
    """Raises the soft limit to the hard limit. Returns the number of files that the process may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # the system has a lower limit for all processes
        events.warning(log, "descriptors.not_raised", limit=soft, hard=hard, error=error)
        return soft
    return hard


class Descriptors:
    """The limit and the reserve of this process. `tick` refills the reserve, and logs when a shortage begins and ends."""

    def __init__(self, limit: int, reserve: DescriptorReserve | None = None) -> None:
        self.limit = limit
        self._reserve = reserve or DescriptorReserve(0)
        self._seen = 0
        self._short = False
        self._warned = False

    @property
    def shortages(self) -> int:
        """The number of times that a log's file could not be opened for lack of a descriptor."""
        return self._reserve.shortages

    def shares(self, *, partitions: int, max_connections: int, max_grpc: int = MAX_CONNECTIONS) -> Shares:
        """The shares under this process's limit. Logs an event once if the limit is too low."""
        found = shares(self.limit, partitions=partitions, max_connections=max_connections, max_grpc=max_grpc)
        if found.few and not self._warned:
            events.warning(
                log,
                "descriptors.few",
                limit=found.limit,
                wanted=found.wanted,
                partitions=partitions,
                connections=found.connections,
            )
        self._warned = found.few
        return found

    async def tick(self) -> None:
        self._reserve.fill()
        short = self._reserve.left < self._reserve.size or self._reserve.shortages > self._seen
        if short and not self._short:
            events.warning(log, "descriptors.short", limit=self.limit, open=_open(), shortages=self.shortages)
        elif self._short and not short:
            events.info(log, "descriptors.back", limit=self.limit, shortages=self.shortages)
        self._short, self._seen = short, self._reserve.shortages


def _open() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return -1
