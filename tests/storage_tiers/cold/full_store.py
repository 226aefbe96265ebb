"""A store with every feature of the formats, made by the project's own writer from real batches.

flights (with one earlier topic id) 0 no manifest
                                    1 pages of both kinds, a pin, removed segments with and without a pin, a tombstone, two
                                      leader epochs, producers, transactions across segments, every codec, sparse batches,
                                      log append time, log start inside a segment
                                    2 no live segment; of the removed ones only the newest sidecar is left
                                    3 two segments in one object, the second at a position that is not 0
                                    4 a gap, live segments wholly below log start
gone                                deleted; its objects await the end of the grace period
readers/                            a cursor, a verdict and a missed range of a commit reader
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import cramjam

from storage_tiers.cold.manifest import keys, transitions
from storage_tiers.cold.manifest.cluster_file import ClusterState, Holder, encode_cluster
from storage_tiers.cold.manifest.commit import CommitSettings, SharedStore
from storage_tiers.cold.manifest.json import encode
from storage_tiers.cold.manifest.model import Ids, Manifest, ManifestWriter, State
from storage_tiers.cold.manifest.topic_file import TopicState, encode_topic
from storage_tiers.cold.offline.commit_cursor import advance_cursor, read_cursor, record_missed, record_verdict
from storage_tiers.cold.segments.offloader import ExtendJob
from storage_tiers.cold.segments.partition_tier import PartitionTier
from storage_tiers.cold.segments.segment_check import SegmentVerdict
from storage_tiers.cold.stores.memory import BlockingMemoryStore, MemoryStore
from storage_tiers.hot.producer_state import ProducerStateManager
from storage_tiers.records.batch import ATTRIBUTES, BATCH_LENGTH, CRC, HEADER_BYTES, LENGTH_OVERHEAD, Codec, headers
from storage_tiers.records.builder import ControlKind, NewRecord, build_batch, build_control_batch
from storage_tiers.records.checksum import crc32c
from storage_tiers.types import AbortedTransaction, EpochEntry, TopicId
from tests.storage_tiers.cold.support import EagerClock, inline, stored_manifest
from tests.support.clock import ManualClock, SeededRng

CLUSTER = "ckQWLXMZQKGqoUySTmrTXA"
FLIGHTS = TopicId(bytes(range(16)))
EARLIER = TopicId(bytes(range(16, 32)))
GONE = TopicId(bytes(range(32, 48)))
#: Unix milliseconds. Every commit and every object is made at this time or slightly later.
NOW_MS = 1_700_000_000_000
#: Unix milliseconds at which partition 1's log was written; its log append times precede the clients' timestamps.
WRITTEN_MS = NOW_MS - 3_600_000
INCARNATION = 5


@dataclass
class Log:
    """A partition's log as its leader writes it: batches, and the state of producers and leader epochs at the log end."""

    directory: Path
    end: int = 0
    epoch: int = 1
    epochs: list[EpochEntry] = field(default_factory=list)
    state: ProducerStateManager = field(default_factory=ProducerStateManager)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    jobs: list[ExtendJob] = field(default_factory=list)
    _segment: bytearray = field(default_factory=bytearray)
    _base: int = 0

    def append(self, batch: bytes) -> None:
        ((_, header),) = headers(batch)
        if not self.epochs or self.epochs[-1].epoch != self.epoch:
            self.epochs.append(EpochEntry(self.epoch, header.base_offset))
        if header.producer_id >= 0 and not header.control:
            self.state.update(header, header.base_offset, now_ms=NOW_MS)
        self._segment += batch
        self.end = header.next_offset

    def records(self, *records: NewRecord, codec: Codec = Codec.NONE, append_time: int | None = None) -> None:
        batch = build_batch(
            records, base_offset=self.end, leader_epoch=self.epoch, codec=codec, log_append_time=append_time
        )
        self.append(batch)

    def of_producer(
        self, producer: int, sequence: int, *records: NewRecord, transactional: bool = False, codec: Codec = Codec.NONE
    ) -> None:
        self.append(
            build_batch(
                records,
                base_offset=self.end,
                leader_epoch=self.epoch,
                producer_id=producer,
                producer_epoch=2,
                base_sequence=sequence,
                transactional=transactional,
                codec=codec,
            )
        )

    def marker(self, producer: int, kind: ControlKind) -> None:
        batch = build_control_batch(
            kind,
            producer_id=producer,
            producer_epoch=2,
            coordinator_epoch=3,
            timestamp=WRITTEN_MS + self.end,
            base_offset=self.end,
            leader_epoch=self.epoch,
        )
        ((_, header),) = headers(batch)
        aborted = kind is ControlKind.ABORT
        done = self.state.update_marker(header, self.end, coordinator_epoch=3, aborted=aborted, now_ms=NOW_MS)
        if done is not None and aborted:
            self.aborted.append(AbortedTransaction(producer, done.first_offset, self.end, done.last_stable_offset))
        self.append(batch)

    def seal(self, *, log_start: int = 0) -> None:
        """Closes a segment of everything appended since the last call."""
        path = self.directory / f"{len(self.jobs)}.log"
        path.write_bytes(self._segment)
        producers = path.with_suffix(".snapshot")
        producers.write_bytes(self.state.state())
        last = [header for _, header in headers(bytes(self._segment))][-1]
        self.jobs.append(
            ExtendJob(
                path=str(path),
                position=0,
                length=len(self._segment),
                base=self._base,
                end=self.end,
                leader_epoch=self.epoch,
                last_record_epoch=last.leader_epoch,
                epochs=tuple(self.epochs),
                producer_snapshot=str(producers),
                log_start=log_start,
            )
        )
        self._base, self._segment = self.end, bytearray()

    def skip_to(self, offset: int) -> None:
        """Leaves the offsets up to `offset` unwritten, as if log start had passed them."""
        self.end = self._base = offset

    def segments(self) -> list[ExtendJob]:
        """The sealed segments, each with every aborted transaction that overlaps it, wherever the marker lies."""
        return [
            dataclasses.replace(
                job,
                aborted=tuple(
                    txn for txn in self.aborted if txn.first_offset < job.end and txn.last_offset >= job.base
                ),
            )
            for job in self.jobs
        ]


