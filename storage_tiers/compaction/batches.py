"""Cleans one batch: selects the records that are kept and builds the batch without the others.

A cleaned batch keeps its base and last offset, producer, epoch, sequence and leader epoch, so that idempotence and recovery see
no difference; a batch that keeps all its records keeps its bytes. A batch that holds a tombstone, or a marker of a transaction
without data, gets a delete horizon (KIP-534) at its first cleaning below `CleaningRules.clean_below`. The tombstone or marker
is removed at the first cleaning after that horizon.

Invariants: offsets, keys, values, headers and timestamps of the records that are kept do not change. Below `clean_below` both
tiers were cleaned of the records that tombstones and markers supersede; above it tombstones and markers are kept and get no
horizon. Otherwise an older value could outlive its tombstone, and readers would take it for the key's newest value.
Source: `Cleaner.cleanInto`, `MemoryRecords.filterTo` of Kafka 4.2. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from storage_tiers.compaction.offset_map import OffsetMap
from storage_tiers.compaction.transactions import CleanedTransactions
from storage_tiers.records import batch as layout
from storage_tiers.records.batch import BatchHeader, read_header, records_payload
from storage_tiers.records.builder import ControlKind, assemble
from storage_tiers.records.codecs import compress
from storage_tiers.records.decoder import decode_control
from storage_tiers.records.varint import decode_varint, decode_varlong, encode


class LastRecord(NamedTuple):
    """The last record of a producer, as the producer state knows it. `data_offset` is -1 if only a marker is left."""

    data_offset: int
    epoch: int


@dataclass(frozen=True)
class CleaningRules:
    """The rules of one cleaning. `now_ms` is in ms since 1970. The map of keys reaches to offset `latest`. The other tier has
    no superseded record below offset `drops_below`. `producers` are the last records by producer id."""

    now_ms: int
    delete_retention_ms: int
    latest: int
    drops_below: int
    producers: Mapping[int, LastRecord]

    @cached_property
    def clean_below(self) -> int:
        """The offset below which neither tier has a superseded record after this cleaning."""
        return min(self.drops_below, self.latest + 1)

    @cached_property
    def last_offsets(self) -> frozenset[int]:
        """The last offsets of the batches by which producers' retries are recognised."""
        return frozenset(last.data_offset for last in self.producers.values())


@dataclass(slots=True)
class Cleaned:
    """Counts of one cleaning: records that were read and kept, bytes of batches, and keys in the map."""

    records_read: int = 0
    records_kept: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    keys: int = 0


def map_keys(batch: memoryview, header: BatchHeader, keys: OffsetMap, seen: CleanedTransactions, start: int) -> bool:
    """Adds the keys of a batch of the dirty part, from offset `start` on, to the map. False once the map is full."""
    if header.control:
        seen.is_unneeded_marker(header, _kind(batch, header), keep=False)
        return True
    if seen.is_aborted(header) or header.count <= 0:
        return True
    return keys.add(records_payload(batch, header), header.count, header.base_offset, start)


def clean_batch(
    batch: memoryview,
    header: BatchHeader,
    keys: OffsetMap,
    seen: CleanedTransactions,
    rules: CleaningRules,
    *,
    is_last: bool,
) -> memoryview | bytes | None:
    """Returns the batch to keep, or None if it is removed. `is_last` marks the last batch of a rewritten segment, which is kept
    even if it is empty: the next segment begins where it ends. CorruptRecord if the batch's records are damaged."""
    if header.control:
        return _clean_marker(batch, header, seen, rules, is_last)
    if seen.is_aborted(header) or header.count <= 0:
        return _emptied(header) if is_last or _is_last_of_producer(header, rules) else None
    keeps_tombstones = not _is_due(header, rules)
    payload = records_payload(batch, header)
    kept, tombstones, highest, rest = keys.clean(
        payload, header.count, header.base_offset, rules.latest, keeps_tombstones
    )
    if not kept:
        return _emptied(header) if is_last or _is_last_of_producer(header, rules) else None
    needs_horizon = tombstones > 0 and not header.delete_horizon and _is_clean(header, rules)
    if rest is None and not needs_horizon:
        return batch
    records = payload if rest is None else memoryview(rest)
    highest_ms = header.max_timestamp if header.log_append_time else header.base_timestamp + highest
    changed = header._replace(count=kept, max_timestamp=highest_ms)
    return _with_horizon(changed, records, rules) if needs_horizon else _rebuilt(changed, records)


