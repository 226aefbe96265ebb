"""Counts the objects that commits write, the manifest and its pages, over any number of modelled commits.

The modelled partition commits one segment after another, expires segments past its retention, and sweeps objects past the
grace. It uses the same manifest transitions as a node. The model is pure and deterministic. It encodes no documents, because
only their number matters.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from benchmarks.history import synthetic
from storage_tiers.cold.manifest import pages, transitions
from storage_tiers.cold.manifest.model import Author, Manifest, ManifestPage, ManifestWriter
from storage_tiers.cold.manifest.pages import ManifestChange
from storage_tiers.cold.manifest.transitions import first_manifest

#: Pages of the real size. The manifest has at most 44 segments, about as many as fit into its 32 KiB.
REAL: Mapping[str, int] = {"MAX_SEGMENTS": 44}
#: Pages so small that nearly all of them are named by pages of level 1.
DEEP: Mapping[str, int] = {"MAX_SEGMENTS": 12, "MAX_PAGE_SEGMENTS": 32, "_EXPIRED_INLINE": 4}
#: The number of commits between two passes of retention and the sweeper.
LOOKS = 40


@dataclass
class Puts:
    """PUTs of a manifest and its pages. `most` is the largest number of PUTs in one commit, and `largest` the largest number of
    pages that the manifest named at once. `levels` is True if the manifest ever named a page of level 1."""

    commits: int = 0
    puts: int = 0
    most: int = 0
    largest: int = 0
    levels: bool = False

    @property
    def amortised(self) -> float:
        return self.puts / self.commits


def run(commits: int, *, bounds: Mapping[str, int], live: int, grace: int) -> Puts:
    """Models the commits. `live` segments are kept; removed ones are swept `grace` commits later."""
    patched: dict[str, Any] = {**bounds, "encode": lambda manifest: b"", "encode_page": lambda ids, page: b""}
    with mock.patch.multiple("storage_tiers.cold.manifest.pages", **patched):
        partition = _Partition()
        while partition.puts.commits < commits:
            partition.extend()
            if partition.puts.commits % LOOKS == 0:
                partition.expire(live)
                partition.sweep(grace)
        return partition.puts


class _Partition:
    def __init__(self) -> None:
        full, _ = synthetic(1)
        (self._segment,) = full.segments
        self._span = self._segment.end - self._segment.base
        self._manifest = first_manifest(full.ids)
        self._pages: dict[str, ManifestPage] = {}
        self._names = (f"{number:032x}" for number in itertools.count(1))
        self.puts = Puts()

    def extend(self) -> None:
        base, name = self._manifest.end, next(self._names)
        ids = self._manifest.ids
        segment = replace(
            self._segment,
            base=base,
            end=base + self._span,
            key=ids.segment_key(base, 1, name),
            sidecar_key=ids.sidecar_key(base, 1, name),
        )
        self._commit(
            lambda manifest, by: transitions.extend(
                manifest, segment, by, leader_epoch=1, last_record_epoch=1, log_start=0
            )
        )

    def expire(self, live: int) -> None:
        log_start = max(0, self._manifest.end - live * self._span)
        while self._commit(lambda manifest, by: pages.expire(manifest, log_start, by)):
            pass

    def sweep(self, grace: int) -> None:
        """Does what the sweeper does: drops the due keys that the manifest itself lists, unfolds one page of level 1, and drops
        the due keys of each page."""
        due = self._manifest.commit - grace
        gone = {key for item in self._manifest.removed if item.at.commit <= due for key in item.keys}
        self._drop(gone, ())
        folded = [ref for ref in self._manifest.removed_pages if ref.level and ref.first_removed_ms <= due]
        if folded:
            self._commit(lambda manifest, by: pages.unfold(manifest, folded[0].key, by))
        for ref in self._manifest.removed_pages:
            if not ref.level and ref.first_removed_ms <= due and ref.key in self._pages:
                items = self._pages[ref.key].removed
                self._drop({key for item in items if item.at.commit <= due for key in item.keys}, (ref.key,))

    def _drop(self, gone: set[str], keys: tuple[str, ...]) -> None:
        if gone and self._commit(lambda manifest, by: pages.drop_gone(manifest, gone, keys, by)):
            for key in gone:
                self._pages.pop(key, None)

    def _commit(self, step: Callable[[Manifest, Author], ManifestChange | Manifest | None]) -> bool:
        by = Author(
            ManifestWriter(1, 1), next(self._names), self._manifest.commit + 1, lambda: next(self._names), self._pages
        )
        changed = step(self._manifest, by)
        if changed is None:
            return False
        change = pages.paginate(ManifestChange(changed) if isinstance(changed, Manifest) else changed, by)
        self._pages.update({write.ref.key: write.page for write in change.writes})
        self._manifest = change.manifest
        puts = self.puts
        puts.commits += 1
        puts.puts += 1 + len(change.writes)
        puts.most = max(puts.most, 1 + len(change.writes))
        puts.largest = max(puts.largest, len(change.manifest.pages))
        puts.levels = puts.levels or any(ref.level for ref in change.manifest.pages)
        return True
