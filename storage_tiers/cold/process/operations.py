"""What the broker may ask of the tier process, and what it gets. Values only: both sides import them.

The name of a question's class is its name on the wire. Errors are LogErrors: `TierUnavailable` for what may pass (the store
did not answer in time, the process ended), `TierObjectMissing` for a 404, `TierCorrupt` for bytes that fail their
checksum, `StorageError` where the cache's disk refused, `StoreRefused` and `FencedWriter` as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_args

from storage_tiers.cold.manifest.cluster_file import ClusterState, Holder
from storage_tiers.cold.manifest.clusters import ClusterFound
from storage_tiers.cold.manifest.lineage import Seen
from storage_tiers.cold.manifest.model import Entry, Ids, PageRef, Writer
from storage_tiers.cold.manifest.topic_file import TopicState
from storage_tiers.cold.segments.repairer import LocalEvidence, RepairReport
from storage_tiers.cold.segments.sweeper import Listed, SweepReport
from storage_tiers.cold.segments.uploader import ExtendJob
from storage_tiers.policy.retention import Expired, Moment
from storage_tiers.types import OffsetRange

#: Keys that one listing request of S3 gives.
LISTED_KEYS = 1000
#: Names that one answer carries.
MAX_NAMES = 1000
#: Entries of a page that one answer carries.
MAX_PAGE_ENTRIES = 64
#: Seconds that a repair may take for each range: two requests, many at a time; some ranges are read as a whole.
REPAIR_S_PER_RANGE = 0.5
#: Seconds that it may take to look through all manifests of a cluster.
REPAIR_S_PER_CLUSTER = 3600.0

Answer = TypeVar("Answer", covariant=True)


class Question(Generic[Answer]):
    """One operation. Its type argument is the type of its answer."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Done:
    """The answer of an operation that has nothing to say."""


@dataclass(frozen=True, slots=True)
class ReadyFile:
    """A whole file in the cache directory that this process will not touch again. The receiver removes it."""

    path: str
    size: int


# --- reading ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class FetchChunk(Question[ReadyFile]):
    """Bytes [position, position + length) of an object into a file, if each whole MiB of them (and the last part of one)
    has the CRC-32C in `crcs`. `urgent` is false for what is read ahead."""

    key: str
    position: int
    length: int
    crcs: tuple[int, ...]
    urgent: bool = True


@dataclass(frozen=True, slots=True)
class FetchObject(Question[ReadyFile]):
    """Bytes [position, position + length) of an object into a file; unverified, the reader of its format does that."""

    key: str
    position: int
    length: int
    urgent: bool = True


@dataclass(frozen=True, slots=True)
class FoundEntries:
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class PageEntries(Question[FoundEntries]):
    """Up to MAX_PAGE_ENTRIES neighbours in a live page, from the first on that ends after offset `start` and, unless it is
    None, reaches `timestamp` (ms). No entries: the page has none like that."""

    ids: Ids
    page: PageRef
    start: int
    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class PlanPages(Question[Expired]):
    """How far retention gets in these live pages, going on from `found` (`policy.retention.plan_pages`)."""

    ids: Ids
    pages: tuple[PageRef, ...]
    found: Expired
    moment: Moment


@dataclass(frozen=True, slots=True)
class Hurry(Question[Done]):
    """Someone waits now for a download that was asked for as read-ahead. Nothing if it is over."""

    key: str
    position: int
    length: int


# --- the cluster and its topics ---------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Probe(Question[Done]):
    """Whether the store keeps conditional writes, tried on a key under `key_prefix`. StoreRefused if not."""

    key_prefix: str


@dataclass(frozen=True, slots=True)
class StoreTime:
    """`unix_ms` is the store's clock, to a second."""

    unix_ms: int


@dataclass(frozen=True, slots=True)
class ReadStoreTime(Question[StoreTime]):
    """The store's clock, by an object under `key_prefix` that is written and deleted for it."""

    key_prefix: str


@dataclass(frozen=True, slots=True)
class FoundClusters:
    clusters: tuple[ClusterFound, ...]


@dataclass(frozen=True, slots=True)
class FindClusters(Question[FoundClusters]):
    """`clusters.find_clusters`: which clusters the store's prefix holds."""


@dataclass(frozen=True, slots=True)
class FoundCluster:
    state: ClusterState | None


@dataclass(frozen=True, slots=True)
class ReadCluster(Question[FoundCluster]):
    cluster_id: str


@dataclass(frozen=True, slots=True)
class Incarnation:
    number: int


