"""One offset space over both tiers: a partition's local segments and the segments that its manifest names in the store.

Invariants: [log start, log end) is readable without gap or repeat during evictions. Local segments serve from their first
offset on, the manifest's segments serve everything before it, and eviction never passes the manifest's durable end (I3). An
answer planned from a local segment keeps its descriptor open, so the segment can be evicted meanwhile. Records that a local
segment lacks, or that cannot be read from it, are served from the bucket if it holds them.

A cold read may have no immediate answer: `read` then returns a `ColdMiss`, whose waiter ends when a retry can succeed.
"""

from __future__ import annotations

from storage_tiers.cold.manifest.model import Manifest
from storage_tiers.cold.manifest.summary import ManifestSummary, summary_of
from storage_tiers.cold.read.reader import ColdMiss, ColdReader
from storage_tiers.errors import OffsetOutOfRange, StorageError
from storage_tiers.hot.log import HotLog
from storage_tiers.types import AbortedTransaction, FileSlice, TimestampOffset


class TieredLog:
    """`tier` is the summary of the newest durable manifest that this node has seen (None: nothing is tiered). `cold` loads the
    manifest itself (None without a store). `read_bytes` counts bytes answered since opening; the answering code increments
    it."""

    __slots__ = ("cold", "hot", "read_bytes", "tier")

    def __init__(self, hot: HotLog, cold: ColdReader | None) -> None:
        self.hot = hot
        self.cold = cold
        self.tier: ManifestSummary | None = None
        self.read_bytes = 0

    def apply(self, manifest: Manifest | None) -> None:
        """Makes `manifest` the current one. Keeps its summary; the rest stays in memory only where readers have loaded it."""
        self.tier = None if manifest is None else summary_of(manifest)
        if self.cold is not None:
            self.cold.replaced(manifest)

    @property
    def log_start_offset(self) -> int:
        return self.hot.log_start_offset

    @property
    def end_offset(self) -> int:
        return self.hot.end_offset

    @property
    def tiered_end(self) -> int:
        """The end offset of the records that the bucket durably holds; the log start if it holds none."""
        return self.tier.end if self.tier is not None else self.hot.log_start_offset

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        upto_offset: int,
        min_one: bool,
        aborted: list[AbortedTransaction] | None = None,
    ) -> list[FileSlice] | ColdMiss:
        """Slices from the batch that holds `offset` on, below `upto_offset`; the caller releases them. Adds to `aborted` the
        aborted transactions that overlap the slices. OffsetOutOfRange, or StorageError if a local segment cannot be read and
        the bucket does not hold it."""
        hot = self.hot
        if offset >= hot.local_start_offset and offset >= hot.log_start_offset:
            in_bucket = self.cold is not None and offset < self.tiered_end
            try:
                return hot.reader.read(
                    offset,
                    max_bytes=max_bytes,
                    upto_offset=upto_offset,
                    min_one=min_one,
                    over_gaps=not in_bucket,
                    aborted=aborted,
                )
            except StorageError:
                if not in_bucket:
                    raise
        if offset < hot.log_start_offset or self.tier is None or self.cold is None:
            raise OffsetOutOfRange(
                f"{hot.partition}: offset {offset} is outside [{hot.log_start_offset}, {hot.end_offset}]; "
                "ask ListOffsets where the log begins"
            )
        manifest = self.cold.manifest_in_memory
        found = self.cold.read(manifest, offset, max_bytes=max_bytes, log_start=hot.log_start_offset)
        if isinstance(found, ColdMiss):
            return found
        if not found.slices and found.next_offset >= hot.local_start_offset:
            # Compaction left no batch from `offset` to the bucket's end: the next one is local.
            return hot.reader.read(
                found.next_offset, max_bytes=max_bytes, upto_offset=upto_offset, min_one=min_one, aborted=aborted
            )
        if not min_one and found.size > max_bytes:
            for piece in found.slices:
                piece.file.release()
            return []
        if aborted is not None:
            aborted += found.aborted
        return list(found.slices)

    async def offset_for_timestamp(self, timestamp: int, *, upto_offset: int) -> TimestampOffset | None:
        """The first record by offset in [log start, `upto_offset`) whose timestamp is at least `timestamp`."""
        hot = self.hot
        while (
            self.cold is not None and (tier := self.tier) is not None and hot.log_start_offset < hot.local_start_offset
        ):
            manifest = await self.cold.manifest()
            found = await self.cold.offset_for_timestamp(manifest, timestamp, log_start=hot.log_start_offset)
            if found is not None and found.offset < hot.local_start_offset:
                return found
            if hot.local_start_offset <= manifest.end or self.tier is tier:
                break
            # Records above the end of this manifest were local when it was loaded, and have been evicted since.
        hit = hot.offset_for_timestamp(timestamp)
        return hit if hit is not None and hit.offset < upto_offset else None

    async def max_timestamp(self, *, upto_offset: int) -> TimestampOffset | None:
        """The first record by offset that has the largest timestamp; None, as in Kafka, if that record is not below
        `upto_offset`."""
        best = self.hot.max_timestamp()
        if self.cold is not None and self.tier is not None and self.hot.log_start_offset < self.hot.local_start_offset:
            cold = await self.cold.max_timestamp(await self.cold.manifest(), log_start=self.hot.log_start_offset)
            if cold is not None and (best is None or best.timestamp <= cold.timestamp):
                best = cold
        return best if best is not None and best.offset < upto_offset else None

    async def epoch_end_offset(self, leader_epoch: int) -> tuple[int, int]:
        """(largest epoch <= `leader_epoch`, where it ended). The hot history includes the cold one, because eviction never
        truncates the hot history, and a log rebuilt from the tier starts with the sidecar's history."""
        return self.hot.epoch_end_offset(leader_epoch)