def is_unneeded(batch: memoryview | bytes, rules: CleaningRules) -> bool:
    """Whether a batch is empty and no producer's retry is recognised by it, so that it is kept only at the end of a segment."""
    header = read_header(batch)
    return header.count <= 0 and not _is_last_of_producer(header, rules)


def _clean_marker(
    batch: memoryview, header: BatchHeader, seen: CleanedTransactions, rules: CleaningRules, is_last: bool
) -> memoryview | bytes | None:
    is_unneeded = seen.is_unneeded_marker(header, _kind(batch, header), keep=not _is_clean(header, rules))
    if not is_unneeded:
        return batch
    if header.count <= 0:
        return batch if is_last or _is_last_of_producer(header, rules) else None
    if _is_due(header, rules):
        return _emptied(header) if is_last or _is_last_of_producer(header, rules) else None
    if header.delete_horizon or not _is_clean(header, rules):
        return batch
    return _with_horizon(header, records_payload(batch, header), rules)


def _kind(batch: memoryview, header: BatchHeader) -> ControlKind | None:
    if header.count <= 0:
        return None
    marker = decode_control(batch, verify=False)
    return None if marker is None else marker.kind


def _is_due(header: BatchHeader, rules: CleaningRules) -> bool:
    """Whether the batch's tombstones and markers may be removed: the delete horizon in its base timestamp field has passed."""
    return header.delete_horizon and header.base_timestamp <= rules.now_ms and _is_clean(header, rules)


def _is_clean(header: BatchHeader, rules: CleaningRules) -> bool:
    return header.next_offset <= rules.clean_below


def _is_last_of_producer(header: BatchHeader, rules: CleaningRules) -> bool:
    """Whether a retry of the batch's producer is recognised by this batch."""
    last = rules.producers.get(header.producer_id)
    if last is None:
        return False
    if last.data_offset >= 0:
        return header.last_offset == last.data_offset
    return header.control and header.producer_epoch == last.epoch


# --- building ---------------------------------------------------------------------------------------------------------
def _with_horizon(header: BatchHeader, payload: memoryview, rules: CleaningRules) -> bytes:
    horizon = rules.now_ms + rules.delete_retention_ms
    shifted = _shifted(payload, header.count, header.base_timestamp - horizon)
    attributes = header.attributes | layout.DELETE_HORIZON_MASK
    return _rebuilt(header._replace(base_timestamp=horizon, attributes=attributes), memoryview(shifted))


def _shifted(payload: memoryview, count: int, delta_ms: int) -> bytes:
    """The records with `delta_ms` added to each timestamp delta."""
    parts: list[bytes | memoryview] = []
    at = 0
    for _ in range(count):
        length, body = decode_varint(payload, at)
        timestamp, rest = decode_varlong(payload, body + 1)
        at = body + length
        moved = encode(timestamp + delta_ms)
        parts += (encode(1 + len(moved) + at - rest), payload[body : body + 1], moved, payload[rest:at])
    return b"".join(parts)


def _emptied(header: BatchHeader) -> bytes:
    """The batch without records, as Kafka's `DefaultRecordBatch.writeEmptyHeader` writes it."""
    kept = layout.TRANSACTIONAL_MASK | layout.CONTROL_MASK | layout.TIMESTAMP_TYPE_MASK
    return assemble(header._replace(attributes=header.attributes & kept, base_timestamp=-1, count=0), b"")


def _rebuilt(header: BatchHeader, payload: memoryview) -> bytes:
    return assemble(header, compress(header.codec, payload))
