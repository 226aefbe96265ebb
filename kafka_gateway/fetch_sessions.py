"""Fetch sessions (KIP-227): a consumer names its partitions once. Later requests and answers contain only changes.

Pure: time and random numbers are arguments. The rules and the order of checks are Kafka 4.2's (FetchSession.scala). Epoch 0
ends the named session and starts a new one. Epoch -1 ends the named session and starts none. Any other epoch must be the next
one of an existing session. A client that misses an answer must start a new session with epoch 0.

Bounds: `max.incremental.fetch.session.cache.slots` sessions, and PARTITIONS in all of them. When all slots are taken, a session
unused for EVICTION_MS is evicted. Otherwise the smallest session that was in use for longer than EVICTION_MS is evicted if the
new session is larger.

Differences from Kafka: there is one cache instead of eight shards, and there are no privileged sessions (followers do not fetch
here). Beyond the bound on partitions no session is created, and a session that grows beyond it ends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence

from grpc_api.contract.log import Fetched, FetchPartition
from kafka_gateway.errors import ErrorCode
from kafka_gateway.hot_parse import FORGOTTEN_A_REQUEST, FetchRequest
from storage_tiers.errors import UnknownTopicId, UnknownTopicOrPartition
from storage_tiers.steps import run_steps
from storage_tiers.types import TopicId, TopicPartition

#: `max.incremental.fetch.session.cache.slots` by default.
SLOTS = 1000
#: A new session may evict a session that was unused for longer than this, or a smaller one that was in use for longer than
#: this. Kafka: MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS.
EVICTION_MS = 120_000
#: Most partitions in all sessions together. Each takes about 400 bytes.
PARTITIONS = 250_000
#: Most partitions in one session, because each request iterates over them. A consumer of more partitions sends full fetches.
PARTITIONS_A_SESSION = FORGOTTEN_A_REQUEST

#: Rows processed in one step.
STEP = 64

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_MAX_INT32 = 0x7FFFFFFF
#: For unknown partitions Kafka answers with an empty list of aborted transactions, not null.
_UNKNOWN = (UnknownTopicOrPartition, UnknownTopicId)

#: A topic as in requests (name or id), and a partition.
Key = tuple[bytes, int]
NameOf = Callable[[TopicId], str | None]


class CachedPartition:
    """A partition of a request or session: its read position and limits, and the offsets in the last answer about it."""

    __slots__ = ("high_watermark", "index", "is_nameless", "key", "log_start", "wanted")

    def __init__(self, key: bytes, index: int, wanted: FetchPartition) -> None:
        self.key = key
        self.index = index
        self.high_watermark = -1
        self.log_start = -1
        self.take(wanted)

    def take(self, wanted: FetchPartition) -> None:
        """Replaces the read position and limits."""
        self.wanted = wanted
        #: Whether the partition has only a topic id, for which no name has been found yet.
        self.is_nameless = not wanted.partition.topic and wanted.topic_id is not None

    def find_name(self, name_of: NameOf) -> bool:
        topic_id = self.wanted.topic_id
        name = None if topic_id is None else name_of(topic_id)
        if name is None:
            return False
        self.take(self.wanted._replace(partition=TopicPartition(name, self.index)))
        return True

    def record_answer(self, part: Fetched) -> bool:
        """Remembers the answered offsets of `part`. Returns False if an incremental answer can omit the partition."""
        error, high_watermark, _, log_start, slices, _, diverging = part
        if high_watermark == self.high_watermark and log_start == self.log_start:
            return error is not None or bool(slices) or diverging is not None
        # After an error, -1 differs from every real watermark, so that the next answer contains the partition.
        self.high_watermark = -1 if error is not None else high_watermark
        self.log_start = log_start
        return True


#: A row of an answer: the partition and its data.
Row = tuple[CachedPartition, Fetched]


class FetchSession:
    """One consumer's partitions, in the order in which they are read. `epoch` is the epoch of the next request; `created_ms`
    and `used_ms` are in ms of the cache's clock."""

    __slots__ = ("by_id", "counted", "created_ms", "epoch", "order", "partitions", "session_id", "used_ms")

    def __init__(self, session_id: int, *, by_id: bool, partitions: dict[Key, CachedPartition], now_ms: float) -> None:
        self.session_id = session_id
        self.by_id = by_id
        self.partitions = partitions
        self.epoch = next_epoch(INITIAL_EPOCH)
        self.created_ms = now_ms
        self.used_ms = now_ms
        #: The number of partitions that the cache counts for this session.
        self.counted = len(partitions)
        #: The partitions in order; None after they have changed. A delayed request keeps the order that it began with.
        self.order: Sequence[CachedPartition] | None = None

    def update(self, request: FetchRequest) -> None:
        """Applies the request: added and changed partitions, then forgotten ones."""
        if request.indexes:
            run_steps(collecting(request, self.partitions))
            self.order = None
        for key in request.forgotten:
            if self.partitions.pop(key, None) is not None:
                self.order = None

    def in_order(self) -> Sequence[CachedPartition]:
        if self.order is None:
            self.order = tuple(self.partitions.values())
        return self.order

    def prune(self, rows: Sequence[Row]) -> list[Row]:
        """Returns the rows that the answer must contain. Moves partitions with records to the end, so that the others are read
        first next time."""
        changed = []
        for row in rows:
            cached, part = row
            if not cached.record_answer(part):
                continue
            changed.append(row)
            key = (cached.key, cached.index)
            if part.slices and self.partitions.get(key) is cached:
                self.partitions[key] = self.partitions.pop(key)
                self.order = None
        return changed


