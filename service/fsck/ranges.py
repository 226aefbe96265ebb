"""One live range in the bucket against what its manifest says: the object's bytes, its batches, its sidecar."""

from __future__ import annotations

from service.fsck.findings import Kind, Report
from storage_tiers.cold import sidecar
from storage_tiers.cold.manifest import Entry
from storage_tiers.cold.object_store import BlockingObjectStore, ObjectInfo
from storage_tiers.errors import CorruptRecord, TierCorrupt, TierObjectMissing
from storage_tiers.records.batch import check_crc, headers
from storage_tiers.records.checksum import crc32c

#: Bytes of an object read at a time; what is left of a cut-off batch stays in memory with the next.
PIECE_BYTES = 8 << 20


def check_listing(entry: Entry, listed: dict[str, ObjectInfo], report: Report) -> bool:
    """By the listing alone: are both objects there, and long enough? False if reading them makes no sense."""
    for key, needed in ((entry.key, entry.position + entry.length), (entry.sidecar_key, _sidecar_bytes(entry))):
        info = listed.get(key)
        if info is None:
            report.add(Kind.MISSING, key, f"the manifest names it for offsets [{entry.base}, {entry.end})")
            return False
        if info.size < needed or (key == entry.sidecar_key and info.size != needed):
            report.add(Kind.TRUNCATED, key, f"it has {info.size} bytes, {needed} belong to [{entry.base}, {entry.end})")
            return False
    return True


def check_bytes(store: BlockingObjectStore, entry: Entry, report: Report) -> None:
    """Reads and verifies every byte of the range and of its sidecar."""
    try:
        _check_sidecar(store, entry, report)
        _check_segment(store, entry, report)
    except TierObjectMissing as error:
        report.add(Kind.MISSING, entry.key, f"it was listed and is gone: {error}")


def _sidecar_bytes(entry: Entry) -> int:
    return max((section.position + section.length for section in entry.sections), default=0)


def _check_sidecar(store: BlockingObjectStore, entry: Entry, report: Report) -> None:
    data = store.get(entry.sidecar_key).data
    report.bytes_read += len(data)
    try:
        parsed = sidecar.parse(data, entry.sidecar_key)
    except TierCorrupt as error:
        report.add(Kind.BAD_SIDECAR, entry.sidecar_key, str(error))
        return
    if (parsed.base, parsed.end, parsed.length, parsed.crc32c) != (entry.base, entry.end, entry.length, entry.crc32c):
        report.add(
            Kind.FOREIGN_SIDECAR,
            entry.sidecar_key,
            f"it describes offsets [{parsed.base}, {parsed.end}) in {parsed.length} bytes, its segment holds "
            f"[{entry.base}, {entry.end}) in {entry.length}",
        )
    elif sidecar.read_table(data) != entry.sections:
        report.add(Kind.FOREIGN_SIDECAR, entry.sidecar_key, "its section table is not the one in the manifest")


class _Walk:
    """Batches of a range that arrives in pieces."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._rest = b""
        self.following = entry.base
        self.records = 0

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
        self._rest = data[at:]

    @property
    def left(self) -> int:
        return len(self._rest)


def _check_segment(store: BlockingObjectStore, entry: Entry, report: Report) -> None:
    walk = _Walk(entry)
    crc, at, problem = 0, 0, ""
    while at < entry.length:
        piece = store.get(entry.key, entry.position + at, min(PIECE_BYTES, entry.length - at)).data
        if not piece:
            break
        crc = crc32c(piece, crc)
        at += len(piece)
        report.bytes_read += len(piece)
        if not problem:
            try:
                walk.feed(piece)
            except CorruptRecord as error:
                problem = str(error)
    if at < entry.length:
        report.add(Kind.TRUNCATED, entry.key, f"{at} of {entry.length} bytes could be read")
    elif crc != entry.crc32c:
        detail = f"CRC-32C of [{entry.base}, {entry.end}) is {crc:#010x}, the manifest says {entry.crc32c:#010x}"
        report.add(Kind.FLIPPED, entry.key, f"{detail}; {problem}" if problem else detail)
    elif problem or walk.left or walk.following != entry.end or walk.records != entry.records:
        report.add(
            Kind.WRONG_RECORDS,
            entry.key,
            problem
            or f"its batches hold {walk.records} records up to offset {walk.following}, with {walk.left} bytes left; the "
            f"manifest says {entry.records} up to {entry.end}",
        )
