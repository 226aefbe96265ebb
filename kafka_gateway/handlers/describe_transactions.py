"""DescribeTransactions, key 65, version 0: the state of transactional ids (KIP-664)."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from grpc_api.contract.transactions import DescribedTransaction
from kafka_gateway.errors import code_of
from kafka_gateway.message_handler import Call, Fields, ended
from kafka_gateway.messages import duration_of
from storage_tiers.errors import LogError


async def serve(request: Any, call: Call) -> Fields:
    """Describes an id once, even if the request repeats it, and makes its rows while they are written. Otherwise a request
    that names a transaction of thousands of partitions thousands of times would fill the memory."""
    states: dict[str, DescribedTransaction] = {}
    async for each in call.each(request.transactional_ids):
        if each in states:
            continue
        found = await ended(call.core.transactions.describe(each, call.caller))
        if isinstance(found, Exception):
            found = DescribedTransaction(found if isinstance(found, LogError) else LogError(repr(found)), each)
        states[each] = found
    return {"transaction_states": (_state(call, states[each]) for each in request.transactional_ids)}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {
        "transaction_states": (
            _state(call, DescribedTransaction(None, each), code) for each in request.transactional_ids
        )
    }


def _state(call: Call, found: DescribedTransaction, code: int = 0) -> Any:
    return call.make(
        "TransactionState",
        error_code=code or code_of(found.error),
        transactional_id=found.transactional_id,
        transaction_state=found.state,
        transaction_timeout=duration_of(found.timeout_ms),
        transaction_start_time=found.start_ms,
        producer_id=found.producer.id,
        producer_epoch=found.producer.epoch,
        topics=(
            call.make("TopicData", topic=topic, partitions=tuple(each.partition for each in rows))
            for topic, rows in groupby(found.partitions, key=lambda each: each.topic)
        ),
    )
