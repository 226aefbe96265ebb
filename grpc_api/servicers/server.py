"""The gRPC face of a node: the servicers on one port, with health checking and reflection.

grpc is imported when a server is asked for and not before: a process without one does not pay its memory.
"""

from __future__ import annotations

from typing import Any

from grpc_api.contract.core import Core
from storage_tiers.errors import InvalidConfig

#: Above Kafka's default of 1 MiB a batch by far, and a bound on what one message may cost.
MAX_MESSAGE_BYTES = 64 << 20
#: A peer that is silent this long is asked whether it lives, and has as long again to answer.
KEEPALIVE_MS = 30_000
#: Clients may ask as often as this, also between calls.
MIN_CLIENT_PING_MS = 10_000
MAX_STREAMS_PER_CONNECTION = 1024

OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_concurrent_streams", MAX_STREAMS_PER_CONNECTION),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 2),
    ("grpc.http2.min_ping_interval_without_data_ms", MIN_CLIENT_PING_MS),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", MIN_CLIENT_PING_MS),
    # With SO_REUSEPORT a second node would share the port in silence, and half of its calls.
    ("grpc.so_reuseport", 0),
)


class GrpcServer:
    """A server that runs. `port` is the one it listens on."""

    def __init__(self, server: Any, health: Any, port: int) -> None:
        self._server = server
        self._health = health
        self.port = port

    async def stop(self, grace_s: float = 1.0) -> None:
        """Reports NOT_SERVING, takes no new calls, gives those under way `grace_s`, then ends them."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)


async def serve_grpc(core: Core, host: str, port: int) -> GrpcServer:
    """Listens on `host`:`port` (0: a free one) and serves `core`. InvalidConfig if that address cannot be had."""
    import grpc.aio
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection

    from grpc_api.proto import topics_pb2
    from grpc_api.proto.topics_pb2_grpc import add_TopicsServicer_to_server
    from grpc_api.servicers.topics import CoreTopics

    server = grpc.aio.server(options=OPTIONS)
    services = [descriptor.full_name for descriptor in topics_pb2.DESCRIPTOR.services_by_name.values()]
    add_TopicsServicer_to_server(CoreTopics(core), server)
    status = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(status, server)
    reflection.enable_server_reflection([*services, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError as error:
        raise InvalidConfig(f"cannot listen on {address} for gRPC: is the port taken? ({error})") from None
    await server.start()
    for service in ("", *services):
        await status.set(service, health_pb2.HealthCheckResponse.SERVING)
    return GrpcServer(server, status, bound)
