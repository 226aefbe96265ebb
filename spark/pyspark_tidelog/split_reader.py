"""Reads one split on an executor: prefetches, verifies, checks completeness, and decodes into Arrow batches.

Invariant: a read returns every planned record or fails. A missing or changed object never means fewer rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa

from pyspark_tidelog.arrow_batches import ArrowDecoder
from pyspark_tidelog.batches import runs
from pyspark_tidelog.bucket import open_store
from pyspark_tidelog.options import ReadOptions
from pyspark_tidelog.plan import ScanPiece, Split
from pyspark_tidelog.ranged_reads import Verified, verified_pieces
from storage_tiers.cold.manifest.lookup import live_segments
from storage_tiers.cold.manifest.model import State
from storage_tiers.cold.offline.bucket import Bucket
from storage_tiers.errors import (
    CorruptRecord,
    LogError,
    RecordTooLarge,
    TierCorrupt,
    TierObjectMissing,
    UnsupportedCompression,
)


def read(options: ReadOptions, schema: pa.Schema, split: Split) -> Iterator[pa.RecordBatch]:
    """Reads one split. Opens a store of its own, because a task may run on any executor."""
    store = open_store(options)
    try:
        decoder = ArrowDecoder(schema, split.ids.topic, split.ids.partition)
        yield from read_split(Bucket(store, options.store), split, decoder, options.read_committed)
    finally:
        store.close()


def read_split(bucket: Bucket, split: Split, decoder: ArrowDecoder, read_committed: bool) -> Iterator[pa.RecordBatch]:
    """Yields every record of the split. Raises TierObjectMissing, which names offsets that were removed after planning, or
    TierCorrupt, which names a damaged segment."""
    with closing(verified_pieces(bucket.store, split.pieces)) as pieces:
        for piece in split.pieces:
            try:
                yield from _read_piece(next(pieces), decoder, read_committed)
            except TierObjectMissing as error:
                raise _gone(bucket, split, piece, error) from error
    yield from decoder.finish()


def _read_piece(verified: Verified, decoder: ArrowDecoder, read_committed: bool) -> Iterator[pa.RecordBatch]:
    piece, front, chunks = verified
    for run in runs(piece, chunks):
        aborted = front.aborted_between(run.base, run.end) if read_committed else ()
        try:
            yield from decoder.add(run.data, piece.start, piece.stop, aborted)
        except (CorruptRecord, RecordTooLarge, UnsupportedCompression) as error:
            raise TierCorrupt(f"{piece.segment.key}: {error}; run `tidelog fsck`") from error


def _gone(bucket: Bucket, split: Split, piece: ScanPiece, error: TierObjectMissing) -> LogError:
    """The error for a missing object of the plan. The current manifest gives the reason."""
    what = f"offsets [{piece.start}, {piece.stop}) of {split.ids}"
    try:
        manifest = bucket.manifest(split.ids)
        if manifest is None:
            return TierObjectMissing(f"{what} are gone: {error}; their manifest is gone too")
        if manifest.state is State.DELETED:
            return TierObjectMissing(f"{what} are gone: the topic was deleted while it was read")
        live = live_segments(manifest, bucket.pages(split.ids), piece.start)
        now = next(live, None)
    except TierObjectMissing:
        return TierObjectMissing(f"{what} are gone: {error}; their manifest is changing. Run the query again")
    if manifest.log_start >= piece.stop or now is None:
        return TierObjectMissing(
            f"{what} are gone: retention has removed them since commit {split.commit}, which this query reads; the log now "
            f"begins at {manifest.log_start}. Run the query again"
        )
    if now.key != piece.segment.key:
        return TierObjectMissing(
            f"{what} were rewritten after commit {split.commit}, which this query reads, and the old segment was swept. "
            "Run the query again"
        )
    return TierCorrupt(f"{what} are missing, although their manifest names them: {error}; run `tidelog fsck`")
