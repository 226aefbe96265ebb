"""What a broker and its cleaner process say to each other: a JSON object per line.

The broker sends an order. The cleaner answers with the offset that it reached, then with each group of segments that it has
written; it waits after each of these until the broker says that it may go on, because the broker alone exchanges files. It ends
with its counts, or with an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from storage_tiers.compaction.batches import Cleaned, LastRecord
from storage_tiers.compaction.rewriter import CleaningJob, SourceSegment
from storage_tiers.errors import CorruptRecord, LogError, StorageError
from storage_tiers.hot.indexes import TimeEntry
from storage_tiers.hot.swap import RewrittenSegment
from storage_tiers.types import AbortedTransaction

#: Longest line: an order names every segment, aborted transaction and producer of a partition.
MAX_LINE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class CleanOrder:
    """`map_bytes` and `map_load` bound the map of keys, `bytes_per_second` what is read and written; `key` are 16 random
    bytes."""

    cleaning: CleaningJob
    producers: Mapping[int, LastRecord]
    now_ms: int
    delete_retention_ms: int
    drops_markers: bool
    map_bytes: int
    map_load: float
    bytes_per_second: float
    key: bytes


class Reached(NamedTuple):
    """The keys of all records below `offset` are known: there this cleaning ends."""

    offset: int


CleanerAnswer = Reached | RewrittenSegment | Cleaned | LogError

_ERRORS: dict[str, type[LogError]] = {"corrupt": CorruptRecord, "storage": StorageError}


def encode_order(order: CleanOrder) -> bytes:
    cleaning = order.cleaning
    return _line(
        {
            "directory": cleaning.directory,
            "segments": cleaning.segments,
            "dirty_start": cleaning.dirty_start,
            "fences": cleaning.fences,
            "aborted": [
                (each.producer_id, each.first_offset, each.last_offset, each.last_stable_offset)
                for each in cleaning.aborted
            ],
            "segment_bytes": cleaning.segment_bytes,
            "index_interval": cleaning.index_interval,
            "producers": [(producer, *last) for producer, last in order.producers.items()],
            "now_ms": order.now_ms,
            "delete_retention_ms": order.delete_retention_ms,
            "drops_markers": order.drops_markers,
            "map_bytes": order.map_bytes,
            "map_load": order.map_load,
            "bytes_per_second": order.bytes_per_second,
            "key": order.key.hex(),
        }
    )


def decode_order(line: bytes) -> CleanOrder:
    said = json.loads(line)
    return CleanOrder(
        CleaningJob(
            said["directory"],
            [SourceSegment(*each) for each in said["segments"]],
            said["dirty_start"],
            said["fences"],
            [AbortedTransaction(*each) for each in said["aborted"]],
            said["segment_bytes"],
            said["index_interval"],
        ),
        {producer: LastRecord(offset, epoch) for producer, offset, epoch in said["producers"]},
        said["now_ms"],
        said["delete_retention_ms"],
        said["drops_markers"],
        said["map_bytes"],
        said["map_load"],
        said["bytes_per_second"],
        bytes.fromhex(said["key"]),
    )


def encode_answer(answer: CleanerAnswer) -> bytes:
    if isinstance(answer, Reached):
        return _line({"reached": answer.offset})
    if isinstance(answer, RewrittenSegment):
        return _line({"rewritten": answer})
    if isinstance(answer, Cleaned):
        return _line({"cleaned": asdict(answer)})
    name = "corrupt" if isinstance(answer, CorruptRecord) else "storage"
    return _line({"error": name, "message": str(answer)})


def decode_answer(line: bytes) -> CleanerAnswer:
    said = json.loads(line)
    if "reached" in said:
        return Reached(said["reached"])
    if "rewritten" in said:
        base, end, size, newest, has_transactions, replaces = said["rewritten"]
        pairs = tuple((first, length) for first, length in replaces)
        return RewrittenSegment(base, end, size, TimeEntry(*newest), has_transactions, pairs)
    if "cleaned" in said:
        return Cleaned(**said["cleaned"])
    return _ERRORS[said["error"]](said["message"])


#: The broker's word to go on.
GO_ON = b"{}\n"


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
