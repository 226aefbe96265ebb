"""Compares two versions of one batch, of which compaction may have taken records.

The local log and the bucket are cleaned apart from each other, so an offset may have all its records in one of them and fewer
in the other; neither is damaged. Pure.
"""

from __future__ import annotations

from storage_tiers.records.batch import BatchHeader, read_header
from storage_tiers.records.decoder import Record, decode_batch, decode_control


def is_reduction(reduced: bytes, full: bytes) -> bool:
    """Whether `reduced` is `full`, or what a cleaning may leave of it: the same batch with none or some of its records.
    CorruptRecord if one of them is damaged."""
    if reduced == full:
        return True
    ours, theirs = read_header(reduced), read_header(full)
    if _identity(ours) != _identity(theirs) or ours.count > theirs.count:
        return False
    if ours.control:
        return ours.count <= 0 or decode_control(reduced) == decode_control(full)
    return set(_records(reduced)) <= set(_records(full))


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
    """An emptied batch has none, whatever its header says of their compression."""
    return decode_batch(batch) if read_header(batch).count > 0 else []
