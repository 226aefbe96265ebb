"""Python types of the native walker, whose source has C types."""

from storage_tiers.records.checksum import Buffer

SOUND: int
BAD_LENGTH: int
BAD_TIMESTAMP_DELTA: int
BAD_OFFSET_DELTA: int
BAD_KEY: int
NULL_KEY: int
BAD_VALUE: int
BAD_HEADERS: int
LENGTH_MISMATCH: int
TOO_FEW_BYTES: int
TOO_MANY_BYTES: int
RECORD_FAULTS: dict[int, str]

def check_records(
    payload: Buffer, count: int, null_keys: bool = True, last_offset_delta: int = -1
) -> tuple[int, int, int, int, int]: ...
def plain_batch(
    whole: memoryview, batch: memoryview, null_keys: bool, now_ms: int, before_max_ms: int, after_max_ms: int
) -> tuple[int, int, int, int, int, int, int, int, int, int, int, int, int, int, int] | None: ...
def find_timestamp(
    payload: Buffer, count: int, base_timestamp: int, base_offset: int, target: int
) -> tuple[int, int] | None: ...
