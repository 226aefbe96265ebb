"""Measures the cost of a partition's history, with the same queries on synthetic manifests of 24 to ten million segments.

It uses neither a store nor a node. The target is a constant cost; the tables show how the cost grows.
"""

from __future__ import annotations

import hashlib
import itertools
import timeit
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.table import JUDGED, Table
from storage_tiers.cold.manifest import lookup, pages
from storage_tiers.cold.manifest.json import encode, encode_page
from storage_tiers.cold.manifest.model import (
    RECENT_COMMITS,
    Author,
    CommitId,
    Ids,
    Manifest,
    ManifestPage,
    ManifestWriter,
    NewestSidecar,
    PageKind,
    PageRef,
    RemoteSegment,
    Section,
    Stamp,
)
from storage_tiers.cold.manifest.summary import ManifestSummary, summary_of
from storage_tiers.cold.manifest.transitions import first_manifest
from storage_tiers.cold.segments.sidecar import ABORTED, CHECKS, EPOCHS, INDEX, PRODUCER
from storage_tiers.policy.retention import RetentionLimits, goes
from storage_tiers.types import TopicId

IDS = Ids("history", "t", TopicId(bytes(16)), 0)
SEGMENTS = (24, 8_192, 100_000, 1_000_000, 10_000_000)
SECTIONS = INDEX, CHECKS, ABORTED, EPOCHS, PRODUCER
#: Row names of the periodic rounds over all partitions, and the numbers of partitions.
ROUNDS = RETENTION, SWEEPING, TIERING = "a round of retention", "a round of sweeping", "a round of tiering"
COUNTS = (100, 1_000, 4_000)
CHECK, SUMMARY = "retention's decision", "summary of a new manifest"
_SPAN = 1_000_000
_INSIDE = 24
_TIME_MS = 1_700_000_000_000
WRITER = ManifestWriter(1, 1)


def measure(table: Table, *, rounds: int) -> None:
    for row, unit, value in _spelled():
        table.add(JUDGED, row, unit, value)
    for count in SEGMENTS:
        manifest, known = synthetic(count)
        live = summary_of(manifest)
        limits = RetentionLimits(7 * 86_400_000, 1 << 60)
        for _ in range(rounds):
            check_s = timeit.timeit(partial(_check, live, limits), number=1000) / 1000
            summary_s = timeit.timeit(partial(summary_of, manifest), number=100) / 100
            table.add(JUDGED, f"{CHECK}, {count:,} segments", "µs", check_s * 1e6)
            table.add(JUDGED, f"{SUMMARY}, {count:,} segments", "µs", summary_s * 1e6)
        table.add(JUDGED, f"manifest, {count:,} segments", "KiB", len(encode(manifest)) / 1024)
        table.add(JUDGED, f"pages for one offset, {count:,} segments", "pages", _pages_asked(manifest, known))


def _spelled() -> Sequence[tuple[str, str, float]]:
    """Returns two rows: the bytes that a remote segment takes in a manifest, and in a full page, which is compressed."""
    segments = tuple(_segment(IDS, n * _SPAN, (n + 1) * _SPAN, n) for n in range(pages.MAX_PAGE_SEGMENTS))
    manifest = replace(first_manifest(IDS), segments=segments[:40])
    in_manifest = (len(encode(manifest)) - len(encode(first_manifest(IDS)))) / 40
    in_page = len(encode_page(IDS, ManifestPage(PageKind.LIVE, segments))) / len(segments)
    return (
        ("a remote segment in a manifest", "bytes", in_manifest),
        ("a remote segment in a full page", "bytes", in_page),
    )


def _check(live: ManifestSummary, limits: RetentionLimits) -> bool:
    """The check that a broker makes for retention, in a partition in which nothing expires."""
    assert live.oldest is not None
    return goes(1000, live.oldest.bytes, live.bytes - limits.retention_bytes, limits)


