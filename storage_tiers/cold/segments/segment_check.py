"""Verifies one segment in the bucket against its manifest: recomputes everything from the object's bytes and compares.

    store ──pieces──> batches ──> expected manifest fields and sidecar ──compare──> findings
                         └──────> `observe`, for callers that check a partition across segments

`tidelog fsck` checks every segment in this way, the Lambda `verify_commit` the segments that a commit added. The check compares
everything that follows from this segment's batches alone: the sums and times in the manifest, the sidecar's index and checks.
Epochs, producers and aborted transactions need the previous segments and are left to the observer. Payloads are decompressed
and walked record by record only on request: the batch's CRC-32C covers them, and the broker validated them when it appended
them.

The index rules are implemented a second time here, from `docs/formats.md` and not from the writer's code, so that the check
reveals a mistake of the writer. Memory is bounded by PIECE_BYTES, the largest batch and the sidecar.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from storage_tiers.cold.manifest.model import RemoteSegment, Section
from storage_tiers.cold.segments import sidecar
from storage_tiers.cold.segments.sidecar import CHECK_BYTES, INTERVAL_BYTES, IndexRow, Sidecar
from storage_tiers.cold.stores.port import BlockingObjectStore
from storage_tiers.errors import CorruptRecord, LogError, StoreRefused, TierCorrupt, TierObjectMissing
from storage_tiers.records import walker
from storage_tiers.records.batch import BatchHeader, check_crc, headers, records_payload
from storage_tiers.records.checksum import crc32c
from storage_tiers.records.decoder import decode_control
from storage_tiers.types import NO_TIMESTAMP

#: Bytes of an object read at a time; the start of a batch that a piece cuts off stays in memory with the next piece.
PIECE_BYTES = 8 << 20
#: The sections of every sidecar of this format, in this order.
SECTIONS = (sidecar.INDEX, sidecar.CHECKS, sidecar.ABORTED, sidecar.EPOCHS, sidecar.PRODUCER)

#: Called with each sound batch and its header, in order.
Observe = Callable[[memoryview, BatchHeader], None]


class Fault(Enum):
    """A kind of finding; the value is printed in reports."""

    FLIPPED = "bytes differ from their checksum"
    TRUNCATED = "of another length than its manifest says"
    MISSING = "missing"
    FOREIGN_SIDECAR = "another segment's sidecar"
    BAD_SIDECAR = "unreadable sidecar"
    WRONG_SIDECAR = "a sidecar that its batches contradict"
    WRONG_SEGMENT = "a manifest that its batches contradict"
    WRONG_RECORDS = "batches are not those of its segment"
    UNDECODABLE = "records that cannot be decoded"


class SegmentFinding(NamedTuple):
    """`key` is the key of the object. `detail` is the end of a sentence for a report."""

    fault: Fault
    key: str
    detail: str


@dataclass(frozen=True, slots=True)
class SegmentVerdict:
    """`batches` counts sound batches, `bytes_read` the bytes fetched, including the sidecar's. `sidecar` is None if it is
    unreadable or belongs to another segment. `whole` is True if every batch of the segment was read and is sound."""

    findings: tuple[SegmentFinding, ...]
    batches: int
    bytes_read: int
    sidecar: Sidecar | None = None
    whole: bool = True


def sidecar_bytes(segment: RemoteSegment) -> int:
    """The length of the sidecar's object, from the section table in the manifest."""
    return sections_bytes(segment.sections)


def sections_bytes(sections: Sequence[Section]) -> int:
    return max((section.position + section.length for section in sections), default=0)


def check_segment(
    store: BlockingObjectStore,
    segment: RemoteSegment,
    *,
    payloads: bool = False,
    observe: Observe = lambda batch, header: None,
) -> SegmentVerdict:
    """Reads and verifies every byte of the segment and of its sidecar. Errors: the store's, except `TierObjectMissing`, which
    becomes a finding."""
    check = _SegmentCheck(store, segment, _BatchWalk(segment, payloads, observe))
    try:
        check.sidecar()
        check.segment()
    except TierObjectMissing as error:
        check.add(
            Fault.MISSING,
            segment.key,
            f"the manifest names it for offsets [{segment.base}, {segment.end}), and it is gone: {error}",
        )
        check.walk.sound = False
    check.compare()
    return SegmentVerdict(tuple(check.findings), check.walk.batches, check.bytes_read, check.parsed, check.walk.sound)


