"""TxnOffsetCommit, key 28, versions 0 to 5: commits offsets that take effect when the producer's transaction commits. v3 has
the group's member and generation (KIP-447). From v5 on, the request itself adds the offsets to the transaction (KIP-890).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from grpc_api.contract.coordinator_errors import CoordinatorLoading
from grpc_api.contract.groups import PartitionCommit, PartitionOutcome, TopicCommit, TxnOffsetCommit
from grpc_api.contract.request_parts import parts_of
from grpc_api.contract.transactions import EPOCH_PER_TRANSACTION, ProducerTransaction
from kafka_gateway.errors import ErrorCode, code_of
from kafka_gateway.message_handler import Call, Fields
from storage_tiers.errors import LogError
from storage_tiers.types import NO_EPOCH

#: The first versions whose clients know COORDINATOR_LOAD_IN_PROGRESS, TRANSACTION_ABORTABLE and EPOCH_PER_TRANSACTION.
KNOWS_LOADING, KNOWS_ABORTABLE, ADDS_OFFSETS = 2, 4, 5


async def serve(request: Any, call: Call) -> Fields:
    """Commits part by part. A refused part ends the request. The parts before it stay in the transaction, which the client
    then aborts."""
    commit = _commit(request, call.messages.version)
    # As in Kafka, the answer omits topics without partitions.
    asked = [topic async for topic in call.each(request.topics) if topic.partitions]
    outcomes: list[list[PartitionOutcome]] = [[] for _ in asked]
    for number, part in enumerate(parts_of((topic, topic.partitions) for topic in asked)):
        if number:
            await call.turn.rest_if_over()
        topics = [TopicCommit(each.topic.name, _commits(each.partitions)) for each in part]
        committed = call.core.groups.commit_offsets_in_transaction(commit._replace(topics=topics), call.caller)
        # The first part needs no task; most requests have no other part. A later part gets a task, so that this loop yields to
        # the event loop even if the part is refused at once.
        done = await call.waiting(asyncio.ensure_future(committed) if number else committed)
        for each, outcome in zip(part, done.topics, strict=True):
            outcomes[each.at] += outcome.partitions
    return _fields(asked, outcomes, call)


def _commit(request: Any, version: int) -> TxnOffsetCommit:
    """Makes the commit without its topics."""
    return TxnOffsetCommit(
        request.group_id,
        ProducerTransaction(
            request.transactional_id,
            EPOCH_PER_TRANSACTION if version >= ADDS_OFFSETS else 0,
            knows_abortable=version >= KNOWS_ABORTABLE,
        ),
        request.producer_id,
        request.producer_epoch,
        getattr(request, "generation_id", -1),
        getattr(request, "member_id", ""),
        getattr(request, "group_instance_id", None),
        (),
    )


def _commits(partitions: Sequence[Any]) -> list[PartitionCommit]:
    return [
        PartitionCommit(
            each.partition_index,
            each.committed_offset,
            getattr(each, "committed_leader_epoch", NO_EPOCH),
            each.committed_metadata,
        )
        for each in partitions
    ]


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and call.messages.version < KNOWS_LOADING:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return {
        "topics": (
            call.make(
                "TxnOffsetCommitResponseTopic",
                name=topic.name,
                partitions=(_partition(call, each.partition_index, code) for each in topic.partitions),
            )
            for topic in request.topics
        )
    }


def _fields(topics: Sequence[Any], outcomes: Sequence[Sequence[PartitionOutcome]], call: Call) -> Fields:
    return {
        "topics": (
            call.make(
                "TxnOffsetCommitResponseTopic",
                name=topic.name,
                partitions=(_partition(call, each.partition, _code(each.error, call)) for each in rows),
            )
            for topic, rows in zip(topics, outcomes, strict=True)
        )
    }


def _code(error: LogError | None, call: Call) -> int:
    if isinstance(error, CoordinatorLoading) and call.messages.version < KNOWS_LOADING:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code_of(error)


def _partition(call: Call, partition: int, code: int) -> Any:
    return call.make("TxnOffsetCommitResponsePartition", partition_index=partition, error_code=code)
