"""Heartbeat, key 12, versions 0 to 4: renews a member's session; the error says whether its group rebalances. v3 has static
members.
"""

from __future__ import annotations

from typing import Any

from grpc_api.contract.groups import Heartbeat, HeartbeatAnswer
from kafka_gateway.errors import code_of
from kafka_gateway.group_messages import heartbeat_answer, read_heartbeat
from kafka_gateway.message_handler import Call, Delayed, Fields
from kafka_gateway.small_requests import NativeCodec


def serve(request: Any, call: Call) -> Delayed:
    beat = Heartbeat(
        request.group_id, request.generation_id, request.member_id, getattr(request, "group_instance_id", None)
    )
    return Delayed(call.core.groups.heartbeat(beat, call.caller), _fields)


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"error_code": code}


def _fields(answer: HeartbeatAnswer) -> Fields:
    return {"error_code": code_of(answer.error)}


CODEC = NativeCodec(
    read_heartbeat,
    lambda core, beat, caller: core.groups.heartbeat(beat, caller),
    lambda beat, error: HeartbeatAnswer(error),
    heartbeat_answer,
)
