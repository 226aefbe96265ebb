"""Fetch sessions (KIP-227): a consumer names its partitions once, then only what changes; so do the answers.

Pure: time and chance are arguments. Rules, and the order in which they are checked, are Kafka 4.2's (FetchSession.scala):
an epoch of 0 asks for a session and ends the one that it names, -1 asks for none; any other epoch must be the next one of
a session that exists. A request to a session is lost with its answer: whoever got none begins anew with epoch 0.

Bounds: `max.incremental.fetch.session.cache.slots` sessions, and PARTITIONS in all of them. When the slots are taken, a
session unused for EVICTION_MS goes first; else the smallest of those older than that, if the new one is larger.

Differences from Kafka: one cache instead of eight shards of it, no privileged sessions (followers do not fetch here), and
the bound on partitions, beyond which a session is not made, or ends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence

from grpc_api.contract.log import Fetched, FetchPartition
from kafka_gateway.errors import ErrorCode
from kafka_gateway.hot_parse import FORGOTTEN_A_REQUEST, FetchRequest
from storage_tiers.errors import UnknownTopicId, UnknownTopicOrPartition
from storage_tiers.steps import at_once
from storage_tiers.types import TopicId, TopicPartition

#: `max.incremental.fetch.session.cache.slots` where nothing is configured.
SLOTS = 1000
#: No session is evicted for a new one before it is so old. Kafka: MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS.
EVICTION_MS = 120_000
#: Cached in all sessions together; one takes about 400 bytes.
PARTITIONS = 250_000
#: In one session, which is gone through at each of its requests. A consumer of more names all of them each time.
PARTITIONS_A_SESSION = FORGOTTEN_A_REQUEST

#: Rows of one step of what is done in steps.
STEP = 64

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_MAX_INT32 = 0x7FFFFFFF
#: What Kafka answers for a partition that it does not know: an empty list of aborted transactions, not none.
_UNKNOWN = (UnknownTopicOrPartition, UnknownTopicId)

#: A topic as it stands in requests (name or id) and a partition.
Key = tuple[bytes, int]
NameOf = Callable[[TopicId], str | None]


class CachedPartition:
    """One partition of a request, or of a session: how it is read, and what was last told of it."""

    __slots__ = ("high_watermark", "index", "is_nameless", "key", "log_start", "wanted")

    def __init__(self, key: bytes, index: int, wanted: FetchPartition) -> None:
        self.key = key
        self.index = index
        self.high_watermark = -1
        self.log_start = -1
        self.take(wanted)

    def take(self, wanted: FetchPartition) -> None:
        """Is read like this from now on."""
        self.wanted = wanted
        #: Whether no topic had its id when it was last looked at.
        self.is_nameless = not wanted.partition.topic and wanted.topic_id is not None

    def find_name(self, name_of: NameOf) -> bool:
        topic_id = self.wanted.topic_id
        name = None if topic_id is None else name_of(topic_id)
        if name is None:
            return False
        self.take(self.wanted._replace(partition=TopicPartition(name, self.index)))
        return True

    def tell(self, part: Fetched) -> bool:
        """Whether an incremental answer must hold this; notes that it does."""
        error, high_watermark, _, log_start, slices, _, diverging = part
        if high_watermark == self.high_watermark and log_start == self.log_start:
            return error is not None or bool(slices) or diverging is not None
        # After an error the watermark differs from every real one, so that its end is told too.
        self.high_watermark = -1 if error is not None else high_watermark
        self.log_start = log_start
        return True


#: What stands in an answer: the partition and what was found of it.
Row = tuple[CachedPartition, Fetched]


class FetchSession:
    __slots__ = ("by_id", "counted", "created_ms", "epoch", "order", "places", "session_id", "used_ms")

    def __init__(self, session_id: int, *, by_id: bool, places: dict[Key, CachedPartition], now_ms: float) -> None:
        self.session_id = session_id
        self.by_id = by_id
        self.places = places
        self.epoch = next_epoch(INITIAL_EPOCH)
        self.created_ms = now_ms
        self.used_ms = now_ms
        #: Partitions as the cache has counted them.
        self.counted = len(places)
        #: The places in order; None once they have changed. A request that waits keeps the one that it began with.
        self.order: Sequence[CachedPartition] | None = None

    def update(self, request: FetchRequest) -> None:
        """Takes what the request adds and changes, then what it forgets."""
        if request.indexes:
            at_once(collecting(request, self.places))
            self.order = None
        for key in request.forgotten:
            if self.places.pop(key, None) is not None:
                self.order = None

    def in_order(self) -> Sequence[CachedPartition]:
        if self.order is None:
            self.order = tuple(self.places.values())
        return self.order

    def prune(self, rows: Sequence[Row]) -> list[Row]:
        """What of the rows must be told. Partitions with records go to the end, so that the others are read first."""
        told = []
        for row in rows:
            place, part = row
            if not place.tell(part):
                continue
            told.append(row)
            key = (place.key, place.index)
            if part.slices and self.places.get(key) is place:
                self.places[key] = self.places.pop(key)
                self.order = None
        return told


class FetchContext:
    """What one request reads, and how its answer is made. `session` is None for a request without one."""

    __slots__ = ("_by_id", "_cache", "_creates", "_epoch", "_session", "places")

    def __init__(
        self,
        cache: FetchSessionCache,
        places: Sequence[CachedPartition],
        *,
        session: FetchSession | None = None,
        creates: bool = False,
        by_id: bool = False,
    ) -> None:
        self.places = places
        self._cache = cache
        self._session = session
        self._epoch = session.epoch if session is not None else 0
        self._creates = creates
        self._by_id = by_id

    def answer(self, rows: Sequence[Row], now_ms: float) -> tuple[int, int, Sequence[Row]]:
        """(error, session id, what to tell) of the rows read for `places`."""
        if self._session is not None:
            if self._session.epoch != self._epoch:
                # The client has gone on in the meantime, on another connection.
                return ErrorCode.INVALID_FETCH_SESSION_EPOCH, self._session.session_id, ()
            return 0, self._session.session_id, self._session.prune(rows)
        if self._creates:
            return 0, self._cache.create(rows, by_id=self._by_id, now_ms=now_ms), rows
        return 0, NO_SESSION, rows


class FetchSessionCache:
    """`random_bytes(count)` gives the ids of sessions, which nobody should guess."""

    def __init__(
        self, random_bytes: Callable[[int], bytes], *, slots: int = SLOTS, most_partitions: int = PARTITIONS
    ) -> None:
        self._random_bytes = random_bytes
        self._slots = slots
        self._most_partitions = most_partitions
        #: The least recently used first.
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self.partitions = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self, request: FetchRequest, version: int, now_ms: float, places: Sequence[CachedPartition] | None = None
    ) -> FetchContext | int:
        """What the request reads; or the error code that answers it. `places` are the request's, if it has them already."""
        epoch = request.session_epoch
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if request.session_id != NO_SESSION:
                self._remove(self._sessions.get(request.session_id))
            creates = epoch == INITIAL_EPOCH and version >= 7
            read = _places(request) if places is None else places
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
        if not session.places:
            self._remove(session)
            return FetchContext(self, _places(request))
        self.partitions += len(session.places) - session.counted
        session.counted = len(session.places)
        if self.partitions > self._most_partitions or session.counted > PARTITIONS_A_SESSION:
            self._remove(session)
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        session.used_ms = now_ms
        self._sessions.move_to_end(session.session_id)
        session.epoch = next_epoch(epoch)
        return FetchContext(self, session.in_order(), session=session)

    def create(self, rows: Sequence[Row], *, by_id: bool, now_ms: float) -> int:
        """The id of a session of these partitions, of which this has been told; NO_SESSION where there is no room."""
        if self.partitions + len(rows) > self._most_partitions or len(rows) > PARTITIONS_A_SESSION:
            return NO_SESSION
        if len(self._sessions) >= self._slots and not self._evict_for(len(rows), now_ms):
            return NO_SESSION
        places: dict[Key, CachedPartition] = {}
        for place, part in rows:
            place.tell(part)
            places[place.key, place.index] = place
        session = FetchSession(self._new_id(), by_id=by_id, places=places, now_ms=now_ms)
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
            # Of equals the one that is there stays.
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
    """The answer in Kafka's order: what was read, then the partitions of unknown ids, then the unknown partitions."""
    rows: list[Row] = []
    unknown: list[Row] = []
    for at in range(0, len(readable), STEP):
        known, others = _sorted_out(readable[at : at + STEP], fetched[at : at + STEP])
        rows += known
        unknown += others
        yield
    for at in range(0, len(nameless), STEP):
        rows += [(place, _unknown_id(place.key)) for place in nameless[at : at + STEP]]
        yield
    return rows + unknown


