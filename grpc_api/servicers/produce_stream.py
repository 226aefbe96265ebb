"""One produce stream: requests are appended as they arrive and answered as they commit, with a bound on those in flight.

    requests ──> appended in the order sent ──┬─ committed already ──────────────> outbox ──> the caller
                                              └─ waiting ──> commits, in order ──> outbox

Invariants: at most MAX_UNDER_WAY requests are between their arrival and their last answer; at the bound nothing is read,
and HTTP/2's window stops the caller. A request is appended only if its sequence is the next one. When the stream ends for
any reason, appended records stay, and their answers are sent before the error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple

from grpc_api.contract.core import Core
from grpc_api.contract.log import Append, Appended
from grpc_api.contract.ready import settled
from grpc_api.messages.log import append_of, check_produce, result_message, transaction_of
from grpc_api.proto import log_pb2 as pb
from grpc_api.servicers.calls import in_pieces
from grpc_api.servicers.tokens import decode_token, encode_token
from storage_tiers.errors import InvalidRequest, LogError, OutOfOrderSequence
from storage_tiers.records.batch import HEADER_BYTES, read_header
from storage_tiers.types import NO_PRODUCER_ID

#: The most requests of a stream between their arrival and their last answer.
MAX_UNDER_WAY = 32

Send = Callable[[pb.ProduceStreamResponse], Awaitable[None]]


def _accept(_: Append) -> LogError | None:
    return None


async def append_in_pieces(
    core: Core, request: pb.ProduceRequest, refusal: Callable[[Append], LogError | None] = _accept
) -> list[Appended | LogError]:
    """Appends the batches in order, except those for which `refusal` returns an error. Yields to the loop when the slice is
    used up. Raises InvalidRequest, before anything is appended, for an invalid request."""
    check_produce(request)
    transaction = transaction_of(request)
    results: list[Appended | LogError] = []
    async for some in in_pieces(request.appends):
        appends = [append_of(each) for each in some]
        refused = {index: error for index, each in enumerate(appends) if (error := refusal(each)) is not None}
        allowed = [each for index, each in enumerate(appends) if index not in refused]
        answered = iter(await settled(core.log.append(allowed, transaction=transaction)))
        results += [refused[index] if index in refused else next(answered) for index in range(len(appends))]
    return results


class _WaitingCommit(NamedTuple):
    """An appended request whose commit must be reported."""

    sequence: int
    results: Sequence[Appended | LogError]
    follows: bool  # an `appended` answer was sent before


async def committed(result: Appended | LogError) -> Appended | LogError:
    """The result once it is committed, or the error if it never will be."""
    if isinstance(result, LogError) or result.committed is None:
        return result
    try:
        await result.committed
    except LogError as error:
        return error
    return result


class ProduceSession:
    """`run` serves one stream to its end. It raises the LogError if one ends the stream before the caller does."""

    def __init__(self, core: Core, send: Send) -> None:
        self._core = core
        self._send = send
        self._identity = (NO_PRODUCER_ID, -1)
        self._idempotent = False
        self._next = 0
        self._room = asyncio.Semaphore(MAX_UNDER_WAY)
        # Bounded by `_room`: a request has at most one entry in `_commits`, and at most two in `_outbox`.
        self._commits: asyncio.Queue[_WaitingCommit | None] = asyncio.Queue()
        self._outbox: asyncio.Queue[tuple[pb.ProduceStreamResponse, bool] | None] = asyncio.Queue()

    async def run(self, requests: AsyncIterator[pb.ProduceStreamRequest]) -> None:
        reader = asyncio.ensure_future(self._read(requests))
        committer = asyncio.ensure_future(self._commit())
        try:
            while (item := await self._outbox.get()) is not None:
                response, last = item
                await self._send(response)
                if last:
                    self._room.release()
            await reader
        finally:
            for task in (reader, committer):
                task.cancel()
            await asyncio.gather(reader, committer, return_exceptions=True)

    # --- requests -----------------------------------------------------------------------------------------------------
    async def _read(self, requests: AsyncIterator[pb.ProduceStreamRequest]) -> None:
        try:
            await self._open(await anext(aiter(requests), None))
            async for request in requests:
                await self._room.acquire()
                await self._append(request)
        finally:
            # Appended requests are answered before the stream ends.
            self._commits.put_nowait(None)

    async def _open(self, first: pb.ProduceStreamRequest | None) -> None:
        if first is None or not first.HasField("open"):
            raise InvalidRequest("a produce stream begins with `open`")
        wanted = first.open
        self._idempotent = wanted.idempotent
        token = b""
        if wanted.idempotent:
            cluster = self._core.topics.cluster().cluster_id
            if wanted.token:
                self._identity = decode_token(cluster, wanted.token)
            else:
                self._identity = await self._core.log.init_producer_id()
            token = encode_token(cluster, *self._identity)
        elif wanted.token:
            raise InvalidRequest("only an idempotent stream has a token: set `idempotent` too")
        opened = pb.Opened(producer_id=self._identity[0], producer_epoch=self._identity[1], token=token)
        self._outbox.put_nowait((pb.ProduceStreamResponse(opened=opened), False))

    async def _append(self, message: pb.ProduceStreamRequest) -> None:
        if not message.HasField("produce"):
            raise InvalidRequest("a produce stream is opened once; only `produce` may follow `open`")
        sequence, request = message.produce.sequence, message.produce.request
        if sequence != self._next:
            raise OutOfOrderSequence(
                f"request {self._next} of this stream comes next, not {sequence}; nothing of it was appended"
            )
        self._next += 1
        results = await append_in_pieces(self._core, request, self._foreign if self._idempotent else _accept)
        waits = any(isinstance(each, Appended) and each.committed is not None for each in results)
        if request.acks == pb.ACKS_LEADER:
            self._answer(_response(sequence, results, committed=False), last=not waits)
        if waits or request.acks == pb.ACKS_ALL:
            self._commits.put_nowait(_WaitingCommit(sequence, results, request.acks == pb.ACKS_LEADER))

    def _foreign(self, wanted: Append) -> LogError | None:
        """The error for a batch of another producer. The log refuses a batch without a whole header."""
        if len(wanted.batch) < HEADER_BYTES:
            return None
        try:
            header = read_header(wanted.batch)
        except LogError as error:
            return error
        if (header.producer_id, header.producer_epoch) == self._identity:
            return None
        return InvalidRequest(
            f"{wanted.partition}: the batch has producer id {header.producer_id} and epoch {header.producer_epoch}, this "
            f"stream's are {self._identity[0]} and {self._identity[1]}"
        )

    # --- answers ------------------------------------------------------------------------------------------------------
    async def _commit(self) -> None:
        try:
            while (waiting := await self._commits.get()) is not None:
                results = [await committed(each) for each in waiting.results]
                self._answer(_response(waiting.sequence, results, committed=True, follows=waiting.follows), last=True)
        finally:
            self._outbox.put_nowait(None)

    def _answer(self, response: pb.ProduceStreamResponse, *, last: bool) -> None:
        self._outbox.put_nowait((response, last))


def _response(
    sequence: int, results: Sequence[Appended | LogError], *, committed: bool, follows: bool = False
) -> pb.ProduceStreamResponse:
    answer = pb.SequencedResults(
        sequence=sequence,
        results=[
            result_message(each, committed=committed or (isinstance(each, Appended) and each.committed is None))
            for each in results
        ],
    )
    return pb.ProduceStreamResponse(committed=answer) if follows else pb.ProduceStreamResponse(appended=answer)
