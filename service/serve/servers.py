"""The servers of a node for Kafka's protocol and gRPC, and the sockets that the node binds before it builds its parts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpc_api.contract.topics import Endpoint, ResourceKind
from grpc_api.listening import listen
from kafka_gateway.options import Options
from kafka_gateway.settings import ConnectionLimits, GatewaySettings, Limits
from kafka_gateway.telemetry import Telemetry
from service.configs.listeners import Listeners, host_and_port, url_of
from service.configs.types import connection_counts
from service.metadata.controller import Controller
from service.observability.client_telemetry import ClientTelemetryLog
from service.serve.announcing import Addresses
from service.settings.derived import listeners_of, share
from storage_tiers.errors import InvalidConfig

if TYPE_CHECKING:
    from grpc_api.servicers.server import GrpcServer
    from kafka_gateway.server import GatewayServer
    from service.configs.values import BrokerConfigs
    from service.metadata.image import MetadataImage
    from service.metadata.parts import Changes
    from service.node import Node
    from service.process.descriptors import Shares
    from service.settings.node_settings import NodeSettings


@dataclass(frozen=True, slots=True)
class Sockets:
    """The bound sockets. `listeners` has their ports. `kafka` and `shared` are keyed by listener name. `shared` are the
    supervisor's sockets, from which its other brokers also accept. Connections that are made before the servers start wait in
    the kernel."""

    listeners: Listeners
    kafka: Mapping[str, socket.socket]
    shared: Mapping[str, socket.socket]
    grpc_host: str
    grpc: socket.socket

    def addresses(self, http: tuple[str, int]) -> Addresses:
        return Addresses.of(self.listeners, grpc=(self.grpc_host, self.grpc.getsockname()[1]), http=http)


@dataclass(frozen=True, slots=True)
class Servers:
    """The running servers for Kafka's protocol and for gRPC."""

    gateway: GatewayServer
    grpc: GrpcServer


@contextlib.asynccontextmanager
async def taken_sockets(settings: NodeSettings) -> AsyncIterator[Sockets]:
    """Binds the sockets, and holds them while the body runs. Raises InvalidConfig if an address cannot be bound."""
    from grpc_api.servicers.server import hold_port

    listeners = listeners_of(settings)
    with contextlib.ExitStack() as stack:
        kafka = {each.listener: stack.enter_context(_bound_socket(each)) for each in listeners.bound}
        host, port = host_and_port(settings.grpc_listener)
        machine = await asyncio.to_thread(socket.getfqdn) if listeners.needs_machine else ""
        resolved = listeners.resolved({name: each.getsockname()[1] for name, each in kafka.items()}, machine)
        shared = {name: stack.enter_context(_inherited_socket(fd)) for name, fd in _inherited(settings).items()}
        yield Sockets(resolved, kafka, shared, host, stack.enter_context(hold_port(host, port)))


def _bound_socket(at: Endpoint) -> socket.socket:
    try:
        return listen(at.host, at.port)
    except OSError as error:
        raise InvalidConfig(
            f"cannot listen on {url_of(at)} for Kafka's clients: {error.strerror}; stop the process using it, or choose "
            "another address in --listeners"
        ) from None


def _inherited(settings: NodeSettings) -> Mapping[str, int]:
    return {} if settings.supervised is None else settings.supervised.sockets


def _inherited_socket(fd: int) -> socket.socket:
    """The socket of an inherited descriptor. This process's own children do not inherit it."""
    os.set_inheritable(fd, False)
    return socket.socket(fileno=fd)


@contextlib.asynccontextmanager
async def start_servers(node: Node, sockets: Sockets) -> AsyncIterator[Servers]:
    """Runs both servers while the body runs. Afterwards finishes answers in flight as far as time permits."""
    from grpc_api.servicers.server import serve_grpc
    from kafka_gateway.server import serve

    core = node.broker.core
    async with contextlib.AsyncExitStack() as stack:
        gateway = await serve(core, gateway_options(node), sockets.kafka, sockets.shared.items())
        stack.push_async_callback(gateway.stop)

        def changed(_image: MetadataImage, changes: Changes) -> None:
            if changes.topics or any(each.kind is ResourceKind.BROKER for each in changes.configs):
                gateway.limit_connections(connection_limits(node))

        node.ground.metadata.subscribe(changed)
        with sockets.grpc as held:
            port, connections = held.getsockname()[1], _shares(node, node.configs.broker).grpc
            grpc = await serve_grpc(core, sockets.grpc_host, port, connections=connections)
        stack.push_async_callback(grpc.stop)
        yield Servers(gateway, grpc)


@contextlib.asynccontextmanager
async def serve_brokers(node: Node) -> AsyncIterator[None]:
    """Serves brokers in other processes while the body runs, if the settings give this node's controller an address."""
    ground = node.ground
    listener, metadata, controller = ground.settings.controller_listener, ground.own_log, node.configs.controller
    if listener is None or metadata is None or not isinstance(controller, Controller):
        yield
        return
    from service.controller.contacts import SESSION_S, Contacts
    from service.controller.server import ControllerService, serving

    local = ground.settings.node_id
    service = ControllerService(metadata, controller, Contacts(SESSION_S), ground.host.clock, local=local)
    host, port = host_and_port(listener)
    async with serving(service, host, port):
        yield


def gateway_options(node: Node) -> Options:
    """The gateway's options from the current configs."""
    host, broker = node.ground.host, node.configs.broker
    reporter = ClientTelemetryLog(lambda: broker.metric_reporters)
    return Options(
        GatewaySettings(
            limits=Limits(request_max_bytes=broker.socket_request_max_bytes),
            connections=connection_limits(node),
            connections_max_idle_ms=broker.connections_max_idle_ms,
            fetch_session_slots=broker.max_incremental_fetch_session_cache_slots,
            described_partitions=broker.max_request_partition_size_limit,
            telemetry_max_bytes=broker.telemetry_max_bytes,
            request_memory_bytes=_request_memory(node, broker),
        ),
        clock=host.clock,
        rng=host.rng,
        telemetry=Telemetry(reporter, max_bytes=broker.telemetry_max_bytes),
    )


def connection_limits(node: Node) -> ConnectionLimits:
    """The connection limits from the configs, and from the number of descriptors that the logs leave free."""
    configs = node.configs.broker
    shares = _shares(node, configs)
    return ConnectionLimits(
        total=shares.connections,
        total_by="max.connections"
        if shares.connections == _max_connections(node, configs)
        else "the limit of open files",
        per_address=configs.max_connections_per_ip,
        overrides=connection_counts(configs.max_connections_per_ip_overrides),
        a_second=configs.max_connection_creation_rate,
    )


def _shares(node: Node, configs: BrokerConfigs) -> Shares:
    return node.ground.host.descriptors.shares(
        partitions=len(node.broker.partitions),
        max_connections=_max_connections(node, configs),
        max_grpc=configs.tidelog_grpc_max_connections,
    )


def _request_memory(node: Node, configs: BrokerConfigs) -> int:
    """The memory for requests in bytes: enough for at least two of the largest requests."""
    return share(
        node.ground.settings, GatewaySettings().request_memory_bytes, least=2 * configs.socket_request_max_bytes
    )


def _max_connections(node: Node, configs: BrokerConfigs) -> int:
    return share(node.ground.settings, configs.max_connections)
