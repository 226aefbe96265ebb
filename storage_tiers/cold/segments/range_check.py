"""One live range in the bucket against what its manifest says: the object's bytes, its batches, its sidecar.

For whoever must know that history is whole: `tidelog fsck` over everything, a handler over what a commit added. Nothing is
decompressed: what stands inside a batch is covered by its CRC-32C, and was checked record by record when it was appended.
Memory is bounded by PIECE_BYTES and the largest batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from storage_tiers.cold.manifest.model import Entry
from storage_tiers.cold.segments import sidecar
from storage_tiers.cold.stores.port import BlockingObjectStore
from storage_tiers.errors import CorruptRecord, TierCorrupt, TierObjectMissing
from storage_tiers.records.batch import check_crc, headers
from storage_tiers.records.checksum import crc32c

#: Bytes of an object read at a time; what is left of a cut-off batch stays in memory with the next.
PIECE_BYTES = 8 << 20


class Fault(Enum):
    """The value is what reports print."""

    FLIPPED = "bytes differ from their checksum"
    TRUNCATED = "of another length than its manifest says"
    MISSING = "missing"
    FOREIGN_SIDECAR = "another segment's sidecar"
    BAD_SIDECAR = "unreadable sidecar"
    WRONG_RECORDS = "batches are not those of its range"


class RangeFinding(NamedTuple):
    fault: Fault
    key: str
    detail: str


@dataclass(frozen=True, slots=True)
class RangeVerdict:
    """`batches` counts those that are sound, `bytes_read` what was fetched for it, the sidecar's bytes included."""

    findings: tuple[RangeFinding, ...]
    batches: int
    bytes_read: int


def sidecar_bytes(entry: Entry) -> int:
    """The length of the sidecar's object, as the manifest knows its sections."""
    return max((section.position + section.length for section in entry.sections), default=0)


def check_range(store: BlockingObjectStore, entry: Entry) -> RangeVerdict:
    """Reads and verifies every byte of the range and of its sidecar. Errors: those of the store but `TierObjectMissing`,
    which is a finding."""
    check = _Check(store, entry)
    try:
        check.sidecar()
        check.segment()
    except TierObjectMissing as error:
        check.add(Fault.MISSING, entry.key, f"it is named for offsets [{entry.base}, {entry.end}) and gone: {error}")
    return RangeVerdict(tuple(check.findings), check.walk.batches, check.bytes_read)


class _Walk:
    """Batches of a range that arrives in pieces."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._rest = b""
        self.following = entry.base
        self.records = 0
        self.batches = 0

    def feed(self, piece: bytes) -> None:
        """CorruptRecord at the first batch that is damaged or out of order."""
        data = self._rest + piece if self._rest else piece
        at = 0
        for start, header in headers(data):
            at = start + header.size
            check_crc(memoryview(data)[start:at], header)
            if not self.following <= header.base_offset or header.next_offset > self._entry.end:
                raise CorruptRecord(
                    f"a batch of offsets [{header.base_offset}, {header.next_offset}) follows offset {self.following}"
                )
            self.following = header.next_offset
            self.records += header.count
            self.batches += 1
        self._rest = data[at:]

    @property
    def left(self) -> int:
        return len(self._rest)


class _Check:
    def __init__(self, store: BlockingObjectStore, entry: Entry) -> None:
        self._store = store
        self._entry = entry
        self.walk = _Walk(entry)
        self.findings: list[RangeFinding] = []
        self.bytes_read = 0

    def add(self, fault: Fault, key: str, detail: str) -> None:
        self.findings.append(RangeFinding(fault, key, detail))

    def sidecar(self) -> None:
        entry = self._entry
        data = self._store.get(entry.sidecar_key).data
        self.bytes_read += len(data)
        try:
            parsed = sidecar.parse(data, entry.sidecar_key)
        except TierCorrupt as error:
            self.add(Fault.BAD_SIDECAR, entry.sidecar_key, str(error))
            return
        named = (entry.base, entry.end, entry.length, entry.crc32c)
        if (parsed.base, parsed.end, parsed.length, parsed.crc32c) != named:
            self.add(
                Fault.FOREIGN_SIDECAR,
                entry.sidecar_key,
                f"it describes offsets [{parsed.base}, {parsed.end}) in {parsed.length} bytes, its segment holds "
                f"[{entry.base}, {entry.end}) in {entry.length}",
            )
        elif sidecar.read_table(data) != entry.sections:
            self.add(Fault.FOREIGN_SIDECAR, entry.sidecar_key, "its section table is not the one in the manifest")

    def segment(self) -> None:
        entry, walk = self._entry, self.walk
        crc, at, problem = 0, 0, ""
        while at < entry.length:
            piece = self._store.get(entry.key, entry.position + at, min(PIECE_BYTES, entry.length - at)).data
            if not piece:
                break
            crc = crc32c(piece, crc)
            at += len(piece)
            self.bytes_read += len(piece)
            if not problem:
                try:
                    walk.feed(piece)
                except CorruptRecord as error:
                    problem = str(error)
        if at < entry.length:
            self.add(Fault.TRUNCATED, entry.key, f"{at} of {entry.length} bytes could be read")
        elif crc != entry.crc32c:
            detail = f"CRC-32C of [{entry.base}, {entry.end}) is {crc:#010x}, the manifest says {entry.crc32c:#010x}"
            self.add(Fault.FLIPPED, entry.key, f"{detail}; {problem}" if problem else detail)
        elif problem or walk.left or walk.following != entry.end or walk.records != entry.records:
            self.add(
                Fault.WRONG_RECORDS,
                entry.key,
                problem
                or f"its batches hold {walk.records} records up to offset {walk.following}, with {walk.left} bytes left; "
                f"the manifest says {entry.records} up to {entry.end}",
            )
