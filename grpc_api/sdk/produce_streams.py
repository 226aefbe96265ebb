"""The produce streams of one producer: one to each leader that gets its batches, all under one identity.

    groups of batches, each of one leader ──> that leader's stream ──> answers of all streams, as they come

Invariants: every stream is opened with the token of the first one, so that every leader knows the same producer. `write` never
waits for a leader: each partition has at most one batch in flight, which bounds the memory of a stream. If one of several
streams ends, its groups get a retriable error, and the producer sends them again, to the leaders at that time.

Answers of different leaders come in any order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import grpc.aio

from grpc_api.channel import NodeChannel
from grpc_api.contract.log import Appended
from grpc_api.messages.errors import error_of_call, retriable
from grpc_api.messages.log import result_of
from grpc_api.proto import log_pb2 as pb
from grpc_api.proto.log_pb2_grpc import LogStub
from grpc_api.routes import Routes
from storage_tiers.errors import LeaderNotAvailable, LogError
from storage_tiers.types import TopicPartition


class StreamEnded(Exception):
    """All streams must be opened again because of `error`."""

    def __init__(self, error: LogError) -> None:
        super().__init__(str(error))
        self.error = error


class Answered(NamedTuple):
    """The answer to a group. `results` has one result for each of its batches."""

    group: Any
    results: Sequence[Appended | LogError]


class ProduceStreams:
    """Call `open`, then `write` and `read`, and `close` at the end. `idempotent` streams have an identity that the cluster
    chooses."""

    def __init__(self, routes: Routes, *, idempotent: bool) -> None:
        self._routes = routes
        self._idempotent = idempotent
        self._token = b""
        self._streams: dict[str, _LeaderProduceStream] = {}
        self._answers: asyncio.Queue[Answered | StreamEnded] = asyncio.Queue()

    async def open(self, token: bytes) -> pb.Opened:
        """Opens the first stream, at the home node or, if that is unreachable, at any other broker. In a cluster of one broker
        it waits for that broker without a limit. Raises StreamEnded."""
        self._token = token
        home = self._routes.home
        nodes = [home, *(each for each in self._routes.everywhere() if each is not home)]
        failure: LogError = LeaderNotAvailable("no broker is live")
        for node in nodes:
            stream = self._open(node, waits=len(nodes) == 1)
            try:
                opened = await stream.opened
            except StreamEnded as ended:
                failure = ended.error
                if not retriable(failure):
                    raise
            else:
                self._token = opened.token
                return opened
        raise StreamEnded(failure)

    def leader(self, partition: TopicPartition) -> Hashable:
        """A key of the partition's leader. Batches may share a group if their partitions have equal keys."""
        return self._routes.leader(partition).address

    def write(self, group: Any, partition: TopicPartition, request: pb.ProduceRequest) -> None:
        """`partition` is any partition of the request."""
        node = self._routes.leader(partition)
        stream = self._streams.get(node.address)
        if stream is None or stream.over:
            stream = self._open(node, waits=False)
        stream.put(group, len(request.appends), request)

    def _open(self, node: NodeChannel, *, waits: bool) -> _LeaderProduceStream:
        opening = pb.Open(idempotent=self._idempotent, token=self._token)
        stream = _LeaderProduceStream(node, opening, self._answers, waits=waits, is_only=self._routes.alone)
        self._streams[node.address] = stream
        return stream

    async def read(self) -> Answered:
        """The next answer. Raises StreamEnded."""
        answer = await self._answers.get()
        if isinstance(answer, StreamEnded):
            raise answer
        return answer

    async def close(self) -> None:
        for stream in self._streams.values():
            await stream.close()


class _LeaderProduceStream:
    """One stream from its opening to its end. With `waits` the opening waits until the node is reachable."""

    def __init__(
        self,
        node: NodeChannel,
        opening: pb.Open,
        answers: asyncio.Queue[Answered | StreamEnded],
        *,
        waits: bool,
        is_only: bool,
    ) -> None:
        stub: Any = LogStub(node.channel)
        self._call = stub.ProduceStream(wait_for_ready=waits)
        self._address = node.address
        self._answers = answers
        self._is_only = is_only
        self._asked: dict[int, tuple[Any, int]] = {}
        self._outgoing = deque([pb.ProduceStreamRequest(open=opening)])
        self._more = asyncio.Event()
        self._sequence = 0
        self.over = False
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[pb.Opened] = loop.create_future()
        self.opened.add_done_callback(_retrieve)
        self._tasks = [loop.create_task(self._write()), loop.create_task(self._read())]

    def put(self, group: Any, batches: int, request: pb.ProduceRequest) -> None:
        self._asked[self._sequence] = group, batches
        numbered = pb.SequencedProduce(sequence=self._sequence, request=request)
        self._sequence += 1
        self._outgoing.append(pb.ProduceStreamRequest(produce=numbered))
        self._more.set()

    async def _write(self) -> None:
        with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):  # the stream is over; `_read` gets the cause
            while True:
                while self._outgoing:
                    await self._call.write(self._outgoing.popleft())
                self._more.clear()
                await self._more.wait()

    async def _read(self) -> None:
        failure: LogError = LeaderNotAvailable(f"{self._address} has ended the stream; send again")
        try:
            first: Any = await self._call.read()
            if first is not grpc.aio.EOF:
                self.opened.set_result(first.opened)
            while (response := await self._call.read()) is not grpc.aio.EOF:
                if response.HasField("appended"):
                    group, _ = self._asked.pop(response.appended.sequence)
                    self._answers.put_nowait(Answered(group, [result_of(each) for each in response.appended.results]))
        except grpc.aio.AioRpcError as error:
            failure = error_of_call(error, self._address)
        self._end(failure)

    def _end(self, failure: LogError) -> None:
        self.over = True
        ended = StreamEnded(failure)
        if not self.opened.done():
            self.opened.set_exception(ended)
        if self._is_only or not retriable(failure):
            self._answers.put_nowait(ended)
            return
        for group, batches in self._asked.values():
            self._answers.put_nowait(Answered(group, [failure] * batches))
        self._asked.clear()

    async def close(self) -> None:
        self._call.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _retrieve(opened: asyncio.Future[pb.Opened]) -> None:
    if not opened.cancelled():
        opened.exception()  # marks the exception as retrieved: only the first stream's future is awaited
