"""AddOffsetsToTxn, key 25, versions 0 to 4: adds a group's offsets to a producer's transaction."""

from __future__ import annotations

from typing import Any

from grpc_api.contract.transactions import AddOffsets, ProducerIdAndEpoch
from kafka_gateway.message_handler import Call, Fields
from kafka_gateway.transaction_errors import fenced_code

#: The first version whose clients know PRODUCER_FENCED.
KNOWS_FENCED = 2


async def serve(request: Any, call: Call) -> Fields:
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    asked = AddOffsets(request.transactional_id, producer, request.group_id)
    added = await call.core.transactions.add_offsets(asked, call.caller)
    return {"error_code": fenced_code(added.error, call.messages.version, KNOWS_FENCED)}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"error_code": code}