def rows_of(
    readable: Sequence[CachedPartition], fetched: Sequence[Fetched], nameless: Sequence[CachedPartition]
) -> list[Row]:
    """The same at once."""
    if len(fetched) == 1 and fetched[0].error is None and not nameless:
        return [(readable[0], fetched[0])]
    rows, unknown = _sorted_out(readable, fetched)
    if not nameless and not unknown:
        return rows
    return rows + [(place, _unknown_id(place.key)) for place in nameless] + unknown


def _sorted_out(readable: Sequence[CachedPartition], fetched: Sequence[Fetched]) -> tuple[list[Row], list[Row]]:
    """Rows, without those of unknown partitions, and these."""
    rows = list(zip(readable, fetched, strict=True))
    if not any(part.error for part in fetched):
        return rows, []
    unknown = [(place, part._replace(aborted=())) for place, part in rows if isinstance(part.error, _UNKNOWN)]
    if unknown:
        rows = [row for row in rows if not isinstance(row[1].error, _UNKNOWN)]
    return rows, unknown


def without_name(places: Sequence[CachedPartition], name_of: NameOf) -> Sequence[CachedPartition]:
    """Those whose id still no topic has; the others know their names now."""
    return [place for place in places if place.is_nameless and not place.find_name(name_of)]


def _unknown_id(topic_id: bytes) -> Fetched:
    error = UnknownTopicId(f"no topic has the id {TopicId(topic_id)}; refresh the metadata")
    return Fetched(error, aborted=())


def _places(request: FetchRequest) -> Sequence[CachedPartition]:
    if len(request.indexes) == 1:
        return (CachedPartition(request.topics[0][0], request.indexes[0], request.partitions[0]),)
    return tuple(at_once(collecting(request, {})).values())


def collecting(
    request: FetchRequest, places: dict[Key, CachedPartition]
) -> Generator[None, None, dict[Key, CachedPartition]]:
    """Adds the request's partitions. Of one that stands twice the last counts, at the place of the first."""
    at = 0
    for key, count in request.topics:
        for place in range(at, at + count):
            index, wanted = request.indexes[place], request.partitions[place]
            known = places.get((key, index))
            if known is None:
                places[key, index] = CachedPartition(key, index, wanted)
            else:
                known.take(wanted)
            if not place % STEP:
                yield
        at += count
    return places
