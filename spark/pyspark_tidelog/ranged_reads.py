"""Reads objects' bytes in order. A few threads prefetch them, and they are verified before use.

    requests (lazily) ──> at most IN_FLIGHT ranged GETs at once ──> bodies, in request order

Invariants: at most IN_FLIGHT bodies are in memory beside the one in use. Each has up to FETCH_BYTES of a segment, or the
sections of a sidecar. A MiB of a segment is yielded only if its CRC-32C matches the sidecar.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from typing import NamedTuple, TypeVar

from pyspark_tidelog.plan import ScanPiece
from storage_tiers.cold.manifest.model import RemoteSegment
from storage_tiers.cold.offline.bucket import parse_sidecar
from storage_tiers.cold.offline.partition import verify_checks
from storage_tiers.cold.segments import sidecar
from storage_tiers.cold.segments.sidecar import ABORTED, CHECK_BYTES, CHECKS, Sidecar
from storage_tiers.cold.stores.port import BlockingObjectStore
from storage_tiers.errors import TierCorrupt

FETCH_BYTES = 4 << 20
IN_FLIGHT = 4
#: The sidecar's sections that a read needs: checksums to verify the bytes, and aborted transactions to skip.
SECTIONS = (CHECKS, ABORTED)

T = TypeVar("T")


class Request(NamedTuple):
    """Bytes [position, position + length) of an object."""

    key: str
    position: int
    length: int


class Verified(NamedTuple):
    """A piece's sidecar, and its bytes in order. Consume the bytes before the next piece."""

    piece: ScanPiece
    sidecar: Sidecar
    chunks: Iterator[memoryview]


def verified_pieces(
    store: BlockingObjectStore,
    pieces: Iterable[ScanPiece],
    *,
    fetch_bytes: int = FETCH_BYTES,
    in_flight: int = IN_FLIGHT,
) -> Generator[Verified, None, None]:
    """Yields each piece's bytes. Raises TierObjectMissing if an object is gone, or TierCorrupt if it differs from the offloaded
    bytes."""
    pieces = tuple(pieces)
    requests = (request for piece in pieces for request in _requests(piece, fetch_bytes))
    with closing(_fetched(store, requests, in_flight)) as bodies:
        for piece in pieces:
            front = parse_sidecar(piece.segment, SECTIONS, next(bodies))
            yield Verified(piece, front, _checked(piece, front, bodies, fetch_bytes))


def _requests(piece: ScanPiece, fetch_bytes: int) -> Iterator[Request]:
    yield Request(piece.segment.sidecar_key, *sidecar.span(piece.segment.sections, SECTIONS))
    for start, end in _stretches(piece, fetch_bytes):
        yield Request(piece.segment.key, piece.segment.position + start, end - start)


def _stretches(piece: ScanPiece, fetch_bytes: int) -> Iterator[tuple[int, int]]:
    """The ranges of the piece's bytes, extended to whole MiB (the units of checksums), in parts of `fetch_bytes`."""
    start = piece.first_byte - piece.first_byte % CHECK_BYTES
    last = min(piece.end_byte + -piece.end_byte % CHECK_BYTES, piece.segment.length)
    for at in range(start, last, fetch_bytes):
        yield at, min(at + fetch_bytes, last)


def _checked(piece: ScanPiece, front: Sidecar, bodies: Iterator[bytes], fetch_bytes: int) -> Iterator[memoryview]:
    for start, end in _stretches(piece, fetch_bytes):
        data = memoryview(next(bodies))
        _verify(piece.segment, front, start, end, data)
        yield data[max(piece.first_byte - start, 0) : piece.end_byte - start]


def _verify(segment: RemoteSegment, front: Sidecar, start: int, end: int, data: memoryview) -> None:
    if len(data) != end - start:
        raise TierCorrupt(
            f"{segment.key} ends at byte {segment.position + start + len(data)}, before byte {segment.position + end}, its "
            "end in the manifest; run `tidelog fsck`"
        )
    verify_checks(segment, front.mib_crcs, start, data)


def _fetched(store: BlockingObjectStore, requests: Iterator[Request], in_flight: int) -> Generator[bytes, None, None]:
    def fetch(request: Request) -> Callable[[], bytes]:
        return lambda: store.get(*request).data if request.length else b""

    return in_order(map(fetch, requests), in_flight)


def in_order(tasks: Iterator[Callable[[], T]], in_flight: int) -> Generator[T, None, None]:
    """Yields the tasks' results in order, with at most `in_flight` tasks running or unconsumed. A task's error is raised at its
    place in the order. Closing the iterator waits for running tasks and starts no others."""
    with ThreadPoolExecutor(in_flight, "tidelog-read") as pool:
        waiting: deque[Future[T]] = deque(pool.submit(task) for task in islice(tasks, in_flight))
        try:
            while waiting:
                done = waiting.popleft().result()
                waiting.extend(pool.submit(task) for task in islice(tasks, 1))
                yield done
        finally:
            for future in waiting:
                future.cancel()
