"""A partition's manifest and what it names, as frozen values.

`transitions` checks the invariants of each manifest. With `pages`, `replacement` and `repair`, it makes all changes of
manifests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.documents import FORMAT
from storage_tiers.types import NO_EPOCH, TopicId, TopicPartition

RECENT_COMMITS = 32
MAX_SEGMENTS = 64
MAX_PAGES = 64
MAX_PINS = 32
MAX_TOMBSTONED = 64
MAX_MANIFEST_BYTES = 32 << 10
PIN_NAME = re.compile(r"[A-Za-z0-9._:-]{1,64}\Z")


class State(Enum):
    """Whether the partition's topic exists; a deleted partition's objects are swept after the grace."""

    LIVE = "live"
    DELETED = "deleted"


class PageKind(Enum):
    """Whether a page holds live or removed segments."""

    LIVE = "live"
    REMOVED = "removed"


class Stamp(NamedTuple):
    """A commit's number and its time (ms since 1970, by the writer's clock)."""

    commit: int
    time_ms: int


NEVER = Stamp(0, 0)


class CommitId(NamedTuple):
    """A recent commit: its number, and its id of 32 hexadecimal digits."""

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
    """The identity of a partition in the bucket; all its keys derive from it."""

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
        return keys.key(keys.ManifestKey(self.cluster_id, self.topic, self.topic_id, self.partition))

    @property
    def segments_prefix(self) -> str:
        return keys.segments_prefix(self.cluster_id, self.topic, self.topic_id, self.partition)

    @property
    def pages_prefix(self) -> str:
        return keys.pages_prefix(self.cluster_id, self.topic, self.topic_id, self.partition)

    def segment_key(self, base: int, epoch: int, uuid: str) -> str:
        return keys.key(keys.SegmentKey(self.cluster_id, self.topic, self.topic_id, self.partition, base, epoch, uuid))

    def sidecar_key(self, base: int, epoch: int, uuid: str) -> str:
        return keys.key(keys.SidecarKey(self.cluster_id, self.topic, self.topic_id, self.partition, base, epoch, uuid))

    def page_key(self, first: int, last: int, uuid: str) -> str:
        return keys.key(keys.PageKey(self.cluster_id, self.topic, self.topic_id, self.partition, first, last, uuid))


@dataclass(frozen=True, slots=True)
class ManifestWriter:
    """The committing process. `incarnation` is None for a maintainer outside the cluster; the manifest's incarnation then
    stays."""

    node_id: int
    incarnation: int | None
    name: str = "broker"


NOBODY = ManifestWriter(-1, None, "")


@dataclass(frozen=True, slots=True)
class Author:
    """A transition's inputs from outside: writer, commit id, time (ms), names for new pages, known pages.

    `new_uuid` returns 32 hexadecimal digits, never the same twice. `pages` holds decoded pages by key; a transition that
    needs another page raises `PageNeeded` and is run again.
    """

    writer: ManifestWriter
    commit_id: str
    now_ms: int
    new_uuid: Callable[[], str]
    pages: Mapping[str, ManifestPage] = field(default_factory=dict)


class PageNeeded(Exception):
    """A pure function needs a page that it was not given. The caller loads `ref` and calls again."""

    def __init__(self, ref: PageRef) -> None:
        super().__init__(ref.key)
        self.ref = ref


@dataclass(frozen=True, slots=True)
class RemoteSegment:
    """Offsets [base, end) of the log in bytes [position, position + length) of an object, with a sidecar (KIP-405).

    `records` counts records and control records, `bytes` the bytes of record batches, which `crc32c` covers.
    `max_timestamp` (ms, -1: none) is the largest maximum timestamp of a batch with records, `max_timestamp_offset` the base
    offset of the first batch that has it. `min_timestamp` (ms, -1: none) is the least first timestamp of such a batch: a hint,
    not a bound, since older records may follow inside a batch. `gap_from` is the end of the previous segment where that is not
    `base`, else None.
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
        """The time (ms) that retention counts from: the newest record's, or the commit's if no record has a timestamp."""
        return self.max_timestamp if self.max_timestamp >= 0 else self.added.time_ms


