"""What the broker may ask of the tier process, and what it gets. Values only: both sides import them.

An operation is a question here and its row in `table.py`. The name of a question's class is its name on the wire.

Errors are LogErrors: `TierUnavailable` for what may pass (the store did not answer in time, the process ended),
`TierObjectMissing` for a 404, `TierCorrupt` for bytes that fail their checksum, `StorageError` where the cache's disk
refused, `StoreRefused` and `FencedWriter` as they are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from storage_tiers.cold.manifest.cluster_file import ClusterState, Holder
from storage_tiers.cold.manifest.clusters import ClusterFound
from storage_tiers.cold.manifest.lineage import SeenManifest
from storage_tiers.cold.manifest.model import Ids, Manifest, ManifestWriter, PageRef, RemoteSegment
from storage_tiers.cold.manifest.topic_file import TopicState
from storage_tiers.cold.process.settings import MIB, TierSettings
from storage_tiers.cold.segments.offloader import ExtendJob
from storage_tiers.cold.segments.repairer import LocalEvidence, RepairReport
from storage_tiers.cold.segments.sweeper import Listed, SweepReport
from storage_tiers.policy.retention import Expired, Moment
from storage_tiers.types import OffsetRange

#: Keys that one listing request of S3 gives.
LISTED_KEYS = 1000
#: Names that one answer carries.
MAX_NAMES = 1000
#: Segments of a page that one answer carries.
MAX_PAGE_SEGMENTS = 64
#: Seconds that a repair may take for each segment: two requests, many at a time; some segments are read as a whole.
REPAIR_S_PER_SEGMENT = 0.5
#: Seconds that it may take to look through all manifests of a cluster.
REPAIR_S_PER_CLUSTER = 3600.0

Answer = TypeVar("Answer", covariant=True)
Asked = TypeVar("Asked", bound="Question[Any]")
Context = TypeVar("Context")


class Deadline(Enum):
    """The deadline of a question in the tier process. The broker waits longer than that for the answer."""

    NONE = "the store is not asked; the answer does not say whether it works"
    READ = "read_deadline_s for all attempts: it is asked again while the store does not answer"
    COMMIT = "commit_deadline_s and the question's extra_s; past it the outcome is open"
    OFFLOAD = "as COMMIT, from when an offload slot is free"
    STEPS = "each of its reads and commits has its own"


class Question(Generic[Answer]):
    """One operation. Its type argument is the type of its answer."""

    __slots__ = ()

    def extra_s(self, settings: TierSettings) -> float:
        """Seconds that it may take beyond the deadline of its kind."""
        return 0.0

    @classmethod
    def by(
        cls: type[Asked], deadline: Deadline, run: Callable[[Context, Asked], Awaitable[Answer]], what: str = ""
    ) -> Operation[Context]:
        """The row of this question. `run` gives its answer; `what` names the work in errors, with the question as `q`."""
        return Operation(cls, cls.__orig_bases__[0].__args__[0], deadline, run, what)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Operation(Generic[Context]):
    """A row of the table: a question, the type of its answer, the kind of its deadline, and who works on it."""

    question: type[Question[Any]]
    answer: Any
    deadline: Deadline
    run: Callable[[Context, Any], Awaitable[Any]]
    what: str


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
class PageSegments(Question[tuple[RemoteSegment, ...]]):
    """Up to MAX_PAGE_SEGMENTS neighbours in a live page, from the first on that ends after offset `start` and, unless it is
    None, reaches `timestamp` (ms). No segments: the page has none like that."""

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
class RaisePriority(Question[None]):
    """Makes a read-ahead download urgent, since a reader waits for it now. No effect once it has ended."""

    key: str
    position: int
    length: int


# --- the cluster and its topics ---------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Probe(Question[None]):
    """Whether the store keeps conditional writes, tried on a key under `key_prefix`. StoreRefused if not."""

    key_prefix: str


@dataclass(frozen=True, slots=True)
class ReadStoreTime(Question[int]):
    """The store's clock (ms since 1970, to a second), by an object under `key_prefix` that is written and deleted for it."""

    key_prefix: str


@dataclass(frozen=True, slots=True)
class FindClusters(Question[tuple[ClusterFound, ...]]):
    """`clusters.find_clusters`: which clusters the store's prefix holds."""


@dataclass(frozen=True, slots=True)
class ReadCluster(Question[ClusterState | None]):
    cluster_id: str


@dataclass(frozen=True, slots=True)
class OpenCluster(Question[int]):
    """`cluster_file.open_cluster`: raises the incarnation from exactly `expected_incarnation`; answers the new
    one. FencedWriter if the bucket has another."""

    cluster_id: str
    holder: Holder
    expected_incarnation: int
    raised_by: int = 1


@dataclass(frozen=True, slots=True)
class ShownCluster(Question[ClusterState | None]):
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

    def extra_s(self, settings: TierSettings) -> float:
        return REPAIR_S_PER_CLUSTER


@dataclass(frozen=True, slots=True)
class RecreateCluster(Question[None]):
    """`cluster_file.recreate_cluster`: only a repair may."""

    new: ClusterState
    shown: ClusterState | None


@dataclass(frozen=True, slots=True)
class PutSnapshot(Question[None]):
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
class ListTopics(Question[tuple[str, ...]]):
    """Names after `after`, in order, at most MAX_NAMES: ask on until there is none."""

    cluster_id: str
    after: str