def plain(offset: int, text: str = "", *, at: int | None = None) -> NewRecord:
    return NewRecord(b"key-%d" % offset, b"value-%d" % offset + text.encode(), timestamp=at or WRITTEN_MS + offset)


@dataclass
class FullStore:
    memory: MemoryStore
    clock: ManualClock
    #: Partition 1's commit numbers right after each segment was added: a reader as of that commit must find it.
    commits: list[int]

    @property
    def store(self) -> BlockingMemoryStore:
        return self.memory.blocking()


def ids_of(partition: int, topic: str = "flights", topic_id: TopicId = FLIGHTS) -> Ids:
    return Ids(CLUSTER, topic, topic_id, partition)


async def build(directory: Path) -> FullStore:
    clock = EagerClock(NOW_MS)
    full = FullStore(MemoryStore(clock), clock, [])
    _documents(full.store)
    with mock.patch.multiple("storage_tiers.cold.manifest.pages", MAX_SEGMENTS=6):
        await _rich(full, directory)
        await _alone(full, directory)
        await _packed(full, directory)
        await _gap(full, directory)
        for ids in (ids_of(0, "gone", GONE), ids_of(0, "flights", EARLIER)):
            tier = _tier(full, ids)
            log = _numbered(directory / str(ids.topic_id), (0, 10))
            await _extend(tier, log.segments())
            await tier.delete_partition()
    _readers(full.store)
    return full


def _documents(store: BlockingMemoryStore) -> None:
    holder = Holder(1, "Xl2vW1FzRx2PYVOyUcTJnA", "5y0cyV6pQ3CwL3y2m4ePgQ")
    store.put(keys.cluster_key(CLUSTER), encode_cluster(ClusterState(CLUSTER, INCARNATION, holder)))
    flights = TopicState(
        CLUSTER, "flights", FLIGHTS, State.LIVE, 5, INCARNATION, {"retention.ms": "-1"}, (EARLIER,), revision=3
    )
    gone = TopicState(CLUSTER, "gone", GONE, State.DELETED, 1, INCARNATION, revision=2)
    # Tests of the storage tiers do not import service code, so the frame is built here as docs/formats.md specifies it.
    state_of_log = b"the state, opaque here"
    numbers = struct.pack(">QQ", 1, 12)
    summed = struct.pack(">I", len(state_of_log)) + numbers + state_of_log
    frame = struct.pack(">II", len(state_of_log), crc32c(summed)) + numbers + state_of_log
    store.put(keys.snapshot_key(CLUSTER, INCARNATION, 12, 3), frame)
    for state in (flights, gone):
        store.put(keys.topic_file_key(CLUSTER, state.topic), encode_topic(state))


