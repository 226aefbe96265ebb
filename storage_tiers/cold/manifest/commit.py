"""The compare-and-swap loop: a manifest transition takes effect exactly once, even if answers are lost.

    read manifest ──> prepare(manifest) ──> step(manifest, author) ──> PUT pages ──> PUT manifest if it is still the one read
        ^                                                                                 │
        └──────────── 412, 409, timeout: read it again; ours in `recent`? done <──────────┘

Invariants: every attempt of one operation carries the same commit id, so that a write whose answer was lost is recognised
while its id is among the last 32 in the manifest. No two attempts can both take effect: each replaces exactly the version
that it read, and no two versions have equal bytes. `prepare` has run on the very manifest that the commit replaces. The
manifest in memory is dropped before each write and set again only when the outcome is known. A manifest is used only if it
contains the newest one that this loop or a caller (`expect`) has seen (`lineage`). If the store has gone backwards, the loop
raises StoreBehind, and a partition that had a manifest never gets a first manifest again.

Not promised: that an operation that ends in `TierUnavailable` had no effect; the next one starts from a fresh read.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.clock import Clock, Rng
from storage_tiers.cold.manifest import lineage
from storage_tiers.cold.manifest.documents import FORMAT
from storage_tiers.cold.manifest.json import decode, decode_page, encode
from storage_tiers.cold.manifest.lineage import LoadPage, SeenManifest, seen_of
from storage_tiers.cold.manifest.model import (
    RECENT_COMMITS,
    Author,
    Ids,
    Manifest,
    ManifestPage,
    ManifestWriter,
    PageNeeded,
    PageRef,
    State,
)
from storage_tiers.cold.manifest.pages import ManifestChange, PageWrite, paginate
from storage_tiers.cold.manifest.transitions import broken, broken_step, check_writer, first_manifest
from storage_tiers.cold.stores.port import ObjectBody, ObjectStore
from storage_tiers.errors import (
    ManifestDamaged,
    PreconditionFailed,
    StoreBehind,
    StoreRefused,
    TierCorrupt,
    TierObjectMissing,
    TierUnavailable,
)

T = TypeVar("T")

#: A transition: from the manifest just read to the next one, or None if there is nothing to do. Pure; may run again after
#: `PageNeeded` and in the next attempt.
Step = Callable[[Manifest, Author], ManifestChange | Manifest | None]
#: Checks the preconditions of a commit on this manifest; raises to abandon the commit. Runs once in each attempt.
Prepare = Callable[[Manifest], Awaitable[None]]
#: Reads the saved manifest that a SeenManifest describes.
ReadSaved = Callable[[SeenManifest], Awaitable[Manifest]]


@dataclass(frozen=True, slots=True)
class CommitSettings:
    """`attempts` bounds the attempts of one operation; `backoff` (seconds) sets the waits between them."""

    attempts: int = 8
    backoff: BackoffSettings = field(default_factory=lambda: BackoffSettings(0.05, 2.0))


@dataclass(frozen=True, slots=True)
class LoadedManifest:
    """A manifest as it was read. `etag` is the store's version of the object, the condition of the next write."""

    manifest: Manifest
    etag: str


class PageCache:
    """Decoded pages by key. The least recently used page is dropped first; the bound counts the items in all pages (about 1.2
    KB each)."""

    def __init__(self, max_items: int = 16_384) -> None:
        self._max_items = max_items
        self._items = 0
        self._pages: OrderedDict[str, ManifestPage] = OrderedDict()

    def get(self, key: str) -> ManifestPage | None:
        page = self._pages.get(key)
        if page is not None:
            self._pages.move_to_end(key)
        return page

    def put(self, key: str, page: ManifestPage) -> None:
        if key in self._pages or len(page) > self._max_items:
            return
        self._pages[key] = page
        self._items += len(page)
        while self._items > self._max_items:
            _, oldest = self._pages.popitem(last=False)
            self._items -= len(oldest)


class StoreClock:
    """The store's time: the modification time of the last object written, plus the time elapsed since by the local clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms: int | None = None

    def wrote(self, modified_ms: int) -> None:
        """Sets the clock by the modification time (ms) in the answer to a write that has just ended."""
        self._ahead_ms = modified_ms - int(self._clock.monotonic() * 1000)

    def now_ms(self) -> int | None:
        """None before the first write."""
        return None if self._ahead_ms is None else self._ahead_ms + int(self._clock.monotonic() * 1000)


@dataclass(frozen=True, slots=True)
class SharedStore:
    """A store, and the state that all partitions of one process share: commit settings, cached pages, the store's clock."""

    store: ObjectStore
    clock: Clock
    rng: Rng
    settings: CommitSettings
    pages: PageCache
    store_clock: StoreClock

    @classmethod
    def of_one(cls, store: ObjectStore, clock: Clock, rng: Rng, settings: CommitSettings | None = None) -> SharedStore:
        """A store that one partition uses alone."""
        return cls(store, clock, rng, settings or CommitSettings(), PageCache(), StoreClock(clock))


