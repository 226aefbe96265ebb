"""What the Kafka gateway is told by a node: its address, its bounds, its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_gateway.admission import ConnectionLimits
from kafka_gateway.connection import Limits
from kafka_gateway.gateway_settings import GatewaySettings
from kafka_gateway.options import Options
from kafka_gateway.telemetry import Telemetry
from service.configs.types import connection_counts
from service.descriptors import Shares
from service.observability.client_telemetry import ClientTelemetryLog

if TYPE_CHECKING:
    from service.metadata.image import MetadataImage
    from service.node import Node


def gateway_settings(node: Node) -> GatewaySettings:
    image, number = node.metadata.image, node.configs.broker_int
    return GatewaySettings(
        host=node.settings.listen,
        port=node.settings.port,
        limits=Limits(request_max_bytes=number(image, "socket.request.max.bytes")),
        options=Options(
            fetch_session_slots=number(image, "max.incremental.fetch.session.cache.slots"),
            described_partitions=number(image, "max.request.partition.size.limit"),
            clock=node.clock,
            rng=node.rng,
            telemetry=Telemetry(
                ClientTelemetryLog(lambda: node.configs.broker_text(node.metadata.image, "metric.reporters")),
                max_bytes=number(image, "telemetry.max.bytes"),
            ),
        ),
        connections=connection_limits(node, image),
        connections_max_idle_ms=number(image, "connections.max.idle.ms"),
    )


def connection_limits(node: Node, image: MetadataImage) -> ConnectionLimits:
    """By the configs, and by what the logs leave of the files that the process may open."""
    number = node.configs.broker_int
    wanted = number(image, "max.connections")
    shares = _shares(node, image)
    return ConnectionLimits(
        total=shares.connections,
        total_by="max.connections" if shares.connections == wanted else "the limit of open files",
        per_address=number(image, "max.connections.per.ip"),
        overrides=connection_counts(node.configs.broker_text(image, "max.connections.per.ip.overrides") or ""),
        a_second=number(image, "max.connection.creation.rate"),
    )


def grpc_connections(node: Node) -> int:
    """As many as are served over gRPC, by the same."""
    return _shares(node, node.metadata.image).grpc


def _shares(node: Node, image: MetadataImage) -> Shares:
    return node.descriptors.shares(
        partitions=len(node.partitions),
        max_connections=node.configs.broker_int(image, "max.connections"),
        max_grpc=node.configs.broker_int(image, "tidelog.grpc.max.connections"),
    )