@dataclass(frozen=True, slots=True)
class OpenCluster(Question[Incarnation]):
    """`cluster_file.open_cluster`: raises the incarnation from exactly `expected_incarnation`."""

    cluster_id: str
    holder: Holder
    expected_incarnation: int
    raised_by: int = 1


@dataclass(frozen=True, slots=True)
class ShownCluster(Question[FoundCluster]):
    """As ReadCluster; also None for a file that cannot be read."""

    cluster_id: str


@dataclass(frozen=True, slots=True)
class FoundIncarnation:
    """`key` is empty if nothing shows one."""

    number: int
    key: str


@dataclass(frozen=True, slots=True)
class HighestIncarnation(Question[FoundIncarnation]):
    """The highest that a manifest, a topic's file or a snapshot of the metadata shows. Lists the cluster and reads each
    manifest; may take REPAIR_S_PER_CLUSTER."""

    cluster_id: str


@dataclass(frozen=True, slots=True)
class RecreateCluster(Question[Done]):
    """`cluster_file.recreate_cluster`: only a repair may."""

    new: ClusterState
    shown: ClusterState | None


@dataclass(frozen=True, slots=True)
class PutSnapshot(Question[Done]):
    """`snapshot_files.put_snapshot` of the whole file at `path`, which stays the broker's."""

    cluster_id: str
    incarnation: int
    index: int
    path: str
    length: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class FoundSnapshot:
    """`key` None: there is none."""

    key: str | None
    size: int = 0


@dataclass(frozen=True, slots=True)
class FindSnapshot(Question[FoundSnapshot]):
    """The newest one; FetchObject reads it."""

    cluster_id: str


@dataclass(frozen=True, slots=True)
class Names:
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ListTopics(Question[Names]):
    """Names after `after`, in order, at most MAX_NAMES: ask on until there is none."""

    cluster_id: str
    after: str


@dataclass(frozen=True, slots=True)
class ListTopicIds(Question[Names]):
    """Every id of that name that the bucket holds anything of."""

    cluster_id: str
    topic: str


@dataclass(frozen=True, slots=True)
class Numbers:
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ListManifests(Question[Numbers]):
    """The partitions of a topic id that have a manifest."""

    cluster_id: str
    topic: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class TakenPartition:
    """A manifest once its new owner has claimed it. `committed_at` (ms) is when its `end` was committed, before that claim.
    `producer_id` is the highest in the state at `end`, -1 if there is none or it was not asked for."""

    deleted: bool
    leader_epoch: int
    log_start: int
    end: int
    committed_at: int
    producer_id: int


@dataclass(frozen=True, slots=True)
class TakePartition(Question[TakenPartition]):
    """Commits the writer's incarnation on the manifest, under the leader epoch that it has, or `least_epoch` if that is
    higher; created where there is none. From then on nobody of a lower incarnation extends it. A deleted one stays as it
    is. `dry`: nothing is committed; StoreRefused if segments show that the manifest is older than what was committed."""

    ids: Ids
    writer: Writer
    least_epoch: int
    with_producers: bool
    dry: bool = False


@dataclass(frozen=True, slots=True)
class FoundTopic:
    state: TopicState | None


@dataclass(frozen=True, slots=True)
class ReadTopic(Question[FoundTopic]):
    cluster_id: str
    topic: str


@dataclass(frozen=True, slots=True)
class PublishTopic(Question[FoundTopic]):
    """`topic_file.publish_topic`: makes a live topic's file current."""

    topic: TopicState


@dataclass(frozen=True, slots=True)
class ShownTopic(Question[FoundTopic]):
    """As ReadTopic; also None for a file that cannot be read."""

    cluster_id: str
    topic: str


@dataclass(frozen=True, slots=True)
class RepublishTopic(Question[FoundTopic]):
    """`topic_file.republish_topic`: over an older file than was seen; only a repair may."""

    topic: TopicState


@dataclass(frozen=True, slots=True)
class MarkTopicDeleted(Question[FoundTopic]):
    """`topic_file.delete_topic`: only while the file names this id. Answers what it says then."""

    topic: TopicState


# --- one partition's manifest -----------------------------------------------------------------------------------------
# `seen` is of the last root that the asker knows: StoreBehind if the store does not show one that contains it. A question
# makes at most MAX_COMMITS commits, so that an asker who dies before it has saved the answer is found in `recent`.
@dataclass(frozen=True, slots=True)
class RootDocument:
    """A root as its object holds it (`manifest_json`); None: there is no manifest."""

    text: str | None


@dataclass(frozen=True, slots=True)
class LoadRoot(Question[RootDocument]):
    """Reads the root from the store."""

    ids: Ids
    writer: Writer
    seen: Seen | None = None


