"""Types of the cleaner's kernel as Python sees it; its source speaks C's."""

from collections.abc import Set

from storage_tiers.hot.scan import ScannedBatch
from storage_tiers.records.checksum import Buffer

SLOT_BYTES: int

class OffsetMap:
    slots: int
    limit: int
    count: int
    def __init__(self, table: memoryview, load_factor: float, key: bytes) -> None: ...
    def add(self, payload: Buffer, count: int, base_offset: int, start: int) -> bool: ...
    def add_batches(self, data: Buffer, batches: list[ScannedBatch], first: int, start: int) -> int: ...
    def keep(
        self, payload: Buffer, count: int, base_offset: int, latest: int, keep_tombstones: bool
    ) -> tuple[int, int, int, bytes | None]: ...
    def keep_batches(
        self, data: Buffer, batches: list[ScannedBatch], first: int, end: int, latest: int, lasts: Set[int]
    ) -> tuple[int, int, bytearray, list[tuple[int, int, int, int, int, bool]]]: ...
