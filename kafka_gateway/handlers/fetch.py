"""Fetch, key 1, versions 4 to 18: reads records from an offset onwards.

v7 has sessions (KIP-227, `fetch_sessions.py`), v12 is flexible, v13 names topics by id. The core waits for `min_bytes`. An
answer alternates header bytes and file slices; records never pass through Python. As in Kafka, partitions that do not exist
come last in an answer, and a partition that is requested twice appears once.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import Counter
from collections.abc import Generator, Sequence
from itertools import groupby

from grpc_api.contract.core import Core
from grpc_api.contract.log import ISOLATIONS, Fetch, Fetched
from grpc_api.contract.ready import settled
from kafka_gateway.answer_primitives import array_size, bytes_size, text, varint
from kafka_gateway.connection import Piece
from kafka_gateway.errors import code_of
from kafka_gateway.fetch_sessions import (
    STEP,
    CachedPartition,
    FetchContext,
    FetchSessionCache,
    Row,
    arranging,
    collecting,
    rows_of,
    without_name,
)
from kafka_gateway.hot_parse import FetchReading, FetchRequest, HotParser
from kafka_gateway.leader_hints import FETCH_FROM, LeaderHints, tag
from kafka_gateway.options import Options
from kafka_gateway.reply import DelayedReply, Reply
from storage_tiers import events
from storage_tiers.errors import InvalidRequest, LogError, NotLeader
from storage_tiers.steps import freeing
from storage_tiers.turns import Turn
from storage_tiers.types import AbortedTransaction

logger = logging.getLogger(__name__)

_HEAD = struct.Struct(">ii")
_THROTTLE_ERROR_SESSION = struct.Struct(">ihi")
_PARTITION_V4 = struct.Struct(">ihqq")
_PARTITION_V5 = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_DIVERGING = struct.Struct(">iq")
_NO_THROTTLE = b"\0\0\0\0"
_NO_PREFERRED_REPLICA = b"\xff\xff\xff\xff"
#: No list of aborted transactions, no preferred replica, no records.
_NOTHING_V12 = b"\0" + _NO_PREFERRED_REPLICA + b"\1"


#: A request of more bytes, or a session of more partitions, is processed in slices.
LARGE_BYTES = 16 << 10
MANY = 500


class FetchHandler:
    """Serves Fetch on all connections. `errors` counts the error codes of partitions and of whole answers."""

    def __init__(self, core: Core, options: Options) -> None:
        self._fetch = core.log.fetch
        self._core = core
        self._name_of = core.log.topic_name
        self._parser = HotParser(core.log.topic_name)
        self._clock = options.clock
        self._scheduler = options.scheduler
        self._request_context = options.request_context
        self.errors: Counter[int] = Counter()
        self.sessions = FetchSessionCache(options.rng.token, slots=options.settings.fetch_session_slots)

    def handle(self, data: bytearray, view: memoryview, start: int, end: int, version: int, correlation: int) -> Reply:
        listener = self._request_context.client.listener
        if end - start > LARGE_BYTES:
            turn = self._scheduler.turn(self._request_context.client.is_there)
            return self._read_on(bytearray(view[start:end]), version, correlation, listener, turn)
        request = self._parser.fetch(data, start, end, version)
        if request.replica_id >= 0:
            return self._not_a_follower(request, version, correlation)
        context = self.sessions.begin(request, version, self._now_ms())
        if not isinstance(context, FetchContext):
            self.errors[context] += 1
            return encode((), version, correlation, error=context)
        if len(context.partitions) > MANY:
            turn = self._scheduler.turn(self._request_context.client.is_there)
            return self._go_on(context, request, version, correlation, listener, turn)
        readable, nameless = (
            context.partitions,
            without_name(context.partitions, self._name_of) if version >= 13 else (),
        )
        if nameless:
            readable = [cached for cached in readable if not cached.is_nameless]

        def finish(fetched: Sequence[Fetched]) -> Sequence[Piece]:
            rows = rows_of(readable, fetched, nameless)
            code, session_id, answered = context.answer(rows, self._now_ms())
            if code:
                self.errors[code] += 1
                _release(fetched)
            hints = None
            if nameless or any(part.error for part in fetched):
                self._count(answered)
                hints = self._hints(version, listener)
            return encode(answered, version, correlation, error=code, session_id=session_id, hints=hints)

        if not readable:
            return finish(())
        isolation = ISOLATIONS.get(request.isolation)
        if isolation is None:
            wrong = InvalidRequest(
                f"isolation {request.isolation} does not exist; it must be 0 (uncommitted) or 1 (committed)"
            )
            return self._refuse(request, version, correlation, wrong)
        wanted = [cached.wanted for cached in readable]
        try:
            ready = self._fetch(Fetch(wanted, request.max_wait_ms, request.min_bytes, request.max_bytes, isolation))
        except Exception as error:  # noqa: BLE001 - every request gets an answer
            return self._refuse(request, version, correlation, error)
        if isinstance(ready, asyncio.Future):
            return DelayedReply(ready, finish, lambda error: self._refuse(request, version, correlation, error))
        return finish(ready)

    def _finishing(
        self,
        context: FetchContext,
        readable: Sequence[CachedPartition],
        nameless: Sequence[CachedPartition],
        fetched: Sequence[Fetched],
        version: int,
        correlation: int,
        listener: str,
    ) -> Generator[None, None, Sequence[Piece]]:
        """Makes the answer in steps. Takes ownership of all file slices."""
        rows = yield from arranging(readable, fetched, nameless)
        code, session_id, answered = context.answer(rows, self._now_ms())
        if code:
            self.errors[code] += 1
            _release(fetched)
        for at in range(0, len(answered), STEP):
            self._count(answered[at : at + STEP])
            yield
        hints = self._hints(version, listener)
        answer = yield from encoding(answered, version, correlation, error=code, session_id=session_id, hints=hints)
        del answered
        yield from freeing(rows)
        return answer

    # --- requests for many partitions, in slices ----------------------------------------------------------------------
    async def _read_on(
        self, data: bytearray, version: int, correlation: int, listener: str, turn: Turn
    ) -> Sequence[Piece]:
        try:
            reading = FetchReading()
            reading.begin(self._parser, data, 0, len(data), version)
            while not reading.step(STEP):
                await turn.rest_if_over()
            request = reading.request
            if request.replica_id >= 0:
                return self._not_a_follower(request, version, correlation)
            collected = await turn.through(collecting(request, {}))
            partitions = list(collected.values())
            del collected
            await turn.rest_if_over()
            context = self.sessions.begin(request, version, self._now_ms(), partitions)
            if not isinstance(context, FetchContext):
                self.errors[context] += 1
                return encode((), version, correlation, error=context)
            pieces = await self._go_on(context, request, version, correlation, listener, turn)
            for rows in (request.indexes, request.topics, request.partitions, partitions):
                await turn.through(freeing(rows))
            return pieces
        finally:
            turn.leave()

    async def _go_on(
        self, context: FetchContext, request: FetchRequest, version: int, correlation: int, listener: str, turn: Turn
    ) -> Sequence[Piece]:
        fetched: Sequence[Fetched] = ()
        try:
            readable, nameless = context.partitions, list[CachedPartition]()
            if version >= 13:
                for at in range(0, len(readable), STEP):
                    nameless += without_name(readable[at : at + STEP], self._name_of)
                    await turn.rest_if_over()
                if nameless:
                    readable = [cached for cached in readable if not cached.is_nameless]
            isolation = ISOLATIONS.get(request.isolation)
            if readable and isolation is None:
                wrong = InvalidRequest(
                    f"isolation {request.isolation} does not exist; it must be 0 (uncommitted) or 1 (committed)"
                )
                return self._refuse(request, version, correlation, wrong)
            if readable and isolation is not None:
                # Other requests use the event loop during the wait.
                turn.leave()
                wanted = [cached.wanted for cached in readable]
                asked = Fetch(wanted, request.max_wait_ms, request.min_bytes, request.max_bytes, isolation)
                fetched = await settled(self._fetch(asked))
            answering = self._finishing(context, readable, nameless, fetched, version, correlation, listener)
            pieces = await turn.through(answering)
            if isinstance(fetched, list):
                await turn.through(freeing(fetched))
            fetched = ()
            return pieces
        except Exception as error:  # noqa: BLE001 - every request gets an answer
            return self._refuse(request, version, correlation, error)
        finally:
            _release(fetched)
            turn.leave()

    def _refuse(self, request: FetchRequest, version: int, correlation: int, error: BaseException) -> Sequence[Piece]:
        self.errors[code_of(error)] += 1 if version >= 13 else 1 + len(request.indexes)
        return refuse(request, version, correlation, error)

    def _not_a_follower(self, request: FetchRequest, version: int, correlation: int) -> Sequence[Piece]:
        """Refuses a replica's fetch: this broker has no followers. As in Kafka, the answer names the leader but not its
        address."""
        error = NotLeader(f"replica {request.replica_id} is not one of this partition's followers")
        self.errors[code_of(error)] += len(request.indexes)
        return encode(_failed(request, error), version, correlation, hints=self._hints(version, None))

    def _now_ms(self) -> float:
        return self._clock.monotonic() * 1000

    def _count(self, answered: Sequence[Row]) -> None:
        for _, part in answered:
            if part.error is not None:
                self.errors[code_of(part.error)] += 1

    def _hints(self, version: int, listener: str | None) -> LeaderHints | None:
        return LeaderHints(self._core, listener, version) if version >= FETCH_FROM else None


def _release(fetched: Sequence[Fetched]) -> None:
    for part in fetched:
        part.release_all()


def _failed(
    request: FetchRequest, error: LogError, aborted: Sequence[AbortedTransaction] | None = None
) -> Sequence[Row]:
    wanted = iter(zip(request.indexes, request.partitions, strict=True))
    return [
        (CachedPartition(key, *next(wanted)), Fetched(error, aborted=aborted))
        for key, partitions in request.topics
        for _ in range(partitions)
    ]


def refuse(request: FetchRequest, version: int, correlation: int, error: BaseException) -> Sequence[Piece]:
    """Answers one error for the whole request. Below version 13, as in Kafka, every named partition also gets the error."""
    if not isinstance(error, LogError):
        events.error(logger, "request.defect", server="kafka", api="Fetch", version=version, defect=error)
    failed = error if isinstance(error, LogError) else LogError("unexpected")
    rows = _failed(request, failed, aborted=()) if version < 13 else ()
    return encode(rows, version, correlation, error=code_of(error), session_id=request.session_id)


def encode(
    rows: Sequence[Row],
    version: int,
    correlation: int,
    *,
    error: int = 0,
    session_id: int = 0,
    hints: LeaderHints | None = None,
) -> Sequence[Piece]:
    """The framed answer; adjacent partitions of one topic share its header. Takes ownership of all file slices."""
    if len(rows) == 1 and hints is None:
        return _one(rows[0], _begin(version, error, session_id), version, correlation)
    flexible = version >= 12
    pieces: list[Piece] = []
    topics = _topics(rows)
    head = [_begin(version, error, session_id), array_size(len(topics), flexible)]
    at = size = 0
    for key, partitions in topics:
        head.append(key if version >= 13 else text(key, flexible))
        head.append(array_size(partitions, flexible))
        size += _add(head, pieces, rows[at : at + partitions], version, hints)
        at += partitions
        if flexible:
            head.append(b"\0")
    return _framed(head, pieces, size, version, correlation, hints)


def _one(row: Row, begin: bytes, version: int, correlation: int) -> Sequence[Piece]:
    """Does the same as `encode` for one partition, as in most fetches."""
    cached, part = row
    if version >= 12:
        key = cached.key if version >= 13 else text(cached.key, True)
        front = b"".join((b"\0", begin, b"\2", key, b"\2", _partition(cached.index, part, version)))
        tail = b"\0\0\0" if part.diverging is None else _partition_tags(cached, part, None) + b"\0\0"
    else:
        key = text(cached.key, False)
        front = b"".join((begin, b"\0\0\0\1", key, b"\0\0\0\1", _partition(cached.index, part, version)))
        tail = b""
    if not part.slices:
        return (_HEAD.pack(len(front) + len(tail) + 4, correlation) + front + tail,)
    front = _HEAD.pack(len(front) + part.size + len(tail) + 4, correlation) + front
    return (front, *part.slices, tail) if tail else (front, *part.slices)


def encoding(
    rows: Sequence[Row],
    version: int,
    correlation: int,
    *,
    error: int = 0,
    session_id: int = 0,
    hints: LeaderHints | None = None,
) -> Generator[None, None, Sequence[Piece]]:
    """Does the same as `encode`, in steps."""
    flexible = version >= 12
    pieces: list[Piece] = []
    topics = yield from _grouping(rows)
    head = [_begin(version, error, session_id), array_size(len(topics), flexible)]
    first = size = 0
    for key, partitions in topics:
        head.append(key if version >= 13 else text(key, flexible))
        head.append(array_size(partitions, flexible))
        for at in range(first, first + partitions, STEP):
            size += _add(head, pieces, rows[at : min(at + STEP, first + partitions)], version, hints)
            yield
        first += partitions
        if flexible:
            head.append(b"\0")
    return _framed(head, pieces, size, version, correlation, hints)


def _begin(version: int, error: int, session_id: int) -> bytes:
    return _THROTTLE_ERROR_SESSION.pack(0, error, session_id) if version >= 7 else _NO_THROTTLE


def _add(head: list[bytes], pieces: list[Piece], rows: Sequence[Row], version: int, hints: LeaderHints | None) -> int:
    """Adds rows of one topic. `head` has the bytes after the last file slice. Returns the size of the added `pieces`."""
    flexible, size = version >= 12, 0
    for cached, part in rows:
        head.append(_partition(cached.index, part, version))
        if part.slices:
            gathered = b"".join(head)
            head.clear()
            pieces.append(gathered)
            pieces.extend(part.slices)
            size += len(gathered) + part.size
        if flexible:
            head.append(_partition_tags(cached, part, hints))
    return size


def _framed(
    head: list[bytes], pieces: list[Piece], size: int, version: int, correlation: int, hints: LeaderHints | None
) -> Sequence[Piece]:
    flexible = version >= 12
    if flexible:
        head.append(b"\0" if hints is None else hints.tags())
    if head:
        gathered = b"".join(head)
        pieces.append(gathered)
        size += len(gathered)
    prefix = _HEAD.pack(size + 5, correlation) + b"\0" if flexible else _HEAD.pack(size + 4, correlation)
    first = pieces[0]
    assert isinstance(first, bytes)
    pieces[0] = prefix + first
    return pieces


def _topics(rows: Sequence[Row]) -> list[tuple[bytes, int]]:
    """Groups adjacent rows of a topic: (topic key, number of rows)."""
    return [(key, sum(1 for _ in group)) for key, group in groupby(rows, _key_of)]


def _grouping(rows: Sequence[Row]) -> Generator[None, None, list[tuple[bytes, int]]]:
    """Does the same as `_topics`, in steps."""
    topics: list[tuple[bytes, int]] = []
    for at in range(0, len(rows), STEP):
        some = _topics(rows[at : at + STEP])
        if topics and some[0][0] == topics[-1][0]:
            key, partitions = topics.pop()
            some[0] = key, partitions + some[0][1]
        topics += some
        yield
    return topics


def _key_of(row: Row) -> bytes:
    return row[0].key


def _partition(index: int, part: Fetched, version: int) -> bytes:
    """Encodes a partition's fields up to the size of the records."""
    flexible = version >= 12
    if flexible and not part.slices and part.aborted is None:
        # The fast path: when a consumer reads many partitions, most are empty.
        error, high_watermark, stable, log_start = part[:4]
        code = 0 if error is None else code_of(error)
        return _PARTITION_V5.pack(index, code, high_watermark, stable, log_start) + _NOTHING_V12
    code = code_of(part.error)
    if version >= 5:
        row = _PARTITION_V5.pack(index, code, part.high_watermark, part.last_stable_offset, part.log_start_offset)
    else:
        row = _PARTITION_V4.pack(index, code, part.high_watermark, part.last_stable_offset)
    if part.aborted is None:
        aborted = array_size(-1, flexible)
    else:
        tags = b"\0" if flexible else b""
        aborted = array_size(len(part.aborted), flexible) + b"".join(
            _ABORTED.pack(entry.producer_id, entry.first_offset) + tags for entry in part.aborted
        )
    preferred = _NO_PREFERRED_REPLICA if version >= 11 else b""
    return row + aborted + preferred + bytes_size(part.size, flexible)


def _partition_tags(cached: CachedPartition, part: Fetched, hints: LeaderHints | None) -> bytes:
    """Encodes the tags after the records: the diverging epoch (KIP-595) as tag 0, the leader and its epoch (KIP-951) as tag
    1."""
    leader = None if hints is None else hints.of(part.error, cached.key, cached.index)
    if part.diverging is None and leader is None:
        return b"\0"
    tags = []
    if part.diverging is not None:
        tags.append(tag(0, _DIVERGING.pack(*part.diverging) + b"\0"))
    if leader is not None:
        tags.append(tag(1, leader))
    return varint(len(tags)) + b"".join(tags)