class _BatchWalk:
    """Walks the batches of a segment that arrives in pieces, and sums up the batches' headers."""

    def __init__(self, segment: RemoteSegment, payloads: bool, observe: Observe) -> None:
        self._segment = segment
        self._payloads = payloads
        self._observe = observe
        self._rest = b""
        self._at = 0
        self.following = segment.base
        self.sound = True
        self.undecodable = ""
        self.records = self.batches = 0
        self.epoch = -1
        self.min_timestamp = self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = segment.base
        self.rows: list[IndexRow] = []

    def feed(self, piece: bytes) -> None:
        """Walks the next piece. CorruptRecord at the first batch that is damaged or out of order."""
        data = memoryview(self._rest + piece if self._rest else piece)
        at = 0
        for start, header in headers(data):
            at = start + header.size
            batch = data[start:at]
            check_crc(batch, header)
            if not self.following <= header.base_offset or header.next_offset > self._segment.end:
                raise CorruptRecord(
                    f"a batch of offsets [{header.base_offset}, {header.next_offset}) follows offset {self.following}"
                )
            if header.leader_epoch < self.epoch:
                raise CorruptRecord(f"a batch of leader epoch {header.leader_epoch} follows epoch {self.epoch}")
            self._count(header, self._at + start)
            if self._payloads and not self.undecodable:
                self.undecodable = _undecodable(batch, header)
            self._observe(batch, header)
        self._at += at
        self._rest = bytes(data[at:])

    def _count(self, header: BatchHeader, position: int) -> None:
        if header.count > 0 and (self.records == 0 or header.base_timestamp < self.min_timestamp):
            self.min_timestamp = header.base_timestamp
        newest = header.max_timestamp if header.count > 0 else NO_TIMESTAMP
        if self.batches == 0 or newest > self.max_timestamp:
            self.max_timestamp, self.max_timestamp_offset = newest, header.base_offset
        if not self.rows or position >= self.rows[-1].position + INTERVAL_BYTES:
            self.rows.append(IndexRow(header.base_offset, position, self.max_timestamp))
        self.rows[-1] = self.rows[-1]._replace(max_timestamp=self.max_timestamp)
        self.following = header.next_offset
        self.epoch = header.leader_epoch
        self.records += header.count
        self.batches += 1

    @property
    def left(self) -> int:
        return len(self._rest)


def _undecodable(batch: memoryview, header: BatchHeader) -> str:
    """The reason why a reader cannot decode the batch, as a sentence; empty if it can."""
    try:
        if header.control:
            decode_control(batch, verify=False)
            return ""
        payload = records_payload(batch, header)
        fault, index, *_ = walker.check_records(payload, header.count, True, header.last_offset_delta)
    except LogError as error:
        return f"the batch at offset {header.base_offset}: {error}"
    if fault:
        return f"record {index} of the batch at offset {header.base_offset}: {walker.RECORD_FAULTS[fault]}"
    return ""