@dataclass(frozen=True, slots=True)
class Extend(Question[RootDocument]):
    """`PartitionTier.extend`: the newest root, which may lack the range."""

    ids: Ids
    writer: Writer
    job: ExtendJob
    seen: Seen | None = None


@dataclass(frozen=True, slots=True)
class Claim(Question[RootDocument]):
    """Records the leader epoch before anything else of that epoch."""

    ids: Ids
    writer: Writer
    leader_epoch: int
    seen: Seen | None = None


@dataclass(frozen=True, slots=True)
class RaiseLogStart(Question[RootDocument]):
    """Answered once the manifest's log start is at least min(`offset`, `end`)."""

    ids: Ids
    writer: Writer
    offset: int
    seen: Seen | None = None


@dataclass(frozen=True, slots=True)
class Retire(Question[RootDocument]):
    """As RaiseLogStart, and everything wholly below it has moved to `removed`, or MAX_COMMITS commits have moved a part:
    ask again with what the answer shows."""

    ids: Ids
    writer: Writer
    log_start: int
    seen: Seen | None = None


@dataclass(frozen=True, slots=True)
class DeletePartition(Question[RootDocument]):
    """The terminal commit, whatever was seen before."""

    ids: Ids
    writer: Writer


@dataclass(frozen=True, slots=True)
class Repaired:
    """What was found, and with it the root that was committed, if one was."""

    report: RepairReport
    root: str | None


@dataclass(frozen=True, slots=True)
class Repair(Question[Repaired]):
    """Proves what the root seen names, and with `apply` commits it again (`manifest.repair`), without the offsets `accepted`,
    which must be exactly those that are lost. It may take REPAIR_S_PER_RANGE for each of its `ranges`."""

    ids: Ids
    writer: Writer
    local: LocalEvidence
    ranges: int
    apply: bool
    seen: Seen | None = None
    accepted: tuple[OffsetRange, ...] = ()

    @property
    def patience_s(self) -> float:
        return self.ranges * REPAIR_S_PER_RANGE


@dataclass(frozen=True, slots=True)
class Sweep(Question[SweepReport]):
    """Deletes what the manifest no longer names, and of `listed` (None: of all there is) what it never did, for at least
    `grace_ms`. `cut_short` in the answer: ask again once the newest root is saved."""

    ids: Ids
    writer: Writer
    grace_ms: int
    listed: tuple[Listed, ...] | None = None
    seen: Seen | None = None


@dataclass(frozen=True, slots=True)
class SweepDeleted(Question[SweepReport]):
    """Deletes those objects of a deleted partition that a listing has just shown. InvalidRequest if the store does not show it
    deleted."""

    ids: Ids
    writer: Writer
    grace_ms: int
    listed: tuple[Listed, ...]


@dataclass(frozen=True, slots=True)
class ListedKeys:
    """In order; `last`: there are no more."""

    keys: tuple[Listed, ...]
    last: bool


@dataclass(frozen=True, slots=True)
class ListKeys(Question[ListedKeys]):
    """One request's worth of keys under `prefix`, those that follow `after`."""

    prefix: str
    after: str


@dataclass(frozen=True, slots=True)
class AbortedUploads:
    count: int


@dataclass(frozen=True, slots=True)
class AbortUploads(Question[AbortedUploads]):
    """Ends the multipart uploads of keys under `prefix` that were begun longer than `grace_ms` ago by the store's clock."""

    prefix: str
    grace_ms: int


# --- the process itself -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Stats(Question["Counters"]):
    """Does not count as work: asking never keeps the process alive."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Since this process started. `store_calls` counts calls of the object store by kind, `store_failures` those that failed
    by kind and error (as in `get TierUnavailable`), `store_ended` and `store_seconds` those that ended and how long they
    took in all, `operations` questions by name, `failures` those by the error's name;
    `retries` counts reads that were asked again."""

    operations: dict[str, int]
    failures: dict[str, int]
    store_calls: dict[str, int]
    store_failures: dict[str, int]
    store_ended: dict[str, int]
    store_seconds: dict[str, float]
    bytes_downloaded: int
    bytes_uploaded: int
    retries: int
    most_bytes_in_flight: int
    peak_resident_bytes: int


def operations() -> dict[str, type[Question[Any]]]:
    """Every question by name. Subclasses register by existing; both sides import the same modules."""
    return {kind.__name__: kind for kind in Question.__subclasses__()}


def answer_type(question: type[Question[Any]]) -> Any:
    """The type argument of `Question` in the class's declaration."""
    (argument,) = get_args(question.__orig_bases__[0])  # type: ignore[attr-defined]
    return Counters if question is Stats else argument