def _pages_asked(manifest: Manifest, known: dict[str, ManifestPage]) -> int:
    asked: list[PageRef] = []

    def load(ref: PageRef) -> ManifestPage:
        asked.append(ref)
        return known[ref.key]

    lookup.segment_for(manifest, load, manifest.end // 3)
    return len(asked)


def plot(table: Table) -> None:
    """Plots the costs against the numbers of segments and of partitions, as docs/img/history.png."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6))
    for name in (CHECK, SUMMARY):
        rows = [table.rows[f"{name}, {count:,} segments", "µs"] for count in SEGMENTS]
        left.plot(SEGMENTS, [row.medians[JUDGED] for row in rows], marker="o", label=name)
    left.axhline(20, color="#222222", linewidth=0.8, linestyle=":", label="target of the check")
    left.set_xlabel("segments of a partition")
    left.set_ylabel("µs of the event loop")
    for name in ROUNDS:
        rows = [table.rows[f"{name}, {count:,} partitions", "µs a partition"] for count in COUNTS]
        right.plot(COUNTS, [row.medians[JUDGED] for row in rows], marker="o", label=name)
    right.set_xlabel("partitions of a node, 24 segments each")
    right.set_ylabel("µs of the event loop per partition")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(Path(__file__).parent.parent / "docs" / "img" / "history.png", dpi=120)


def synthetic(
    count: int, ids: Ids = IDS, *, writer: ManifestWriter = WRITER, commit: int = 1000
) -> tuple[Manifest, dict[str, ManifestPage]]:
    """Returns a manifest of `count` segments, as commits would leave it, and its pages by key. One long segment stands for all
    segments of a page."""
    numbers = itertools.count(1)
    known: dict[str, ManifestPage] = {}
    by = Author(writer, "0" * 32, _TIME_MS, lambda: f"{next(numbers):032x}", known)
    manifest = first_manifest(ids)
    inside = min(count, _INSIDE)
    paged = [pages.MAX_PAGE_SEGMENTS] * ((count - inside) // pages.MAX_PAGE_SEGMENTS)
    rest = count - inside - sum(paged)
    for held in (*paged, rest) if rest else paged:
        segment = _segment(ids, manifest.end, manifest.end + _SPAN * held, next(numbers))
        write = pages.page_write(ids, ManifestPage(PageKind.LIVE, (segment,)), by)
        known[write.ref.key] = write.page
        longer = replace(manifest, pages=(*manifest.pages, replace(write.ref, count=held)), end=segment.end)
        change = pages.paginate(pages.ManifestChange(longer), by)
        known.update({write.ref.key: write.page for write in change.writes})
        manifest = replace(change.manifest, removed=())
    segments = tuple(
        _segment(ids, manifest.end + n * _SPAN, manifest.end + (n + 1) * _SPAN, next(numbers)) for n in range(inside)
    )
    recent = tuple(CommitId(number, f"{number:032x}") for number in range(commit - RECENT_COMMITS + 1, commit + 1))
    unsettled = replace(
        manifest,
        line=f"{1:032x}",
        commit=commit,
        recent=recent,
        writer=writer,
        incarnation=writer.incarnation or 0,
        leader_epoch=0,
        last_record_epoch=0,
        committed_at=_TIME_MS,
        segments=segments,
        end=manifest.end + inside * _SPAN,
        sidecar=NewestSidecar(segments[-1].sidecar_key, segments[-1].sections) if segments else None,
    )
    change = pages.paginate(pages.ManifestChange(unsettled), by)
    known.update({write.ref.key: write.page for write in change.writes})
    return replace(change.manifest, removed=()), known


def _segment(ids: Ids, base: int, end: int, number: int) -> RemoteSegment:
    noise = hashlib.blake2b(str(number).encode(), digest_size=40).digest()
    name, crcs = noise[:16].hex(), [int.from_bytes(noise[at : at + 4]) for at in range(16, 40, 4)]
    lengths = (25_600 + 16 * (noise[0] % 30), 384, 0, 36, 168)
    starts = itertools.accumulate(lengths, initial=188)
    sections = tuple(map(Section, SECTIONS, starts, lengths, crcs))
    return RemoteSegment(
        base,
        end,
        ids.segment_key(base, 1, name),
        0,
        100_000_000 + crcs[5] % 1_000_000,
        ids.sidecar_key(base, 1, name),
        sections,
        _TIME_MS + base,
        _TIME_MS + end,
        base,
        end - base,
        100_000_000 + crcs[5] % 1_000_000,
        crcs[5],
        Stamp(number, _TIME_MS + number),
    )