@dataclass(frozen=True, slots=True)
class ListTopicIds(Question[tuple[str, ...]]):
    """Every id of that name that the bucket holds anything of."""

    cluster_id: str
    topic: str


@dataclass(frozen=True, slots=True)
class ListManifests(Question[tuple[int, ...]]):
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
    writer: ManifestWriter
    least_epoch: int
    with_producers: bool
    dry: bool = False


@dataclass(frozen=True, slots=True)
class ReadTopic(Question[TopicState | None]):
    cluster_id: str
    topic: str


@dataclass(frozen=True, slots=True)
class PublishTopic(Question[TopicState]):
    """`topic_file.publish_topic`: makes a live topic's file current."""

    topic: TopicState


@dataclass(frozen=True, slots=True)
class ShownTopic(Question[TopicState | None]):
    """As ReadTopic; also None for a file that cannot be read."""

    cluster_id: str
    topic: str


@dataclass(frozen=True, slots=True)
class RepublishTopic(Question[TopicState]):
    """`topic_file.republish_topic`: over an older file than was seen; only a repair may."""

    topic: TopicState


@dataclass(frozen=True, slots=True)
class MarkTopicDeleted(Question[TopicState]):
    """`topic_file.delete_topic`: only while the file names this id. Answers what it says then."""

    topic: TopicState


# --- one partition's manifest -----------------------------------------------------------------------------------------
# `seen` is of the last manifest that the asker knows: StoreBehind if the store does not show one that contains it. A question
# makes at most MAX_COMMITS commits, so that an asker who dies before it has saved the answer is found in `recent`.
@dataclass(frozen=True, slots=True)
class LoadManifest(Question[Manifest | None]):
    """The store's own manifest; None if there is no manifest."""

    ids: Ids
    writer: ManifestWriter
    seen: SeenManifest | None = None


@dataclass(frozen=True, slots=True)
class Extend(Question[Manifest]):
    """The newest manifest: with the segment, or, if the manifest's end is not where it begins, without."""

    ids: Ids
    writer: ManifestWriter
    job: ExtendJob
    seen: SeenManifest | None = None

    def extra_s(self, settings: TierSettings) -> float:
        return self.job.length / MIB * settings.offload_s_per_mib


@dataclass(frozen=True, slots=True)
class Claim(Question[Manifest]):
    """Records the leader epoch, and with it the writer's incarnation, before anything else of that epoch."""

    ids: Ids
    writer: ManifestWriter
    leader_epoch: int
    seen: SeenManifest | None = None


@dataclass(frozen=True, slots=True)
class RaiseLogStart(Question[Manifest]):
    """Answered once the manifest's log start is at least min(`offset`, `end`)."""

    ids: Ids
    writer: ManifestWriter
    offset: int
    seen: SeenManifest | None = None


@dataclass(frozen=True, slots=True)
class Expire(Question[Manifest]):
    """As RaiseLogStart, and everything wholly below it has moved to `removed`, or MAX_COMMITS commits have moved a part:
    ask again with what the answer shows."""

    ids: Ids
    writer: ManifestWriter
    log_start: int
    seen: SeenManifest | None = None


@dataclass(frozen=True, slots=True)
class DeletePartition(Question[Manifest]):
    """The terminal commit, whatever was seen before."""

    ids: Ids
    writer: ManifestWriter


@dataclass(frozen=True, slots=True)
class Repaired:
    """What was found, and with it the manifest that was committed, if one was."""

    report: RepairReport
    manifest: Manifest | None


@dataclass(frozen=True, slots=True)
class Repair(Question[Repaired]):
    """Proves what the manifest seen names, and with `apply` commits it again (`manifest.repair`), without the offsets
    `accepted`, which must be exactly those that are lost. It may take REPAIR_S_PER_SEGMENT for each of its `segments`."""

    ids: Ids
    writer: ManifestWriter
    local: LocalEvidence
    segments: int
    apply: bool
    seen: SeenManifest | None = None
    accepted: tuple[OffsetRange, ...] = ()

    def extra_s(self, settings: TierSettings) -> float:
        return self.segments * REPAIR_S_PER_SEGMENT


@dataclass(frozen=True, slots=True)
class Sweep(Question[SweepReport]):
    """Deletes what the manifest no longer names, and of `listed` (None: of all there is) what it never did, for at least
    `grace_ms`. `cut_short` in the answer: ask again once the newest manifest is saved."""

    ids: Ids
    writer: ManifestWriter
    grace_ms: int
    listed: tuple[Listed, ...] | None = None
    seen: SeenManifest | None = None


@dataclass(frozen=True, slots=True)
class SweepDeleted(Question[SweepReport]):
    """Deletes those objects of a deleted partition that a listing has just shown. InvalidRequest if the store does not show it
    deleted."""

    ids: Ids
    writer: ManifestWriter
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
class AbortUploads(Question[int]):
    """Ends the multipart uploads of keys under `prefix` that were begun longer than `grace_ms` ago by the store's clock;
    answers how many."""

    prefix: str
    grace_ms: int


# --- the process itself -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TierCounters:
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


@dataclass(frozen=True, slots=True)
class Stats(Question[TierCounters]):
    """Does not count as work: asking never keeps the process alive."""
