"""ListPartitionReassignments, key 46, version 0 (KIP-455): always an empty list, as no reassignment is ever ongoing."""

from __future__ import annotations

from typing import Any

from kafka_gateway.message_handler import Call, Fields


def serve(request: Any, call: Call) -> Fields:
    return {"error_code": 0, "error_message": None, "topics": ()}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"error_code": code, "error_message": message, "topics": ()}
