"""InitProducerId, key 22, versions 0 to 5: a producer's id and epoch. For a transactional id, the coordinator assigns both,
fences the earlier producer, and ends its open transaction. v3 can carry the producer's previous id and epoch (KIP-360).
"""

from __future__ import annotations

from typing import Any

from grpc_api.contract.transactions import NO_PRODUCER, InitProducer, ProducerIdAndEpoch
from kafka_gateway.errors import ErrorCode
from kafka_gateway.message_handler import Call, Fields
from kafka_gateway.messages import milliseconds
from kafka_gateway.transaction_errors import fenced_code
from storage_tiers.errors import InvalidRequest
from storage_tiers.types import NO_EPOCH, NO_PRODUCER_ID

#: The first version whose clients know PRODUCER_FENCED.
KNOWS_FENCED = 4


async def serve(request: Any, call: Call) -> Fields:
    expected = ProducerIdAndEpoch(
        getattr(request, "producer_id", NO_PRODUCER_ID), getattr(request, "producer_epoch", NO_EPOCH)
    )
    if request.transactional_id == "":
        raise InvalidRequest("the transactional id is empty; leave it null for an idempotent producer")
    if (expected.id == NO_PRODUCER_ID) != (expected.epoch == NO_EPOCH):
        raise InvalidRequest("a producer id and its epoch are given together or not at all")
    if request.transactional_id is None:
        return _fields(ErrorCode.NONE, ProducerIdAndEpoch(*await call.core.log.init_producer_id()))
    asked = InitProducer(request.transactional_id, milliseconds(request.transaction_timeout), expected)
    begun = await call.core.transactions.init_producer(asked, call.caller)
    if begun.error is not None:
        return _fields(fenced_code(begun.error, call.messages.version, KNOWS_FENCED), NO_PRODUCER)
    return _fields(ErrorCode.NONE, begun.producer)


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return _fields(code, NO_PRODUCER)


def _fields(code: int, producer: ProducerIdAndEpoch) -> Fields:
    return {"error_code": code, "producer_id": producer.id, "producer_epoch": producer.epoch}
