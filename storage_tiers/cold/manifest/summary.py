"""A broker's summary of a partition's newest manifest: less than 2 KiB, whatever its history.

It answers every periodic question about a partition: whether something expires or is due to be swept, and whether the
manifest that the store shows contains the one seen. The segments themselves are in the manifest, which is loaded when a
segment is needed (`cold/read/known_segments.py`).

Pure. Not promised: anything about single segments other than the oldest one.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage_tiers.cold.manifest.lineage import SeenManifest
from storage_tiers.cold.manifest.lookup import live_bytes
from storage_tiers.cold.manifest.model import Manifest, Oldest, oldest_of


@dataclass(frozen=True, slots=True)
class ManifestSummary:
    """Fields of the manifest under the same names, and sums over its live segments.

    `commit_id` is the id of the last commit, empty if the manifest was never stored. `segments` is the number of live segments;
    `records` and `bytes` are their sums. `oldest` has the facts that retention needs about the first one (None: there is none).
    `paged` says whether some are in pages. For the sweep, `first_removed_ms` is the time of the oldest removal that no pin
    holds, as far as the manifest knows, and `tombstoned` says whether keys are tombstoned."""

    line: str
    commit: int
    commit_id: str
    committed_at: int
    incarnation: int
    leader_epoch: int
    log_start: int
    end: int
    last_record_epoch: int
    swept: int
    segments: int
    records: int
    bytes: int
    oldest: Oldest | None
    paged: bool
    first_removed_ms: int | None
    tombstoned: bool

    def seen(self, saved_at: str = "") -> SeenManifest | None:
        """The digest that a question to the store carries; None for a manifest that was never stored."""
        if not self.commit_id:
            return None
        return SeenManifest(
            self.line,
            self.commit,
            self.commit_id,
            self.incarnation,
            self.leader_epoch,
            self.log_start,
            self.end,
            self.swept,
            saved_at,
        )

    def is_of(self, manifest: Manifest) -> bool:
        """Whether it summarises this very manifest."""
        return (manifest.commit, manifest.line) == (self.commit, self.line)

    def sweep_is_due(self, now_ms: int, grace_ms: int) -> bool:
        """Whether the manifest names an object that was removed at least `grace_ms` ago, or a tombstoned key."""
        return self.tombstoned or (self.first_removed_ms is not None and self.first_removed_ms + grace_ms <= now_ms)


def summary_of(manifest: Manifest) -> ManifestSummary:
    """The summary of a manifest, without loading a page."""
    pages = manifest.live_pages
    oldest = pages[0].oldest if pages else oldest_of(manifest.segments[0]) if manifest.segments else None
    return ManifestSummary(
        line=manifest.line,
        commit=manifest.commit,
        commit_id=manifest.recent[-1].id if manifest.recent else "",
        committed_at=manifest.committed_at,
        incarnation=manifest.incarnation,
        leader_epoch=manifest.leader_epoch,
        log_start=manifest.log_start,
        end=manifest.end,
        last_record_epoch=manifest.last_record_epoch,
        swept=manifest.swept,
        segments=len(manifest.segments) + sum(page.count for page in pages),
        records=sum(segment.records for segment in manifest.segments) + sum(page.records for page in pages),
        bytes=live_bytes(manifest),
        oldest=oldest,
        paged=bool(pages),
        first_removed_ms=_first_removed_ms(manifest),
        tombstoned=bool(manifest.tombstoned),
    )


def _first_removed_ms(manifest: Manifest) -> int | None:
    times = [item.at.time_ms for item in manifest.removed if not any(pin.holds(item) for pin in manifest.pins)]
    times.extend(page.first_removed_ms for page in manifest.removed_pages)
    return min(times, default=None)
