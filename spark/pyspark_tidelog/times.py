"""The offset of the first record at or after a time: manifest, sidecar index, then the batches of one 64 KiB interval.

As Kafka's ListOffsets means it: the first in offset order, timestamps need not rise. Markers of transactions do not count.
Invariant: nothing below log start is returned; where log start hides the record that the index promised, the search goes on.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark_tidelog.batches import Batch, Run, runs
from pyspark_tidelog.bucket import Bucket
from pyspark_tidelog.plan import Piece
from pyspark_tidelog.ranged_reads import verified_pieces
from storage_tiers.cold.manifest.lookup import LoadPage, entries_for_timestamp
from storage_tiers.cold.manifest.model import Entry, Root
from storage_tiers.cold.segments.sidecar import CHECK_BYTES, INDEX
from storage_tiers.errors import CorruptRecord, TierCorrupt
from storage_tiers.records.decoder import decode_batch


def first_offset_at(bucket: Bucket, root: Root, load_page: LoadPage, timestamp: int) -> int | None:
    """None if every record at or above log start is older than `timestamp` (ms since 1970)."""
    for entry in entries_for_timestamp(root, load_page, timestamp):
        for run, batch in _candidates(bucket, entry, root.log_start, timestamp):
            found = _first_in(entry, run, batch, root.log_start, timestamp)
            if found is not None:
                return found
    return None


def _candidates(bucket: Bucket, entry: Entry, log_start: int, timestamp: int) -> Iterator[tuple[Run, Batch]]:
    index = bucket.sidecar(entry, (INDEX,))
    interval = index.interval_for_timestamp(timestamp)
    if interval is None:
        return
    position = max(interval[0], index.floor_position(max(log_start, entry.base))[1])
    row_base = next(row.base_offset for row in index.index if row.position == position)
    base = entry.base if position == 0 else row_base
    piece = Piece(entry, position, entry.length, base, entry.end, base, entry.end)
    for verified in verified_pieces(bucket.store, [piece], fetch_bytes=CHECK_BYTES, in_flight=1):
        for run in runs(piece, verified.chunks):
            for batch in run.batches:
                if batch.max_timestamp >= timestamp and batch.next_offset > log_start:
                    yield run, batch


def _first_in(entry: Entry, run: Run, batch: Batch, log_start: int, timestamp: int) -> int | None:
    try:
        records = decode_batch(run.data[batch.position : batch.position + batch.size])
    except CorruptRecord as error:
        raise TierCorrupt(f"{entry.key}: {error}; run `tidelog fsck`") from error
    return next((each.offset for each in records if each.offset >= log_start and each.timestamp >= timestamp), None)
