"""The manifest against a model that forgets nothing: after every transition both agree."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from storage_tiers.cold.manifest import lookup, model, pages, replacement, transitions
from storage_tiers.cold.manifest.json import decode, decode_page, encode
from storage_tiers.cold.manifest.model import (
    Author,
    Manifest,
    ManifestPage,
    ManifestWriter,
    PageKind,
    PageNeeded,
    PageRef,
    RemoteSegment,
)
from storage_tiers.cold.manifest.pages import ManifestChange
from storage_tiers.cold.manifest.transitions import broken, broken_step, first_manifest
from storage_tiers.errors import FencedWriter, InvalidRequest, StorageError
from tests.storage_tiers.cold.support import IDS, segment_of

SMALL: dict[str, Any] = {"MAX_SEGMENTS": 6, "MAX_PAGES": 40, "MAX_PAGE_SEGMENTS": 24, "_EXPIRED_INLINE": 1}
#: Bounds so small that nearly all pages are folded into pages of level 1.
DEEP = SMALL | {
    "MAX_PAGES": 12,
    "MERGE_ABOVE_PAGES": 9,
    "MAX_PAGE_SEGMENTS": 4,
    "MAX_PAGE_REFS": 64,
    "FOLDED": 3,
    "UNFOLDED": 2,
    "UNFOLDABLE": 1,
}


@dataclass
class Known:
    """One segment of the model, with the commits that added and removed it."""

    segment: RemoteSegment
    added: int
    removed: int | None = None
    dropped: bool = False


class ManifestModel(RuleBasedStateMachine):
    bounds = SMALL

    def __init__(self) -> None:
        super().__init__()
        self.patches = [
            mock.patch.multiple("storage_tiers.cold.manifest.pages", **self.bounds),
            mock.patch.object(replacement, "MAX_PAGE_SEGMENTS", self.bounds["MAX_PAGE_SEGMENTS"]),
        ]
        for patch in self.patches:
            patch.start()
        self.ids = itertools.count(1)
        self.manifest = first_manifest(IDS)
        self.pages: dict[str, ManifestPage] = {}
        self.known: list[Known] = []
        self.log_start = self.end = 0
        self.pins: dict[str, int] = {}
        self.tombstoned: set[str] = set()
        self.forgotten = 0

    def teardown(self) -> None:
        for patch in self.patches:
            patch.stop()

    # --- commits and loads --------------------------------------------------------------------------------------------
    def commit(self, step: Callable[[Manifest, Author], ManifestChange | Manifest | None]) -> bool:
        held: dict[str, ManifestPage] = {}
        while True:
            by = Author(ManifestWriter(1, 1), f"{next(self.ids):032x}", 1000 + self.manifest.commit, self._uuid, held)
            try:
                change = step(self.manifest, by)
                if change is None:
                    return False
                change = pages.paginate(ManifestChange(change) if isinstance(change, Manifest) else change, by)
                break
            except PageNeeded as needed:
                held[needed.ref.key] = self.pages[needed.ref.key]
        if self.bounds is SMALL:  # the other bounds allow fewer segments in a page than in a manifest
            assert len(change.writes) + 1 <= 4, "PUTs of a commit"
        assert broken(change.manifest) is None
        assert broken_step(self.manifest, change.manifest) is None
        for write in change.writes:
            self.pages[write.ref.key] = decode_page(write.data, IDS, write.ref)
            assert self.pages[write.ref.key] == write.page
        assert decode(encode(change.manifest), IDS) == change.manifest
        self.manifest = change.manifest
        return True

    def _uuid(self) -> str:
        return f"{next(self.ids):032x}"

    def load(self, ref: PageRef) -> ManifestPage:
        return self.pages[ref.key]

    # --- rules --------------------------------------------------------------------------------------------------------
    @initialize()
    def begin(self) -> None:
        assert broken(self.manifest) is None

    @rule(length=st.integers(1, 9), gap=st.sampled_from([0, 0, 0, 3]), timestamp=st.integers(0, 50))
    def extend(self, length: int, gap: int, timestamp: int) -> None:
        base = self.end + gap
        segment = segment_of(IDS, base, base + length, next(self.ids), timestamp=timestamp)
        log_start = base if gap else 0
        self.commit(
            lambda manifest, by: transitions.extend(
                manifest, segment, by, leader_epoch=1, last_record_epoch=1, log_start=log_start
            )
        )
        self.log_start = max(self.log_start, log_start)
        self.end = base + length
        self.known.append(Known(self.manifest.segments[-1], self.manifest.commit))

    @rule(length=st.integers(1, 20))
    def extend_many(self, length: int) -> None:
        for _ in range(length):
            self.extend(1, 0, 7)

    @rule(beyond=st.integers(-5, 40))
    def expire(self, beyond: int) -> None:
        offset = self.log_start + beyond
        self.log_start = max(self.log_start, min(offset, self.end))
        while self.commit(lambda manifest, by: pages.expire(manifest, offset, by)):
            live = len(list(lookup._all_live(self.manifest, self.load)))
            model = [known for known in self.known if known.removed is None]
            for known in model[: len(model) - live]:
                assert known.segment.end <= self.log_start
                known.removed = self.manifest.commit
        assert all(known.removed or known.segment.end > self.log_start for known in self.known)

    @rule(first=st.integers(0, 40), count=st.integers(1, 8), timestamp=st.integers(0, 50))
    def replace(self, first: int, count: int, timestamp: int) -> None:
        """Replaces neighbours with one segment; readers of earlier commits still see the neighbours."""
        newest = self.known[-1] if self.known else None
        live = [k for k in self.known if not k.removed and k.segment.end > self.log_start and k is not newest]
        old = live[first : first + count]
        if not old:
            return
        segments = [known.segment for known in old]
        base, end = segments[0].base, segments[-1].end
        new = segment_of(IDS, base, end, next(self.ids), timestamp=timestamp, size=77)
        refs = [ref for ref in self.manifest.live_pages if ref.base < end and base < ref.end]
        if any(ref.level for ref in refs):
            with pytest.raises(InvalidRequest, match="page of level 1"):
                self.commit(lambda manifest, by: replacement.replace_segments(manifest, segments, new, by))
            return
        self.commit(lambda manifest, by: replacement.replace_segments(manifest, segments, new, by))
        for known in old:
            known.removed = self.manifest.commit
        made = lookup.segment_for(self.manifest, self.load, base)
        assert made is not None and made.key == new.key
        self.known.insert(self.known.index(old[-1]) + 1, Known(made, self.manifest.commit))

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        removed = [k for k in self.known if k.removed and not k.dropped and not self._pinned(k)]
        chosen = [known for known in removed if data.draw(st.booleans())]
        newest = self.manifest.sidecar.key if self.manifest.sidecar else None
        gone = {key for known in chosen for key in (known.segment.key, known.segment.sidecar_key)} - {newest}
        gone |= {item.keys[0] for item in self._removed() if item.segment is None}
        gone |= self.tombstoned
        self.tombstoned.clear()
        for ref in [ref for ref in self.manifest.removed_pages if ref.level][:2]:
            self.commit(lambda manifest, by, key=ref.key: pages.unfold(manifest, key, by))  # type: ignore[misc]
        for named in ([], *([ref.key] for ref in self.manifest.removed_pages if not ref.level)):
            self.commit(lambda manifest, by, named=named: pages.drop_gone(manifest, gone, named, by))  # type: ignore[misc]
        folded = {key for item in self._removed() for key in item.keys}
        for known in chosen:
            if known.segment.key in folded:
                continue
            known.dropped = True
            self.forgotten = max(self.forgotten, known.removed or 0)

    @rule(name=st.sampled_from("abcdef"))
    def pin(self, name: str) -> None:
        if name in self.pins:
            with pytest.raises(InvalidRequest):
                self.commit(lambda manifest, by: transitions.pin(manifest, name, by))
            return
        self.commit(lambda manifest, by: transitions.pin(manifest, name, by))
        self.pins[name] = self.manifest.commit

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.pins)))
        self.commit(lambda manifest, by: transitions.unpin(manifest, name, by))
        del self.pins[name]

    @precondition(lambda self: len(self.tombstoned) < 60)
    @rule(count=st.integers(1, 3))
    def tombstone(self, count: int) -> None:
        orphans = {IDS.segment_key(0, 1, self._uuid()) for _ in range(count)}
        self.commit(lambda manifest, by: transitions.tombstone(manifest, orphans, by))
        self.tombstoned |= orphans

    @precondition(lambda self: self.tombstoned or any(known.removed for known in self.known))
    @rule(data=st.data())
    def never_again(self, data: st.DataObject) -> None:
        """A key that was tombstoned or removed is refused, whether the manifest or a page knows it."""
        gone = sorted(self.tombstoned) + [k.segment.key for k in self.known if k.removed and not k.dropped]
        if not gone:
            return
        key = data.draw(st.sampled_from(gone))
        if key not in set(self.manifest.keys()):
            return  # the key is in a page: its segment is below `end`, where no extension begins
        segment = segment_of(IDS, self.end, self.end + 1, next(self.ids))
        clash = RemoteSegment(**{f: getattr(segment, f) for f in segment.__slots__} | {"key": key})
        with pytest.raises(InvalidRequest, match="already"):
            self.commit(
                lambda manifest, by: transitions.extend(
                    manifest, clash, by, leader_epoch=1, last_record_epoch=1, log_start=0
                )
            )

    # --- invariants ---------------------------------------------------------------------------------------------------
    @invariant()
    def both_say_the_same(self) -> None:
        live = [known.segment for known in self.known if known.removed is None]
        assert list(lookup._all_live(self.manifest, self.load)) == live
        masked = [segment for segment in live if segment.end > self.log_start]
        assert list(lookup.live_segments(self.manifest, self.load)) == masked
        assert (self.manifest.log_start, self.manifest.end) == (self.log_start, self.end)
        for offset in (self.log_start, self.log_start + 3, self.end - 1, self.end):
            if offset >= self.log_start:
                at = next((segment for segment in masked if segment.base <= offset < segment.end), None)
                found = lookup.segment_for(self.manifest, self.load, offset)
                assert found == at or (found is not None and found.gap_from is not None)
        assert lookup.live_bytes(self.manifest) == sum(segment.bytes for segment in live)

    @invariant()
    def times_are_found(self) -> None:
        masked = [k.segment for k in self.known if k.removed is None and k.segment.end > self.log_start]
        for timestamp in (0, 20, 50):
            expected = [segment for segment in masked if segment.max_timestamp >= timestamp]
            assert list(lookup.segments_for_timestamp(self.manifest, self.load, timestamp)) == expected

    @invariant()
    def history_is_whole(self) -> None:
        assert self.manifest.swept == self.forgotten
        for commit in {
            self.manifest.commit,
            self.forgotten,
            (self.manifest.commit + self.forgotten) // 2,
            *self.pins.values(),
        }:
            expected = [k.segment for k in self.known if k.added <= commit and (not k.removed or k.removed > commit)]
            assert lookup.state_at(self.manifest, self.load, commit) == expected

    @invariant()
    def the_manifest_is_small(self) -> None:
        assert len(self.manifest.segments) + len(self.manifest.removed) <= self.bounds["MAX_SEGMENTS"] + 1
        assert len(self.manifest.pages) <= self.bounds["MAX_PAGES"] or not self._mergeable()
        assert all(ref.count <= self.bounds["MAX_PAGE_SEGMENTS"] for ref in self.manifest.pages if not ref.level)

    @invariant()
    def every_object_is_named(self) -> None:
        named = set(self.manifest.keys())
        for ref in lookup.leaves(self.manifest.pages, self.load):
            page = self.pages[ref.key]
            named |= {key for segment in page.segments for key in (segment.key, segment.sidecar_key)}
            named |= {key for item in page.removed for key in item.keys}
        for known in self.known:
            if not known.dropped:
                assert {known.segment.key, known.segment.sidecar_key} <= named
        assert self.tombstoned <= named
        if self.known:
            assert self.manifest.sidecar is not None
            assert self.manifest.sidecar.key == self.known[-1].segment.sidecar_key

    def _removed(self) -> list[model.Removed]:
        inside = [
            item for ref in lookup.leaves(self.manifest.removed_pages, self.load) for item in self.load(ref).removed
        ]
        return [*inside, *self.manifest.removed]

    def _pinned(self, known: Known) -> bool:
        return any(known.added <= pin < (known.removed or 0) for pin in self.pins.values())

    def _mergeable(self) -> bool:
        neighbours = [pair for pair in itertools.pairwise(self.manifest.pages) if not any(ref.level for ref in pair)]
        return any(a.kind is b.kind and a.count + b.count <= self.bounds["MAX_PAGE_SEGMENTS"] for a, b in neighbours)


class DeepManifestModel(ManifestModel):
    """Most pages are listed in pages of level 1."""

    bounds = DEEP


# The phases leave out `explain`, which traces every line and makes these machines fifty times slower.
_SETTINGS = settings(
    max_examples=20,
    stateful_step_count=20,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
ManifestModel.TestCase.settings = _SETTINGS
DeepManifestModel.TestCase.settings = _SETTINGS
test_the_manifest_against_a_list = ManifestModel.TestCase
test_a_deep_manifest_against_a_list = DeepManifestModel.TestCase


def author(count: int, *, incarnation: int | None = 1) -> Author:
    names = (f"{number:032x}" for number in itertools.count(count << 20))
    return Author(ManifestWriter(1, incarnation), f"{count:032x}", 1000 + count, lambda: next(names))


def test_epochs_and_incarnations_only_rise() -> None:
    manifest = transitions.claim_epoch(first_manifest(IDS), 5, author(1, incarnation=3))
    with pytest.raises(FencedWriter):
        transitions.claim_epoch(manifest, 4, author(2, incarnation=3))
    with pytest.raises(FencedWriter):
        transitions.claim_epoch(manifest, 6, author(2, incarnation=2))
    with pytest.raises(FencedWriter):
        transitions.pin(manifest, "p", author(2, incarnation=2))
    assert transitions.touch(manifest, author(2, incarnation=None)).incarnation == 3


def test_the_last_32_commits_are_remembered() -> None:
    manifest = first_manifest(IDS)
    for number in range(1, 41):
        manifest = transitions.touch(manifest, author(number))
    assert [recent.commit for recent in manifest.recent] == list(range(9, 41))
    assert manifest.has_commit(f"{9:032x}") and not manifest.has_commit(f"{8:032x}")


def test_twenty_thousand_segments_stay_within_bounds() -> None:
    manifest, written, held = first_manifest(IDS), 0, 0
    pages_by_key: dict[str, ManifestPage] = {}
    names = author(1).new_uuid
    for number in range(20_000):
        by = Author(ManifestWriter(1, 1), f"{number:032x}", number, names, pages_by_key)
        segment = segment_of(IDS, number * 1000, number * 1000 + 1000, number)
        manifest = transitions.extend(manifest, segment, by, leader_epoch=1, last_record_epoch=1, log_start=0)
        if number % 40:
            continue  # paginate every 40 segments: the test takes seconds instead of a minute
        change = pages.paginate(ManifestChange(manifest), by)
        for write in change.writes:
            pages_by_key[write.ref.key] = write.page
            written += len(write.data)
        manifest = change.manifest
        held = max(held, len(encode(manifest)))
        old_pages = {item.keys[0] for item in manifest.removed}
        dropped = pages.drop_gone(manifest, old_pages, (), by)
        manifest = dropped.manifest if dropped is not None else manifest
    assert held <= model.MAX_MANIFEST_BYTES
    assert len(manifest.segments) + len(manifest.removed) <= model.MAX_SEGMENTS + 40
    assert len(manifest.pages) <= 16 < model.MAX_PAGES
    assert all(ref.count <= pages.MAX_PAGE_SEGMENTS for ref in manifest.pages)
    live = list(lookup.live_segments(manifest, lambda ref: pages_by_key[ref.key]))
    assert [segment.base for segment in live] == list(range(0, 20_000_000, 1000))
    stored = sum(ref.length for ref in manifest.live_pages)
    assert written < 10 * stored, "a remote segment is rewritten a few times, not at every spill"


def test_a_full_manifest_is_an_error() -> None:
    manifest = first_manifest(IDS)
    known: dict[str, ManifestPage] = {}
    with mock.patch.multiple(pages, MAX_SEGMENTS=2, MAX_PAGES=2, MAX_PAGE_SEGMENTS=2):
        with pytest.raises(StorageError, match=r"segment\.bytes"):
            for number in range(20):
                by = Author(ManifestWriter(1, 1), f"{number:032x}", number, author(number).new_uuid, known)
                segment = segment_of(IDS, number, number + 1, number)
                change = pages.paginate(
                    ManifestChange(
                        transitions.extend(manifest, segment, by, leader_epoch=1, last_record_epoch=1, log_start=0)
                    ),
                    by,
                )
                known.update({write.ref.key: write.page for write in change.writes})
                manifest = change.manifest
        assert manifest.end >= 4


def full_page(number: int, by: Author) -> tuple[PageRef, ManifestPage]:
    """A reference that claims a full page (8,192 segments), and a page that holds only one segment of its range."""
    base, end = number * 8192 * 10, (number + 1) * 8192 * 10
    segment = segment_of(IDS, base, end, number, timestamp=number)
    write = pages.page_write(IDS, ManifestPage(PageKind.LIVE, (segment,)), by)
    return replace(write.ref, count=8192), write.page


def test_ten_million_segments_stay_within_bounds() -> None:
    """Adds 1,250 full pages one by one. A look-up at any offset reads at most two pages."""
    manifest, stored = first_manifest(IDS), 0
    known: dict[str, ManifestPage] = {}
    names = author(1).new_uuid
    for number in range(1250):
        by = Author(ManifestWriter(1, 1), f"{number:032x}", number, names, known)
        ref, page = full_page(number, by)
        known[ref.key] = page
        grown = transitions.advance(manifest, by, pages=(*manifest.pages, ref), end=ref.end)
        change = pages.paginate(ManifestChange(grown), by)
        assert len(change.writes) <= 1
        known.update({write.ref.key: write.page for write in change.writes})
        stored = max([stored, *(len(write.data) for write in change.writes)])
        manifest = change.manifest
        dropped = pages.drop_gone(manifest, {item.keys[0] for item in manifest.removed}, (), by)
        manifest = dropped.manifest if dropped is not None else manifest
    assert broken(manifest) is None
    assert sum(ref.count for ref in manifest.pages) == 10_240_000
    assert len(manifest.pages) <= model.MAX_PAGES
    assert len(encode(manifest)) <= model.MAX_MANIFEST_BYTES
    assert stored < 1 << 18
    asked: list[PageRef] = []

    def load(ref: PageRef) -> ManifestPage:
        asked.append(ref)
        return known[ref.key]

    for offset in (0, 5_000_000, 77_777_777, manifest.end - 1):
        asked.clear()
        found = lookup.segment_for(manifest, load, offset)
        assert found is not None
        assert found.base <= offset < found.end
        assert len(asked) <= 2
    assert [segment.base for segment in lookup.live_segments(manifest, load)] == [n * 8192 * 10 for n in range(1250)]


def test_folded_segments_are_expired_and_swept() -> None:
    manifest = first_manifest(IDS)
    known: dict[str, ManifestPage] = {}
    names = author(1).new_uuid
    numbers = itertools.count(1)

    def commit(step: Callable[[Manifest, Author], ManifestChange | Manifest | None]) -> bool:
        nonlocal manifest
        by = Author(ManifestWriter(1, 1), f"{next(numbers):032x}", next(numbers), names, known)
        change = step(manifest, by)
        if change is None:
            return False
        change = pages.paginate(ManifestChange(change) if isinstance(change, Manifest) else change, by)
        assert len(change.writes) <= 3
        known.update({write.ref.key: write.page for write in change.writes})
        manifest = change.manifest
        return True

    for number in range(200):
        ref, page = full_page(number, Author(ManifestWriter(1, 1), "", 0, names, known))
        known[ref.key] = page
        commit(lambda old, by, ref=ref: transitions.advance(old, by, pages=(*old.pages, ref), end=ref.end))  # type: ignore[misc]
    assert any(ref.level for ref in manifest.pages)
    end = manifest.end
    while commit(lambda manifest, by: pages.expire(manifest, end, by)):
        assert broken(manifest) is None
    assert not manifest.live_pages
    for _ in range(1000):
        folded = next((ref.key for ref in manifest.removed_pages if ref.level), None)
        if folded is not None:
            commit(lambda manifest, by, key=folded: pages.unfold(manifest, key, by))  # type: ignore[misc]
        leaves = [ref.key for ref in manifest.removed_pages if not ref.level]
        gone = {key for item in manifest.removed for key in item.keys}
        gone |= {key for leaf in leaves for item in known[leaf].removed for key in item.keys}
        if not commit(lambda manifest, by, gone=gone, leaves=leaves: pages.drop_gone(manifest, gone, leaves, by)):  # type: ignore[misc]
            break
    assert not manifest.pages
