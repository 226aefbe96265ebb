"""`tidelog.v1.Topics` over the core's contract: unpack, call, pack. Watchers are told of changes by their difference."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from grpc_api.contract.core import Core
from grpc_api.contract.topics import ClusterDescription, TopicDescription
from grpc_api.messages.log import check_count, topic_id_of
from grpc_api.messages.topics import (
    cluster_message,
    created_answer,
    deleted_answer,
    new_topic_of,
    topic_answer,
    topic_message,
)
from grpc_api.proto import topics_pb2 as pb
from grpc_api.proto.topics_pb2_grpc import TopicsServicer
from storage_tiers.errors import InvalidRequest, LogError
from storage_tiers.types import TopicId

DEFAULT_SEAL_TIMEOUT_MS = 60_000
#: What the contract's timeouts, as Kafka's, can hold.
MAX_TIMEOUT_MS = (1 << 31) - 1

_Seen = Mapping[TopicId, TopicDescription]


class CoreTopics(TopicsServicer):
    """`version` counts the changes that this process has seen; every watcher waits on the same event."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._version = 1
        self._changed = asyncio.Event()
        core.topics.subscribe(self._count)

    def _count(self) -> None:
        self._version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    # --- what there is ------------------------------------------------------------------------------------------------
    async def Describe(self, request: pb.DescribeTopicsRequest, context: Any) -> pb.DescribeTopicsResponse:  # noqa: N802
        if request.all and (request.names or request.topic_ids):
            raise InvalidRequest("ask for all topics, or for some by name or id, not for both")
        check_count(len(request.names) + len(request.topic_ids))
        ids = [topic_id_of(each) for each in request.topic_ids]
        found = self._core.topics.describe(None if request.all else list(request.names), ids)
        return pb.DescribeTopicsResponse(topics=map(topic_answer, found))

    async def Cluster(self, request: pb.ClusterRequest, context: Any) -> pb.ClusterDescription:  # noqa: N802
        return cluster_message(self._core.topics.cluster())

    async def Watch(self, request: pb.WatchRequest, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        changed, version = self._changed, self._version
        cluster, seen = self._look()
        await context.write(
            pb.MetadataUpdate(
                version=version,
                complete=True,
                cluster=cluster_message(cluster),
                topics=map(topic_message, seen.values()),
            )
        )
        while True:
            await changed.wait()
            changed, version = self._changed, self._version
            now_cluster, now = self._look()
            await context.write(
                pb.MetadataUpdate(
                    version=version,
                    cluster=None if now_cluster == cluster else cluster_message(now_cluster),
                    topics=[topic_message(topic) for key, topic in now.items() if seen.get(key) != topic],
                    deleted_topic_ids=[key for key in seen if key not in now],
                )
            )
            cluster, seen = now_cluster, now

    def _look(self) -> tuple[ClusterDescription, _Seen]:
        found = self._core.topics.describe(None)
        return self._core.topics.cluster(), {each.topic_id: each for each in found if not isinstance(each, LogError)}

    # --- changes ------------------------------------------------------------------------------------------------------
    async def Create(self, request: pb.CreateTopicsRequest, context: Any) -> pb.CreateTopicsResponse:  # noqa: N802
        check_count(len(request.topics))
        wanted = [new_topic_of(each) for each in request.topics]
        made = await self._core.topics.create(wanted, validate_only=request.validate_only)
        return pb.CreateTopicsResponse(topics=map(created_answer, made), version=self._version)

    async def AutoCreate(self, request: pb.AutoCreateRequest, context: Any) -> pb.AutoCreateResponse:  # noqa: N802
        check_count(len(request.names))
        await self._core.topics.auto_create(list(request.names))
        return pb.AutoCreateResponse(version=self._version)

    async def Delete(self, request: pb.DeleteTopicsRequest, context: Any) -> pb.DeleteTopicsResponse:  # noqa: N802
        check_count(len(request.names) + len(request.topic_ids))
        ids = [topic_id_of(each) for each in request.topic_ids]
        gone = await self._core.topics.delete(list(request.names), ids)
        return pb.DeleteTopicsResponse(topics=map(deleted_answer, gone), version=self._version)

    async def CreatePartitions(  # noqa: N802
        self, request: pb.CreatePartitionsRequest, context: Any
    ) -> pb.CreatePartitionsResponse:
        assignments = [tuple(each.node_ids) for each in request.assignments] or None
        await self._core.topics.create_partitions(
            request.topic, request.count, assignments, validate_only=request.validate_only
        )
        return pb.CreatePartitionsResponse(version=self._version)

    async def Seal(self, request: pb.SealRequest, context: Any) -> pb.SealResponse:  # noqa: N802
        sealed = await self._core.log.seal(request.topic, wait=request.wait, timeout_ms=_timeout_ms(request))
        return pb.SealResponse(
            partitions=[
                pb.SealedPartition(partition=part.partition, end=part.end, tiered_end=part.tiered_end)
                for part in sealed
            ]
        )


def _timeout_ms(request: pb.SealRequest) -> int:
    if not request.HasField("timeout"):
        return DEFAULT_SEAL_TIMEOUT_MS
    milliseconds = request.timeout.ToMilliseconds()
    if not 0 <= milliseconds <= MAX_TIMEOUT_MS:
        raise InvalidRequest(f"a timeout lies between 0 and {MAX_TIMEOUT_MS} ms; {milliseconds} ms does not")
    return milliseconds
