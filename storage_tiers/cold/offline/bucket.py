"""Reading a topic from the bucket alone, offset by offset: for programs without a node and without Spark.

    find_cluster ──> find_topic ──> load_root ──> PartitionReads.pieces(offset) ──> whole batches, verified

Invariants: bytes are handed on only when the CRC-32C of their MiB is the sidecar's; pieces come in offset order, and none
between the first offset asked for and the manifest's end is left out; where an object was removed meanwhile, the newest
manifest is read, and reading goes on where it was. At most one ranged GET of FETCH_BYTES is held beside what the caller
uses; nothing is fetched ahead.

Errors: InvalidRequest (the caller's to correct), UnknownTopicOrPartition, OffsetOutOfRange below log start, and the store's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.json import decode, decode_page
from storage_tiers.cold.manifest.lookup import entries_for_timestamp, entry_for
from storage_tiers.cold.manifest.model import Entry, Ids, Page, PageRef, Root, State, first_root
from storage_tiers.cold.manifest.topic_file import decode_topic
from storage_tiers.cold.segments import sidecar
from storage_tiers.cold.segments.sidecar import ABORTED, CHECK_BYTES, CHECKS, INDEX, Sidecar
from storage_tiers.cold.stores.port import BlockingObjectStore
from storage_tiers.errors import InvalidRequest, TierCorrupt, TierObjectMissing, UnknownTopicOrPartition
from storage_tiers.records.checksum import crc32c
from storage_tiers.records.decoder import decode as decode_records
from storage_tiers.records.walker import scan_batches
from storage_tiers.types import AbortedTransaction, TopicId

FETCH_BYTES = 4 << 20
#: What must be known of a range before its bytes are found and believed.
_FRONT = (INDEX, CHECKS, ABORTED)


class Piece(NamedTuple):
    """Whole record batches. `end` is the offset to go on from, `aborted` the aborted transactions that overlap."""

    records: memoryview
    end: int
    aborted: Sequence[AbortedTransaction]


class FoundTopic(NamedTuple):
    cluster_id: str
    name: str
    topic_id: TopicId
    partitions: int

    def ids(self, partition: int) -> Ids:
        return Ids(self.cluster_id, self.name, self.topic_id, partition)


# --- what there is ----------------------------------------------------------------------------------------------------
def find_cluster(store: BlockingObjectStore, wanted: str | None = None) -> str:
    """`wanted`, or the only cluster that the store holds."""
    there = [folder for folder in store.list_folders("") if _is_cluster(store, folder)]
    chosen = [cluster for cluster in there if wanted in (None, cluster)]
    if len(chosen) != 1:
        holds = f"holds the clusters {', '.join(there)}: name one" if there else "holds no tidelog cluster"
        raise InvalidRequest(
            f"the store {holds}" if wanted is None else f"the store has no cluster {wanted!r}; it {holds}"
        )
    return chosen[0]


def _is_cluster(store: BlockingObjectStore, folder: str) -> bool:
    try:
        store.get(keys.cluster_key(folder), 0, 1)
    except (TierObjectMissing, ValueError):  # ValueError: a folder's name that could be no cluster's
        return False
    return True


def topic_names(store: BlockingObjectStore, cluster_id: str) -> list[str]:
    """Every topic that the bucket knows, deleted ones included until they are swept."""
    return list(store.list_folders(keys.topics_prefix(cluster_id)))


def find_topic(store: BlockingObjectStore, cluster_id: str, name: str) -> FoundTopic:
    """The live topic of that name."""
    try:
        state = decode_topic(store.get(keys.topic_file_key(cluster_id, name)).data, cluster_id, name)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    except TierObjectMissing:
        raise UnknownTopicOrPartition(f"cluster {cluster_id} has no topic {name!r} in the bucket") from None
    if state.state is State.DELETED:
        raise UnknownTopicOrPartition(f"topic {name} (topic id {state.topic_id}) was deleted")
    return FoundTopic(cluster_id, name, state.topic_id, state.partitions)


def load_root(store: BlockingObjectStore, ids: Ids) -> Root:
    """The manifest as it is now; one that was never stored (commit 0) where nothing was uploaded yet."""
    try:
        root = decode(store.get(ids.manifest_key).data, ids)
    except TierObjectMissing:
        return first_root(ids)
    if root.state is State.DELETED:
        raise UnknownTopicOrPartition(f"{ids} of topic id {ids.topic_id} was deleted")
    return root


# --- one partition ----------------------------------------------------------------------------------------------------
class PartitionReads:
    """One partition as of `root`, which a reload replaces by a newer one."""

    def __init__(self, store: BlockingObjectStore, root: Root) -> None:
        self._store = store
        self.root = root
        self._pages: dict[str, Page] = {}

    def pieces(self, offset: int) -> Iterator[Piece]:
        """From the batch that holds `offset` (or the next one) up to the manifest's end as it was when this began."""
        end = self.root.end
        while offset < end:
            try:
                entry = entry_for(self.root, self._page, offset)
                if entry is None:
                    return
                for piece in self._of_entry(entry, offset):
                    offset = max(offset, piece.end)
                    yield piece
                offset = max(offset, entry.end)
            except TierObjectMissing:
                self._reload()

    def first_offset_at(self, timestamp: int) -> int | None:
        """Of the first record, from log start on, at or after `timestamp` (ms); None if the bucket has none."""
        while True:
            try:
                return self._first_offset_at(timestamp)
            except TierObjectMissing:
                self._reload()

    def _first_offset_at(self, timestamp: int) -> int | None:
        start = self.root.log_start
        for entry in entries_for_timestamp(self.root, self._page, timestamp):
            interval = self._front(entry).interval_for_timestamp(timestamp)
            if interval is None:
                continue
            for piece in self._of_entry(entry, max(start, entry.base), at_least=interval[0]):
                found = next(
                    (each for each in decode_records(piece.records, start_offset=start) if each.timestamp >= timestamp),
                    None,
                )
                if found is not None:
                    return found.offset
        return None

    def _reload(self) -> None:
        newest = load_root(self._store, self.root.ids)
        if newest.commit <= self.root.commit:
            raise TierCorrupt(f"an object that the manifest of {self.root.ids} names is gone; run `tidelog fsck`")
        self.root = newest
        self._pages.clear()

    def _page(self, ref: PageRef) -> Page:
        page = self._pages.get(ref.key)
        if page is None:
            self._pages.clear()  # one at a time: 8,192 entries are enough to hold
            page = self._pages[ref.key] = decode_page(self._store.get(ref.key).data, self.root.ids, ref)
        return page

    def _front(self, entry: Entry) -> Sidecar:
        position, length = sidecar.span(entry.sections, _FRONT)
        data = self._store.get(entry.sidecar_key, position, length).data
        if len(data) != length:
            raise TierCorrupt(f"the sidecar {entry.sidecar_key} has {len(data)} of {length} bytes; run `tidelog fsck`")
        return sidecar.parse_part(
            data,
            position,
            entry.sections,
            base=entry.base,
            end=entry.end,
            length=entry.length,
            crc=entry.crc32c,
            where=entry.sidecar_key,
        )

    def _of_entry(self, entry: Entry, offset: int, *, at_least: int = 0) -> Iterator[Piece]:
        front = self._front(entry)
        first = max(front.floor_position(offset)[1], at_least)
        rest = b""
        for start in range(first - first % CHECK_BYTES, entry.length, FETCH_BYTES):
            data = self._verified(entry, front, start)
            fresh = memoryview(data)[max(first - start, 0) :]
            joined = memoryview(rest + fresh) if rest else fresh
            found, stopped, _ = scan_batches(joined, 0, len(joined))
            rest = bytes(joined[stopped:])
            skipped = next((place for place, batch in enumerate(found) if batch[3] > offset), len(found))
            if skipped < len(found):
                wanted = found[skipped:]
                end = wanted[-1][3]
                yield Piece(joined[wanted[0][0] : stopped], end, front.aborted_between(wanted[0][2], end))
        if rest:
            raise TierCorrupt(f"{entry.key}: its last {len(rest)} bytes are no whole batch; run `tidelog fsck`")

    def _verified(self, entry: Entry, front: Sidecar, start: int) -> bytes:
        length = min(FETCH_BYTES, entry.length - start)
        data = self._store.get(entry.key, entry.position + start, length).data
        if len(data) != length:
            raise TierCorrupt(f"{entry.key} ends before byte {entry.position + start + length}; run `tidelog fsck`")
        for at in range(0, length, CHECK_BYTES):
            expected = front.mib_crcs[(start + at) // CHECK_BYTES]
            if crc32c(memoryview(data)[at : at + CHECK_BYTES]) != expected:
                raise TierCorrupt(
                    f"{entry.key}: the MiB at byte {entry.position + start + at} is not what was uploaded; run `tidelog fsck`"
                )
        return data
