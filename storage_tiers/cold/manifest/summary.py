"""What a broker keeps of a partition's newest root, whatever its history: less than 2 KiB.

It answers every question that the clock asks of each partition: whether something expires, is due to be swept, or is hidden;
whether the root that the store shows contains the one seen. The ranges themselves are in the root, which is loaded when a range
is asked for (`cold/read/known_ranges.py`).

Pure. Not promised: anything about ranges but the oldest one.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage_tiers.cold.manifest.lineage import SeenManifest
from storage_tiers.cold.manifest.lookup import live_bytes
from storage_tiers.cold.manifest.model import Oldest, Root, oldest_of


@dataclass(frozen=True, slots=True)
class RootSummary:
    """The fields of the root of the same names, `commit_id` of its last commit ("" where it was never stored), and of its live
    ranges: how many there are, their `records` and `bytes`, what retention asks of the `oldest` (None: there is none), and
    whether some stand in pages (`paged`). `first_removed_ms` is the oldest removal that no pin holds, as far as the root
    knows, `condemned` whether keys stand condemned: what a sweep has to do."""

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
    ranges: int
    records: int
    bytes: int
    oldest: Oldest | None
    paged: bool
    first_removed_ms: int | None
    condemned: bool

    def seen(self, saved_at: str = "") -> SeenManifest | None:
        """The digest that goes with a question to the store; None for a root that was never stored."""
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

    def is_of(self, root: Root) -> bool:
        """Whether it sums up this very root."""
        return (root.commit, root.line) == (self.commit, self.line)

    def sweep_is_due(self, now_ms: int, grace_ms: int) -> bool:
        """Whether something that the root names has stood removed for the grace."""
        return self.condemned or (self.first_removed_ms is not None and self.first_removed_ms + grace_ms <= now_ms)


def summary_of(root: Root) -> RootSummary:
    """Without loading a page."""
    pages = root.live_pages
    oldest = pages[0].oldest if pages else oldest_of(root.entries[0]) if root.entries else None
    return RootSummary(
        line=root.line,
        commit=root.commit,
        commit_id=root.recent[-1].id if root.recent else "",
        committed_at=root.committed_at,
        incarnation=root.incarnation,
        leader_epoch=root.leader_epoch,
        log_start=root.log_start,
        end=root.end,
        last_record_epoch=root.last_record_epoch,
        swept=root.swept,
        ranges=len(root.entries) + sum(page.count for page in pages),
        records=sum(entry.records for entry in root.entries) + sum(page.records for page in pages),
        bytes=live_bytes(root),
        oldest=oldest,
        paged=bool(pages),
        first_removed_ms=_first_removed_ms(root),
        condemned=bool(root.condemned),
    )


def _first_removed_ms(root: Root) -> int | None:
    times = [item.at.time_ms for item in root.removed if not any(pin.holds(item) for pin in root.pins)]
    times.extend(page.first_removed_ms for page in root.removed_pages)
    return min(times, default=None)
