"""Answers fetches: at once if enough data is available, else when a partition advances, a chunk arrives, or the wait time ends.

A waiting fetch holds no task: it is a future, a timer, and a callback in the partitions it watches. Each attempt reads all
partitions again, so an answer is one consistent pass. Uncached cold data is fetched in the background and never delays the hot
partitions of the same request; the background fetch outlives its request. If it fails, the partitions that waited for it
answer with the error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from grpc_api.contract.log import Fetch, Fetched, FetchPartition, Isolation
from grpc_api.contract.ready import Ready
from service.broker.fetching.fetch_rechecks import FetchRechecks
from service.broker.partition.partition import Partition
from storage_tiers.cold.read.reader import ColdMiss
from storage_tiers.errors import InconsistentTopicId, LogError, OffsetOutOfRange, StorageError, as_value
from storage_tiers.types import AbortedTransaction, TopicPartition

#: Finds a partition, or raises the LogError to answer.
Locate = Callable[[TopicPartition], Partition]

_NONE: Mapping[int, LogError] = {}

#: Partitions of one fetch that are read from the bucket at a time, in request order. Their manifests and chunks fit into the
#: caches beside those of other fetches. With thousands of partitions, the first would be evicted before the last arrive, on
#: every attempt.
MAX_MISSES = 128


class BytesRead:
    """Bytes of record batches in answers to fetches since the start, by tier: `hot` from local segments, `cold` from the
    bucket, through the chunk cache. `asked` counts requested partitions, `failed` those answered with an error. Attempts
    without an answer do not count."""

    __slots__ = ("asked", "cold", "failed", "hot")

    def __init__(self) -> None:
        self.hot = 0
        self.cold = 0
        self.asked = 0
        self.failed = 0


class Attempt:
    """One pass over all partitions of a fetch. `size` is in bytes, `cold_size` its part from the bucket; `misses` carry the
    index of their partition in the fetch; `given` holds the bytes from each partition, and whether they came from the
    bucket; `refused` are existing partitions answered with an error."""

    __slots__ = ("answers", "cold_size", "failed", "given", "misses", "ready", "refused", "size")

    def __init__(self) -> None:
        self.answers: list[Fetched] = []
        self.misses: list[tuple[int, ColdMiss]] = []
        self.size = 0
        self.cold_size = 0
        self.failed = 0
        self.given: list[tuple[Partition, int, bool]] = []
        self.refused: list[Partition] = []
        #: Whether to answer at once: for an error, a diverging epoch, or a reader behind the newest segment.
        self.ready = False

    def count(self, read: BytesRead) -> None:
        """Adds this attempt to the totals, because it is the answer."""
        read.hot += self.size - self.cold_size
        read.cold += self.cold_size
        read.failed += self.failed
        for partition, size, cold in self.given:
            partition.log.read_bytes += size
            if cold:
                partition.counts.cold_reads += 1
                partition.counts.cold_bytes += size
        for partition in self.refused:
            partition.counts.failed_fetches += 1

    def refuse(self, partition: Partition | None) -> None:
        """Counts a partition that is answered with an error."""
        self.ready = True
        self.failed += 1
        if partition is not None:
            self.refused.append(partition)

    def release(self) -> None:
        for answer in self.answers:
            answer.release_all()


def attempt(fetch: Fetch, locate: Locate, failed: Mapping[int, LogError] = _NONE, *, is_first: bool = False) -> Attempt:
    """Reads the data available now, in request order, at most `max_bytes` (but at least one batch) in all. Partitions whose
    index is in `failed` are answered with their error there instead. With `is_first`, the partitions count as requested."""
    taken = Attempt()
    attempt_some(taken, fetch, locate, fetch.partitions, 0, failed, is_first=is_first)
    return taken


def attempt_some(
    taken: Attempt,
    fetch: Fetch,
    locate: Locate,
    partitions: Sequence[FetchPartition],
    first_index: int,
    failed: Mapping[int, LogError],
    *,
    is_first: bool,
) -> None:
    """Continues an attempt with `partitions`, which are consecutive in the fetch and begin at index `first_index`."""
    left = fetch.max_bytes - taken.size
    isolation = fetch.isolation
    is_client = isolation is not Isolation.LOG_END
    try:
        for index, wanted in enumerate(partitions, first_index):
            partition = None
            try:
                partition = locate(wanted.partition)
                if is_first:
                    partition.counts.fetches += 1
                elif index in failed:
                    partition.counts.cold_failures += 1
                    raise failed[index]
                if is_client and wanted.offset == partition.state.high_watermark:
                    # The common case for a consumer of many partitions.
                    nothing = _nothing_new(partition, wanted, isolation)
                    if nothing is not None:
                        taken.answers.append(nothing)
                        continue
                answer = _read_one(index, partition, wanted, fetch, taken, left)
            except LogError as error:
                taken.refuse(partition)
                answer = Fetched(as_value(error))
            except OSError as error:
                taken.refuse(partition)
                answer = Fetched(StorageError(f"{wanted.partition}: cannot read ({error}); repair or replace the disk"))
            taken.answers.append(answer)
            size = answer.size
            taken.size += size
            left -= size
    except BaseException:
        taken.release()
        raise


def _nothing_new(partition: Partition, wanted: FetchPartition, isolation: Isolation) -> Fetched | None:
    """The answer to a reader at the readable end; None if there is more to check or to return."""
    state = partition.state
    topic_id, epoch = wanted.topic_id, wanted.current_leader_epoch
    if (
        partition.read_error is not None
        or (topic_id is not None and topic_id != partition.topic_id)
        or (epoch >= 0 and epoch != state.leader_epoch)
        or wanted.last_fetched_epoch >= 0
    ):
        return None
    start, end = partition.log.hot.log_start_offset, wanted.offset
    if end < start:
        return None
    unstable = state.first_unstable
    return Fetched(None, end, end if unstable > end else unstable, start, (), () if isolation else None)


def _read_one(
    index: int, partition: Partition, wanted: FetchPartition, fetch: Fetch, taken: Attempt, left: int
) -> Fetched:
    if wanted.topic_id is not None and wanted.topic_id != partition.topic_id:
        raise InconsistentTopicId(f"{wanted.partition} is now topic id {partition.topic_id}; refresh metadata")
    # As in Kafka, the epoch is checked before the leader, and a negative epoch means none.
    if wanted.current_leader_epoch >= 0:
        partition.check_epoch(wanted.current_leader_epoch)
    partition.check_readable()
    state, log = partition.state, partition.log
    aborted: list[AbortedTransaction] | None = [] if fetch.isolation is Isolation.READ_COMMITTED else None
    stable = state.last_stable_offset
    if wanted.last_fetched_epoch >= 0:
        epoch, end = log.hot.epoch_end_offset(wanted.last_fetched_epoch)
        if epoch < 0 or wanted.offset < log.log_start_offset:
            raise OffsetOutOfRange(
                f"{wanted.partition}: the end of the last fetched epoch {wanted.last_fetched_epoch} is unknown, or "
                f"offset {wanted.offset} is below the log start; ask ListOffsets where the log begins"
            )
        if epoch < wanted.last_fetched_epoch or end < wanted.offset:
            taken.ready = True
            return Fetched(None, state.high_watermark, stable, log.log_start_offset, diverging=(epoch, end))
    nothing_yet = taken.size == 0
    if left <= 0 and not nothing_yet:
        return Fetched(None, state.high_watermark, stable, log.log_start_offset, (), aborted)
    if len(taken.misses) >= MAX_MISSES and log.log_start_offset <= wanted.offset < log.hot.local_start_offset:
        return Fetched(None, state.high_watermark, stable, log.log_start_offset, (), aborted)
    found = partition.read(
        wanted.offset,
        max_bytes=max(0, min(wanted.max_bytes, left)),
        isolation=fetch.isolation,
        min_one=nothing_yet,
        aborted=aborted,
    )
    if isinstance(found, ColdMiss):
        taken.misses.append((index, found))
        found = []
    elif found and wanted.offset < log.hot.active_start_offset:
        # As in Kafka: the reader is behind the newest segment, and one read returns at most one segment. So waiting for
        # `min_bytes` would be useless.
        taken.ready = True
    answer = Fetched(None, state.high_watermark, stable, log.log_start_offset, found, aborted)
    if found:
        is_cold = wanted.offset < log.hot.local_start_offset
        taken.given.append((partition, answer.size, is_cold))
        if is_cold:
            taken.cold_size += answer.size
    return answer


class Misses:
    """The chunks for which a fetch waits. When a chunk arrives or fails, `hydrated` is called with the errors of the partitions
    that waited for it, by their index in the fetch."""

    __slots__ = ("_hydrated", "_indexes")

    def __init__(self, hydrated: Callable[[Mapping[int, LogError]], None]) -> None:
        self._hydrated = hydrated
        self._indexes: dict[asyncio.Future[None], set[int]] = {}

    def watch(self, misses: Sequence[tuple[int, ColdMiss]]) -> None:
        for index, miss in misses:
            indexes = self._indexes.get(miss.waiter)
            if indexes is None:
                self._indexes[miss.waiter] = {index}
                miss.waiter.add_done_callback(self._arrived)
            else:
                indexes.add(index)

    def _arrived(self, waiter: asyncio.Future[None]) -> None:
        indexes = self._indexes.pop(waiter, set())
        failure = None if waiter.cancelled() else waiter.exception()
        # The partitions that waited for the chunk answer with the error, the others with their data.
        self._hydrated(dict.fromkeys(indexes, failure) if isinstance(failure, LogError) else _NONE)

    def forget(self) -> None:
        """Removes the callbacks of a fetch that has ended."""
        for waiter in self._indexes:
            waiter.remove_done_callback(self._arrived)
        # Breaks the reference cycle with the fetch. Full collections are so rare that such cycles would take gigabytes.
        self._hydrated = _nobody


def _nobody(_: Mapping[int, LogError]) -> None:
    """The callback of a fetch that has ended. Does nothing."""


class DelayedFetch:
    """A waiting fetch. Ends with an answer, or when its future is cancelled because the client has disconnected."""

    def __init__(self, fetch: Fetch, locate: Locate, first: Attempt, read: BytesRead, rechecks: FetchRechecks) -> None:
        loop = asyncio.get_running_loop()
        self._fetch = fetch
        self._locate = locate
        self._read = read
        self._rechecks = rechecks
        #: Whether an attempt is due, whether it is the final one, and the failures since the previous attempt, by index.
        self._is_due = self._is_late = False
        self._failed: dict[int, LogError] = {}
        self._watched: list[Partition] = []
        self._misses = Misses(self._hydrated)
        self.future: asyncio.Future[Sequence[Fetched]] = loop.create_future()
        self.future.add_done_callback(self._forget)
        self._timer = loop.call_later(fetch.max_wait_ms / 1000, self._time_up)
        look = self._look_again  # one object for all partitions, because the garbage collector visits each
        for wanted in fetch.partitions:
            try:
                partition = locate(wanted.partition)
            except LogError:
                continue
            partition.waiters.add(look)
            self._watched.append(partition)
        self._misses.watch(first.misses)

    def _hydrated(self, failed: Mapping[int, LogError]) -> None:
        self._failed.update(failed)
        self._look_again()

    def _look_again(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._rechecks.add(self._attempt, len(self._fetch.partitions))

    def _time_up(self) -> None:
        self._is_late = True
        self._look_again()

    def _attempt(self) -> None:
        self._is_due = False
        if self.future.done():
            return
        failed, self._failed = self._failed, {}
        try:
            taken = attempt(self._fetch, self._locate, failed)
        except Exception as error:  # noqa: BLE001 - whatever fails, the client must not wait for ever
            self.future.set_exception(error)
            return
        if self._is_late or taken.ready or taken.size >= self._fetch.min_bytes:
            taken.count(self._read)
            self.future.set_result(taken.answers)
            return
        self._misses.watch(taken.misses)
        taken.release()

    def _forget(self, _: asyncio.Future[Sequence[Fetched]]) -> None:
        self._timer.cancel()
        look = self._look_again
        for partition in self._watched:
            partition.waiters.discard(look)
        self._misses.forget()
        # Both refer back to this object. This cycle would keep the whole fetch in memory until a collection.
        del self._misses, self._timer


def fetch_records(fetch: Fetch, locate: Locate, read: BytesRead, rechecks: FetchRechecks) -> Ready[Sequence[Fetched]]:
    """Implements the contract's `Log.fetch`. Counts the answer in `read`."""
    read.asked += len(fetch.partitions)
    taken = attempt(fetch, locate, is_first=True)
    if taken.ready or taken.size >= fetch.min_bytes or fetch.max_wait_ms <= 0 or not fetch.partitions:
        taken.count(read)
        return taken.answers
    taken.release()
    return DelayedFetch(fetch, locate, taken, read, rechecks).future
