"""TxnOffsetCommit, key 28, versions 0 to 5: offsets that count once the producer's transaction is committed. v3 brings the
group's member and generation (KIP-447); from v5 on the commit itself adds the offsets to the transaction (KIP-890).
"""

from __future__ import annotations

from typing import Any

from grpc_api.contract.groups import OffsetsCommitted, PartitionCommit, TopicCommit, TxnOffsetCommit
from grpc_api.contract.transactions import EPOCH_PER_TRANSACTION, ProducerTransaction
from kafka_gateway.errors import ErrorCode, code_of
from kafka_gateway.message_handler import Call, Fields
from storage_tiers.errors import CoordinatorLoading, LogError
from storage_tiers.types import NO_EPOCH

#: The first versions whose clients know COORDINATOR_LOAD_IN_PROGRESS, TRANSACTION_ABORTABLE and EPOCH_PER_TRANSACTION.
KNOWS_LOADING, KNOWS_ABORTABLE, ADDS_OFFSETS = 2, 4, 5


async def serve(request: Any, call: Call) -> Fields:
    version = call.messages.version
    commit = TxnOffsetCommit(
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
        [
            TopicCommit(
                topic.name,
                [
                    PartitionCommit(
                        each.partition_index,
                        each.committed_offset,
                        getattr(each, "committed_leader_epoch", NO_EPOCH),
                        each.committed_metadata,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )
    done = await call.core.groups.commit_offsets_in_transaction(commit, call.caller)
    return _fields(done, call)


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and call.messages.version < KNOWS_LOADING:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return {
        "topics": tuple(
            call.make(
                "TxnOffsetCommitResponseTopic",
                name=topic.name,
                partitions=tuple(_partition(call, each.partition_index, code) for each in topic.partitions),
            )
            for topic in request.topics
        )
    }


def _fields(done: OffsetsCommitted, call: Call) -> Fields:
    return {
        "topics": tuple(
            call.make(
                "TxnOffsetCommitResponseTopic",
                name=topic.topic,
                partitions=tuple(
                    _partition(call, each.partition, _code(each.error, call)) for each in topic.partitions
                ),
            )
            for topic in done.topics
        )
    }


def _code(error: LogError | None, call: Call) -> int:
    if isinstance(error, CoordinatorLoading) and call.messages.version < KNOWS_LOADING:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code_of(error)


def _partition(call: Call, partition: int, code: int) -> Any:
    return call.make("TxnOffsetCommitResponsePartition", partition_index=partition, error_code=code)
