"""Produce, key 0, versions 3 to 13: appends record batches. Versions 0 to 2 are advertised, as in Kafka, but close the
connection.

v9 is flexible, v13 names topics by id. acks=0 has no answer: an error closes the connection, so that the producer
notices. With acks=-1 the answer is sent when every batch is committed. A batch that misses the timeout gets REQUEST_TIMED_OUT,
but its records stay. The answer has topics and partitions in the request's order.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import struct
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TypeAlias

from grpc_api.contract.core import Core
from grpc_api.contract.log import Append, Appended, ProduceAcks
from grpc_api.contract.transactions import EPOCH_PER_TRANSACTION, ProducerTransaction
from kafka_gateway.answer_primitives import array_size, nullable_text, text
from kafka_gateway.connection import Piece
from kafka_gateway.errors import code_of, message_of
from kafka_gateway.hot_parse import HotParser, ProduceRequest
from kafka_gateway.leader_hints import PRODUCE_FROM, LeaderHints, tag
from kafka_gateway.options import Options
from kafka_gateway.produce_answer import produce_answer
from kafka_gateway.reply import CloseConnection, DelayedReply, Reply
from storage_tiers import events
from storage_tiers.errors import (
    InvalidRecord,
    InvalidRequiredAcks,
    InvalidTimestamp,
    LogError,
    RecordFault,
    RequestTimedOut,
    TransactionalIdUnauthorized,
)
from storage_tiers.steps import freeing, run_steps
from storage_tiers.turns import Turn

logger = logging.getLogger(__name__)

Results: TypeAlias = Sequence[Appended | LogError]

#: Errors that may name individual records.
_NAMING = (InvalidRecord, InvalidTimestamp)
_ACKS = frozenset(int(acks) for acks in ProduceAcks)
_NONE, _ALL = int(ProduceAcks.NONE), int(ProduceAcks.ALL)
#: A larger request is appended in slices. Its buffer is not reused, because it exceeds `connection.KEPT_BUFFER`. A request with
#: more partitions than `hot_parse.AT_ONCE` is also appended in slices.
LARGE_BYTES = 4 << 20
#: Most bytes and rows of one slice.
SLICE_BYTES = 256 << 10
SLICE_ROWS = 32
#: Rows between two checks of the clock during the steps that append nothing.
STEP = 64
_INDEX = struct.Struct(">i")
_HEAD = struct.Struct(">ii")
_PARTITION_V3 = struct.Struct(">ihqq")
_PARTITION_V5 = struct.Struct(">ihqqq")
_APPENDED_V9 = struct.Struct(">ihqqqbbb")
_NO_THROTTLE = b"\0\0\0\0"
# ProducerTransaction(...) would cost three times as much, for every transactional request.
_new_transaction = tuple.__new__


class ProduceHandler:
    """Serves Produce on all connections. `errors` counts answered partitions by error code."""

    def __init__(self, core: Core, options: Options) -> None:
        self._append = core.log.append
        self._core = core
        self._scheduler = options.scheduler
        self._request_context = options.request_context
        self._parser = HotParser(core.log.topic_name)
        self.errors: Counter[int] = Counter()

    def handle(self, data: bytearray, view: memoryview, start: int, end: int, version: int, correlation: int) -> Reply:
        request = self._parser.produce(data, view, start, end, version)
        if request is None:
            listener = self._request_context.client.listener
            if end - start > LARGE_BYTES:
                return self._read_on(data, view, start, end, version, correlation, listener)
            # Copied, because the buffer is reused before this request is done.
            own = bytearray(view[start:end])
            return self._read_on(own, memoryview(own), 0, len(own), version, correlation, listener)
        acks = request.acks
        if acks not in _ACKS:
            return self._refuse(request, version, correlation, _wrong_acks(acks))
        if end - start > LARGE_BYTES:
            return self._append_on(request, version, correlation, self._request_context.client.listener)
        try:
            if request.is_transactional:
                results = self._append(request.appends, transaction=_transaction(request, version))
            else:
                results = self._append(request.appends)
        except Exception as error:  # noqa: BLE001 - every request gets an answer
            return self._refuse(request, version, correlation, error)
        if acks != _NONE and type(results) is list:
            # `produce_answer` returns None if a partition is refused, or if the request waits for a commit.
            answer = produce_answer(request, results, version, correlation, acks == _ALL)
            if answer is not None:
                return (answer,)
        listener = self._request_context.client.listener
        if isinstance(results, asyncio.Future):
            return self._throttled(results, request, version, correlation, listener)
        if acks == _NONE:
            return self._unanswered(request, results)
        if acks == _ALL:
            for result in results:
                if isinstance(result, Appended) and result.committed is not None:
                    return self._committed(results, request, version, correlation, listener)
        return self._answer(request, version, correlation, listener, results)

    # --- in slices ----------------------------------------------------------------------------------------------------
    async def _read_on(
        self, data: bytearray, view: memoryview, start: int, end: int, version: int, correlation: int, listener: str
    ) -> Sequence[Piece]:
        turn = self._scheduler.turn()  # the records are appended even if the client disconnects
        try:
            reading = self._parser.reading(data, view, start, end, version)
            del data, view  # only `reading` and its batches keep the bytes
            while not reading.step(STEP):
                await turn.rest_if_over()
            request = reading.request
            del reading
            return await self._work_on(request, version, correlation, listener, turn)
        finally:
            turn.leave()

    async def _append_on(
        self, request: ProduceRequest, version: int, correlation: int, listener: str
    ) -> Sequence[Piece]:
        """Appends a parsed request in slices. Its bytes stay valid meanwhile, because a large request has a buffer of its
        own."""
        turn = self._scheduler.turn()
        try:
            return await self._work_on(request, version, correlation, listener, turn)
        finally:
            turn.leave()

    async def _work_on(
        self, request: ProduceRequest, version: int, correlation: int, listener: str, turn: Turn
    ) -> Sequence[Piece]:
        results: list[Appended | LogError] = []
        try:
            return await self._answer_on(request, results, version, correlation, listener, turn)
        except CloseConnection:
            raise
        except Exception as error:  # noqa: BLE001 - every request gets an answer
            return (await turn.through(self._refusing(request, version, correlation, error)),)
        finally:
            for rows in (results, request.appends, request.topics, request.indexes):
                await turn.through(freeing(rows))

    async def _answer_on(
        self,
        request: ProduceRequest,
        results: list[Appended | LogError],
        version: int,
        correlation: int,
        listener: str,
        turn: Turn,
    ) -> Sequence[Piece]:
        if request.acks not in _ACKS:
            raise _wrong_acks(request.acks)
        await self._gather(request, results, version, turn)
        if request.acks != _NONE:
            answer = produce_answer(request, results, version, correlation, False)
            if answer is not None:
                return (answer,)
        for errors in (list(request.refused.values()), results):
            for at in range(0, len(errors), STEP):
                self._count(errors[at : at + STEP])
                await turn.rest_if_over()
        if request.acks == _NONE:
            return _unanswered(request, results)
        hints = self._hints(version, listener)
        return (await turn.through(encoding(request, results, version, correlation, request.refused, hints)),)

    async def _gather(
        self, request: ProduceRequest, results: list[Appended | LogError], version: int, turn: Turn
    ) -> None:
        """Appends everything, then waits. Adds the outcomes to `results`."""
        found = await self._sliced(request, version, turn)
        until = asyncio.get_running_loop().time() + request.timeout_ms / 1000
        for index, some in enumerate(found):
            found[index] = ()
            if isinstance(some, asyncio.Future):
                # Other requests use the event loop during the wait.
                turn.leave()
                some = await some
            if request.acks == _ALL and any(isinstance(each, Appended) and each.committed for each in some):
                turn.leave()
                left_s = until - asyncio.get_running_loop().time()
                some = await CommitWait(some, round(left_s * 1000)).done
            results += some
            await turn.rest_if_over()

    async def _sliced(
        self, request: ProduceRequest, version: int, turn: Turn
    ) -> list[Results | asyncio.Future[Results]]:
        """Appends in slices, then frees the request's bytes, because its answer may be delayed for a long time."""
        found = []
        transaction = _transaction(request, version) if request.is_transactional else None
        for some in _in_slices(request.appends):
            found.append(self._append(some, transaction=transaction))
            await turn.rest_if_over()
        await turn.through(freeing(request.appends))
        return found

    def _answer(
        self, request: ProduceRequest, version: int, correlation: int, listener: str, results: Results
    ) -> Sequence[Piece]:
        self._count((*request.refused.values(), *results))
        return (encode(request, results, version, correlation, self._hints(version, listener)),)

    def _hints(self, version: int, listener: str) -> LeaderHints | None:
        return LeaderHints(self._core, listener, version) if version >= PRODUCE_FROM else None

    def _unanswered(self, request: ProduceRequest, results: Results) -> Sequence[Piece]:
        self._count((*request.refused.values(), *results))
        return _unanswered(request, results)

    def _count(self, results: Results) -> None:
        for error in results:
            if not isinstance(error, Appended):
                self.errors[code_of(error)] += 1

    def _committed(
        self, results: Results, request: ProduceRequest, version: int, correlation: int, listener: str
    ) -> DelayedReply:
        waiter = CommitWait(results, request.timeout_ms)
        return DelayedReply(
            waiter.done,
            functools.partial(self._answer, request, version, correlation, listener),
            lambda error: self._refuse(request, version, correlation, error),
        )

    def _throttled(
        self, results: asyncio.Future[Results], request: ProduceRequest, version: int, correlation: int, listener: str
    ) -> DelayedReply:
        """Waits for a core that does not answer at once."""
        done: asyncio.Future[Results] = asyncio.get_running_loop().create_future()
        results.add_done_callback(functools.partial(_chain, request, done))

        def finish(final: Results) -> Sequence[Piece]:
            if request.acks == _NONE:
                return self._unanswered(request, final)
            return self._answer(request, version, correlation, listener, final)

        return DelayedReply(done, finish, lambda error: self._refuse(request, version, correlation, error))

    def _refuse(self, request: ProduceRequest, version: int, correlation: int, error: BaseException) -> Sequence[Piece]:
        """Answers the same error for every partition."""
        return (run_steps(self._refusing(request, version, correlation, error)),)

    def _refusing(
        self, request: ProduceRequest, version: int, correlation: int, error: BaseException
    ) -> Generator[None, None, bytes]:
        if not isinstance(error, LogError):
            events.error(logger, "request.defect", server="kafka", api="Produce", version=version, defect=error)
        self.errors[code_of(error)] += len(request.indexes)
        if request.acks == _NONE:
            raise CloseConnection(str(error))
        refused = dict.fromkeys(range(len(request.indexes)), error)
        return (yield from encoding(request, [], version, correlation, refused))


