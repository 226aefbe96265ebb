"""Plans how far log start may rise by `retention.ms` and `retention.bytes`: pure, over both tiers.

As in Kafka: segments expire oldest first and without holes. A segment expires when its newest record is older than
`retention.ms`, or when the log without it still has `retention.bytes`. Nothing at or above the high watermark expires. If all
segments have expired, the active one is rolled so that it can expire too. A record with a timestamp in the future keeps its
segment and all that follow.

If nothing expires, the check reads only the oldest segment (`goes`), however long the history. Otherwise pages are planned by
their sums, and segment by segment only in the page where expiry stops.

The plan deletes nothing. The caller raises log start; eviction and the sweeper free the space.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from storage_tiers.cold.manifest.lookup import LoadPage
from storage_tiers.cold.manifest.model import Oldest, PageRef, RemoteSegment
from storage_tiers.policy.segments import Now, SegmentView, age_ms

UNLIMITED = -1


class RetentionLimits(NamedTuple):
    """`retention.ms` and `retention.bytes`; -1 is no limit."""

    retention_ms: int = UNLIMITED
    retention_bytes: int = UNLIMITED


class RetentionPlan(NamedTuple):
    """`log_start` is the new log start. With `roll_active` the active segment has expired too: close it first."""

    log_start: int
    roll_active: bool = False


class Moment(NamedTuple):
    """The common inputs of all steps of a plan: the limits, the time, and the offset that expiry never passes."""

    limits: RetentionLimits
    now: Now
    high_watermark: int


class Expired(NamedTuple):
    """The expired part so far: all offsets below `end`. `excess` is the number of bytes that the log still has above
    `retention.bytes`. `stopped`: the next segment stays, and so do all that follow."""

    end: int
    excess: int
    stopped: bool = False


def goes(age_ms: int, size: int, excess: int, limits: RetentionLimits) -> bool:
    """Whether a segment of `size` bytes expires after all before it have expired."""
    if limits.retention_ms != UNLIMITED and age_ms > limits.retention_ms:
        return True
    return limits.retention_bytes != UNLIMITED and excess >= size


def plan_pages(pages: Sequence[PageRef], load_page: LoadPage, found: Expired, moment: Moment) -> Expired:
    """Continues a plan over live pages, in order. Loads only the page where expiry stops, and also one page below it if that
    page is of level 1."""
    for ref in pages:
        if found.stopped:
            break
        whole = _further(found, ref.end, moment.now.expiry_ms - ref.newest_ms, ref.bytes, moment)
        oldest = ref.oldest or Oldest(ref.end, ref.newest_ms, ref.bytes)
        if not whole.stopped:
            found = whole
        elif goes(moment.now.expiry_ms - oldest.newest_ms, oldest.bytes, found.excess, moment.limits):
            page = load_page(ref)
            found = plan_pages(page.pages, load_page, found, moment)
            found = plan_segments(page.segments, found, moment)
        else:
            found = whole
    return found


def plan_segments(segments: Iterable[RemoteSegment], found: Expired, moment: Moment) -> Expired:
    """Continues a plan over live segments, in order."""
    for segment in segments:
        if found.stopped:
            break
        found = _further(found, segment.end, moment.now.expiry_ms - segment.newest_ms, segment.bytes, moment)
    return found


def plan_local(local: Iterable[SegmentView], found: Expired, moment: Moment) -> RetentionPlan:
    """Ends a plan with the local segments that end above both the manifest's end and log start, in order."""
    for segment in local:
        if segment.size_bytes == 0:
            continue
        if not found.stopped:
            found = _further(found, segment.end, age_ms(segment, moment.now), segment.size_bytes, moment)
        if segment.active:
            return RetentionPlan(found.end, roll_active=not found.stopped)
    return RetentionPlan(found.end)


def _further(found: Expired, end: int, age: int, size: int, moment: Moment) -> Expired:
    """The plan after the next segment, which ends at offset `end`."""
    if end > moment.high_watermark or not goes(age, size, found.excess, moment.limits):
        return found._replace(stopped=True)
    return Expired(max(found.end, end), found.excess - size)
