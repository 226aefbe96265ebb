"""DescribeCluster, key 60, versions 0 to 2. v1 can ask for controllers; a broker refuses this (KIP-919).

v2 can ask for fenced brokers, but no listed broker is ever fenced.
"""

from __future__ import annotations

from typing import Any

from kafka_gateway.errors import ErrorCode
from kafka_gateway.handlers.metadata import ALL_CLUSTER_OPERATIONS, NOT_ASKED
from kafka_gateway.message_handler import Call, Fields

BROKERS, CONTROLLERS = 1, 2
_MISMATCH = "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"


def serve(request: Any, call: Call) -> Fields:
    endpoint = getattr(request, "endpoint_type", BROKERS)
    if endpoint == CONTROLLERS:
        return refuse(request, call, ErrorCode.MISMATCHED_ENDPOINT_TYPE, _MISMATCH)
    if endpoint != BROKERS:
        return refuse(request, call, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {endpoint}")
    cluster = call.core.topics.cluster()
    brokers = tuple(
        call.make(
            "DescribeClusterBroker", broker_id=b.node_id, host=at.host, port=at.port, rack=b.rack, is_fenced=False
        )
        for b, at in call.reachable(cluster)
    )
    return {
        "error_code": 0,
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller_id,
        "brokers": brokers,
        "cluster_authorized_operations": ALL_CLUSTER_OPERATIONS
        if request.include_cluster_authorized_operations
        else NOT_ASKED,
    }


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"error_code": code, "error_message": message, "cluster_id": "", "brokers": ()}
