"""Python types of the cleaner's kernel, whose source has C types."""

from collections.abc import Set
from typing import NamedTuple

from storage_tiers.hot.scan import ScannedBatch
from storage_tiers.records.checksum import Buffer

SLOT_BYTES: int

class KeptRecords(NamedTuple):
    records: int
    tombstones: int
    highest_delta_ms: int
    content: bytes | None

class CleanedBatches(NamedTuple):
    stopped: int
    records: int
    written: bytearray
    kept: list[tuple[int, int, int, int, int, bool]]

class OffsetMap:
    slots: int
    limit: int
    count: int
    def __init__(self, table: memoryview, load_factor: float, key: bytes) -> None: ...
    def add(self, payload: Buffer, count: int, base_offset: int, start: int) -> bool: ...
    def add_batches(self, data: Buffer, batches: list[ScannedBatch], first: int, start: int) -> int: ...
    def clean(
        self, payload: Buffer, count: int, base_offset: int, latest: int, keep_tombstones: bool
    ) -> KeptRecords: ...
    def clean_batches(
        self, data: Buffer, batches: list[ScannedBatch], first: int, end: int, latest: int, lasts: Set[int]
    ) -> CleanedBatches: ...
