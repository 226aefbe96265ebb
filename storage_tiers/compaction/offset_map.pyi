"""Types of the cleaner's kernel as Python sees it; its source speaks C's."""

from storage_tiers.records.checksum import Buffer

SLOT_BYTES: int

class OffsetMap:
    slots: int
    limit: int
    count: int
    def __init__(self, table: memoryview, load_factor: float, key: bytes) -> None: ...
    def add(self, payload: Buffer, count: int, base_offset: int, start: int) -> bool: ...
    def keep(
        self, payload: Buffer, count: int, base_offset: int, latest: int, keep_tombstones: bool
    ) -> tuple[int, int, int, bytes | None]: ...
