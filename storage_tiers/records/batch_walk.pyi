"""Python types of the walk over batches, whose source has C types."""

from storage_tiers.records.checksum import Buffer

WHOLE: int
PARTIAL: int
BAD_SIZE: int
BAD_MAGIC: int
BAD_CRC: int
BAD_OFFSETS: int
BAD_EPOCH: int

def find_batch(
    buffer: Buffer, start: int, end: int, target_offset: int, whole: bool = True
) -> tuple[int, int, int]: ...
def scan_batches(
    buffer: Buffer, start: int, end: int
) -> tuple[list[tuple[int, int, int, int, int, int]], int, int]: ...
def recover_scan(
    buffer: Buffer, start: int, expected_offset: int, last_epoch: int, end: int = -1
) -> tuple[list[tuple[int, int, int, int, int, int]], int, int]: ...
