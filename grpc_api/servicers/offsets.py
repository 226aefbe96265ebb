"""`tidelog.v1.Offsets` over the core's contract."""

from __future__ import annotations

from typing import Any

from grpc_api.contract.core import Core
from grpc_api.messages.log import check_count, found_message, query_of
from grpc_api.proto import log_pb2
from grpc_api.proto import offsets_pb2 as pb
from grpc_api.proto.offsets_pb2_grpc import OffsetsServicer
from grpc_api.servicers.calls import in_pieces
from storage_tiers.types import NO_EPOCH, TopicPartition


class CoreOffsets(OffsetsServicer):
    """Offsets by time, by special timestamp and by leader epoch. A partition's LogError is its part of the answer."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def List(self, request: pb.ListOffsetsRequest, context: Any) -> pb.ListOffsetsResponse:  # noqa: N802
        check_count(len(request.queries))
        answer = pb.ListOffsetsResponse()
        async for queries in in_pieces(request.queries):
            found = await self._core.log.list_offsets([query_of(each) for each in queries])
            answer.offsets.extend(map(found_message, found))
        return answer

    async def ForLeaderEpoch(self, request: pb.EpochEndRequest, context: Any) -> log_pb2.EpochEnd:  # noqa: N802
        epoch, end = await self._core.log.epoch_end_offset(
            TopicPartition(request.topic, request.partition),
            request.leader_epoch,
            request.current_leader_epoch if request.HasField("current_leader_epoch") else NO_EPOCH,
        )
        return log_pb2.EpochEnd(leader_epoch=epoch, end_offset=end)

    async def DeleteRecords(  # noqa: N802
        self, request: pb.DeleteRecordsRequest, context: Any
    ) -> pb.DeleteRecordsResponse:
        start = await self._core.log.delete_records(
            TopicPartition(request.topic, request.partition), request.before_offset
        )
        return pb.DeleteRecordsResponse(log_start_offset=start)
