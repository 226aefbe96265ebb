"""The contract's `Log` over a channel."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.duration_pb2 import Duration

from grpc_api.channel import CALL_TIMEOUT_S, NodeChannel, answered
from grpc_api.contract.log import Append, Appended, Fetch, Fetched, OffsetQuery, SealedPartition
from grpc_api.contract.ready import Ready
from grpc_api.contract.transactions import ProducerTransaction
from grpc_api.messages.errors import error_of
from grpc_api.messages.log import aborted_of, fetch_message, found_of, query_message
from grpc_api.proto import log_pb2 as pb
from grpc_api.proto import offsets_pb2, topics_pb2
from grpc_api.proto.log_pb2_grpc import LogStub
from grpc_api.proto.offsets_pb2_grpc import OffsetsStub
from grpc_api.proto.topics_pb2_grpc import TopicsStub
from grpc_api.remote_append import AppendStream
from storage_tiers.errors import LogError
from storage_tiers.types import NO_EPOCH, FileSlice, SharedFile, TimestampOffset, TopicId, TopicPartition


class RemoteLog:
    """`contract.log.Log` over a channel."""

    def __init__(self, node: NodeChannel, topic_name: Callable[[TopicId], str | None]) -> None:
        self._address = node.address
        self._log: Any = LogStub(node.channel)
        self._offsets: Any = OffsetsStub(node.channel)
        self._topics: Any = TopicsStub(node.channel)
        self._appends = AppendStream(self._log, node.address)
        self._topic_name = topic_name

    async def close(self) -> None:
        await self._appends.close()

    def append(
        self, appends: Sequence[Append], *, transaction: ProducerTransaction | None = None
    ) -> Ready[Sequence[Appended | LogError]]:
        return self._appends.append(appends, transaction)

    def fetch(self, fetch: Fetch) -> Ready[Sequence[Fetched]]:
        return asyncio.ensure_future(self._fetch(fetch))

    async def _fetch(self, fetch: Fetch) -> Sequence[Fetched]:
        timeout = fetch.max_wait_ms / 1000 + CALL_TIMEOUT_S
        return _answers(await answered(self._log.Fetch(fetch_message(fetch), timeout=timeout), self._address))

    async def list_offsets(self, queries: Sequence[OffsetQuery]) -> Sequence[TimestampOffset | LogError | None]:
        request = offsets_pb2.ListOffsetsRequest(queries=map(query_message, queries))
        answer = await answered(self._offsets.List(request, timeout=CALL_TIMEOUT_S), self._address)
        return [found_of(each) for each in answer.offsets]

    async def delete_records(self, partition: TopicPartition, before_offset: int) -> int:
        request = offsets_pb2.DeleteRecordsRequest(
            topic=partition.topic, partition=partition.partition, before_offset=before_offset
        )
        answer = await answered(self._offsets.DeleteRecords(request, timeout=CALL_TIMEOUT_S), self._address)
        return int(answer.log_start_offset)

    async def epoch_end_offset(
        self, partition: TopicPartition, leader_epoch: int, current_leader_epoch: int = NO_EPOCH
    ) -> tuple[int, int]:
        request = offsets_pb2.EpochEndRequest(
            topic=partition.topic,
            partition=partition.partition,
            leader_epoch=leader_epoch,
            current_leader_epoch=current_leader_epoch,
        )
        answer = await answered(self._offsets.ForLeaderEpoch(request, timeout=CALL_TIMEOUT_S), self._address)
        return answer.leader_epoch, answer.end_offset

    def topic_name(self, topic_id: TopicId) -> str | None:
        return self._topic_name(topic_id)

    async def init_producer_id(self) -> tuple[int, int]:
        call = self._log.InitProducerId(pb.InitProducerIdRequest(), timeout=CALL_TIMEOUT_S)
        answer = await answered(call, self._address)
        return answer.producer_id, answer.producer_epoch

    async def seal(self, topic: str, *, wait: bool, timeout_ms: int) -> Sequence[SealedPartition]:
        bound = Duration()
        bound.FromMilliseconds(timeout_ms)
        request = topics_pb2.SealRequest(topic=topic, wait=wait, timeout=bound)
        call = self._topics.Seal(request, timeout=timeout_ms / 1000 + CALL_TIMEOUT_S)
        sealed = await answered(call, self._address)
        return [SealedPartition(each.partition, each.end, each.tiered_end) for each in sealed.partitions]


def _answers(response: pb.FetchResponse) -> Sequence[Fetched]:
    """Puts all records into one in-memory file, because the contract's callers send slices of files and release them."""
    file: SharedFile | None = None
    position = 0
    if any(each.records for each in response.partitions):
        file = SharedFile("records of a remote fetch", os.memfd_create("fetched", os.MFD_CLOEXEC))
    answers = []
    for each in response.partitions:
        slices: tuple[FileSlice, ...] = ()
        if file is not None and each.records:
            length = os.write(file.fd, each.records)
            slices = (FileSlice(file.acquire(), position, length),)
            position += length
        answers.append(_fetched(each, slices))
    if file is not None:
        file.release()
    return answers


def _fetched(message: pb.FetchedPartition, slices: tuple[FileSlice, ...]) -> Fetched:
    if message.HasField("error"):
        return Fetched(error_of(message.error))
    diverging = None
    if message.HasField("diverging"):
        diverging = message.diverging.leader_epoch, message.diverging.end_offset
    return Fetched(
        None,
        message.high_watermark,
        message.last_stable_offset,
        message.log_start_offset,
        slices,
        aborted_of(message),
        diverging,
    )