def _transaction(request: ProduceRequest, version: int) -> ProducerTransaction:
    """The transaction of the transactional batches. From version 12 on the append adds their partitions to it (KIP-890)."""
    if request.transactional_id is None:
        raise TransactionalIdUnauthorized("a transactional batch came without a transactional id")
    speaks = EPOCH_PER_TRANSACTION if version >= 12 else 0
    return _new_transaction(ProducerTransaction, (request.transactional_id, speaks, version >= 11))


def _wrong_acks(acks: int) -> LogError:
    return InvalidRequiredAcks(f"acks={acks} does not exist; it must be 0, 1 or -1 (all)")


def _in_slices(appends: Sequence[Append]) -> Iterator[Sequence[Append]]:
    """Slices of at most SLICE_BYTES and SLICE_ROWS each; a larger batch is a slice of its own."""
    first = size = 0
    for index, append in enumerate(appends):
        if size and (size + len(append.batch) > SLICE_BYTES or index - first == SLICE_ROWS):
            yield appends[first:index]
            first, size = index, 0
        size += len(append.batch)
    if size:
        yield appends[first:]


def _chain(request: ProduceRequest, done: asyncio.Future[Results], results: asyncio.Future[Results]) -> None:
    """Begins the wait for commits of appends that the core answered late."""
    if done.done():
        return
    if results.cancelled():
        done.cancel()
    elif (failure := results.exception()) is not None:
        done.set_exception(failure)
    elif request.acks == _ALL and any(isinstance(r, Appended) and r.committed for r in results.result()):
        CommitWait(results.result(), request.timeout_ms, done)
    else:
        done.set_result(results.result())


