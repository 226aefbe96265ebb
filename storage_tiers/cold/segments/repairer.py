"""Gathers the evidence for a repair of one partition's manifest, and commits what the plan says (`manifest.repair`).

Every live object of the root to be committed is proven: its length and CRC-32C as the store reports them, or as they are read
back where it reports none; each sidecar is read and compared with its entry. Nothing is written before all of it is known.

Bounds: CHECKS_AT_ONCE objects at a time. Not promised: that what was proven is still there a moment later; a sweep or an
operator may have removed it, and the next read says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass

from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.commit import CommitLoop
from storage_tiers.cold.manifest.model import Entry, Root
from storage_tiers.cold.manifest.repair import Evidence, Refused, Repair, basis, plan, repaired
from storage_tiers.cold.segments import sidecar
from storage_tiers.cold.segments.range_check import sidecar_bytes
from storage_tiers.cold.stores.port import ObjectStore
from storage_tiers.errors import TierCorrupt, TierObjectMissing
from storage_tiers.records.checksum import crc32c
from storage_tiers.types import EpochEntry, OffsetRange

CHECKS_AT_ONCE = 16
_READ_BACK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class LocalEvidence:
    """What the local log can stand in for: the offsets that it holds, their leader epochs, the partition's log start."""

    held: OffsetRange
    epochs: tuple[EpochEntry, ...]
    log_start: int


@dataclass(frozen=True, slots=True)
class RepairReport:
    """`summary` says what would be or was committed; empty if there is nothing to repair. `refused` says why not."""

    summary: str = ""
    refused: str = ""
    checked: int = 0


class Repairer:
    def __init__(self, store: ObjectStore, loop: CommitLoop) -> None:
        self._store = store
        self._loop = loop
        self._slots = asyncio.Semaphore(CHECKS_AT_ONCE)

    async def repair(self, local: LocalEvidence, *, apply: bool) -> tuple[RepairReport, Root | None]:
        """What would be done, and with `apply` is done; then also the root committed. Errors: the store's, and FencedWriter."""
        shown, saved = await self._loop.shown(), await self._loop.seen()
        lost = None
        if shown is not None and saved is not None:
            lost = await self._loop.lost(shown, saved)
        begin = basis(shown, saved, lost, local.held)
        if begin is None:
            return RepairReport(), None
        if isinstance(begin, Refused):
            return RepairReport(refused=begin.why), None
        evidence, checked = await self._evidence(begin, local)
        found = plan(begin, shown, evidence)
        if isinstance(found, Refused):
            return RepairReport(refused=found.why, checked=checked), None
        report = RepairReport(found.summary, checked=checked)
        return report, (await self._commit(found, shown) if apply else None)

    async def _commit(self, repair: Repair, shown: Root | None) -> Root:
        return await self._loop.commit_repair(shown, lambda by: repaired(repair, shown, by))

    async def _evidence(self, root: Root, local: LocalEvidence) -> tuple[Evidence, int]:
        missing: set[str] = set()
        last_paged: Entry | None = None
        refs = list(reversed(root.live_pages))
        while refs:
            ref = refs.pop()
            try:
                page = await self._loop.page(ref)
            except (TierObjectMissing, TierCorrupt):
                missing.add(ref.key)
                continue
            if page.pages:
                refs.extend(reversed(page.pages))
                continue
            last_paged = page.entries[-1]
            missing |= await self._missing(page.entries)
        missing |= await self._missing(root.entries)
        unnamed = await self._unnamed(root)
        ranges = len(root.entries) + sum(ref.count for ref in root.live_pages)
        checked = 2 * ranges + len(root.live_pages)
        return Evidence(missing, unnamed, last_paged, local.held, local.epochs, local.log_start), checked

    async def _unnamed(self, root: Root) -> set[int]:
        """First offsets of segments that may have been committed after `root`: it names none of them, nor are they known to
        be gone."""
        known = set(root.keys())
        found: set[int] = set()
        async for info in self._store.list(self._loop.ids.segments_prefix):
            parsed = keys.parse(info.key)
            if isinstance(parsed, keys.SegmentKey) and parsed.base >= root.end and info.key not in known:
                found.add(parsed.base)
        return found

    async def _missing(self, entries: tuple[Entry, ...]) -> set[str]:
        found: set[str] = set()
        for some in _in_bunches(entries):
            verdicts = await asyncio.gather(*(self._lacks(entry) for entry in some))
            found.update(key for keys in verdicts for key in keys)
        return found

    async def _lacks(self, entry: Entry) -> list[str]:
        async with self._slots:
            kept = [(entry.key, self._holds_segment(entry)), (entry.sidecar_key, self._holds_sidecar(entry))]
            return [key for key, question in kept if not await _there(question)]

    async def _holds_segment(self, entry: Entry) -> bool:
        info = await self._store.head(entry.key)
        if info.size < entry.position + entry.length:
            return False
        if info.crc32c is not None and (entry.position, info.size) == (0, entry.length):
            return info.crc32c == entry.crc32c
        found, at = 0, entry.position
        while at < entry.position + entry.length:
            size = min(_READ_BACK_BYTES, entry.position + entry.length - at)
            piece = (await self._store.get(entry.key, at, size)).data
            if not piece:
                return False
            found, at = crc32c(piece, found), at + len(piece)
        return found == entry.crc32c

    async def _holds_sidecar(self, entry: Entry) -> bool:
        data = (await self._store.get(entry.sidecar_key)).data
        if len(data) != sidecar_bytes(entry):
            return False
        parsed = sidecar.parse(data, entry.sidecar_key)
        named = (parsed.base, parsed.end, parsed.length, parsed.crc32c)
        return (
            named == (entry.base, entry.end, entry.length, entry.crc32c) and sidecar.read_table(data) == entry.sections
        )


async def _there(question: Awaitable[bool]) -> bool:
    try:
        return await question
    except (TierObjectMissing, TierCorrupt):
        return False


def _in_bunches(entries: tuple[Entry, ...]) -> Iterator[tuple[Entry, ...]]:
    for start in range(0, len(entries), CHECKS_AT_ONCE):
        yield entries[start : start + CHECKS_AT_ONCE]
