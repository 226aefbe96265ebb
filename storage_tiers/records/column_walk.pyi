"""Python types of the decoder's kernel, whose source has C types."""

from array import array

from storage_tiers.records.checksum import Buffer
from storage_tiers.records.column_buffers import Columns

BAD_TIMESTAMP: int
END: int
FULL: int
COMPRESSED: int
BAD_BATCH: int

class Walk:
    batch: int
    batch_end: int
    index: int
    def __init__(self, buffer: Buffer, start: int, stop: int, aborted: array[int], verify: bool) -> None: ...
    def skip(self) -> None: ...
    def decode(self, columns: Columns) -> int: ...