def _unanswered(request: ProduceRequest, results: Results) -> Sequence[Piece]:
    for error in request.refused.values():
        raise CloseConnection(str(error))
    for result in results:
        if isinstance(result, LogError):
            raise CloseConnection(str(result))
    return ()


class CommitWait:
    """Waits for each result's `committed`, at most `timeout_ms`. `done` then has the results, with an error in place of each
    that is not committed."""

    __slots__ = ("_left", "_results", "done")

    def __init__(self, results: Results, timeout_ms: int, done: asyncio.Future[Results] | None = None) -> None:
        loop = asyncio.get_running_loop()
        self._results = results
        self.done: asyncio.Future[Results] = loop.create_future() if done is None else done
        self._left = 0
        for result in results:
            if isinstance(result, Appended) and result.committed is not None:
                self._left += 1
                result.committed.add_done_callback(self._one)
        timer = loop.call_later(max(0, timeout_ms) / 1000, self._end)
        self.done.add_done_callback(lambda _: timer.cancel())

    def _one(self, _: asyncio.Future[None]) -> None:
        self._left -= 1
        if self._left == 0:
            self._end()

    def _end(self) -> None:
        if not self.done.done():
            self.done.set_result([_outcome(result) for result in self._results])


def _outcome(result: Appended | LogError) -> Appended | LogError:
    if isinstance(result, LogError) or result.committed is None:
        return result
    if not result.committed.done():
        return RequestTimedOut("appended, but not on enough replicas within the request's timeout")
    if result.committed.cancelled():
        return RequestTimedOut("appended, but the broker stopped before it was on enough replicas")
    failure = result.committed.exception()
    if failure is None:
        return result
    return failure if isinstance(failure, LogError) else LogError(message_of(failure))


