"""SyncGroup, key 14, versions 0 to 5: the leader sends the assignment, and each member gets its part after the assignment is
stored.

A v5 request has the protocol's type and name, and is refused if they differ from the group's (KIP-559).
"""

from __future__ import annotations

from typing import Any

from grpc_api.contract.coordinator_errors import InconsistentGroupProtocol
from grpc_api.contract.groups import Synced, SyncGroup
from kafka_gateway.errors import code_of
from kafka_gateway.group_messages import read_sync_group, sync_group_answer
from kafka_gateway.message_handler import Call, Delayed, Fields
from kafka_gateway.small_requests import NativeCodec


def serve(request: Any, call: Call) -> Delayed:
    protocol_type, protocol = getattr(request, "protocol_type", None), getattr(request, "protocol_name", None)
    if call.messages.version >= 5 and (protocol_type is None or protocol is None):
        raise InconsistentGroupProtocol("SyncGroup 5 needs the protocol's type and its name; send both")
    sync = SyncGroup(
        request.group_id,
        request.generation_id,
        request.member_id,
        getattr(request, "group_instance_id", None),
        [(each.member_id, each.assignment) for each in request.assignments],
        protocol_type,
        protocol,
    )
    return Delayed(call.core.groups.sync(sync, call.caller), _fields, request._replace(assignments=()))


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"error_code": code, "protocol_type": None, "protocol_name": None, "assignment": b""}


def _fields(synced: Synced) -> Fields:
    return {
        "error_code": code_of(synced.error),
        "protocol_type": synced.protocol_type,
        "protocol_name": synced.protocol,
        "assignment": synced.assignment,
    }


CODEC = NativeCodec(
    read_sync_group,
    lambda core, sync, caller: core.groups.sync(sync, caller),
    lambda sync, error: Synced(error),
    sync_group_answer,
    kept=lambda sync: sync._replace(assignments=()),
)
