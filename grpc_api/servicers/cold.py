"""`tidelog.v1.Cold` over the core's contract."""

from __future__ import annotations

from typing import Any

from grpc_api.contract.core import Core
from grpc_api.messages.cold import manifest_message, repair_message, segment_message
from grpc_api.proto import cold_pb2 as pb
from grpc_api.proto.cold_pb2_grpc import ColdServicer
from storage_tiers.types import OffsetRange, TopicPartition


class CoreCold(ColdServicer):
    """The objects of a topic in the bucket. A LogError ends the call with its status and detail."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def Manifests(self, request: pb.ManifestsRequest, context: Any) -> pb.ManifestsResponse:  # noqa: N802
        found = await self._core.cold.manifests(request.topic)
        return pb.ManifestsResponse(manifests=[manifest_message(index, each) for index, each in enumerate(found)])

    async def Segments(self, request: pb.SegmentsRequest, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        partition = TopicPartition(request.topic, request.partition)
        start = request.start_offset
        while segments := await self._core.cold.segments(partition, start):
            await context.write(pb.SegmentsResponse(segments=map(segment_message, segments)))
            start = segments[-1].end

    async def Repair(self, request: pb.RepairRequest, context: Any) -> pb.RepairResponse:  # noqa: N802
        partition = TopicPartition(request.topic, request.partition)
        accepted = [OffsetRange(each.base, each.end) for each in request.accept_loss]
        return repair_message(await self._core.cold.repair(partition, apply=request.apply, accept_loss=accepted))

    async def RepairTopic(self, request: pb.RepairTopicRequest, context: Any) -> pb.RepairResponse:  # noqa: N802
        return repair_message(await self._core.cold.repair_topic(request.topic, apply=request.apply))

    async def RepairCluster(self, request: pb.RepairClusterRequest, context: Any) -> pb.RepairResponse:  # noqa: N802
        return repair_message(await self._core.cold.repair_cluster(apply=request.apply))