def encode(
    request: ProduceRequest, results: Results, version: int, correlation: int, hints: LeaderHints | None
) -> bytes:
    """The framed answer. `results` are the outcomes of `request.appends`."""
    return produce_answer(request, results, version, correlation, False) or run_steps(
        encoding(request, results, version, correlation, request.refused, hints)
    )


def encoding(
    request: ProduceRequest,
    results: Results,
    version: int,
    correlation: int,
    refused: Mapping[int, BaseException],
    hints: LeaderHints | None = None,
) -> Generator[None, None, bytes]:
    """The framed answer, in steps. `refused` has the errors by row, `results` the outcomes of all other rows."""
    flexible = version >= 9
    out = bytearray(array_size(len(request.topics), flexible))
    left = iter(results)
    row = 0
    for key, partitions in request.topics:
        out += key if version >= 13 else text(key, flexible)
        out += array_size(partitions, flexible)
        for index in request.indexes[row : row + partitions]:
            error = refused.get(row)
            result = next(left) if error is None else error
            out += _partition(key, index, result, version, hints)
            row += 1
            if not row % SLICE_ROWS:
                yield
        if flexible:
            out += b"\0"
        if not partitions:
            yield
    out += _NO_THROTTLE
    if not flexible:
        return _HEAD.pack(len(out) + 4, correlation) + out
    out += b"\0" if hints is None else hints.tags()
    return b"".join((_HEAD.pack(len(out) + 5, correlation), b"\0", out))


def _partition(
    key: bytes, index: int, result: Appended | BaseException, version: int, hints: LeaderHints | None
) -> bytes:
    if isinstance(result, Appended):
        if version >= 9:
            return _APPENDED_V9.pack(
                index, 0, result.base_offset, result.log_append_time_ms, result.log_start_offset, 1, 0, 0
            )
        row = (index, 0, result.base_offset, result.log_append_time_ms, result.log_start_offset)
        message = leader = None
    else:
        row = (index, code_of(result), -1, -1, result.log_start_offset if isinstance(result, LogError) else -1)
        message = message_of(result).encode()
        leader = None if hints is None else hints.of(result, key, index)
    if version < 5:
        return _PARTITION_V3.pack(*row[:4])
    packed = _PARTITION_V5.pack(*row)
    if version < 8:
        return packed
    flexible = version >= 9
    faults = _faults(result.faults if isinstance(result, _NAMING) else (), flexible)
    tags = b"" if not flexible else b"\0" if leader is None else b"\1" + tag(0, leader)
    return packed + faults + nullable_text(message, flexible) + tags


def _faults(faults: Sequence[RecordFault], flexible: bool) -> bytes:
    """Encodes the records at fault (KIP-467)."""
    out = [array_size(len(faults), flexible)]
    for index, message in faults:
        out += (_INDEX.pack(index), nullable_text(message.encode(), flexible), b"\0" if flexible else b"")
    return b"".join(out)
