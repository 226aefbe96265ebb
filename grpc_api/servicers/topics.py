"""`tidelog.v1.Topics` over the core's contract: unpack, call, pack. Watchers receive only the changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grpc_api.contract.core import Core
from grpc_api.contract.topics import TopicDescription
from grpc_api.messages.log import check_count, topic_id_of
from grpc_api.messages.topics import (
    check_assignments,
    cluster_message,
    created_answer,
    deleted_answer,
    new_topics_of,
    partition_message,
    topic_answer,
    topic_message,
)
from grpc_api.proto import topics_pb2 as pb
from grpc_api.proto.topics_pb2_grpc import TopicsServicer
from grpc_api.servicers.calls import DEAR_PIECE, in_pieces
from grpc_api.servicers.watched import Update, WatchedTopics
from storage_tiers.clock import SystemRng
from storage_tiers.errors import InvalidRequest, LogError
from storage_tiers.types import TopicPartition

DEFAULT_SEAL_TIMEOUT_MS = 60_000
#: Topics in one message of a metadata update: a few hundred bytes each, more with many partitions.
TOPICS_A_MESSAGE = 50
#: Topics in one create request. The answer carries all configs of each topic, 5 KB.
MAX_CREATED = 500
#: The largest timeout of the contract, as in Kafka: an int32.
MAX_TIMEOUT_MS = (1 << 31) - 1


class CoreTopics(TopicsServicer):
    def __init__(self, core: Core) -> None:
        self._core = core
        self._watched = WatchedTopics(core.topics, SystemRng())

    # --- queries ------------------------------------------------------------------------------------------------------
    async def Describe(self, request: pb.DescribeTopicsRequest, context: Any) -> pb.DescribeTopicsResponse:  # noqa: N802
        if request.all and (request.names or request.topic_ids):
            raise InvalidRequest("ask for all topics, or for some by name or id, not for both")
        check_count(len(request.names) + len(request.topic_ids))
        ids = [topic_id_of(each) for each in request.topic_ids]
        answer = pb.DescribeTopicsResponse()
        if request.all or not (request.names or ids):
            async for found in in_pieces(self._core.topics.describe(None if request.all else []), 1):
                await _add(answer, found)
        async for names in in_pieces(request.names, 1):
            await _add(answer, self._core.topics.describe(list(names)))
        async for some in in_pieces(ids, 1):
            await _add(answer, self._core.topics.describe([], some))
        return answer

    async def Cluster(self, request: pb.ClusterRequest, context: Any) -> pb.ClusterDescription:  # noqa: N802
        return cluster_message(self._core.topics.cluster())

    async def Watch(self, request: pb.WatchRequest, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        version = 0
        while True:
            update = await self._watched.after(version)
            version = update.version
            await self._show(context, update)

    async def _show(self, context: Any, shown: Update) -> None:
        """Sends one update in several small messages, so that a watcher that stops reading holds only one of them."""
        left = len(shown.topics)
        first = True
        async for some in in_pieces(shown.topics, TOPICS_A_MESSAGE):
            left -= len(some)
            update = pb.MetadataUpdate(version=shown.version, complete=shown.complete and first, more=True)
            update.topics.extend(map(topic_message, some))
            first = False
            if left:
                await context.write(update)
        if first:
            update = pb.MetadataUpdate(version=shown.version, complete=shown.complete)
        update.more = False
        if shown.cluster is not None:
            update.cluster.CopyFrom(cluster_message(shown.cluster))
        update.deleted_topic_ids.extend(shown.gone)
        await context.write(update)

    # --- changes ------------------------------------------------------------------------------------------------------
    async def Create(self, request: pb.CreateTopicsRequest, context: Any) -> pb.CreateTopicsResponse:  # noqa: N802
        check_count(len(request.topics), MAX_CREATED, "topics to create")
        wanted = new_topics_of(request.topics)
        answer = pb.CreateTopicsResponse()
        async for some in in_pieces(wanted, DEAR_PIECE):
            made = await self._core.topics.create(some, validate_only=request.validate_only)
            answer.topics.extend(map(created_answer, made))
        answer.version = self._watched.version
        return answer

    async def AutoCreate(self, request: pb.AutoCreateRequest, context: Any) -> pb.AutoCreateResponse:  # noqa: N802
        check_count(len(request.names))
        async for names in in_pieces(request.names, DEAR_PIECE):
            await self._core.topics.auto_create(list(names))
        return pb.AutoCreateResponse(version=self._watched.version)

    async def Delete(self, request: pb.DeleteTopicsRequest, context: Any) -> pb.DeleteTopicsResponse:  # noqa: N802
        check_count(len(request.names) + len(request.topic_ids))
        ids = [topic_id_of(each) for each in request.topic_ids]
        answer = pb.DeleteTopicsResponse()
        async for names in in_pieces(request.names):
            answer.topics.extend(map(deleted_answer, await self._core.topics.delete(list(names), [])))
        async for some in in_pieces(ids):
            answer.topics.extend(map(deleted_answer, await self._core.topics.delete([], some)))
        answer.version = self._watched.version
        return answer

    async def CreatePartitions(  # noqa: N802
        self, request: pb.CreatePartitionsRequest, context: Any
    ) -> pb.CreatePartitionsResponse:
        check_assignments(request.assignments)
        assignments = [tuple(each.node_ids) for each in request.assignments] or None
        await self._core.topics.create_partitions(
            request.topic, request.count, assignments, validate_only=request.validate_only
        )
        return pb.CreatePartitionsResponse(version=self._watched.version)

    async def ElectUnclean(self, request: pb.ElectUncleanRequest, context: Any) -> pb.ElectUncleanResponse:  # noqa: N802
        await self._core.topics.elect_unclean(TopicPartition(request.topic, request.partition))
        return pb.ElectUncleanResponse(version=self._watched.version)

    async def Reassign(self, request: pb.ReassignRequest, context: Any) -> pb.ReassignResponse:  # noqa: N802
        replicas = tuple(request.replicas.node_ids) if request.HasField("replicas") else None
        await self._core.topics.reassign(TopicPartition(request.topic, request.partition), replicas)
        return pb.ReassignResponse(version=self._watched.version)

    async def UnregisterBroker(  # noqa: N802
        self, request: pb.UnregisterBrokerRequest, context: Any
    ) -> pb.UnregisterBrokerResponse:
        await self._core.topics.unregister_broker(request.broker_id)
        return pb.UnregisterBrokerResponse(version=self._watched.version)

    async def Seal(self, request: pb.SealRequest, context: Any) -> pb.SealResponse:  # noqa: N802
        sealed = await self._core.log.seal(request.topic, wait=request.wait, timeout_ms=_timeout_ms(request))
        return pb.SealResponse(
            partitions=[
                pb.SealedPartition(partition=part.partition, end=part.end, tiered_end=part.tiered_end)
                for part in sealed
            ]
        )


async def _add(answer: pb.DescribeTopicsResponse, described: Sequence[TopicDescription | LogError]) -> None:
    """Adds the topics in pieces: a topic may have thousands of partitions, and a request may name it thousands of times."""
    for each in described:
        if isinstance(each, LogError):
            answer.topics.append(topic_answer(each))
            continue
        topic = answer.topics.add(topic=topic_message(each._replace(partitions=()))).topic
        async for some in in_pieces(each.partitions):
            topic.partitions.extend(map(partition_message, some))


def _timeout_ms(request: pb.SealRequest) -> int:
    if not request.HasField("timeout"):
        return DEFAULT_SEAL_TIMEOUT_MS
    milliseconds = request.timeout.ToMilliseconds()
    if not 0 <= milliseconds <= MAX_TIMEOUT_MS:
        raise InvalidRequest(f"a timeout is between 0 and {MAX_TIMEOUT_MS} ms, not {milliseconds} ms")
    return milliseconds
