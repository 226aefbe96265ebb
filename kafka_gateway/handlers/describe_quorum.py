"""DescribeQuorum, key 55, versions 0 to 2 (KIP-595, KIP-836): the metadata log of a controller quorum of one voter.

A request must name the metadata log's one partition and nothing else, as in Kafka. v2 has error messages and the voters'
addresses. A voter's address is that of the client's listener, because controllers have no listener of their own. Directory ids
are omitted, as at kraft.version 0. Brokers follow the metadata through a stream from the controller and report no position
there, so there are no observers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kafka_gateway.errors import ErrorCode
from kafka_gateway.message_handler import Call, Fields

METADATA_TOPIC = "__cluster_metadata"
_NOT_HERE = "This server does not host this topic-partition."


def serve(request: Any, call: Call) -> Fields:
    if not _asks_for_metadata(request):
        rows = (
            _topic(call, topic.topic_name, (_unknown(call, row.partition_index) for row in topic.partitions))
            for topic in request.topics
        )
        return {"error_code": 0, "error_message": "", "topics": rows, "nodes": ()}
    return {
        "error_code": 0,
        "error_message": "",
        "topics": (_topic(call, METADATA_TOPIC, [_quorum(call)]),),
        "nodes": _nodes(call) if call.messages.version >= 2 else None,
    }


def _asks_for_metadata(request: Any) -> bool:
    if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        return False
    topic = request.topics[0]
    return bool(topic.topic_name == METADATA_TOPIC and topic.partitions[0].partition_index == 0)


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"error_code": code, "error_message": message, "topics": (), "nodes": ()}


def _quorum(call: Call) -> Any:
    quorum = call.core.node.quorum()
    voter = call.make(
        "ReplicaState",
        replica_id=quorum.leader_id,
        replica_directory_id=None,
        log_end_offset=quorum.high_watermark,
        last_fetch_timestamp=quorum.now_ms,
        last_caught_up_timestamp=quorum.now_ms,
    )
    return call.make(
        "PartitionData",
        partition_index=0,
        error_code=0,
        error_message="",
        leader_id=quorum.leader_id,
        leader_epoch=quorum.leader_epoch,
        high_watermark=quorum.high_watermark,
        current_voters=(voter,),
        observers=(),
    )


def _nodes(call: Call) -> tuple[Any, ...]:
    leader = call.core.node.quorum().leader_id
    return tuple(
        call.make(
            "Node",
            node_id=broker.node_id,
            listeners=(call.make("Listener", name=at.listener, host=at.host, port=at.port),),
        )
        for broker, at in call.reachable(call.core.topics.cluster())
        if broker.node_id == leader
    )


def _unknown(call: Call, index: int) -> Any:
    return call.make(
        "PartitionData",
        partition_index=index,
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        error_message=_NOT_HERE,
        leader_id=0,
        leader_epoch=0,
        high_watermark=0,
        current_voters=(),
        observers=(),
    )


def _topic(call: Call, name: str, rows: Iterable[Any]) -> Any:
    return call.make("TopicData", topic_name=name, partitions=rows)
