"""InitProducerId, key 22, versions 0 to 5. v3 can carry the producer's previous id and epoch."""

from __future__ import annotations

from typing import Any

from kafka_gateway.message_handler import Call, Fields
from kafka_gateway.messages import milliseconds
from storage_tiers.errors import InvalidRequest
from storage_tiers.types import NO_EPOCH, NO_PRODUCER_ID


async def serve(request: Any, call: Call) -> Fields:
    producer_id = getattr(request, "producer_id", NO_PRODUCER_ID)
    producer_epoch = getattr(request, "producer_epoch", NO_EPOCH)
    if request.transactional_id == "":
        raise InvalidRequest("the transactional id is empty; leave it null for an idempotent producer")
    if (producer_id == NO_PRODUCER_ID) != (producer_epoch == NO_EPOCH):
        raise InvalidRequest("a producer id and its epoch are given together or not at all")
    given_id, given_epoch = await call.core.log.init_producer_id(
        request.transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=milliseconds(request.transaction_timeout),
    )
    return {"error_code": 0, "producer_id": given_id, "producer_epoch": given_epoch}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"error_code": code, "producer_id": NO_PRODUCER_ID, "producer_epoch": NO_EPOCH}
