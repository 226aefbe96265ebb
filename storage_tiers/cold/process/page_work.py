"""Questions about the pages of a partition's manifest, which the process reads and keeps."""

from __future__ import annotations

import bisect

from storage_tiers.cold.manifest.model import Entry, Ids, Page, PageNeeded, PageRef
from storage_tiers.cold.process.context import TierContext
from storage_tiers.cold.process.operations import MAX_PAGE_ENTRIES, PageEntries, PlanPages
from storage_tiers.policy import retention
from storage_tiers.policy.retention import Expired


async def page_entries(context: TierContext, question: PageEntries) -> tuple[Entry, ...]:
    return await _neighbours(context, question.ids, question.page, question.start, question.timestamp)


async def plan_pages(context: TierContext, question: PlanPages) -> Expired:
    held: dict[str, Page] = {}

    def load_page(ref: PageRef) -> Page:
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
) -> tuple[Entry, ...]:
    page = await context.live_page(ids, ref)
    for child in page.pages:
        if child.end > start and (timestamp is None or child.max_timestamp >= timestamp):
            found = await _neighbours(context, ids, child, start, timestamp)
            if found:
                return found
    at = bisect.bisect_right(page.entries, start, key=lambda entry: entry.end)
    if timestamp is not None:
        while at < len(page.entries) and page.entries[at].max_timestamp < timestamp:
            at += 1
    return page.entries[at : at + MAX_PAGE_ENTRIES]