def _tier(full: FullStore, ids: Ids, seed: int = 99) -> PartitionTier:
    return PartitionTier(
        SharedStore.of_one(full.memory, full.clock, SeededRng(seed), CommitSettings(attempts=2)),
        ids,
        ManifestWriter(1, INCARNATION),
        run_blocking=inline,
    )


async def _extend(tier: PartitionTier, jobs: Sequence[ExtendJob]) -> Manifest:
    for job in jobs:
        manifest = await tier.extend(job)
        assert manifest.end == job.end
    return manifest


def _numbered(directory: Path, *segments: tuple[int, int]) -> Log:
    directory.mkdir(exist_ok=True, parents=True)
    log = Log(directory)
    for base, end in segments:
        log.skip_to(base)
        while log.end < end:
            log.records(plain(log.end))
        log.seal()
    return log


def _rich_log(directory: Path) -> Log:
    directory.mkdir(exist_ok=True)
    log = Log(directory)
    for _ in range(10):
        log.records(plain(log.end))
    log.seal()  # 0: swept
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD, Codec.NONE):
        at = log.end
        odd = NewRecord(None, None, timestamp=WRITTEN_MS + at, headers=(("h", None), ("ü", b""), ("h", b"\0\xff")))
        log.records(odd, plain(at + 1, "x" * 300), codec=codec)
    log.seal()  # 10: removed, not pinned
    log.of_producer(7, 0, plain(20), plain(21))
    log.of_producer(7, 2, *(plain(offset) for offset in range(22, 30)), codec=Codec.LZ4)
    log.seal()  # 20: removed, pinned
    while log.end < 35:
        log.records(plain(log.end, "x" * 20_000))  # several rows of the index
    log.epoch = 2
    while log.end < 40:
        log.records(plain(log.end, "x" * 20_000))
    log.seal()  # 30: log start lies inside
    log.records(plain(40), plain(41))
    log.of_producer(9, 0, plain(42), plain(43), transactional=True)
    log.of_producer(11, 0, plain(44), transactional=True)
    log.of_producer(7, 10, *(plain(offset) for offset in range(45, 50)))
    log.seal()  # 40: two transactions are open at its end
    log.of_producer(9, 2, plain(50), transactional=True, codec=Codec.ZSTD)
    log.marker(9, ControlKind.ABORT)
    log.of_producer(11, 1, plain(52), transactional=True)
    log.marker(11, ControlKind.COMMIT)
    log.of_producer(9, 3, plain(54), transactional=True)
    log.of_producer(12, 0, plain(55), transactional=True)
    log.marker(12, ControlKind.ABORT)
    log.marker(9, ControlKind.COMMIT)
    log.records(plain(58), plain(59))
    log.seal()  # 50
    for base, deltas, last in ((60, (0, 3), 4), (66, (1, 2), 3)):
        records = [plain(base + delta) for delta in deltas]
        log.append(
            build_batch(
                records,
                base_offset=base,
                leader_epoch=2,
                codec=Codec.SNAPPY,
                offset_deltas=deltas,
                last_offset_delta=last,
            )
        )
    log.seal()  # 60: sparse, as after compaction
    for offset in range(70, 80, 2):
        ahead = (plain(offset, at=NOW_MS + 500_000), plain(offset + 1, at=NOW_MS + 400_000))
        log.records(*ahead, append_time=WRITTEN_MS + offset)
    log.seal()  # 70: the clients' clocks are ahead of the leader's
    log.append(_raw_snappy(80, plain(80, "x" * 100), plain(81)))
    for base in range(80, 120, 10):
        while log.end < base + 10:
            log.records(plain(log.end, "x" * (120_000 if base == 90 else 10)))
        log.seal()
    return log