class Oldest(NamedTuple):
    """The facts that retention needs about the first of some live segments: its end offset, the time (ms) that retention
    counts from, its bytes."""

    end: int
    newest_ms: int
    bytes: int


def oldest_of(segment: RemoteSegment) -> Oldest:
    return Oldest(segment.end, segment.newest_ms, segment.bytes)


@dataclass(frozen=True, slots=True)
class Removed:
    """A removed remote segment with its two objects, or one key (of an old page or sidecar). They may still be in the
    bucket."""

    at: Stamp
    segment: RemoteSegment | None = None
    key: str = ""

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.segment.key, self.segment.sidecar_key) if self.segment is not None else (self.key,)


@dataclass(frozen=True, slots=True)
class TombstonedKey:
    """A key that no manifest has named or will name. Its object is deleted only after the commit that tombstones it."""

    key: str
    at: Stamp


@dataclass(frozen=True, slots=True)
class Pin:
    """Keeps the objects of the state at `commit`, the commit that made the pin: offsets [log_start, end)."""

    name: str
    commit: int
    log_start: int
    end: int

    def holds(self, item: Removed) -> bool:
        return item.segment is not None and item.segment.added.commit <= self.commit < item.at.commit


@dataclass(frozen=True, slots=True)
class PageRef:
    """A manifest's reference to a page. `base` and `end` span its segments; sums and bounds are over these segments.

    `last_commit` is the newest commit that added a segment of a live page, or removed one of a removed page.
    `first_removed_ms` is the oldest time of removal (0 in a live page). `crc32c` and `length` are of the stored object.
    For a live page `oldest` describes its first segment, and `newest_ms` is the newest time that retention counts from: they
    show, without reading the page, whether none or all of its segments have expired. A page of `level` 0 holds segments. A page
    of level 1 names pages of level 0, and its sums and bounds are over all segments of those pages.
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
class ManifestPage:
    """Segments that left the manifest: `segments` of a live page in offset order, or `removed` ones in the order of removal.
    A page of level 1 holds `pages` that left the manifest instead: pages of level 0 and of the same kind, in order."""

    kind: PageKind
    segments: tuple[RemoteSegment, ...] = ()
    removed: tuple[Removed, ...] = ()
    pages: tuple[PageRef, ...] = ()

    def __len__(self) -> int:
        return len(self.segments) + len(self.removed) + len(self.pages)

    @property
    def count(self) -> int:
        """Segments and removed items, including those of its pages."""
        return len(self.segments) + len(self.removed) + sum(ref.count for ref in self.pages)


@dataclass(frozen=True, slots=True)
class NewestSidecar:
    """The sidecar of the last extension. It holds the leader epochs and producers at exactly `end`, and outlives its segment.

    `alone` is true once no segment names the object.
    """

    key: str
    sections: tuple[Section, ...]
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of the object that says which segments of a partition are in the bucket. docs/formats.md has the fields.

    `line` is the id of the commit that began this history; only a repair begins another. `swept` is the newest commit whose
    removals have been forgotten: history before it is complete only at pins. `committed_at` is in ms. `format` is the format
    that its writer wrote. A node may read a newer format (if `least_reader` allows) but must not change the manifest.
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
    segments: tuple[RemoteSegment, ...] = ()
    removed: tuple[Removed, ...] = ()
    tombstoned: tuple[TombstonedKey, ...] = ()
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
        """Every key that the manifest itself names: live, removed, tombstoned, pages; not those inside pages."""
        for segment in self.segments:
            yield segment.key
            yield segment.sidecar_key
        for item in self.removed:
            yield from item.keys
        for tombstoned in self.tombstoned:
            yield tombstoned.key
        for page in self.pages:
            yield page.key
        if self.sidecar is not None:
            yield self.sidecar.key
