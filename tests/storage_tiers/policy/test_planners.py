"""Table tests of the pure planners of eviction, retention, offloads and sweeps."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_tiers.cold.manifest.model import (
    Author,
    ManifestPage,
    ManifestWriter,
    PageKind,
    PageRef,
    Pin,
    RemoteSegment,
    Removed,
    Stamp,
)
from storage_tiers.cold.manifest.pages import page_write
from storage_tiers.cold.stores.port import ObjectInfo, UnfinishedUpload
from storage_tiers.policy.eviction import Evict, LocalLimits, Reason, plan_eviction
from storage_tiers.policy.orphans import abandoned, due_removed, orphans
from storage_tiers.policy.retention import (
    Expired,
    Moment,
    RetentionLimits,
    RetentionPlan,
    goes,
    plan_local,
    plan_pages,
    plan_segments,
)
from storage_tiers.policy.segments import Now
from storage_tiers.policy.tiering import Offload, TieringPlan, plan_tiering
from tests.storage_tiers.cold.support import IDS, segment_of

NOW = 1_700_000_000_000
HOUR = 3_600_000


@dataclass(frozen=True)
class Segment:
    base: int
    end: int
    size_bytes: int = 100
    max_timestamp: int = NOW
    first_append_ms: int = NOW
    active: bool = False


def segments(*ends: int, max_timestamp: int = NOW, first_append_ms: int = NOW) -> list[Segment]:
    """Segments [0, ends[0]), [ends[0], ends[1]) ...: all closed but the last, which is active."""
    bases = (0, *ends)
    made = [Segment(base, end, 100, max_timestamp, first_append_ms) for base, end in zip(bases, ends, strict=False)]
    made[-1] = replace(made[-1], active=True)
    return made


def paged(remotes: list[RemoteSegment], size: int) -> tuple[list[PageRef], Callable[[PageRef], ManifestPage]]:
    """The segments in live pages of `size` segments each: their references, and a loader of pages."""
    numbers = itertools.count()
    by = Author(ManifestWriter(1, 1), "c", NOW, lambda: f"{next(numbers):032x}")
    made = [
        page_write(IDS, ManifestPage(PageKind.LIVE, tuple(remotes[at : at + size])), by)
        for at in range(0, len(remotes), size)
    ]
    pages = {write.ref.key: write.page for write in made}
    return [write.ref for write in made], lambda ref: pages[ref.key]


class TestRetention:
    def plan(
        self,
        cold: list[RemoteSegment],
        hot: list[Segment],
        *,
        tier_end: int = 0,
        high_watermark: int = 1000,
        **limits: int,
    ) -> RetentionPlan:
        moment = Moment(RetentionLimits(**limits), Now(NOW, NOW), high_watermark)
        local = [segment for segment in hot if segment.end > tier_end]
        total = sum(remote.bytes for remote in cold) + sum(segment.size_bytes for segment in local)
        found = Expired(0, total - moment.limits.retention_bytes)
        by_segments = plan_segments(cold, found, moment)
        for size in (1, 2, 5):
            assert plan_pages(*paged(cold, size), found, moment) == by_segments
        if cold and cold[0].end <= high_watermark:
            oldest_goes = goes(NOW - cold[0].newest_ms, cold[0].bytes, found.excess, moment.limits)
            assert oldest_goes == (by_segments.end > 0)
        return plan_local(local, by_segments, moment)

    def test_unlimited_retention_keeps_everything(self) -> None:
        assert self.plan([], segments(10, 20, max_timestamp=0)) == RetentionPlan(0)

    def test_age_counts_from_the_newest_record_and_stops_at_the_first_that_stays(self) -> None:
        hot = segments(10, 20, 30, 40)
        hot[0] = replace(hot[0], max_timestamp=NOW - HOUR - 1)
        hot[2] = replace(hot[2], max_timestamp=NOW - HOUR - 1)
        assert self.plan([], hot, retention_ms=HOUR) == RetentionPlan(10)
        hot[0] = replace(hot[0], max_timestamp=NOW - HOUR)
        assert self.plan([], hot, retention_ms=HOUR) == RetentionPlan(0), "a segment of exactly the allowed age stays"

    def test_without_timestamps_the_append_counts(self) -> None:
        hot = segments(10, 20, max_timestamp=-1, first_append_ms=NOW - 2 * HOUR)
        assert self.plan([], hot, retention_ms=HOUR) == RetentionPlan(20, roll_active=True)

    def test_nothing_at_or_above_the_high_watermark_is_deleted(self) -> None:
        hot = segments(10, 20, 30, max_timestamp=0)
        assert self.plan([], hot, retention_ms=HOUR, high_watermark=15) == RetentionPlan(10)

    def test_retention_by_size_leaves_at_least_its_limit(self) -> None:
        hot = segments(10, 20, 30, 40)
        assert self.plan([], hot, retention_bytes=250) == RetentionPlan(10)
        assert self.plan([], hot, retention_bytes=200) == RetentionPlan(20)
        assert self.plan([], hot, retention_bytes=0) == RetentionPlan(40, roll_active=True), "as Kafka does"

    def test_offsets_in_both_tiers_count_once(self) -> None:
        cold = [segment_of(IDS, base, base + 10, base, size=100, timestamp=NOW) for base in (0, 10)]
        hot = segments(10, 20, 30, 40)
        assert self.plan(cold, hot, tier_end=20, retention_bytes=300) == RetentionPlan(10)
        assert self.plan(cold, hot[1:], tier_end=20, retention_bytes=100) == RetentionPlan(30)

    def test_the_first_segments_are_judged_by_the_size_of_all(self) -> None:
        cold = [segment_of(IDS, base, base + 10, base, size=100, timestamp=NOW) for base in range(0, 50, 10)]
        moment = Moment(RetentionLimits(retention_bytes=500), Now(NOW, NOW), 1000)
        refs, load_page = paged(cold, 2)
        assert plan_pages(refs[:1], load_page, Expired(0, 100), moment) == Expired(10, 0, stopped=True)

    @given(
        st.lists(st.tuples(st.integers(1, 40), st.sampled_from((-1, NOW, NOW - HOUR - 1))), max_size=12),
        st.integers(-1, 400),
        st.sampled_from((-1, HOUR)),
        st.integers(0, 120),
    )
    def test_pages_expire_as_their_segments_do(
        self, made: list[tuple[int, int]], retention_bytes: int, retention_ms: int, high_watermark: int
    ) -> None:
        """Whole pages may expire by their totals, without a read of their segments."""
        cold = [
            replace(
                segment_of(IDS, at * 10, at * 10 + 10, at, size=size, timestamp=time), added=Stamp(at, NOW - 2 * HOUR)
            )
            for at, (size, time) in enumerate(made)
        ]
        limits = {"retention_bytes": retention_bytes, "retention_ms": retention_ms}
        self.plan(cold, [], tier_end=120, high_watermark=high_watermark, **limits)

    def test_only_the_page_with_the_boundary_is_read_of_a_long_history(self) -> None:
        cold = [segment_of(IDS, at * 10, at * 10 + 10, at, size=100, timestamp=NOW - HOUR + at) for at in range(1000)]
        refs, load_page = paged(cold, 10)
        read: list[str] = []

        def reading(ref: PageRef) -> ManifestPage:
            read.append(ref.key)
            return load_page(ref)

        moment = Moment(RetentionLimits(retention_ms=HOUR), Now(NOW + 505, NOW), 10_000)
        assert plan_pages(refs, reading, Expired(0, 0), moment).end == 5050
        assert read == [refs[50].key]

    def test_a_segment_without_timestamps_counts_from_its_offload(self) -> None:
        cold = [replace(segment_of(IDS, 0, 10, 0, timestamp=-1), added=Stamp(1, NOW - 2 * HOUR))]
        assert self.plan(cold, segments(20), tier_end=10, retention_ms=HOUR).log_start == 10


class TestTiering:
    def plan(self, hot: list[Segment], **fields: int) -> TieringPlan:
        known = {"tier_end": 0, "bound": 1000, "log_start": 0, "segment_ms": 7 * 24 * HOUR, "max_lag_ms": HOUR}
        return plan_tiering(hot, now_ms=NOW, **(known | fields))

    def test_closed_segments_offload_at_once_in_order(self) -> None:
        plan = self.plan(segments(10, 20, 30))
        assert plan.offloads == (Offload(0, 0, 10), Offload(10, 10, 20))
        assert not plan.close_active

    def test_offloaded_segments_stay_in_the_bucket(self) -> None:
        assert self.plan(segments(10, 20, 30), tier_end=10).offloads == (Offload(10, 10, 20),)
        assert self.plan(segments(10, 20, 30), tier_end=14).offloads == (Offload(10, 14, 20),)

    def test_an_open_transaction_holds_the_segment_and_all_after_it(self) -> None:
        plan = self.plan(segments(10, 20, 30, 40, first_append_ms=NOW - 500), bound=15)
        assert plan.offloads == (Offload(0, 0, 10),)
        assert (plan.held_at, plan.lag_ms) == (15, 500)

    @pytest.mark.parametrize("age", [HOUR - 1, HOUR])
    def test_the_clock_closes_the_active_segment(self, age: int) -> None:
        hot = segments(10, first_append_ms=NOW - age)
        assert self.plan(hot).close_active == (age == HOUR)
        assert self.plan(hot, max_lag_ms=10 * HOUR).close_active is False
        assert self.plan(hot, max_lag_ms=10 * HOUR, segment_ms=HOUR).close_active == (age == HOUR)

    def test_an_empty_active_segment_is_left_alone(self) -> None:
        hot = [Segment(0, 10), Segment(10, 10, 0, -1, -1, True)]
        plan = self.plan(hot, seal_below=10)
        assert not plan.close_active and plan.offloads == (Offload(0, 0, 10),)

    def test_a_seal_closes_only_its_segments(self) -> None:
        assert self.plan(segments(10, 20), seal_below=15).close_active
        assert not self.plan(segments(10, 20), seal_below=10).close_active
        assert not self.plan(segments(10, 20), seal_below=15, tier_end=15).close_active

    def test_below_log_start_nothing_is_offloaded(self) -> None:
        assert self.plan(segments(10, 20, 30), log_start=13).offloads == (Offload(10, 13, 20),)
        assert self.plan(segments(10, 20, 30), log_start=25).offloads == ()

    def test_a_hole_is_named(self) -> None:
        plan = self.plan([Segment(20, 30), Segment(30, 40, active=True)], tier_end=10)
        assert plan.offloads == () and plan.hole == 10


class TestEviction:
    def plan(self, hot: list[Segment], durable_end: int | None, log_start: int = 0, **limits: int) -> list[Evict]:
        return plan_eviction(
            hot, durable_end=durable_end, log_start=log_start, limits=LocalLimits(**limits), now=Now(NOW, NOW)
        )

    def test_segments_below_log_start_are_evicted_without_a_manifest(self) -> None:
        assert self.plan(segments(10, 20, 30), None, log_start=15) == [Evict(0, Reason.BELOW_LOG_START)]

    def test_nothing_is_evicted_before_a_durable_manifest_covers_it(self) -> None:
        hot = segments(10, 20, 30, max_timestamp=0)
        assert self.plan(hot, None, retention_ms=HOUR) == []
        assert self.plan(hot, 19, retention_ms=HOUR) == [Evict(0, Reason.AGE)]
        assert [gone.base for gone in self.plan(hot, 30, retention_ms=HOUR)] == [0, 10], "never the active segment"

    def test_segments_beyond_the_local_retention_size_are_evicted(self) -> None:
        hot = segments(10, 20, 30, 40)
        assert self.plan(hot, 40, retention_bytes=250) == [Evict(0, Reason.SIZE)]
        assert self.plan(hot, 40) == []

    @given(
        st.lists(st.tuples(st.integers(1, 50), st.integers(0, 500), st.integers(0, 2 * HOUR)), min_size=1, max_size=12),
        st.none() | st.integers(0, 600),
        st.integers(0, 600),
        st.integers(-1, HOUR),
        st.integers(-1, 3000),
    )
    def test_i3_holds_for_any_log(
        self, shapes: list[tuple[int, int, int]], durable_end: int | None, log_start: int, ms: int, size: int
    ) -> None:
        hot, at = [], 0
        for length, bytes_, age in shapes:
            hot.append(Segment(at, at + length, bytes_, NOW - age, NOW - age))
            at += length
        hot[-1] = replace(hot[-1], active=True)
        gone = self.plan(hot, durable_end, log_start, retention_ms=ms, retention_bytes=size)
        assert [evict.base for evict in gone] == [segment.base for segment in hot[: len(gone)]], "a prefix"
        for segment in hot[: len(gone)]:
            assert not segment.active
            assert segment.end <= max(log_start, durable_end or 0)


class TestOrphans:
    def test_removed_objects_wait_for_the_grace_and_for_pins(self) -> None:
        remote = replace(segment_of(IDS, 0, 10, 1), added=Stamp(3, 0))
        item = Removed(Stamp(7, 1000), remote)
        assert due_removed([item], (), 1099, 100) == []
        assert due_removed([item], (), 1100, 100) == [item]
        assert due_removed([item], (Pin("p", 3, 0, 10),), 1100, 100) == []
        assert due_removed([item], (Pin("p", 6, 0, 10),), 1100, 100) == []
        assert due_removed([item], (Pin("p", 7, 0, 10), Pin("q", 2, 0, 0)), 1100, 100) == [item]

    def test_orphans_are_old_by_the_stores_clock_and_unreferenced(self) -> None:
        listed = [ObjectInfo(name, 1, "", at) for name, at in (("a", 10), ("b", 20), ("c", 10))]
        assert orphans(listed, {"c"}, 110, 100) == ["a"]

    def test_uploads_older_than_the_grace_are_abandoned(self) -> None:
        uploads = [UnfinishedUpload("a", "1", 10), UnfinishedUpload("b", "2", 11)]
        assert abandoned(uploads, 110, 100) == uploads[:1]
