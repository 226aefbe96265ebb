"""The fetch streams of one reader: one to each leader of its partitions.

Invariants: each partition is in exactly one stream. A message is read only when the reader asks for the next one, so each
stream stays at most one message ahead. If one of several streams fails with a retriable error, the others are read during the
pause before its retry; then all streams are opened again with newer metadata.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import grpc.aio

from grpc_api.messages.errors import error_of_call, retriable
from grpc_api.proto import log_pb2 as pb
from grpc_api.proto.log_pb2_grpc import LogStub
from grpc_api.routes import PerNode, Routes, grouped
from grpc_api.sdk.retries import Patience
from storage_tiers.errors import LogError
from storage_tiers.types import TopicPartition


class FetchStreams:
    """Call `open`, then `read`. `close` ends all streams, and may be followed by another `open`."""

    def __init__(self, routes: Routes, retry_s: float) -> None:
        self._routes = routes
        self._stubs: PerNode[Any] = PerNode(lambda node: LogStub(node.channel))
        self._retry_s = retry_s
        #: The pauses before retries, keyed by whether the partitions have a leader, and by the node's address. `close` keeps
        #: them, so they grow while a leader stays unreachable. The home node has two entries, because it also gets the requests
        #: for partitions without a leader. A success with the partitions that it leads must not reset the pause of the others.
        self._patience: dict[tuple[bool, str], Patience] = {}
        self._streams: list[_LeaderFetchStream] = []
        self._ready: list[_LeaderFetchStream] = []
        #: Whether a stream has failed for longer than `retry_s` while others were open.
        self.gave_up = False

    @property
    def is_open(self) -> bool:
        return bool(self._streams)

    def open(self, request: pb.FetchRequest) -> None:
        """Opens a stream to each leader of the request's partitions. Partitions without a leader get a separate stream to the
        home node, because a stream ends with the first error of a partition."""
        for group in grouped(request.partitions, self._leader):
            some = pb.FetchRequest()
            some.CopyFrom(request)
            del some.partitions[:]
            some.partitions.extend(request.partitions[each] for each in group)
            wanted = some.partitions[0]
            node = self._routes.leader(_partition(wanted))
            patience = self._patience.setdefault(self._leader(wanted), Patience(node, self._retry_s))
            order = [each.partition for each in some.partitions]
            self._streams.append(
                _LeaderFetchStream(self._stubs.at(node).FetchStream(some), node.address, order, patience)
            )

    def _leader(self, wanted: pb.FetchPartition) -> tuple[bool, str]:
        partition = _partition(wanted)
        return self._routes.has_leader(partition), self._routes.leader(partition).address

    async def read(self) -> Mapping[int, pb.FetchedPartition] | None:
        """The next message, by partition; None if the streams must be opened again. Raises a LogError if the only stream
        failed, or if one of several failed with a final error or for too long."""
        if len(self._streams) == 1:
            (stream,) = self._streams
            message = await _message(stream)
        else:
            stream, message = await self._first()
        if isinstance(message, LogError):
            if len(self._streams) == 1 or not retriable(message):
                self.close()
                raise message
            stream.away = asyncio.ensure_future(stream.patience.pause(message))
            return {}
        if message is None:
            return None
        stream.patience.succeeded()
        return {stream.order[part.index]: part for part in message.partitions}

    async def _first(self) -> tuple[_LeaderFetchStream, pb.FetchResponse | LogError | None]:
        """The message of the first stream that has one, or whose pause is over."""
        while not self._ready:
            for stream in self._streams:
                if stream.next is None:
                    stream.next = stream.away or asyncio.ensure_future(_message(stream))
            await asyncio.wait(
                [each.next for each in self._streams if each.next is not None], return_when=asyncio.FIRST_COMPLETED
            )
            self._ready = [each for each in self._streams if each.next is not None and each.next.done()]
        stream = self._ready.pop()
        assert stream.next is not None
        done, stream.next = stream.next, None
        try:
            return stream, done.result()
        except LogError:
            self.gave_up = True
            raise

    def close(self) -> None:
        for stream in self._streams:
            stream.call.cancel()
            for task in (stream.next, stream.away):
                if task is not None:
                    task.cancel()
        self._streams.clear()
        self._ready.clear()


class _LeaderFetchStream:
    """`order` has the partition numbers by index, as messages name them. `next` reads the next message, and `away` is the pause
    after a failure."""

    def __init__(self, call: Any, address: str, order: Sequence[int], patience: Patience) -> None:
        self.call = call
        self.address = address
        self.order = order
        self.patience = patience
        self.next: asyncio.Future[Any] | None = None
        self.away: asyncio.Future[None] | None = None


def _partition(wanted: pb.FetchPartition) -> TopicPartition:
    return TopicPartition(wanted.topic, wanted.partition)


async def _message(stream: _LeaderFetchStream) -> pb.FetchResponse | LogError | None:
    """The next message of the stream; None at its end."""
    try:
        message = await stream.call.read()
    except grpc.aio.AioRpcError as failure:
        return error_of_call(failure, stream.address)
    return None if message is grpc.aio.EOF else message
