"""Read-ahead is in order, bounded and verified."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from pyspark_tidelog.plan import ScanPiece
from pyspark_tidelog.ranged_reads import in_order, verified_pieces
from storage_tiers.cold.manifest.model import RemoteSegment
from storage_tiers.cold.segments.sidecar import CHECK_BYTES
from storage_tiers.cold.stores.port import BlockingObjectStore, ObjectBody
from storage_tiers.errors import TierCorrupt, TierObjectMissing
from tests.spark.buckets import Bucket, numbered


# --- in_order ----------------------------------------------------------------------------------------------------------
def test_results_come_in_order_and_a_bounded_number_of_tasks_runs_ahead() -> None:
    begun: list[int] = []
    barrier = threading.Barrier(3)

    def task(number: int) -> Callable[[], int]:
        def run() -> int:
            if number < 3:
                barrier.wait(60)  # the first three run at once
            begun.append(number)
            return number

        return run

    taken: list[int] = []
    asked: list[int] = []

    def tasks() -> Iterator[Callable[[], int]]:
        for number in range(10):
            asked.append(number)
            yield task(number)

    for result in in_order(tasks(), 3):
        taken.append(result)
        assert len(asked) - len(taken) <= 3
    assert taken == list(range(10)) == sorted(begun)


def test_an_error_comes_at_its_turn_and_ends_the_rest() -> None:
    started: list[int] = []

    def task(number: int) -> Callable[[], int]:
        def run() -> int:
            started.append(number)
            if number == 2:
                raise TierObjectMissing("2 is gone")
            return number

        return run

    taken: list[int] = []
    with pytest.raises(TierObjectMissing, match="2 is gone"):
        taken.extend(in_order(map(task, range(100)), 2))
    assert taken == [0, 1]
    assert len(started) <= 4


def test_closing_early_starts_nothing_more() -> None:
    started: list[int] = []

    def task(number: int) -> Callable[[], int]:
        def run() -> int:
            started.append(number)
            return number

        return run

    results = in_order(map(task, range(100)), 2)
    assert next(results) == 0
    results.close()
    assert len(started) <= 3


# --- verified pieces ---------------------------------------------------------------------------------------------------
class Watched:
    """A store that records its ranged reads and the largest number of concurrent ones."""

    def __init__(self, store: BlockingObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._running = 0
        self.reads: list[tuple[str, int, int | None]] = []
        self.most = 0

    def get(self, key: str, start: int = 0, length: int | None = None) -> ObjectBody:
        with self._lock:
            self.reads.append((key, start, length))
            self._running += 1
            self.most = max(self.most, self._running)
        try:
            return self._store.get(key, start, length)
        finally:
            with self._lock:
                self._running -= 1


@pytest.fixture
def segment(memory_bucket: Bucket) -> RemoteSegment:
    """A segment of about 5.5 MiB in batches of 100 KiB."""
    manifest = memory_bucket.extend("a", numbered(0, 550, per_batch=10, value_bytes=10_000))
    return manifest.segments[0]


def piece_of(segment: RemoteSegment, first: int, end: int) -> ScanPiece:
    return ScanPiece(segment, first, end, segment.base, segment.end, segment.base, segment.end)


def collected(store: object, *pieces: ScanPiece, **bounds: int) -> list[bytes]:
    return [b"".join(verified.chunks) for verified in verified_pieces(store, pieces, **bounds)]  # type: ignore[arg-type]


@pytest.mark.parametrize("span", [(0, None), (0, 10), (CHECK_BYTES - 1, CHECK_BYTES + 1), (3_000_000, None), (70, 71)])
@pytest.mark.parametrize("fetch", [1, 4])
def test_a_piece_is_its_bytes_read_in_whole_checked_stretches(
    memory_bucket: Bucket, segment: RemoteSegment, span: tuple[int, int | None], fetch: int
) -> None:
    first, end = span[0], span[1] or segment.length
    watched = Watched(memory_bucket.store)
    (found,) = collected(watched, piece_of(segment, first, end), fetch_bytes=fetch * CHECK_BYTES, in_flight=2)
    assert found == memory_bucket.store.get(segment.key, first, end - first).data
    segment_reads = [read for read in watched.reads if read[0] == segment.key]
    assert all(
        start % CHECK_BYTES == 0 and 0 < (length or 0) <= fetch * CHECK_BYTES for _, start, length in segment_reads
    )
    assert len(segment_reads) == -(-(-(-end // CHECK_BYTES) - first // CHECK_BYTES) // fetch)
    assert watched.most <= 2
    assert len(watched.reads) == len(segment_reads) + 1  # one more read for the sidecar


def test_read_ahead_continues_into_the_next_piece(memory_bucket: Bucket, segment: RemoteSegment) -> None:
    watched = Watched(memory_bucket.store)
    pieces = [
        piece_of(segment, 0, 100),
        piece_of(segment, 100, 2 * CHECK_BYTES),
        piece_of(segment, 2 * CHECK_BYTES, segment.length),
    ]
    assert b"".join(collected(watched, *pieces)) == memory_bucket.store.get(segment.key).data


@pytest.mark.parametrize("at", [0, CHECK_BYTES, 3 * CHECK_BYTES + 5, -1])
def test_one_flipped_bit_is_found_wherever_its_mib_is_read(
    memory_bucket: Bucket, segment: RemoteSegment, at: int
) -> None:
    data = bytearray(memory_bucket.store.get(segment.key).data)
    data[at] ^= 1
    memory_bucket.store.put(segment.key, bytes(data))
    with pytest.raises(TierCorrupt, match=r"its bytes were changed in the bucket. Run `tidelog fsck`"):
        collected(memory_bucket.store, piece_of(segment, 0, segment.length))
    mib = (at % segment.length) // CHECK_BYTES
    sound = 0 if mib else 1
    (found,) = collected(memory_bucket.store, piece_of(segment, sound * CHECK_BYTES, (sound + 1) * CHECK_BYTES))
    assert len(found) == CHECK_BYTES


def test_a_truncated_object_is_found(memory_bucket: Bucket, segment: RemoteSegment) -> None:
    data = memory_bucket.store.get(segment.key).data
    memory_bucket.store.put(segment.key, data[:-1])
    with pytest.raises(TierCorrupt, match=f"ends at byte {len(data) - 1}, before byte {len(data)}"):
        collected(memory_bucket.store, piece_of(segment, 0, segment.length))


def test_a_changed_or_truncated_sidecar_is_found(memory_bucket: Bucket, segment: RemoteSegment) -> None:
    data = bytearray(memory_bucket.store.get(segment.sidecar_key).data)
    checks = next(section for section in segment.sections if section.name == "checks")
    data[checks.position] ^= 1
    memory_bucket.store.put(segment.sidecar_key, bytes(data))
    with pytest.raises(TierCorrupt, match="section 'checks'"):
        collected(memory_bucket.store, piece_of(segment, 0, 100))
    memory_bucket.store.put(segment.sidecar_key, bytes(data[: checks.position + 1]))
    with pytest.raises(TierCorrupt, match="has 1 of 24 bytes"):
        collected(memory_bucket.store, piece_of(segment, 0, 100))