class CommitLoop:
    """One partition's manifest. Operations of one process run one after another; processes compete by compare-and-swap."""

    def __init__(
        self, shared: SharedStore, ids: Ids, writer: ManifestWriter, read_saved: ReadSaved | None = None
    ) -> None:
        self.ids = ids
        self.writer = writer
        self._read_saved = read_saved or self._read_file
        self.store_clock = shared.store_clock
        self._store = shared.store
        self._clock = shared.clock
        self._rng = shared.rng
        self._settings = shared.settings
        self._pages = shared.pages
        self._loaded: LoadedManifest | None = None
        self._newest: Manifest | None = None
        self._expected: SeenManifest | None = None
        self._lock = asyncio.Lock()

    @property
    def manifest(self) -> Manifest | None:
        """The newest manifest known for certain; None before the first read, and after a write of unknown outcome."""
        return self._loaded.manifest if self._loaded is not None else None

    def expect(self, seen: SeenManifest | None) -> None:
        """Requires every manifest from now on to contain this one too. Forgets a seen manifest of an older line."""
        if seen is not None and (self._expected is None or self._expected.commit < seen.commit):
            self._expected = seen
            if self._newest is not None and self._newest.line != seen.line and self._newest.commit < seen.commit:
                self._newest = None

    async def load(self) -> LoadedManifest | None:
        """Reads the manifest from the store; None if the partition has no manifest. Raises StoreBehind if the store's manifest
        does not contain one seen before, TierUnavailable or TierCorrupt."""
        while True:
            newest, expected = self._newest, self._expected
            try:
                read = await self._get()
            except TierObjectMissing:
                read = None
            try:
                await self._check(None if read is None else read.manifest, newest, expected)
            except StoreBehind:
                self._loaded = None
                raise
            if self._newest is newest or (read is not None and self._is_newest(read.manifest)):
                self._know(read)
                return read
            # A commit ended while this read fetched an older manifest.
            if self._loaded is not None:
                return self._loaded

    async def _get(self) -> LoadedManifest:
        body = await self._store.get(self.ids.manifest_key)
        try:
            return LoadedManifest(decode(body.data, self.ids), body.etag)
        except TierCorrupt as error:
            raise ManifestDamaged(
                f"{error}. The object store shows no manifest of {self.ids}: nothing is deleted or evicted until it shows the "
                f"one last seen, or a later one. Put the newest version of {self.ids.manifest_key} back, or see what "
                f"`tidelog cold repair {self.ids.topic}` can prove"
            ) from error

    def _is_newest(self, manifest: Manifest) -> bool:
        return self._newest is None or self._newest.commit <= manifest.commit

    def _know(self, loaded: LoadedManifest | None) -> None:
        self._loaded = loaded
        # A deletion is not remembered: an operator may restore the version before it.
        if loaded is not None and loaded.manifest.state is State.LIVE and self._is_newest(loaded.manifest):
            self._newest = loaded.manifest

    async def _check(self, manifest: Manifest | None, newest: Manifest | None, expected: SeenManifest | None) -> None:
        """Raises StoreBehind unless the manifest contains both the newest seen and the expected one, and FencedWriter if a
        newer incarnation committed a manifest that does not."""
        if newest is not None and newest is not manifest and (seen := seen_of(newest)) is not None:
            await self._check_one(manifest, seen, newest)
        if expected is not None:
            await self._check_one(manifest, expected, None)

    async def _check_one(self, manifest: Manifest | None, seen: SeenManifest, saved: Manifest | None) -> None:
        fault = lineage.fault(manifest, seen)
        if fault is None and manifest is not None and lineage.beyond_recent(manifest, seen):
            fault = await self._look_closer(manifest, saved or await self._read_saved(seen))
        if fault is not None:
            if manifest is not None and manifest.state is not State.DELETED:
                check_writer(
                    manifest, self.writer
                )  # FencedWriter: a successor may have claimed the older manifest that the store shows
            raise StoreBehind(
                f"{self.ids}: {fault}. The store has gone backwards: nothing is deleted or evicted until it shows that "
                f"again. Put the newest version of {self.ids.manifest_key} back, with every object that was there then, or "
                f"see what `tidelog cold repair {self.ids.topic}` can prove"
            )

    async def _look_closer(self, manifest: Manifest, saved: Manifest) -> str | None:
        known = {ref.key for ref in manifest.pages}

        async def page(ref: PageRef) -> ManifestPage:
            try:
                return await self.page(ref)
            except TierObjectMissing:
                if ref.key in known:
                    raise
                return ManifestPage(ref.kind)  # a page of the saved manifest, swept since

        return await _ask(lambda load_page: lineage.lost(manifest, saved, load_page), self._pages, page)

    async def current(self) -> Manifest:
        """The manifest in memory, else the one in the store, else the empty first one. Raises the errors of `load`."""
        loaded = self._loaded or await self.load()
        return loaded.manifest if loaded is not None else first_manifest(self.ids)

    async def _checked(self) -> Manifest:
        """Like `current`, but checks a manifest in memory against everything seen since it was read."""
        if self._loaded is not None:
            try:
                await self._check(self._loaded.manifest, self._newest, self._expected)
                return self._loaded.manifest
            except StoreBehind:
                self._loaded = None  # the store may hold a newer one
        return await self.current()

    async def page(self, ref: PageRef) -> ManifestPage:
        """Reads a page. Raises TierObjectMissing if the page was swept: the manifest is outdated; load it again."""
        page = self._pages.get(ref.key)
        if page is None:
            page = decode_page((await self._store.get(ref.key)).data, self.ids, ref)
            self._pages.put(ref.key, page)
        return page

    async def look(self, question: Callable[[LoadPage], T]) -> T:
        """Runs `question` and fetches the pages that it needs. `question` is pure, and returns a value, not an iterator."""
        return await _ask(question, self._pages, self.page)

    async def commit(self, step: Step, prepare: Prepare | None = None) -> Manifest:
        """Commits `step` and returns the manifest that includes it, or the one read if `step` returned None.

        Raises StoreBehind if the store's manifest does not contain one seen before, the errors of `step` and `prepare` (such as
        FencedWriter), and TierUnavailable after the last attempt, with the outcome unknown.
        """
        async with self._lock:
            return await self._commit(step, prepare)

    async def commit_whatever(self, step: Step) -> Manifest:
        """Like `commit`, but ignores every manifest seen before. For deletions, which keep nothing."""
        async with self._lock:
            self._newest = self._expected = None
            return await self._commit(step, None)

    # --- repair -------------------------------------------------------------------------------------------------------
    async def shown(self) -> Manifest | None:
        """The manifest in the store, whatever was seen before; None if it is absent or unreadable."""
        try:
            return _decoded(await self._store.get(self.ids.manifest_key), self.ids)
        except TierObjectMissing:
            return None

    async def seen(self) -> Manifest | None:
        """The newest manifest that this loop has read or that `expect` named; None if there is none."""
        expected = None if self._expected is None else await self._read_saved(self._expected)
        known = [manifest for manifest in (self._newest, expected) if manifest is not None]
        return max(known, key=lambda manifest: manifest.commit, default=None)

    async def lost(self, manifest: Manifest, saved: Manifest) -> str | None:
        """A sentence that names a segment that was live in `saved` and is lost from the manifest, or None (`lineage.lost`)."""
        return await self._look_closer(manifest, saved)

    async def commit_repair(self, shown: Manifest | None, make: Callable[[Author], ManifestChange]) -> Manifest:
        """Replaces `shown` by the manifest that `make` returns, whatever was seen before. For repairs only. Raises
        TierUnavailable, with the outcome unknown, if the write fails, and PreconditionFailed if the manifest in the store has
        changed since."""
        async with self._lock:
            change = await self._repairing(make, self._uuid())
            key = self.ids.manifest_key
            try:
                body = await self._store.get(key)
            except TierObjectMissing:
                body = None
            if _decoded(body, self.ids) != shown:
                raise PreconditionFailed(f"the manifest of {self.ids} has changed meanwhile; plan its repair again")
            await self._put_pages(change)
            self._loaded = self._newest = self._expected = None
            if body is None:
                info = await self._store.put(key, encode(change.manifest), if_absent=True)
            else:
                info = await self._store.put(key, encode(change.manifest), if_match=body.etag)
            self.store_clock.wrote(info.modified_ms)
            self._know(LoadedManifest(change.manifest, info.etag))
            return change.manifest

    async def _repairing(self, make: Callable[[Author], ManifestChange], commit_id: str) -> ManifestChange:
        held: dict[str, ManifestPage] = {}
        while True:
            by = Author(self.writer, commit_id, self._clock.unix_ms(), self._uuid, held)
            try:
                change = paginate(make(by), by)
            except PageNeeded as needed:
                held[needed.ref.key] = await self.page(needed.ref)
                continue
            fault = broken(change.manifest)
            if fault is not None:
                raise TierCorrupt(f"a repair of the manifest of {self.ids} was refused: {fault}")
            return change

    # --- the loop -----------------------------------------------------------------------------------------------------
    async def _commit(self, step: Step, prepare: Prepare | None) -> Manifest:
        commit_id = self._uuid()
        backoff = Backoff(self._settings.backoff, self._rng)
        failure: Exception | None = None
        sent = False
        for _ in range(self._settings.attempts):
            if failure is not None:
                await self._clock.sleep(backoff.next_delay())
            try:
                manifest = await self._checked()
                if sent and manifest.has_commit(commit_id):
                    return manifest
                if prepare is not None:
                    await prepare(manifest)
                change = await self._planned(step, manifest, commit_id)
                if change is None:
                    return manifest
                await self._put_pages(change)
                sent = True
                return await self._swap(change)
            except TierObjectMissing as error:  # a page of the manifest in memory was swept: that manifest is old
                self._loaded = None
                failure = error
            except (PreconditionFailed, TierUnavailable) as error:
                failure = error
        raise TierUnavailable(
            f"the manifest of {self.ids} could not be committed in {self._settings.attempts} attempts: {failure}"
        ) from failure

    async def _planned(self, step: Step, manifest: Manifest, commit_id: str) -> ManifestChange | None:
        if manifest.format > FORMAT:
            raise StoreRefused(
                f"the manifest of {self.ids} has format {manifest.format}; this version of tidelog can read that format "
                f"but not write it: upgrade"
            )
        held: dict[str, ManifestPage] = {}
        while True:
            by = Author(self.writer, commit_id, self._clock.unix_ms(), self._uuid, held)
            try:
                change = step(manifest, by)
                if change is None:
                    return None
                change = paginate(ManifestChange(change) if isinstance(change, Manifest) else change, by)
            except PageNeeded as needed:
                held[needed.ref.key] = await self.page(needed.ref)
                continue
            fault = broken(change.manifest) or broken_step(manifest, change.manifest)
            if fault is not None:
                raise TierCorrupt(f"a commit on the manifest of {self.ids} was refused: {fault}")
            return change

    async def _put_pages(self, change: ManifestChange) -> None:
        for write in change.writes:
            await self._put_page(write)

    async def _put_page(self, write: PageWrite) -> None:
        info = await self._store.put(write.ref.key, write.data)
        self.store_clock.wrote(info.modified_ms)
        if info.size != write.ref.length or info.crc32c not in (None, write.ref.crc32c):
            raise TierUnavailable(f"the store holds other bytes of {write.ref.key} than were sent; it is written again")
        self._pages.put(write.ref.key, write.page)

    async def _swap(self, change: ManifestChange) -> Manifest:
        replaced, self._loaded = self._loaded, None
        key, data = self.ids.manifest_key, encode(change.manifest)
        if replaced is None:
            info = await self._store.put(key, data, if_absent=True)
        else:
            info = await self._store.put(key, data, if_match=replaced.etag)
        self.store_clock.wrote(info.modified_ms)
        self._know(LoadedManifest(change.manifest, info.etag))
        return change.manifest

    def _uuid(self) -> str:
        return self._rng.token(16).hex()

    async def _read_file(self, seen: SeenManifest) -> Manifest:
        """The manifest that `seen` describes. Raises TierUnavailable if its file was replaced while it was read (retry), and
        StoreBehind if the file cannot be read."""
        try:
            data = await asyncio.to_thread(Path(seen.saved_at).read_bytes)
        except OSError as error:
            raise StoreBehind(
                f"{self.ids}: the store shows more than {RECENT_COMMITS} commits since commit {seen.commit} was seen here, "
                f"and the manifest of that commit cannot be read to compare them ({error}); repair or replace the disk"
            ) from error
        saved = decode(data, self.ids)
        if saved.commit != seen.commit or not saved.has_commit(seen.commit_id):
            raise TierUnavailable(f"{self.ids}: {seen.saved_at} was replaced while it was read; retry")
        return saved


async def _ask(
    question: Callable[[LoadPage], T], pages: PageCache, load: Callable[[PageRef], Awaitable[ManifestPage]]
) -> T:
    held: dict[str, ManifestPage] = {}

    def load_page(ref: PageRef) -> ManifestPage:
        page = held.get(ref.key)
        if page is None:  # an empty page is falsy, but valid
            page = pages.get(ref.key)
        if page is None:
            raise PageNeeded(ref)
        return page

    while True:
        try:
            return question(load_page)
        except PageNeeded as needed:
            held[needed.ref.key] = await load(needed.ref)


def _decoded(body: ObjectBody | None, ids: Ids) -> Manifest | None:
    """The manifest in a body; None if it is absent or unreadable."""
    try:
        return None if body is None else decode(body.data, ids)
    except TierCorrupt:
        return None