class FetchContext:
    """The partitions that one request reads, and its session if it has one."""

    __slots__ = ("_by_id", "_cache", "_creates", "_epoch", "_session", "partitions")

    def __init__(
        self,
        cache: FetchSessionCache,
        partitions: Sequence[CachedPartition],
        *,
        session: FetchSession | None = None,
        creates: bool = False,
        by_id: bool = False,
    ) -> None:
        self.partitions = partitions
        self._cache = cache
        self._session = session
        self._epoch = session.epoch if session is not None else 0
        self._creates = creates
        self._by_id = by_id

    def answer(self, rows: Sequence[Row], now_ms: float) -> tuple[int, int, Sequence[Row]]:
        """Returns the answer's error code, session id and rows. `rows` are those that were read for `partitions`."""
        if self._session is not None:
            if self._session.epoch != self._epoch:
                # Meanwhile the client has sent its next request on another connection.
                return ErrorCode.INVALID_FETCH_SESSION_EPOCH, self._session.session_id, ()
            return 0, self._session.session_id, self._session.prune(rows)
        if self._creates:
            return 0, self._cache.create(rows, by_id=self._by_id, now_ms=now_ms), rows
        return 0, NO_SESSION, rows


class FetchSessionCache:
    """The fetch sessions of all connections. `random_bytes(count)` makes session ids, which must be hard to guess."""

    def __init__(
        self, random_bytes: Callable[[int], bytes], *, slots: int = SLOTS, most_partitions: int = PARTITIONS
    ) -> None:
        self._random_bytes = random_bytes
        self._slots = slots
        self._most_partitions = most_partitions
        #: The sessions by id, the least recently used first.
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self.partitions = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        request: FetchRequest,
        version: int,
        now_ms: float,
        partitions: Sequence[CachedPartition] | None = None,
    ) -> FetchContext | int:
        """Returns the partitions to read, or the error code of the answer. `partitions` are the request's, if already
        collected."""
        epoch = request.session_epoch
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if request.session_id != NO_SESSION:
                self._remove(self._sessions.get(request.session_id))
            creates = epoch == INITIAL_EPOCH and version >= 7
            read = _partitions_of(request) if partitions is None else partitions
            return FetchContext(self, read, creates=creates, by_id=version >= 13)
        session = self._sessions.get(request.session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.by_id != (version >= 13):
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        if len(request.indexes) > PARTITIONS_A_SESSION:
            self._remove(session)
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        session.update(request)
        if not session.partitions:
            self._remove(session)
            return FetchContext(self, _partitions_of(request))
        self.partitions += len(session.partitions) - session.counted
        session.counted = len(session.partitions)
        if self.partitions > self._most_partitions or session.counted > PARTITIONS_A_SESSION:
            self._remove(session)
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        session.used_ms = now_ms
        self._sessions.move_to_end(session.session_id)
        session.epoch = next_epoch(epoch)
        return FetchContext(self, session.in_order(), session=session)

    def create(self, rows: Sequence[Row], *, by_id: bool, now_ms: float) -> int:
        """Creates a session from the rows of the answer. Returns its id, or NO_SESSION if there is no room."""
        if self.partitions + len(rows) > self._most_partitions or len(rows) > PARTITIONS_A_SESSION:
            return NO_SESSION
        if len(self._sessions) >= self._slots and not self._evict_for(len(rows), now_ms):
            return NO_SESSION
        partitions: dict[Key, CachedPartition] = {}
        for cached, part in rows:
            cached.record_answer(part)
            partitions[cached.key, cached.index] = cached
        session = FetchSession(self._new_id(), by_id=by_id, partitions=partitions, now_ms=now_ms)
        self._sessions[session.session_id] = session
        self.partitions += session.counted
        return session.session_id

    def _evict_for(self, size: int, now_ms: float) -> bool:
        if not self._sessions:
            return False
        stalest = next(iter(self._sessions.values()))
        if now_ms - stalest.used_ms > EVICTION_MS:
            victim = stalest
        else:
            old = (each for each in self._sessions.values() if each.used_ms - each.created_ms > EVICTION_MS)
            smallest = min(old, key=lambda each: (each.counted, each.session_id), default=None)
            # Among sessions of equal size the existing one stays.
            if smallest is None or size <= smallest.counted:
                return False
            victim = smallest
        self._remove(victim)
        self.evictions += 1
        return True

    def _remove(self, session: FetchSession | None) -> None:
        if session is not None and self._sessions.pop(session.session_id, None) is not None:
            self.partitions -= session.counted

    def _new_id(self) -> int:
        while True:
            session_id = int.from_bytes(self._random_bytes(4), "big") & _MAX_INT32
            if session_id != NO_SESSION and session_id not in self._sessions:
                return session_id


def next_epoch(epoch: int) -> int:
    return 1 if epoch == _MAX_INT32 else epoch + 1


def arranging(
    readable: Sequence[CachedPartition], fetched: Sequence[Fetched], nameless: Sequence[CachedPartition]
) -> Generator[None, None, list[Row]]:
    """Arranges the rows in steps, in Kafka's order: partitions read, partitions of unknown topic ids, unknown partitions."""
    rows: list[Row] = []
    unknown: list[Row] = []
    for at in range(0, len(readable), STEP):
        known, others = _sorted_out(readable[at : at + STEP], fetched[at : at + STEP])
        rows += known
        unknown += others
        yield
    for at in range(0, len(nameless), STEP):
        rows += [(cached, _unknown_id(cached.key)) for cached in nameless[at : at + STEP]]
        yield
    return rows + unknown


def rows_of(
    readable: Sequence[CachedPartition], fetched: Sequence[Fetched], nameless: Sequence[CachedPartition]
) -> list[Row]:
    """Does the same as `arranging`, at once."""
    if len(fetched) == 1 and fetched[0].error is None and not nameless:
        return [(readable[0], fetched[0])]
    rows, unknown = _sorted_out(readable, fetched)
    if not nameless and not unknown:
        return rows
    return rows + [(cached, _unknown_id(cached.key)) for cached in nameless] + unknown


def _sorted_out(readable: Sequence[CachedPartition], fetched: Sequence[Fetched]) -> tuple[list[Row], list[Row]]:
    """Returns the rows of known partitions, and the rows of unknown ones."""
    rows = list(zip(readable, fetched, strict=True))
    if not any(part.error for part in fetched):
        return rows, []
    unknown = [(cached, part._replace(aborted=())) for cached, part in rows if isinstance(part.error, _UNKNOWN)]
    if unknown:
        rows = [row for row in rows if not isinstance(row[1].error, _UNKNOWN)]
    return rows, unknown


def without_name(partitions: Sequence[CachedPartition], name_of: NameOf) -> Sequence[CachedPartition]:
    """Looks up missing topic names. Returns the partitions whose topic id is still unknown."""
    return [cached for cached in partitions if cached.is_nameless and not cached.find_name(name_of)]


def _unknown_id(topic_id: bytes) -> Fetched:
    error = UnknownTopicId(f"no topic has the id {TopicId(topic_id)}; refresh the metadata")
    return Fetched(error, aborted=())


def _partitions_of(request: FetchRequest) -> Sequence[CachedPartition]:
    if len(request.indexes) == 1:
        return (CachedPartition(request.topics[0][0], request.indexes[0], request.partitions[0]),)
    return tuple(run_steps(collecting(request, {})).values())


def collecting(
    request: FetchRequest, partitions: dict[Key, CachedPartition]
) -> Generator[None, None, dict[Key, CachedPartition]]:
    """Adds the request's partitions to `partitions`. A duplicate replaces the earlier one in its position."""
    at = 0
    for key, count in request.topics:
        for row in range(at, at + count):
            index, wanted = request.indexes[row], request.partitions[row]
            known = partitions.get((key, index))
            if known is None:
                partitions[key, index] = CachedPartition(key, index, wanted)
            else:
                known.take(wanted)
            if not row % STEP:
                yield
        at += count
    return partitions
