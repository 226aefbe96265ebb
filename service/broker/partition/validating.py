"""Validates a client's batch against its topic's configs, and rewrites the batch if the configs require a different form.

Pure but slow: recompressing a batch, inflating it, or naming its invalid records may take long. This work runs in a thread. On
the event loop, validation raises TakesLong instead.
"""

from __future__ import annotations

from storage_tiers.errors import InvalidRecord, InvalidTimestamp, RecordTooLarge
from storage_tiers.hot.settings import LARGE_BATCH_BYTES, UNBOUNDED, LogSettings
from storage_tiers.records import batch as record_batch
from storage_tiers.records.batch import (
    BatchHeader,
    check_timestamps,
    read_header,
    stamp_log_append_time,
    stamp_max_timestamp,
)
from storage_tiers.records.recompress import recompress
from storage_tiers.records.record_errors import record_error
from storage_tiers.types import TopicPartition

#: Bytes to which a compressed batch may inflate on the event loop. Gzip takes about a millisecond for that.
INFLATED_AT_ONCE = 256 << 10


class TakesLong(Exception):
    """The validation of a batch would block the event loop for too long."""


def validate(
    batch: memoryview, settings: LogSettings, partition: TopicPartition, *, now_ms: int, at_once: bool
) -> tuple[memoryview, BatchHeader, int]:
    """Returns the batch to store, its header, and the log append time (ms) or -1. Raises the precise error of an invalid batch.
    With `at_once`, raises TakesLong if the validation would block the event loop for too long."""
    if at_once and LARGE_BATCH_BYTES < len(batch) <= settings.max_message_bytes:
        raise TakesLong
    stamped = -1
    try:
        header = record_batch.validate(
            batch,
            max_bytes=settings.max_message_bytes,
            compacted=settings.cleanup_compact,
            deep=settings.validate_records,
            max_decompressed=INFLATED_AT_ONCE if at_once else None,
        )
        if settings.timestamp_type == "CreateTime":
            check_timestamps(
                header,
                now_ms=now_ms,
                before_max_ms=settings.timestamp_before_max_ms,
                after_max_ms=settings.timestamp_after_max_ms,
            )
        else:
            stamped = now_ms
    except RecordTooLarge:
        if at_once and len(batch) <= settings.max_message_bytes:
            raise TakesLong from None
        raise
    except (InvalidRecord, InvalidTimestamp) as error:
        if isinstance(error, InvalidRecord) and not settings.cleanup_compact:
            raise
        if at_once:
            raise TakesLong from None
        raise _explained(error, batch, settings, partition, now_ms) from None
    if stamped >= 0 or settings.stored_as is not None or header.wrong_max_timestamp:
        batch, header = _rewritten(batch, header, settings, stamped)
    return batch, header, stamped


def _rewritten(
    batch: memoryview, header: BatchHeader, settings: LogSettings, stamped: int
) -> tuple[memoryview, BatchHeader]:
    """Returns the batch to store: in the topic's codec, with `stamped` (ms) as log append time unless that is -1. If it is -1,
    the batch's max timestamp is corrected if the client's is wrong."""
    owned = None if settings.stored_as is None else recompress(batch, header, settings.stored_as)
    if owned is None:
        if stamped < 0 and not header.wrong_max_timestamp:
            return batch, header
        owned = bytearray(batch)
    elif len(owned) > settings.max_message_bytes:
        raise RecordTooLarge(
            f"the record batch has {len(owned)} bytes under compression.type, max.message.bytes is "
            f"{settings.max_message_bytes}: send smaller batches"
        )
    if stamped >= 0:
        stamp_log_append_time(owned, stamped)
    elif header.wrong_max_timestamp and header.highest_timestamp is not None:
        stamp_max_timestamp(owned, header.highest_timestamp)
    return memoryview(owned), read_header(owned)


def _explained(
    error: InvalidRecord | InvalidTimestamp,
    batch: memoryview,
    settings: LogSettings,
    partition: TopicPartition,
    now_ms: int,
) -> InvalidRecord | InvalidTimestamp:
    """Returns the error to raise: one that names the invalid records if single records are invalid, or else `error`."""
    earliest, latest = now_ms - settings.timestamp_before_max_ms, now_ms + settings.timestamp_after_max_ms
    if settings.timestamp_type == "LogAppendTime":
        earliest, latest = -UNBOUNDED - 1, UNBOUNDED
    null_keys = not settings.cleanup_compact
    named = record_error(batch, partition, null_keys=null_keys, earliest=earliest, latest=latest)
    return error if named is None else named
