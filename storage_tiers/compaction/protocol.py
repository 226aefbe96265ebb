"""The protocol between a broker and its cleaner process: one JSON object per line.

The broker sends a request. The cleaner replies with the offset that it reached, then with each group of rewritten segments.
After each of these it waits for the broker's reply. The broker replies before it swaps the files, so that the cleaner writes
the next group meanwhile, but no further one. The cleaner requests segments of the bucket one by one, because only the broker
can have them fetched. The cleaner's last answer is its counts, or an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, NamedTuple

from storage_tiers.compaction.batches import Cleaned, LastRecord
from storage_tiers.compaction.rewriter import CleaningJob, SourceSegment
from storage_tiers.errors import CorruptRecord, LogError, StorageError
from storage_tiers.hot.indexes import TimeEntry
from storage_tiers.hot.swap import RewrittenSegment
from storage_tiers.types import AbortedTransaction

#: Longest line: a request names every segment, aborted transaction and producer of a partition.
MAX_LINE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningRequest:
    """The request for one cleaning. `producers` are the last records by producer id; `now_ms`, `delete_retention_ms` and
    `drops_below` are as in CleaningRules. `map_bytes` and `map_load` bound the map of keys, `bytes_per_second` the bytes read
    and written (0 or less: no bound). `key` are 16 random bytes."""

    cleaning: CleaningJob
    producers: Mapping[int, LastRecord]
    now_ms: int
    delete_retention_ms: int
    drops_below: int
    map_bytes: int
    map_load: float
    bytes_per_second: float
    key: bytes


class KeysRead(NamedTuple):
    """The keys of all records below `offset` are in the map: this cleaning ends there."""

    offset: int


class SegmentNeeded(NamedTuple):
    """The cleaner needs the segment that begins at `base`; the broker's reply names its file."""

    base: int


class KeepAlive(NamedTuple):
    """Sent every BEAT_S while the cleaner works. The cleaner waits for no reply."""


#: The most seconds between two answers of a cleaner, as long as the disk responds.
BEAT_S = 5.0

CleanerAnswer = KeysRead | SegmentNeeded | KeepAlive | RewrittenSegment | Cleaned | LogError

_ERRORS: dict[str, type[LogError]] = {"corrupt": CorruptRecord, "storage": StorageError}


def encode_request(request: CleaningRequest) -> bytes:
    """Encodes a request. Lets other threads run after every ROWS_A_CALL rows, because a request may have a hundred thousand
    rows."""
    cleaning = request.cleaning
    fields: dict[str, Any] = {
        "directory": cleaning.directory,
        "dirty_start": cleaning.dirty_start,
        "fences": cleaning.fences,
        "segment_bytes": cleaning.segment_bytes,
        "index_interval": cleaning.index_interval,
        "is_remote": cleaning.is_remote,
        "now_ms": request.now_ms,
        "delete_retention_ms": request.delete_retention_ms,
        "drops_below": request.drops_below,
        "map_bytes": request.map_bytes,
        "map_load": request.map_load,
        "bytes_per_second": request.bytes_per_second,
        "key": request.key.hex(),
    }
    rows: dict[str, Iterable[tuple[int, ...]]] = {
        "segments": cleaning.segments,
        "aborted": (
            (each.producer_id, each.first_offset, each.last_offset, each.last_stable_offset)
            for each in cleaning.aborted
        ),
        "producers": ((producer, *last) for producer, last in request.producers.items()),
    }
    lists = b"".join(b',"%s":[%s]' % (name.encode(), _rows(each)) for name, each in rows.items())
    return _line(fields).removesuffix(b"}\n") + lists + b"}\n"


#: Rows that are encoded in one call, which holds the interpreter's lock for half a millisecond.
ROWS_A_CALL = 500


def _rows(rows: Iterable[tuple[int, ...]]) -> bytes:
    """The rows as elements of a JSON array."""
    left = iter(rows)
    encoded = []
    while some := list(islice(left, ROWS_A_CALL)):
        encoded.append(_line(some)[1:-2])
    return b",".join(encoded)


def decode_request(line: bytes) -> CleaningRequest:
    said = json.loads(line)
    return CleaningRequest(
        cleaning=CleaningJob(
            directory=said["directory"],
            segments=[SourceSegment(*each) for each in said["segments"]],
            dirty_start=said["dirty_start"],
            fences=said["fences"],
            aborted=[AbortedTransaction(*each) for each in said["aborted"]],
            segment_bytes=said["segment_bytes"],
            index_interval=said["index_interval"],
            is_remote=said["is_remote"],
        ),
        producers={producer: LastRecord(offset, epoch) for producer, offset, epoch in said["producers"]},
        now_ms=said["now_ms"],
        delete_retention_ms=said["delete_retention_ms"],
        drops_below=said["drops_below"],
        map_bytes=said["map_bytes"],
        map_load=said["map_load"],
        bytes_per_second=said["bytes_per_second"],
        key=bytes.fromhex(said["key"]),
    )


def encode_answer(answer: CleanerAnswer) -> bytes:
    if isinstance(answer, KeysRead):
        return _line({"reached": answer.offset})
    if isinstance(answer, KeepAlive):
        return _line({"working": True})
    if isinstance(answer, SegmentNeeded):
        return _line({"wanted": answer.base})
    if isinstance(answer, RewrittenSegment):
        return _line({"rewritten": answer})
    if isinstance(answer, Cleaned):
        return _line({"cleaned": asdict(answer)})
    name = "corrupt" if isinstance(answer, CorruptRecord) else "storage"
    return _line({"error": name, "message": str(answer)})


def decode_answer(line: bytes) -> CleanerAnswer:
    said = json.loads(line)
    if "reached" in said:
        return KeysRead(said["reached"])
    if "working" in said:
        return KeepAlive()
    if "wanted" in said:
        return SegmentNeeded(said["wanted"])
    if "rewritten" in said:
        base, end, size, newest, has_transactions, replaces = said["rewritten"]
        pairs = tuple((first, length) for first, length in replaces)
        return RewrittenSegment(base, end, size, TimeEntry(*newest), has_transactions, pairs)
    if "cleaned" in said:
        return Cleaned(**said["cleaned"])
    return _ERRORS[said["error"]](said["message"])


#: The broker's line that tells the cleaner to continue.
CONTINUE = b"{}\n"


def encode_path(path: str) -> bytes:
    """The broker's line that tells the cleaner to continue, with the path of the requested file."""
    return _line({"path": path})


def decode_path(line: bytes) -> str:
    path: str = json.loads(line)["path"]
    return path


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
