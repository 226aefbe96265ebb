"""What a partition has in the bucket: the root of its manifest, and every way the root may change.

Values are frozen; a transition takes the old root and returns the new one, which only a compare-and-swap on the manifest's
key makes true (I4). Every transition is one commit: `commit` rises by one, the last 32 commit ids stand in `recent` so
that a writer whose answer was lost finds its own.

Invariants, kept by every transition and checked again before a root is written (`broken`, `broken_step`):
- live entries tile: each begins where the one before it ends, or records in `gap_from` where that was, and then the
  offsets between are below log start; the last one ends at `end`; nothing at or above log start is left uncovered;
- nobody lowers `end`, the leader epoch, the incarnation or log start; `deleted` is the last state;
- a key that stands in `removed` or `condemned` never becomes a live entry's again.

Not promised: that the objects exist (the uploader verifies them before it commits), nor that the root is small; `pages`
moves entries out of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.documents import FORMAT
from storage_tiers.errors import DeletedInStore, FencedWriter, InvalidRequest
from storage_tiers.types import NO_EPOCH, TopicId, TopicPartition

RECENT_COMMITS = 32
MAX_ENTRIES = 64
MAX_PAGES = 64
MAX_PINS = 32
MAX_CONDEMNED = 64
MAX_ROOT_BYTES = 32 << 10
PIN_NAME = re.compile(r"[A-Za-z0-9._:-]{1,64}\Z")


class State(Enum):
    LIVE = "live"
    DELETED = "deleted"


class PageKind(Enum):
    LIVE = "live"
    REMOVED = "removed"


class Stamp(NamedTuple):
    """The commit that did something, and its time (ms since 1970, by the clock of the writer)."""

    commit: int
    time_ms: int


NEVER = Stamp(0, 0)


class CommitId(NamedTuple):
    commit: int
    id: str


class Section(NamedTuple):
    """A part of a sidecar: its bytes [position, position + length) in the object, and their CRC-32C."""

    name: str
    position: int
    length: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Ids:
    cluster_id: str
    topic: str
    topic_id: TopicId
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def prefix(self) -> str:
        return keys.topic_id_prefix(self.cluster_id, self.topic, self.topic_id)

    @property
    def manifest_key(self) -> str:
        return keys.manifest_key(self.cluster_id, self.topic, self.topic_id, self.partition)

    @property
    def segments_prefix(self) -> str:
        return keys.segments_prefix(self.cluster_id, self.topic, self.topic_id, self.partition)

    @property
    def pages_prefix(self) -> str:
        return keys.pages_prefix(self.cluster_id, self.topic, self.topic_id, self.partition)

    def segment_key(self, base: int, epoch: int, uuid: str) -> str:
        return keys.segment_key(self.cluster_id, self.topic, self.topic_id, self.partition, base, epoch, uuid)

    def sidecar_key(self, base: int, epoch: int, uuid: str) -> str:
        return keys.sidecar_key(self.cluster_id, self.topic, self.topic_id, self.partition, base, epoch, uuid)

    def page_key(self, first: int, last: int, uuid: str) -> str:
        return keys.page_key(self.cluster_id, self.topic, self.topic_id, self.partition, first, last, uuid)


@dataclass(frozen=True, slots=True)
class ManifestWriter:
    """Who commits. `incarnation` is None for a maintainer outside the cluster (a Lambda), who keeps the recorded one."""

    node_id: int
    incarnation: int | None
    name: str = "broker"


NOBODY = ManifestWriter(-1, None, "")


@dataclass(frozen=True, slots=True)
class Author:
    """All that a transition takes from the world: who commits, under which id, when, names for new pages, known pages.

    `new_uuid` gives 32 hexadecimal digits, never the same twice. `pages` holds decoded pages by key; a transition that
    needs another raises `PageNeeded` and is run again.
    """

    writer: ManifestWriter
    commit_id: str
    now_ms: int
    new_uuid: Callable[[], str]
    pages: Mapping[str, Page] = field(default_factory=dict)


class PageNeeded(Exception):
    """A pure function needs a page that it was not given. Whoever called it loads `ref` and calls again."""

    def __init__(self, ref: PageRef) -> None:
        super().__init__(ref.key)
        self.ref = ref


@dataclass(frozen=True, slots=True)
class Entry:
    """One range of offsets [base, end) in bytes [position, position + length) of an object, with its sidecar.

    `bytes` counts the record batches, `crc32c` covers them. `max_timestamp_offset` is the base offset of the first batch
    that holds the largest timestamp (ms), `min_timestamp` the least first timestamp of a batch (a hint, no bound: inside
    a batch older records may follow). `gap_from` is where the entry before it ended, where that is not `base`.
    """

    base: int
    end: int
    key: str
    position: int
    length: int
    sidecar_key: str
    sections: tuple[Section, ...]
    min_timestamp: int
    max_timestamp: int
    max_timestamp_offset: int
    records: int
    bytes: int
    crc32c: int
    added: Stamp = NEVER
    gap_from: int | None = None

    @property
    def newest_ms(self) -> int:
        """The time that retention counts from: of the newest record, or, where none has a time, of the upload."""
        return self.max_timestamp if self.max_timestamp >= 0 else self.added.time_ms


class Oldest(NamedTuple):
    """What retention asks of the first of some live ranges: where it ends, the time it counts from (ms), its bytes."""

    end: int
    newest_ms: int
    bytes: int


def oldest_of(entry: Entry) -> Oldest:
    return Oldest(entry.end, entry.newest_ms, entry.bytes)


@dataclass(frozen=True, slots=True)
class Removed:
    """What no longer counts but may still be in the bucket: an entry with its two objects, or one key (an old page)."""

    at: Stamp
    entry: Entry | None = None
    key: str = ""

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.entry.key, self.entry.sidecar_key) if self.entry is not None else (self.key,)


@dataclass(frozen=True, slots=True)
class Condemned:
    """A key that was never referenced and never will be; deleted only after the commit that says so."""

    key: str
    at: Stamp


@dataclass(frozen=True, slots=True)
class Pin:
    """Keeps the objects of the state at `commit` (its own), as offsets [log_start, end)."""

    name: str
    commit: int
    log_start: int
    end: int

    def holds(self, item: Removed) -> bool:
        return item.entry is not None and item.entry.added.commit <= self.commit < item.at.commit


@dataclass(frozen=True, slots=True)
class PageRef:
    """A page as the root knows it. `base`, `end` span its entries; sums and bounds are over them.

    `last_commit` is the newest commit that added an entry of a live page, or removed one of a removed page.
    `first_removed_ms` is the oldest time of removal (0 in a live page), `crc32c` and `length` are of the stored object.
    Of a live page, `oldest` is what retention asks of its first entry, `newest_ms` the newest time that it counts from:
    what has not expired, or has as a whole, is known without the page. Of `level` 0 is a page of entries, of level 1 one that
    names pages of level 0; its sums and bounds are over all of theirs.
    """

    kind: PageKind
    key: str
    base: int
    end: int
    count: int
    length: int
    crc32c: int
    min_timestamp: int
    max_timestamp: int
    records: int
    bytes: int
    last_commit: int
    first_removed_ms: int = 0
    gap_from: int | None = None
    oldest: Oldest | None = None
    newest_ms: int = 0
    level: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """Entries that left the root: `entries` of a live page in offset order, or `removed` ones in the order of removal. Or,
    of level 1, `pages` that left it: of the same kind, of level 0, in order."""

    kind: PageKind
    entries: tuple[Entry, ...] = ()
    removed: tuple[Removed, ...] = ()
    pages: tuple[PageRef, ...] = ()

    def __len__(self) -> int:
        return len(self.entries) + len(self.removed) + len(self.pages)

    @property
    def count(self) -> int:
        """Entries and removed items, those of its pages included."""
        return len(self.entries) + len(self.removed) + sum(ref.count for ref in self.pages)


@dataclass(frozen=True, slots=True)
class NewestSidecar:
    """The sidecar of the last extension: epochs and producers at exactly `end`, whatever became of its entry.

    `alone` once the entry is gone from the manifest, so that nothing else names the object.
    """

    key: str
    sections: tuple[Section, ...]
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Root:
    """`line` is the id of the commit that began this history; only a repair begins another. `swept` is the newest removal
    whose entry has been dropped: history before it is whole only at pins.

    `format` is that of the writer. A node may read a newer one (if its least reader allows) but must not change it.
    """

    ids: Ids
    format: int = FORMAT
    state: State = State.LIVE
    line: str = ""
    commit: int = 0
    recent: tuple[CommitId, ...] = ()
    committed_at: int = 0
    writer: ManifestWriter = NOBODY
    incarnation: int = 0
    leader_epoch: int = NO_EPOCH
    log_start: int = 0
    end: int = 0
    last_record_epoch: int = NO_EPOCH
    sidecar: NewestSidecar | None = None
    entries: tuple[Entry, ...] = ()
    removed: tuple[Removed, ...] = ()
    condemned: tuple[Condemned, ...] = ()
    pins: tuple[Pin, ...] = ()
    pages: tuple[PageRef, ...] = ()
    swept: int = 0

    @property
    def live_pages(self) -> tuple[PageRef, ...]:
        return tuple(page for page in self.pages if page.kind is PageKind.LIVE)

    @property
    def removed_pages(self) -> tuple[PageRef, ...]:
        return tuple(page for page in self.pages if page.kind is PageKind.REMOVED)

    def has_commit(self, commit_id: str) -> bool:
        return any(recent.id == commit_id for recent in self.recent)

    def keys(self) -> Iterator[str]:
        """Every key that the root itself names: live, removed, condemned, pages. Those inside pages are not among them."""
        for entry in self.entries:
            yield entry.key
            yield entry.sidecar_key
        for item in self.removed:
            yield from item.keys
        for condemned in self.condemned:
            yield condemned.key
        for page in self.pages:
            yield page.key
        if self.sidecar is not None:
            yield self.sidecar.key


def first_root(ids: Ids) -> Root:
    """The root of a partition that has no manifest yet. It is never stored: its first commit (1) creates the object."""
    return Root(ids)


def check_writer(root: Root, writer: ManifestWriter) -> None:
    """DeletedInStore if the partition is deleted, FencedWriter if it has a commit of a newer incarnation."""
    if root.state is State.DELETED:
        raise DeletedInStore(
            f"{root.ids} with topic id {root.ids.topic_id} is deleted in the bucket, and nothing follows that there: nothing "
            f"more is uploaded, evicted or swept. If the topic is to live, put the version of {root.ids.manifest_key} before "
            "the deletion back, with every object that was there then; else delete the topic"
        )
    check_not_fenced(root, writer)


def check_not_fenced(root: Root, writer: ManifestWriter) -> None:
    """FencedWriter if the partition has a commit of a newer incarnation."""
    if writer.incarnation is not None and writer.incarnation < root.incarnation:
        raise FencedWriter(
            f"the manifest of {root.ids} was committed by incarnation {root.incarnation}, this node is "
            f"{writer.incarnation}: a copy of its directory has run, or the cluster was taken over. Stop this node; the one "
            "that began last goes on"
        )


def advance(root: Root, by: Author, **changes: Any) -> Root:
    """The next commit with these fields changed, by a writer that may make it (`check_writer`)."""
    check_writer(root, by.writer)
    commit = root.commit + 1
    stamped: dict[str, Any] = {
        "line": root.line or by.commit_id,
        "commit": commit,
        "recent": (*root.recent, CommitId(commit, by.commit_id))[-RECENT_COMMITS:],
        "committed_at": by.now_ms,
        "writer": by.writer,
        "incarnation": root.incarnation if by.writer.incarnation is None else by.writer.incarnation,
    }
    return replace(root, **stamped, **changes)


def next_stamp(root: Root, by: Author) -> Stamp:
    return Stamp(root.commit + 1, by.now_ms)


def check_epoch(root: Root, leader_epoch: int) -> None:
    if leader_epoch < root.leader_epoch:
        raise FencedWriter(
            f"the manifest of {root.ids} belongs to leader epoch {root.leader_epoch}, not {leader_epoch}; "
            "another replica leads it now"
        )


def may_begin(root: Root, base: int, log_start: int) -> bool:
    """An extension begins at `end`, or past it if every offset between is below log start (the gap is recorded)."""
    return base == root.end or root.end < base <= max(root.log_start, log_start)


def extend(root: Root, entry: Entry, by: Author, *, leader_epoch: int, last_record_epoch: int, log_start: int) -> Root:
    """Appends a verified range. FencedWriter under an older epoch, InvalidRequest if it does not begin at `end`, or names
    a key that was condemned or removed.

    Only the root's own lists are searched for the keys: those in pages were entries that ended at or below `end`.
    """
    check_epoch(root, leader_epoch)
    log_start = max(root.log_start, log_start)
    if not may_begin(root, entry.base, log_start):
        raise InvalidRequest(f"an extension of {root.ids} must begin at offset {root.end}, not at {entry.base}")
    if not entry.base < entry.end:
        raise InvalidRequest(f"an extension of {root.ids} must hold offsets, not [{entry.base}, {entry.end})")
    if {entry.key, entry.sidecar_key} & set(root.keys()):
        raise InvalidRequest(f"{entry.key} stands in the manifest of {root.ids} already; upload under a new uuid")
    stamp = next_stamp(root, by)
    removed = root.removed
    if root.sidecar is not None and root.sidecar.alone:
        removed = (*removed, Removed(stamp, key=root.sidecar.key))
    entry = replace(entry, added=stamp, gap_from=None if entry.base == root.end else root.end)
    return advance(
        root,
        by,
        leader_epoch=leader_epoch,
        last_record_epoch=last_record_epoch,
        log_start=min(log_start, entry.end),
        end=entry.end,
        sidecar=NewestSidecar(entry.sidecar_key, entry.sections),
        entries=(*root.entries, entry),
        removed=removed,
    )


def claim_epoch(root: Root, leader_epoch: int, by: Author) -> Root:
    """Raises the leader epoch and, as every commit does, records the incarnation. FencedWriter under an older epoch."""
    check_epoch(root, leader_epoch)
    return advance(root, by, leader_epoch=leader_epoch)


def pin(root: Root, name: str, by: Author) -> Root:
    """Keeps the state as of this very commit until `unpin`."""
    if PIN_NAME.match(name) is None:
        raise InvalidRequest(f"{name!r} cannot name a pin: 1 to 64 letters, digits, '.', '_', ':' and '-'")
    if any(known.name == name for known in root.pins):
        raise InvalidRequest(f"{root.ids} has a pin named {name!r} already; remove it first, or choose another name")
    if len(root.pins) == MAX_PINS:
        raise InvalidRequest(f"{root.ids} has {MAX_PINS} pins, the most there may be; remove one")
    return advance(root, by, pins=(*root.pins, Pin(name, root.commit + 1, root.log_start, root.end)))


def unpin(root: Root, name: str, by: Author) -> Root:
    if all(known.name != name for known in root.pins):
        raise InvalidRequest(f"{root.ids} has no pin named {name!r}")
    return advance(root, by, pins=tuple(known for known in root.pins if known.name != name))


def condemn(root: Root, orphans: Collection[str], by: Author) -> Root:
    """Marks never-referenced keys. The caller has looked for them in the pages; the root is looked through here."""
    if len(root.condemned) + len(orphans) > MAX_CONDEMNED:
        raise InvalidRequest(
            f"at most {MAX_CONDEMNED} keys of {root.ids} may stand condemned; drop those that are gone"
        )
    named = set(orphans) & set(root.keys())
    if named:
        raise InvalidRequest(f"{min(named)} is referenced by the manifest of {root.ids}; it is no orphan")
    stamp = next_stamp(root, by)
    return advance(root, by, condemned=(*root.condemned, *(Condemned(key, stamp) for key in orphans)))


def touch(root: Root, by: Author) -> Root:
    """A commit that changes nothing: its object's time is the store's clock."""
    return advance(root, by)


def delete(root: Root, by: Author) -> Root:
    """The terminal commit. It names nothing: every object of the partition may go after the grace, pinned or not."""
    return advance(root, by, state=State.DELETED, sidecar=None, entries=(), removed=(), condemned=(), pins=(), pages=())


def broken(root: Root) -> str | None:
    """What is wrong with a root by itself, as a sentence; None if it is sound."""
    if not 0 <= root.log_start <= root.end:
        return f"log start {root.log_start} lies outside [0, {root.end}]"
    if [known.commit for known in root.recent] != list(range(root.commit - len(root.recent) + 1, root.commit + 1)):
        return f"the recent commits do not lead up to commit {root.commit}"
    if len(root.recent) != min(root.commit, RECENT_COMMITS):
        return f"{len(root.recent)} recent commits are recorded at commit {root.commit}"
    if bool(root.line) != bool(root.commit):
        return f"its line is {root.line!r} at commit {root.commit}"
    if root.state is State.DELETED:
        return "a deleted partition names objects" if any(root.keys()) else None
    return _broken_tiling(root) or _broken_keys(root)


def _broken_tiling(root: Root) -> str | None:
    spans: list[PageRef | Entry] = [*root.live_pages, *root.entries]
    for before, span in zip([None, *spans], spans, strict=False):
        if not 0 <= span.base < span.end:
            return f"a live range [{span.base}, {span.end}) is empty or negative"
        if before is None:
            if span.base > root.log_start:
                return f"offsets [{root.log_start}, {span.base}) from log start on are in no live range"
            continue
        if span.base < before.end:
            return f"the live ranges [{before.base}, {before.end}) and [{span.base}, {span.end}) overlap"
        if span.base != before.end and (span.gap_from != before.end or span.base > root.log_start):
            return f"offsets [{before.end}, {span.base}) are in no live range"
    if spans and spans[-1].end != root.end:
        return f"the last live range ends at {spans[-1].end}, not at {root.end}"
    if not spans and root.log_start != root.end:
        return f"offsets [{root.log_start}, {root.end}) are in no live range"
    return None


def _broken_keys(root: Root) -> str | None:
    live = {key for entry in root.entries for key in (entry.key, entry.sidecar_key)} | {page.key for page in root.pages}
    gone = {key for item in root.removed for key in item.keys} | {condemned.key for condemned in root.condemned}
    if live & gone:
        return f"{min(live & gone)} is live and removed at once"
    names = [known.name for known in root.pins]
    if len(set(names)) != len(names):
        return "two pins have one name"
    return None


def broken_step(old: Root, new: Root) -> str | None:
    """Which promise between two commits `new` would break, as a sentence; None if none."""
    if new.commit != old.commit + 1 or new.ids != old.ids:
        return f"commit {new.commit} of {new.ids} does not follow commit {old.commit} of {old.ids}"
    if old.state is State.DELETED:
        return "nothing follows a deletion"
    if old.line not in ("", new.line):
        return f"the line would change from {old.line} to {new.line}"
    for name in ("leader_epoch", "incarnation", "log_start", "end", "swept"):
        if getattr(new, name) < getattr(old, name):
            return f"{name} would fall from {getattr(old, name)} to {getattr(new, name)}"
    gone = {key for item in old.removed for key in item.keys} | {condemned.key for condemned in old.condemned}
    for entry in new.entries:
        if entry.key in gone or entry.sidecar_key in gone:
            return f"{entry.key} was removed or condemned and would be referenced again"
    return None