def _raw_snappy(base: int, *records: NewRecord) -> bytes:
    """A batch in one raw Snappy block, as some non-Java clients send it; the builder makes Java's stream of blocks."""
    batch = bytearray(build_batch(records, base_offset=base, leader_epoch=2))
    batch[HEADER_BYTES:] = bytes(cramjam.snappy.compress_raw(bytes(batch[HEADER_BYTES:])))
    batch[BATCH_LENGTH : BATCH_LENGTH + 4] = struct.pack(">i", len(batch) - LENGTH_OVERHEAD)
    batch[ATTRIBUTES + 1] |= Codec.SNAPPY
    batch[CRC:ATTRIBUTES] = struct.pack(">I", crc32c(bytes(batch[ATTRIBUTES:])))
    return bytes(batch)


async def _rich(full: FullStore, directory: Path) -> None:
    tier = _tier(full, ids_of(1))
    jobs = _rich_log(directory / "rich").segments()
    await _extend(tier, jobs[:4])
    await tier.expire(10)
    full.clock.advance(60)
    await tier.sweep(0)
    await tier.expire(20)
    await _extend(tier, jobs[4:5])
    pinned = await tier.pin("report")
    assert pinned.pins[0].commit == pinned.commit
    for job in jobs[5:]:
        full.commits.append((await _extend(tier, [job])).commit)
    await tier.expire(33)
    orphan = ids_of(1).segment_key(200, 2, "7" * 32)
    full.store.put(orphan, b"never named")
    await tier.commit(lambda manifest, by: transitions.tombstone(manifest, [orphan], by))
    await tier.expire(43)
    manifest = await tier.claim(3)
    assert {page.kind.value for page in manifest.pages} == {"live", "removed"}
    assert manifest.segments and manifest.pins and manifest.tombstoned and manifest.swept
    assert {item.segment is None for item in manifest.removed} == {True, False}


async def _alone(full: FullStore, directory: Path) -> None:
    tier = _tier(full, ids_of(2))
    log = _numbered(directory / "alone", (0, 10))
    log.of_producer(7, 0, plain(10))
    log.seal()
    await _extend(tier, log.segments())
    await tier.expire(11)
    full.clock.advance(60)
    await tier.sweep(0)
    assert tier.manifest is not None and tier.manifest.sidecar is not None and tier.manifest.sidecar.alone


async def _packed(full: FullStore, directory: Path) -> None:
    """Packs two segments into one object: the format allows it, although the current writer never does it."""
    tier = _tier(full, ids_of(3))
    jobs = _numbered(directory / "packed", (0, 10), (10, 20)).segments()
    manifest = await _extend(tier, jobs)
    first, second = manifest.segments
    store = full.store
    packed = store.get(first.key).data + store.get(second.key).data
    key = ids_of(3).segment_key(0, 1, "9" * 32)
    store.put(key, packed)
    store.delete([first.key, second.key])
    segments = (
        dataclasses.replace(first, key=key),
        dataclasses.replace(second, key=key, position=first.length),
    )
    store.put(manifest.ids.manifest_key, encode(dataclasses.replace(manifest, segments=segments)))


async def _gap(full: FullStore, directory: Path) -> None:
    tier = _tier(full, ids_of(4))
    log = _numbered(directory / "gap", (0, 10), (10, 20), (25, 30))
    before, first, after = log.segments()
    await _extend(tier, [before, first])
    manifest = await _extend(tier, [dataclasses.replace(after, log_start=27)])
    assert (
        manifest.segments[-1].gap_from == 20
        and manifest.log_start == 27
        and manifest.segments[0].end <= manifest.log_start
    )


def _readers(store: BlockingMemoryStore) -> None:
    cursor = advance_cursor(store, read_cursor(store, ids_of(1), "audit"), 2, writer="w", now_ms=NOW_MS)
    record_missed(store, cursor, 3, now_ms=NOW_MS)
    segment = stored_manifest(store, ids_of(3)).segments[0]
    record_verdict(store, ids_of(3), "audit", segment, SegmentVerdict((), 10, 100), now_ms=NOW_MS)
