"""How far log start may rise by `retention.ms` and `retention.bytes`: pure, over both tiers.

As in Kafka: oldest first and without leaving holes; a segment goes when its newest record is older than `retention.ms`, or
when the log without it still holds `retention.bytes`; nothing at or above the high watermark goes; when everything has
expired, the active segment is rolled so that it can go as well. A record with a timestamp in the future holds what
follows it.

A check of a partition of which nothing goes looks at one segment, the oldest (`goes`), whatever its history.
Only where that one goes is the rest planned: whole pages by their sums, at most the page in which the line falls by its
segments.

Not promised: that anything is deleted. Raising log start is the caller's, eviction and the sweeper free the space.
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
    """`log_start` is where it should be. With `roll_active` the active segment has expired: close it first."""

    log_start: int
    roll_active: bool = False


class Moment(NamedTuple):
    """The inputs of every step of a plan: the limits, the time, and the offset that expiry never passes."""

    limits: RetentionLimits
    now: Now
    high_watermark: int


class Expired(NamedTuple):
    """What has been found to go so far: all below offset `end`. `excess` is how many bytes the log still has above
    `retention.bytes`. `stopped`: the next segment stays, and with it all that follow."""

    end: int
    excess: int
    stopped: bool = False


def goes(age_ms: int, size: int, excess: int, limits: RetentionLimits) -> bool:
    """Whether a segment of `size` bytes goes, everything before it having gone."""
    if limits.retention_ms != UNLIMITED and age_ms > limits.retention_ms:
        return True
    return limits.retention_bytes != UNLIMITED and excess >= size


def plan_pages(pages: Sequence[PageRef], load_page: LoadPage, found: Expired, moment: Moment) -> Expired:
    """Goes on over live pages, in order. Loads at most the one in which the line falls."""
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
    """Goes on over live segments, in order."""
    for segment in segments:
        if found.stopped:
            break
        found = _further(found, segment.end, moment.now.expiry_ms - segment.newest_ms, segment.bytes, moment)
    return found


def plan_local(local: Iterable[SegmentView], found: Expired, moment: Moment) -> RetentionPlan:
    """Ends a plan over the local segments that the tier does not have, in order."""
    for segment in local:
        if segment.size_bytes == 0:
            continue
        if not found.stopped:
            found = _further(found, segment.end, age_ms(segment, moment.now), segment.size_bytes, moment)
        if segment.active:
            return RetentionPlan(found.end, roll_active=not found.stopped)
    return RetentionPlan(found.end)


def _further(found: Expired, end: int, age: int, size: int, moment: Moment) -> Expired:
    """What has gone once the next segment, which ends at `end`, was looked at."""
    if end > moment.high_watermark or not goes(age, size, found.excess, moment.limits):
        return found._replace(stopped=True)
    return Expired(max(found.end, end), found.excess - size)
