"""Finds a record by time inside one batch of any codec and timestamp type."""

from __future__ import annotations

from storage_tiers.records import walker
from storage_tiers.records.batch import Buffer, read_header, records_payload
from storage_tiers.types import TimestampOffset


def first_at_or_after(batch: Buffer, target_ms: int, *, max_bytes: int | None = None) -> TimestampOffset | None:
    """The first record with a timestamp at or after `target_ms`, or None. With the batch's own max timestamp as target this is
    the record of ListOffsets' MAX_TIMESTAMP (KIP-734).

    Raises as `decoder.decode_batch` does, but the caller checks the CRC.
    """
    header = read_header(batch)
    if header.count <= 0 or header.max_timestamp < target_ms:
        return None
    payload = records_payload(batch, header, max_bytes)
    # Under log append time every record has the batch's timestamp. The offset of the first record still has to be looked up,
    # since compaction may have removed the record at the base offset.
    wanted = _ANY if header.log_append_time else target_ms
    found = walker.find_timestamp(payload, header.count, header.base_timestamp, header.base_offset, wanted)
    if found is None:
        return None
    timestamp, offset = found
    return TimestampOffset(header.max_timestamp if header.log_append_time else timestamp, offset, header.leader_epoch)


_ANY = -(1 << 63)
