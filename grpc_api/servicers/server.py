"""The gRPC server of a node: the servicers on one port, with health checking and reflection.

grpc is imported only when a server starts, so that a process without a server saves the memory that grpc takes.
"""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING, Any

from grpc_api.contract.core import Core
from grpc_api.contract.topics import text_of
from grpc_api.limits import MAX_CONNECTIONS, server_options
from grpc_api.listening import every_address
from storage_tiers.errors import InvalidConfig

if TYPE_CHECKING:
    from grpc_api.servicers.calls import Bounds


class GrpcServer:
    """A running server. `port` is its port; `bounds` count the resources that its callers hold."""

    def __init__(self, server: Any, health: Any, port: int, bounds: Bounds) -> None:
        self._server = server
        self._health = health
        self.port = port
        self.bounds = bounds

    async def stop(self, grace_s: float = 1.0) -> None:
        """Reports NOT_SERVING, refuses new calls, gives running ones `grace_s` seconds, then ends them."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)


def hold_port(host: str, port: int) -> socket.socket:
    """Reserves `host`:`port` (an empty host: every address; port 0: a free one) until the socket is closed. It does not
    listen, so `serve_grpc` can take the port meanwhile. Raises InvalidConfig if the address cannot be bound."""
    address = host or every_address()
    held = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        # With this option, which gRPC sets too, Linux lets two sockets share an address while neither listens.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((address, port))
    except OSError as error:
        held.close()
        raise _not_listening(host, port, error.strerror) from None
    return held


def _not_listening(host: str, port: int, why: str | None) -> InvalidConfig:
    return InvalidConfig(
        f"cannot listen on {text_of(host, port)} for gRPC: {why}; stop the process using it, or choose another --grpc-listener"
    )


async def serve_grpc(core: Core, host: str, port: int, *, connections: int = MAX_CONNECTIONS) -> GrpcServer:
    """Listens on `host`:`port` (0: a free one) and serves `core` to at most `connections` connections. Raises InvalidConfig
    if the address cannot be bound."""
    import grpc.aio
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection

    from grpc_api.servicers.calls import BoundedCalls, Bounds
    from grpc_api.servicers.errors import GRPC_LOGGER, not_of_a_caller

    logging.getLogger(GRPC_LOGGER).addFilter(not_of_a_caller)
    bounds = Bounds(connections)
    server = grpc.aio.server(options=server_options(connections), interceptors=(BoundedCalls(bounds),))
    services = _add_servicers(core, server)
    status = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(status, server)
    reflection.enable_server_reflection([*services, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
    try:
        bound = server.add_insecure_port(text_of(host or every_address(), port))
    except RuntimeError:
        hold_port(host, port).close()  # its error says why; gRPC's does not
        raise _not_listening(host, port, "gRPC does not report the reason") from None
    bounds.connections.port = bound
    await server.start()
    for service in ("", *services):
        await status.set(service, health_pb2.HealthCheckResponse.SERVING)
    return GrpcServer(server, status, bound, bounds)


def _add_servicers(core: Core, server: Any) -> list[str]:
    """Adds the servicers to the server, and returns the full names of their services."""
    from grpc_api.proto import (
        cold_pb2_grpc,
        configs_pb2_grpc,
        groups_pb2_grpc,
        log_pb2_grpc,
        offsets_pb2_grpc,
        records_pb2_grpc,
        topics_pb2_grpc,
        transactions_pb2_grpc,
    )
    from grpc_api.servicers.cold import CoreCold
    from grpc_api.servicers.configs import CoreConfigs
    from grpc_api.servicers.groups import CoreGroups
    from grpc_api.servicers.log import CoreLog
    from grpc_api.servicers.offsets import CoreOffsets
    from grpc_api.servicers.records import CoreRecords
    from grpc_api.servicers.topics import CoreTopics
    from grpc_api.servicers.transactions import CoreTransactions

    log_pb2_grpc.add_LogServicer_to_server(CoreLog(core), server)
    records_pb2_grpc.add_RecordsServicer_to_server(CoreRecords(core), server)
    offsets_pb2_grpc.add_OffsetsServicer_to_server(CoreOffsets(core), server)
    topics_pb2_grpc.add_TopicsServicer_to_server(CoreTopics(core), server)
    configs_pb2_grpc.add_ConfigsServicer_to_server(CoreConfigs(core), server)
    cold_pb2_grpc.add_ColdServicer_to_server(CoreCold(core), server)
    groups_pb2_grpc.add_GroupsServicer_to_server(CoreGroups(core), server)
    transactions_pb2_grpc.add_TransactionsServicer_to_server(CoreTransactions(core), server)
    names = ("Log", "Records", "Offsets", "Topics", "Configs", "Cold", "Groups", "Transactions")
    return [f"tidelog.v1.{name}" for name in names]
