"""Offloads a local segment: stores it and its sidecar as two verified objects, and returns the remote segment that names them.

Invariants: an object is written once, under a fresh uuid. It counts as offloaded only when its length and CRC-32C equal
those of the local bytes; where the store reports no CRC-32C, the object is read back. A segment below the multipart
threshold takes two PUTs.

A manifest may never reference the objects; the sweeper deletes such orphans.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from storage_tiers.clock import Rng
from storage_tiers.cold.manifest.model import Ids, Manifest, RemoteSegment
from storage_tiers.cold.segments import sidecar_builder
from storage_tiers.cold.segments.sidecar_builder import SidecarBytes
from storage_tiers.cold.stores.port import FileBody, ObjectInfo, ObjectStore
from storage_tiers.errors import InvalidRequest, StorageError, TierObjectMissing, TierUnavailable
from storage_tiers.hot.snapshots import read_state
from storage_tiers.records.checksum import crc32c
from storage_tiers.types import AbortedTransaction, EpochEntry

_READ_BACK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class ExtendJob:
    """Bytes [position, position + length) of a local segment, synced: whole batches of offsets [base, end), where `end`
    is at most min(high watermark, last stable offset).

    `epochs` is the leader-epoch history up to `end`. `producer_snapshot` is the path of Kafka's producer snapshot at exactly
    `end`. It is a file, because the number of producers has no bound. The producers' earlier batches follow in the same file,
    or are in the file `producer_batches`, which may be missing. `aborted` holds every aborted transaction that overlaps the
    segment. If `aborted_path` is set, that file holds them instead (`write_aborted`), because their number has no bound either.
    `last_record_epoch` is the leader epoch of the last batch. `log_start` is the partition's; the manifest records
    min(`log_start`, `end`).
    """

    path: str
    position: int
    length: int
    base: int
    end: int
    leader_epoch: int
    last_record_epoch: int
    epochs: tuple[EpochEntry, ...]
    producer_snapshot: str
    aborted: tuple[AbortedTransaction, ...] = ()
    log_start: int = 0
    aborted_path: str = ""
    producer_batches: str = ""


_ABORTED_ROW = struct.Struct(">qqqq")


def write_aborted(path: str, aborted: Iterable[AbortedTransaction]) -> None:
    """Writes the transactions to a file that a tier process on this machine reads. OSError if the disk refuses."""
    with open(path, "wb") as file:
        for each in aborted:
            row = each.producer_id, each.first_offset, each.last_offset, each.last_stable_offset
            file.write(_ABORTED_ROW.pack(*row))


def _read_aborted(path: str) -> Iterator[AbortedTransaction]:
    with open(path, "rb") as file:
        for row in _ABORTED_ROW.iter_unpack(file.read()):
            yield AbortedTransaction(*row)


class RunBlocking(Protocol):
    """Runs, off the event loop, a function that reads files or needs much processor time."""

    def __call__(self, function: Callable[[], SidecarBytes]) -> Awaitable[SidecarBytes]: ...


def in_thread(function: Callable[[], SidecarBytes]) -> Awaitable[SidecarBytes]:
    return asyncio.to_thread(function)


@dataclass(frozen=True, slots=True)
class Offloaded:
    """A remote segment whose objects were stored after the manifest with commit `seen_commit` had been read. Length (bytes) and
    CRC-32C are the sidecar's."""

    segment: RemoteSegment
    sidecar_length: int
    sidecar_crc32c: int
    seen_commit: int


def _built(job: ExtendJob) -> SidecarBytes:
    try:
        producers = read_state(job.producer_snapshot, job.producer_batches)
        aborted = list(_read_aborted(job.aborted_path)) if job.aborted_path else job.aborted
    except OSError as error:
        raise StorageError(f"cannot read {error.filename}: {error.strerror}") from error
    return sidecar_builder.build(
        job.path,
        job.position,
        job.length,
        base=job.base,
        end=job.end,
        aborted=aborted,
        epochs=job.epochs,
        producer_state=producers,
    )


class Offloader:
    """Writes segments of one partition with their sidecars to the bucket. Commits nothing."""

    def __init__(self, store: ObjectStore, ids: Ids, rng: Rng, run_blocking: RunBlocking = in_thread) -> None:
        self._store = store
        self._ids = ids
        self._rng = rng
        self._run_blocking = run_blocking

    async def build(self, job: ExtendJob) -> SidecarBytes:
        """Builds the sidecar. CorruptRecord if the segment is not whole batches of [base, end), StorageError if it cannot be
        read, InvalidRequest if its last batch has another leader epoch than `job` says."""
        built = await self._run_blocking(lambda: _built(job))
        if built.last_leader_epoch != job.last_record_epoch or job.last_record_epoch > job.leader_epoch:
            raise InvalidRequest(
                f"the last batch below offset {job.end} of {self._ids} has leader epoch {built.last_leader_epoch}; the "
                f"offload expected {job.last_record_epoch}, and at most its own epoch {job.leader_epoch}"
            )
        return built

    async def offload(self, job: ExtendJob, built: SidecarBytes, manifest: Manifest) -> Offloaded:
        """Stores segment and sidecar under a fresh uuid. The caller must have read `manifest` before this call. TierUnavailable
        if the store reports other bytes than were sent."""
        uuid = self._rng.token(16).hex()
        segment = RemoteSegment(
            base=job.base,
            end=job.end,
            key=self._ids.segment_key(job.base, job.leader_epoch, uuid),
            position=0,
            length=job.length,
            sidecar_key=self._ids.sidecar_key(job.base, job.leader_epoch, uuid),
            sections=built.sections,
            min_timestamp=built.min_timestamp,
            max_timestamp=built.max_timestamp,
            max_timestamp_offset=built.max_timestamp_offset,
            records=built.records,
            bytes=job.length,
            crc32c=built.crc32c,
        )
        offloaded = Offloaded(segment, len(built.data), crc32c(built.data), manifest.commit)
        body = FileBody(job.path, job.position, job.length, built.crc32c)
        # The smaller object goes first, so that a store that refuses writes costs little traffic.
        await self._put(segment.sidecar_key, built.data, offloaded.sidecar_length, offloaded.sidecar_crc32c)
        await self._put(segment.key, body, segment.length, segment.crc32c)
        return offloaded

    async def still_there(self, offloaded: Offloaded) -> bool:
        """Whether the store holds both objects with the right bytes."""
        segment = offloaded.segment
        return await self._holds(segment.key, segment.length, segment.crc32c) and await self._holds(
            segment.sidecar_key, offloaded.sidecar_length, offloaded.sidecar_crc32c
        )

    async def forget(self, offloaded: Offloaded) -> None:
        """Deletes both objects. Call it only if the partition's manifest can never name them."""
        await self._store.delete([offloaded.segment.key, offloaded.segment.sidecar_key])

    async def _put(self, key: str, body: bytes | FileBody, length: int, crc: int) -> None:
        info = await self._store.put(key, body)
        if not await self._fits(info, length, crc):
            raise TierUnavailable(f"the store holds other bytes of {key} than were sent; they are offloaded again")

    async def _holds(self, key: str, length: int, crc: int) -> bool:
        try:
            return await self._fits(await self._store.head(key), length, crc)
        except TierObjectMissing:
            return False

    async def _fits(self, info: ObjectInfo, length: int, crc: int) -> bool:
        if info.size != length or info.crc32c is not None:
            return info.size == length and info.crc32c == crc
        found = 0
        for start in range(0, length, _READ_BACK_BYTES):
            found = crc32c((await self._store.get(info.key, start, _READ_BACK_BYTES)).data, found)
        return found == crc
