"""Answers questions about the pages of a partition's manifest, which the tier process reads and caches."""

from __future__ import annotations

import bisect

from storage_tiers.cold.manifest.model import Ids, ManifestPage, PageNeeded, PageRef, RemoteSegment
from storage_tiers.cold.process.context import TierContext
from storage_tiers.cold.process.operations import MAX_PAGE_SEGMENTS, PageSegments, PlanPages
from storage_tiers.policy import retention
from storage_tiers.policy.retention import Expired


async def page_segments(context: TierContext, question: PageSegments) -> tuple[RemoteSegment, ...]:
    return await _neighbours(context, question.ids, question.page, question.start, question.timestamp)


async def plan_pages(context: TierContext, question: PlanPages) -> Expired:
    held: dict[str, ManifestPage] = {}

    def load_page(ref: PageRef) -> ManifestPage:
        if ref.key not in held:
            raise PageNeeded(ref)
        return held[ref.key]

    while True:
        try:
            return retention.plan_pages(question.pages, load_page, question.found, question.moment)
        except PageNeeded as needed:
            held[needed.ref.key] = await context.live_page(question.ids, needed.ref)


async def _neighbours(
    context: TierContext, ids: Ids, ref: PageRef, start: int, timestamp: int | None
) -> tuple[RemoteSegment, ...]:
    page = await context.live_page(ids, ref)
    for child in page.pages:
        if child.end > start and (timestamp is None or child.max_timestamp >= timestamp):
            found = await _neighbours(context, ids, child, start, timestamp)
            if found:
                return found
    at = bisect.bisect_right(page.segments, start, key=lambda segment: segment.end)
    if timestamp is not None:
        while at < len(page.segments) and page.segments[at].max_timestamp < timestamp:
            at += 1
    return page.segments[at : at + MAX_PAGE_SEGMENTS]
