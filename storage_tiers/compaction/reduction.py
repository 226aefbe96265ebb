"""Compares two versions of one batch, from which compaction may have removed records.

The local log and the bucket are cleaned independently, so one may have records that the other lacks, without damage. Pure.
"""

from __future__ import annotations

from storage_tiers.records.batch import BatchHeader, read_header
from storage_tiers.records.decoder import Record, decode_batch, decode_control


def are_of_one_batch(one: bytes, other: bytes) -> bool:
    """Whether both can be versions of the same batch, of whose records a cleaning leaves all, some or none. Each may lack
    records of the other: one cleaning may have removed an expired tombstone, the other an older record of another key.
    CorruptRecord if one of them is damaged."""
    if one == other:
        return True
    ours, theirs = read_header(one), read_header(other)
    if _identity(ours) != _identity(theirs):
        return False
    if ours.control:
        return min(ours.count, theirs.count) <= 0 or decode_control(one) == decode_control(other)
    known = {record.offset: record for record in _records(one)}
    return all(known.get(record.offset, record) == record for record in _records(other))


def _identity(header: BatchHeader) -> tuple[object, ...]:
    """The header fields that no cleaning changes."""
    return (
        header.base_offset,
        header.last_offset,
        header.leader_epoch,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.control,
        header.transactional,
    )


def _records(batch: bytes) -> list[Record]:
    """The batch's records. An emptied batch has none, whatever codec its header names."""
    return decode_batch(batch) if read_header(batch).count > 0 else []
