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
    from service.configs.values import BrokerConfigs
    from service.node import Node


def gateway_settings(node: Node) -> GatewaySettings:
    configs = node.broker_configs
    return GatewaySettings(
        limits=Limits(request_max_bytes=configs.socket_request_max_bytes),
        options=Options(
            fetch_session_slots=configs.max_incremental_fetch_session_cache_slots,
            described_partitions=configs.max_request_partition_size_limit,
            clock=node.clock,
            rng=node.rng,
            telemetry=Telemetry(
                ClientTelemetryLog(lambda: node.broker_configs.metric_reporters),
                max_bytes=configs.telemetry_max_bytes,
            ),
        ),
        connections=connection_limits(node, configs),
        connections_max_idle_ms=configs.connections_max_idle_ms,
    )


def connection_limits(node: Node, configs: BrokerConfigs) -> ConnectionLimits:
    """By the configs, and by what the logs leave of the files that the process may open."""
    shares = _shares(node, configs)
    return ConnectionLimits(
        total=shares.connections,
        total_by="max.connections" if shares.connections == configs.max_connections else "the limit of open files",
        per_address=configs.max_connections_per_ip,
        overrides=connection_counts(configs.max_connections_per_ip_overrides),
        a_second=configs.max_connection_creation_rate,
    )


def grpc_connections(node: Node) -> int:
    """As many as are served over gRPC, by the same."""
    return _shares(node, node.broker_configs).grpc


def _shares(node: Node, configs: BrokerConfigs) -> Shares:
    return node.descriptors.shares(
        partitions=len(node.partitions),
        max_connections=configs.max_connections,
        max_grpc=configs.tidelog_grpc_max_connections,
    )