class _SegmentCheck:
    def __init__(self, store: BlockingObjectStore, segment: RemoteSegment, walk: _BatchWalk) -> None:
        self._store = store
        self._segment = segment
        self.walk = walk
        self.parsed: Sidecar | None = None
        self.findings: list[SegmentFinding] = []
        self.bytes_read = 0
        self._mib_crcs: list[int] = []

    def add(self, fault: Fault, key: str, detail: str) -> None:
        self.findings.append(SegmentFinding(fault, key, detail))

    def sidecar(self) -> None:
        segment = self._segment
        try:
            data = self._store.get(segment.sidecar_key).data
        except TierObjectMissing as error:
            detail = f"the manifest names it for offsets [{segment.base}, {segment.end}), and it is gone: {error}"
            self.add(Fault.MISSING, segment.sidecar_key, detail)
            return
        self.bytes_read += len(data)
        try:
            parsed = sidecar.parse(data, segment.sidecar_key)
            table = sidecar.read_table(data, segment.sidecar_key)
        except (TierCorrupt, StoreRefused) as error:
            self.add(Fault.BAD_SIDECAR, segment.sidecar_key, str(error))
            return
        named = (segment.base, segment.end, segment.length, segment.crc32c)
        if (parsed.base, parsed.end, parsed.length, parsed.crc32c) != named:
            self.add(
                Fault.FOREIGN_SIDECAR,
                segment.sidecar_key,
                f"it describes offsets [{parsed.base}, {parsed.end}) in {parsed.length} bytes, its segment holds "
                f"[{segment.base}, {segment.end}) in {segment.length}",
            )
        elif table != segment.sections:
            self.add(Fault.FOREIGN_SIDECAR, segment.sidecar_key, "its section table is not the one in the manifest")
        else:
            self.parsed = parsed
            self._layout(len(data))

    def _layout(self, size: int) -> None:
        """Sections must follow the table without gaps, the known ones first and in their order."""
        sections = self._segment.sections
        at = sidecar.table_bytes(len(sections))
        for section in sections:
            if section.position != at:
                detail = f"section {section.name!r} begins at byte {section.position}, not at {at}"
                self.add(Fault.BAD_SIDECAR, self._segment.sidecar_key, detail)
            at += section.length
        if tuple(section.name for section in sections)[: len(SECTIONS)] != SECTIONS:
            names = ", ".join(section.name for section in sections)
            self.add(Fault.BAD_SIDECAR, self._segment.sidecar_key, f"its sections are {names}")
        if at != size:
            self.add(Fault.BAD_SIDECAR, self._segment.sidecar_key, f"its sections end at byte {at} of {size}")

    def segment(self) -> None:
        segment, walk = self._segment, self.walk
        crc, at, problem = 0, 0, ""
        while at < segment.length:
            piece = self._store.get(segment.key, segment.position + at, min(PIECE_BYTES, segment.length - at)).data
            if not piece:
                break
            crc = crc32c(piece, crc)
            self._sum(piece, at)
            at += len(piece)
            self.bytes_read += len(piece)
            if not problem:
                try:
                    walk.feed(piece)
                except CorruptRecord as error:
                    problem = str(error)
        if at < segment.length:
            self.add(Fault.TRUNCATED, segment.key, f"{at} of {segment.length} bytes could be read")
        elif crc != segment.crc32c:
            detail = (
                f"CRC-32C of [{segment.base}, {segment.end}) is {crc:#010x}, the manifest says {segment.crc32c:#010x}"
            )
            self.add(Fault.FLIPPED, segment.key, f"{detail}; {problem}" if problem else detail)
        elif problem or walk.left or walk.following != segment.end or walk.records != segment.records:
            self.add(
                Fault.WRONG_RECORDS,
                segment.key,
                problem
                or f"its batches hold {walk.records} records up to offset {walk.following}, with {walk.left} bytes left; "
                f"the manifest says {segment.records} up to {segment.end}",
            )
        walk.sound = not self._fault_in(segment.key)
        if walk.undecodable:
            self.add(Fault.UNDECODABLE, segment.key, walk.undecodable)

    def _sum(self, piece: bytes, at: int) -> None:
        """Adds a piece, which begins at byte `at` of the segment, to the CRC-32C of each MiB."""
        view = memoryview(piece)
        while view:
            room = CHECK_BYTES - at % CHECK_BYTES
            if at % CHECK_BYTES:
                self._mib_crcs[-1] = crc32c(view[:room], self._mib_crcs[-1])
            else:
                self._mib_crcs.append(crc32c(view[:room]))
            at += len(view[:room])
            view = view[room:]

    def _fault_in(self, key: str) -> bool:
        return any(finding.key == key for finding in self.findings)

    def compare(self) -> None:
        """Compares the sums of sound batches with the manifest and the sidecar."""
        if not self.walk.sound:
            return
        segment, walk = self._segment, self.walk
        for name, found in (
            ("bytes", segment.length),
            ("min_timestamp", walk.min_timestamp),
            ("max_timestamp", walk.max_timestamp),
            ("max_timestamp_offset", walk.max_timestamp_offset),
        ):
            said = getattr(segment, name)
            if said != found:
                self.add(Fault.WRONG_SEGMENT, segment.key, f"{name} is {said} in the manifest, {found} in its batches")
        if self.parsed is None:
            return
        if list(self.parsed.mib_crcs) != self._mib_crcs:
            self.add(Fault.WRONG_SIDECAR, segment.sidecar_key, "its checks are not those of the segment's bytes")
        if list(self.parsed.index) != walk.rows:
            self.add(Fault.WRONG_SIDECAR, segment.sidecar_key, _difference(self.parsed.index, walk.rows))


def _difference(said: Sequence[IndexRow], found: list[IndexRow]) -> str:
    for row, (theirs, ours) in enumerate(zip(said, found, strict=False)):
        if theirs != ours:
            return f"row {row} of its index is {tuple(theirs)}, its batches say {tuple(ours)}"
    return f"its index has {len(said)} rows, its batches say {len(found)}"
