"""The remote segments that a broker has in memory: manifests of partitions, and runs of neighbouring segments from pages.

A partition without cold reads has nothing here. Manifests come from the copies saved beside the local segments
(`reader.Load`), segments in pages from the tier process.

Invariants: the estimated size stays within `MAX_KNOWN_BYTES`, except that one partition is always kept; the least recently
used partition is dropped first. A replaced manifest is never returned.
"""

from __future__ import annotations

import bisect
from collections import OrderedDict
from typing import NamedTuple

from storage_tiers.cold.manifest.model import Ids, Manifest, RemoteSegment

#: The most bytes of manifests and runs in memory: 160 full manifests, or 580 manifests of 24 segments.
MAX_KNOWN_BYTES = 32 << 20
#: The most runs of neighbours kept for each partition: one for each reader at an offset of its own.
MAX_RUNS = 16
#: Bytes in memory of a manifest without segments, of a remote segment and of a reference to a page, keys and sections included.
MANIFEST_BYTES, SEGMENT_BYTES, PAGE_REF_BYTES = 8 << 10, 2 << 10, 1 << 10


class _Run(NamedTuple):
    """Neighbours in a page: all of its segments that hold offsets [start, end)."""

    start: int
    end: int
    segments: tuple[RemoteSegment, ...]


class _Known:
    __slots__ = ("bytes", "manifest", "runs")

    def __init__(self) -> None:
        self.manifest: Manifest | None = None
        self.runs: OrderedDict[tuple[str, int], _Run] = OrderedDict()
        self.bytes = 0


class KnownSegments:
    """`loads` counts the manifests that had to be loaded, `bytes` is the estimated size of everything in memory."""

    def __init__(self, limit_bytes: int = MAX_KNOWN_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._known: OrderedDict[Ids, _Known] = OrderedDict()
        self.bytes = 0
        self.loads = 0

    def __len__(self) -> int:
        """The number of partitions that have something in memory."""
        return len(self._known)

    def manifest(self, ids: Ids) -> Manifest | None:
        known = self._known.get(ids)
        if known is None:
            return None
        self._known.move_to_end(ids)
        return known.manifest

    def keep_manifest(self, ids: Ids, manifest: Manifest) -> None:
        known = self._of(ids)
        known.manifest = manifest
        self._settle(known)

    def renew(self, ids: Ids, manifest: Manifest) -> None:
        """Replaces the partition's manifest if one is in memory; else does nothing."""
        known = self._known.get(ids)
        if known is not None and known.manifest is not None:
            known.manifest = manifest
            self._settle(known)

    def run(self, ids: Ids, page_key: str, offset: int) -> tuple[RemoteSegment, ...]:
        """Neighbours in a page, one of which holds `offset`; empty if they are not in memory."""
        known = self._known.get(ids)
        if known is not None:
            self._known.move_to_end(ids)
            for name, run in known.runs.items():
                if name[0] == page_key and run.start <= offset < run.end:
                    known.runs.move_to_end(name)
                    return run.segments
        return ()

    def keep_run(self, ids: Ids, page_key: str, offset: int, segments: tuple[RemoteSegment, ...]) -> None:
        """Keeps `segments`, which must be consecutive segments of the page, beginning with the first that ends above
        `offset`."""
        known = self._of(ids)
        known.runs[page_key, offset] = _Run(offset, segments[-1].end, segments)
        if len(known.runs) > MAX_RUNS:
            known.runs.popitem(last=False)
        self._settle(known)

    def forget(self, ids: Ids) -> None:
        known = self._known.pop(ids, None)
        if known is not None:
            self.bytes -= known.bytes

    def _of(self, ids: Ids) -> _Known:
        known = self._known.setdefault(ids, _Known())
        self._known.move_to_end(ids)
        return known

    def _settle(self, known: _Known) -> None:
        self.bytes -= known.bytes
        known.bytes = sum(len(run.segments) for run in known.runs.values()) * SEGMENT_BYTES
        if known.manifest is not None:
            known.bytes += cost(known.manifest)
        self.bytes += known.bytes
        while self.bytes > self._limit_bytes and len(self._known) > 1:
            self.bytes -= self._known.popitem(last=False)[1].bytes


def cost(manifest: Manifest) -> int:
    """Bytes of a decoded manifest in memory, by estimate."""
    return (
        MANIFEST_BYTES
        + (len(manifest.segments) + len(manifest.removed)) * SEGMENT_BYTES
        + len(manifest.pages) * PAGE_REF_BYTES
    )


def segment_of(segments: tuple[RemoteSegment, ...], offset: int) -> RemoteSegment:
    """The segment among these neighbours that holds `offset`; the caller knows that one does."""
    return segments[bisect.bisect_right(segments, offset, key=lambda segment: segment.end)]
