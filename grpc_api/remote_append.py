"""Appends over a channel, in order: one produce stream, opened by the first append.

Invariants: requests are sent in the order of `append`. Each gets exactly one answer: the node's, or RequestTimedOut if the
stream ends first. After RequestTimedOut the records may be in the log or not, as after any lost connection. At most
MAX_WAITING_BYTES of records wait for an answer, unless a single append has more. Beyond that an append is refused at once with
a retriable error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import grpc.aio

from grpc_api.contract.log import Append, Appended
from grpc_api.contract.transactions import ProducerTransaction
from grpc_api.limits import MAX_REQUEST_BYTES
from grpc_api.messages.errors import error_of_call
from grpc_api.messages.log import produce_message, result_of
from grpc_api.proto import log_pb2 as pb
from storage_tiers.errors import LogError, RecordTooLarge, RequestTimedOut, StorageError

#: The most bytes of records that wait for an answer.
MAX_WAITING_BYTES = 64 << 20
#: The most bytes of records in one message, which also names its partitions.
MAX_RECORDS_BYTES = MAX_REQUEST_BYTES - (64 << 10)

_Results = Sequence[Appended | LogError]
_Committed = asyncio.Future[None]


class AppendStream:
    """Appends over one bidirectional call, which is opened again after it has ended. One message has at most
    MAX_RECORDS_BYTES. A batch larger than that is answered with RecordTooLarge."""

    def __init__(self, stub: Any, address: str) -> None:
        self._stub = stub
        self._address = address
        self._life: _AppendStream | None = None

    def append(self, appends: Sequence[Append], transaction: ProducerTransaction | None) -> asyncio.Future[_Results]:
        if self._life is None or self._life.over:
            self._life = _AppendStream(self._stub.ProduceStream(), self._address)
        messages = list(_messages(appends))
        if len(messages) == 1 and len(appends[0].batch) <= MAX_RECORDS_BYTES:
            return self._life.append(appends, transaction)
        return asyncio.ensure_future(_joined([self._one(each, transaction) for each in messages]))

    def _one(self, appends: Sequence[Append], transaction: ProducerTransaction | None) -> asyncio.Future[_Results]:
        assert self._life is not None
        size = len(appends[0].batch)
        if size <= MAX_RECORDS_BYTES:
            return self._life.append(appends, transaction)
        refused: asyncio.Future[_Results] = asyncio.get_running_loop().create_future()
        partition = appends[0].partition
        refused.set_result(
            [RecordTooLarge(f"{partition}: a message holds at most {MAX_RECORDS_BYTES} bytes of records, not {size}")]
        )
        return refused

    async def close(self) -> None:
        if self._life is not None:
            await self._life.close()


def _messages(appends: Sequence[Append]) -> Iterator[Sequence[Append]]:
    """The appends in order, in groups that fit one message. An append that is too large for any message is a group of its
    own."""
    message: list[Append] = []
    size = 0
    for each in appends:
        if message and size + len(each.batch) > MAX_RECORDS_BYTES:
            yield message
            message, size = [], 0
        message.append(each)
        size += len(each.batch)
    yield message


async def _joined(answers: Sequence[asyncio.Future[_Results]]) -> _Results:
    return [result for answer in answers for result in await answer]


class _AppendStream:
    """One stream from its opening to its end."""

    def __init__(self, call: Any, address: str) -> None:
        self._call = call
        self._address = address
        self._sequence = 0
        self._waiting_bytes = 0
        self._waiting: dict[int, tuple[asyncio.Future[_Results], int, int]] = {}
        self._committing: dict[int, list[_Committed | None]] = {}
        self._outgoing: deque[pb.ProduceStreamRequest] = deque([pb.ProduceStreamRequest(open=pb.Open())])
        self._more = asyncio.Event()
        self._more.set()
        self._runner = asyncio.ensure_future(self._run())
        self.over = False

    def append(self, appends: Sequence[Append], transaction: ProducerTransaction | None) -> asyncio.Future[_Results]:
        answer: asyncio.Future[_Results] = asyncio.get_running_loop().create_future()
        size = sum(len(each.batch) for each in appends)
        if self._waiting_bytes + size > MAX_WAITING_BYTES and self._waiting:
            refusal = StorageError(
                f"{self._address}: more than {MAX_WAITING_BYTES} bytes are waiting for its answers; send again later"
            )
            answer.set_result([refusal] * len(appends))
            return answer
        request = produce_message(appends, pb.ACKS_LEADER, transaction)
        numbered = pb.SequencedProduce(sequence=self._sequence, request=request)
        self._outgoing.append(pb.ProduceStreamRequest(produce=numbered))
        self._more.set()
        self._waiting[self._sequence] = (answer, len(appends), size)
        self._waiting_bytes += size
        self._sequence += 1
        return answer

    async def close(self) -> None:
        self._runner.cancel()
        await asyncio.gather(self._runner, return_exceptions=True)

    async def _run(self) -> None:
        writer = asyncio.ensure_future(self._write())
        reason: LogError = RequestTimedOut(f"{self._address}: the stream ended before its answer")
        try:
            while (response := await self._call.read()) is not grpc.aio.EOF:
                self._take(response)
            await self._call.code()  # the node ended the stream without an error, and left requests unanswered
        except grpc.aio.AioRpcError as failure:
            cause = error_of_call(failure, self._address)
            reason = RequestTimedOut(f"{cause}; the records may or may not be in the log")
        finally:
            self.over = True
            writer.cancel()
            self._call.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            self._end(reason)

    async def _write(self) -> None:
        while True:
            while self._outgoing:
                await self._call.write(self._outgoing.popleft())
            self._more.clear()
            await self._more.wait()

    def _take(self, response: pb.ProduceStreamResponse) -> None:
        if response.HasField("appended"):
            self._appended(response.appended)
        elif response.HasField("committed"):
            waiters = self._committing.pop(response.committed.sequence, [])
            for waiter, result in zip(waiters, response.committed.results, strict=True):
                if waiter is not None and not waiter.done():
                    _settle(waiter, result_of(result))

    def _appended(self, answer: pb.SequencedResults) -> None:
        future, _, size = self._waiting.pop(answer.sequence)
        self._waiting_bytes -= size
        results: list[Appended | LogError] = []
        waiters: list[_Committed | None] = []
        for message in answer.results:
            result = result_of(message)
            waiter: _Committed | None = None
            if isinstance(result, Appended) and not message.committed:
                waiter = result.committed = asyncio.get_running_loop().create_future()
                waiter.add_done_callback(_retrieve_error)
            results.append(result)
            waiters.append(waiter)
        if any(waiters):
            self._committing[answer.sequence] = waiters
        if not future.done():
            future.set_result(results)

    def _end(self, reason: LogError) -> None:
        for future, count, _ in self._waiting.values():
            if not future.done():
                future.set_result([reason] * count)
        for waiters in self._committing.values():
            for waiter in waiters:
                if waiter is not None and not waiter.done():
                    waiter.set_exception(reason)


def _settle(waiter: _Committed, result: Appended | LogError) -> None:
    if isinstance(result, LogError):
        waiter.set_exception(result)
    else:
        waiter.set_result(None)


def _retrieve_error(waiter: _Committed) -> None:
    if not waiter.cancelled():
        waiter.exception()  # marks the exception as retrieved, because callers need not await the commit
