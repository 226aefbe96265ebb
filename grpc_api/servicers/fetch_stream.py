"""One fetch stream: fetch, cut to whole batches, send, continue after the last batch sent.

Invariants: the next read starts only when HTTP/2's window has taken the last message, so a stream holds at most one
message, and none while it waits. Each partition's batches are sent once, whole and in order. A partition without room in a
message is the first in the next one. If a partition fails, the stream sends the others' records and then ends with that error.
"""

from __future__ import annotations

from grpc_api.contract.log import Fetch, Fetched, FetchPartition, Log
from grpc_api.messages.errors import clear_tracebacks
from grpc_api.proto import log_pb2 as pb
from grpc_api.servicers.calls import CallContext
from grpc_api.servicers.fetching import encoded, fetched, part_of, records_of, release, size_of
from storage_tiers.errors import InvalidRequest, LogError
from storage_tiers.records.batch_walk import scan_batches

#: The longest silence of a stream by default, and the shortest limit that a caller may choose, so that an idle stream does not
#: spin.
DEFAULT_SILENCE_MS = 10_000
LEAST_SILENCE_MS = 100

#: Idle partitions checked per second by all streams together, which costs a few hundredths of a processor. The more
#: partitions are followed, the longer a stream may be silent.
LOOKS_PER_SECOND = 10_000

Part = tuple[pb.FetchedPartition, bytes]
#: High watermark, last stable offset, log start offset.
_Bounds = tuple[int, int, int]


class _Follower:
    """The state of one stream. A partition's objects are replaced only when its offset or bounds change: waiting streams
    together may follow a hundred thousand partitions, and Python's collector visits every new object."""

    def __init__(self, fetch: Fetch) -> None:
        wait_ms = fetch.max_wait_ms or DEFAULT_SILENCE_MS
        if wait_ms < LEAST_SILENCE_MS:
            raise InvalidRequest(f"a stream waits at least {LEAST_SILENCE_MS} ms for records, not {wait_ms}")
        if not fetch.partitions:
            raise InvalidRequest("a stream reads at least one partition")
        if fetch.max_bytes < 1:
            raise InvalidRequest("a stream needs max_bytes: records that one message may hold, in bytes")
        self._fetch = fetch._replace(partitions=(), max_wait_ms=wait_ms, min_bytes=max(1, fetch.min_bytes))
        #: By index in the request; `_order` lists these indexes for the next read.
        self._wanted: list[FetchPartition] = list(fetch.partitions)
        self._answered: list[_Bounds | None] = [None] * len(fetch.partitions)
        self._order: list[int] = list(range(len(fetch.partitions)))
        self._is_new = True

    def next_fetch(self, followed: int) -> Fetch:
        """The next read; `followed` counts the partitions that all streams follow."""
        # The first answer comes at once and carries each partition's bounds.
        wait_ms = 0 if self._is_new else max(self._fetch.max_wait_ms, followed * 1000 // LOOKS_PER_SECOND)
        return self._fetch._replace(max_wait_ms=wait_ms, partitions=[self._wanted[index] for index in self._order])

    async def parts(self, answers: list[Fetched]) -> tuple[list[Part], LogError | None]:
        """The parts to send for these answers, and the first error among them; advances every partition."""
        parts: list[Part] = []
        failure: LogError | None = None
        served: list[int] = []
        for index, answer in zip(self._order, answers, strict=True):
            if answer.error is not None:
                failure = failure or answer.error
                continue
            bounds = (answer.high_watermark, answer.last_stable_offset, answer.log_start_offset)
            records = b""
            if answer.slices:
                wanted = self._wanted[index]
                records, following = whole_batches(await records_of(answer), wanted.offset)
                if records:
                    self._wanted[index] = wanted._replace(offset=following)
                    served.append(index)
            is_answered = self._answered[index] == bounds
            if records or answer.diverging or not is_answered:
                parts.append((part_of(index, answer), records))
            if not is_answered:
                self._answered[index] = bounds
        self._is_new = False
        if served:
            last = set(served)
            self._order = [index for index in self._order if index not in last] + served
        return parts, failure


async def follow(log: Log, fetch: Fetch, context: CallContext) -> None:
    """Runs until it is cancelled or a partition fails. Raises that partition's LogError."""
    follower, rows = _Follower(fetch), len(fetch.partitions)
    while True:
        # Hundreds of streams may start or wake at a time.
        async with context.bounds.turn(0, rows):
            wanted = follower.next_fetch(context.bounds.followed)
        async with fetched(log, wanted, context) as answers:
            async with context.bounds.turn(size_of(answers), rows):
                parts, failure = await follower.parts(answers)
                data = encoded(parts)
            has_parts = bool(parts)
            del parts
            release(answers)  # the caller may read slowly
            if failure is None or has_parts:
                await context.write_counted(data)
            del data  # sent, and no longer counted
        if failure is not None:
            clear_tracebacks(failure)
            raise failure


def whole_batches(records: bytes, offset: int) -> tuple[bytes, int]:
    """The whole batches at the front of `records`, and the offset after them."""
    if not records:
        return records, offset
    found, stopped, _ = scan_batches(records, 0, len(records))
    if not found:
        return b"", offset
    return records if stopped == len(records) else records[:stopped], max(offset, found[-1][3])
