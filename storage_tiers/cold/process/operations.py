"""The broker's questions to the tier process about records, one partition's manifest and leftover objects, with their answers.
Values only: both sides import them. `cluster_operations.py` has the questions about the cluster and its topics.

Errors are LogErrors: `TierUnavailable` for temporary failures (the store did not answer in time, the process ended),
`TierObjectMissing` for a 404, `TierCorrupt` for bytes that fail their checksum, `StorageError` if the cache's disk refuses a
write, and the operation's own `StoreRefused` and `FencedWriter`.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage_tiers.cold.manifest.lineage import SeenManifest
from storage_tiers.cold.manifest.model import Ids, Manifest, ManifestWriter, PageRef, RemoteSegment
from storage_tiers.cold.process.question import Question
from storage_tiers.cold.process.settings import MIB, TierSettings
from storage_tiers.cold.segments.offloader import ExtendJob
from storage_tiers.cold.segments.repairer import LocalEvidence, RepairReport
from storage_tiers.cold.segments.sweeper import Listed, SweepReport
from storage_tiers.policy.retention import Expired, Moment
from storage_tiers.types import OffsetRange

#: Keys in one answer to an S3 listing request.
LISTED_KEYS = 1000
#: The most segments of a page in one answer.
MAX_PAGE_SEGMENTS = 64
#: Seconds that a repair may take for each segment. A repair makes two requests for each, many of them at once, and reads some
#: segments whole.
REPAIR_S_PER_SEGMENT = 0.5
#: Seconds that a repair may take in addition, to copy segments that compaction had replaced: their number is known only after
#: the store was listed. The `tidelog` command waits for the same time.
REPAIR_COPIES_S = 3600.0


@dataclass(frozen=True, slots=True)
class ReadyFile:
    """A whole file in the cache directory that this process will not touch again. The receiver removes it. `is_copy`: the bytes
    come from another session's file, not from the store."""

    path: str
    size: int
    is_copy: bool = False


# --- reading ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class FetchChunk(Question[ReadyFile]):
    """Fetches bytes [position, position + length) of an object into a file. `crcs` are the expected CRC-32Cs of each MiB, the
    last of which may be shorter. Read-ahead is not `urgent`."""

    key: str
    position: int
    length: int
    crcs: tuple[int, ...]
    urgent: bool = True


@dataclass(frozen=True, slots=True)
class FetchObject(Question[ReadyFile]):
    """Fetches bytes [position, position + length) of an object into a file, unverified: the format's reader verifies them."""

    key: str
    position: int
    length: int
    urgent: bool = True


@dataclass(frozen=True, slots=True)
class PageSegments(Question[tuple[RemoteSegment, ...]]):
    """Up to MAX_PAGE_SEGMENTS neighbours in a live page, beginning with the first that ends after offset `start` and has a
    record at or after `timestamp` (ms; None: any). Empty if the page has no such segment."""

    ids: Ids
    page: PageRef
    start: int
    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class PlanPages(Question[Expired]):
    """How far retention expires these live pages, continuing from `found` (`policy.retention.plan_pages`)."""

    ids: Ids
    pages: tuple[PageRef, ...]
    found: Expired
    moment: Moment


@dataclass(frozen=True, slots=True)
class RaisePriority(Question[None]):
    """Makes a read-ahead download urgent, because a reader now waits for it. No effect on a download that has ended."""

    key: str
    position: int
    length: int


# --- one partition's manifest -----------------------------------------------------------------------------------------
# `seen` describes the broker's last manifest: StoreBehind if the store's manifest does not contain it. A question makes at most
# MAX_COMMITS commits, so that `recent` still has the last commit that the broker saw if the broker dies before it saves the
# answer.
@dataclass(frozen=True, slots=True)
class LoadManifest(Question[Manifest | None]):
    """The manifest in the store; None if there is none."""

    ids: Ids
    writer: ManifestWriter
    seen: SeenManifest | None = None


@dataclass(frozen=True, slots=True)
class Extend(Question[Manifest]):
    """Offloads a segment. The answer is the newest manifest. If the manifest found does not end where `job` begins, the segment
    is not added."""

    ids: Ids
    writer: ManifestWriter
    job: ExtendJob
    seen: SeenManifest | None = None

    def extra_s(self, settings: TierSettings) -> float:
        return self.job.length / MIB * settings.offload_s_per_mib


@dataclass(frozen=True, slots=True)
class ReplaceSegments(Question[Manifest]):
    """Offloads a rewritten segment in place of the live neighbours `old`. InvalidRequest unless they are all live."""

    ids: Ids
    writer: ManifestWriter
    job: ExtendJob
    old: tuple[RemoteSegment, ...]
    seen: SeenManifest | None = None

    def extra_s(self, settings: TierSettings) -> float:
        return self.job.length / MIB * settings.offload_s_per_mib


@dataclass(frozen=True, slots=True)
class Claim(Question[Manifest]):
    """Commits the leader epoch and the writer's incarnation. Ask it before any other question of that epoch."""

    ids: Ids
    writer: ManifestWriter
    leader_epoch: int
    seen: SeenManifest | None = None


@dataclass(frozen=True, slots=True)
class RaiseLogStart(Question[Manifest]):
    """Raises the manifest's log start to at least min(`offset`, `end`)."""

    ids: Ids
    writer: ManifestWriter
    offset: int
    seen: SeenManifest | None = None


@dataclass(frozen=True, slots=True)
class Expire(Question[Manifest]):
    """Like RaiseLogStart, but also moves all segments wholly below log start to `removed`, as far as MAX_COMMITS commits reach:
    repeat it with the answer's manifest."""

    ids: Ids
    writer: ManifestWriter
    log_start: int
    seen: SeenManifest | None = None


@dataclass(frozen=True, slots=True)
class DeletePartition(Question[Manifest]):
    """Commits the state `deleted`, which is final, whatever manifest was seen before."""

    ids: Ids
    writer: ManifestWriter


@dataclass(frozen=True, slots=True)
class TakenPartition:
    """A manifest after its new owner has claimed it. `committed_at` (ms) is the time of the commit that set `end`, before the
    claim. `producer_id` is the highest in the producer state at `end`, -1 if there is none or it was not requested."""

    deleted: bool
    leader_epoch: int
    log_start: int
    end: int
    committed_at: int
    producer_id: int


@dataclass(frozen=True, slots=True)
class TakePartition(Question[TakenPartition]):
    """Commits the writer's incarnation on the manifest, with its leader epoch or `least_epoch`, whichever is higher; creates a
    missing manifest, leaves a deleted one unchanged. Writers of a lower incarnation can then no longer extend it. With `dry` it
    commits nothing, and raises StoreRefused if segments prove that the manifest is older than the last commit."""

    ids: Ids
    writer: ManifestWriter
    least_epoch: int
    with_producers: bool
    dry: bool = False


@dataclass(frozen=True, slots=True)
class Repaired:
    """The report, and the manifest if one was committed."""

    report: RepairReport
    manifest: Manifest | None


@dataclass(frozen=True, slots=True)
class Repair(Question[Repaired]):
    """Verifies the objects of the last manifest seen, and with `apply` commits that manifest again (`manifest.repair`) without
    the records of the offsets `accepted`, which must be exactly the lost ones. May take REPAIR_S_PER_SEGMENT for each of
    `segments`, and with `apply` REPAIR_COPIES_S more."""

    ids: Ids
    writer: ManifestWriter
    local: LocalEvidence
    segments: int
    apply: bool
    seen: SeenManifest | None = None
    accepted: tuple[OffsetRange, ...] = ()

    def extra_s(self, settings: TierSettings) -> float:
        return self.segments * REPAIR_S_PER_SEGMENT + (REPAIR_COPIES_S if self.apply else 0.0)


@dataclass(frozen=True, slots=True)
class Sweep(Question[SweepReport]):
    """Deletes objects that the manifest no longer names, and orphans among the keys `listed` (None: lists them itself), each
    after at least `grace_ms`. If the answer is `cut_short`, save the newest manifest and repeat."""

    ids: Ids
    writer: ManifestWriter
    grace_ms: int
    listed: tuple[Listed, ...] | None = None
    seen: SeenManifest | None = None


@dataclass(frozen=True, slots=True)
class SweepDeleted(Question[SweepReport]):
    """Deletes the objects of a deleted partition that a listing has just found (`listed`). InvalidRequest if the partition is
    not deleted in the store."""

    ids: Ids
    writer: ManifestWriter
    grace_ms: int
    listed: tuple[Listed, ...]


@dataclass(frozen=True, slots=True)
class ListedKeys:
    """Keys in order; `last`: no more keys follow."""

    keys: tuple[Listed, ...]
    last: bool


@dataclass(frozen=True, slots=True)
class ListKeys(Question[ListedKeys]):
    """Up to LISTED_KEYS keys under `prefix` that follow `after`."""

    prefix: str
    after: str


@dataclass(frozen=True, slots=True)
class AbortUploads(Question[int]):
    """Aborts the multipart uploads under `prefix` that began at least `grace_ms` ago by the store's clock. The answer is their
    number."""

    prefix: str
    grace_ms: int


# --- the process itself -----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TierCounters:
    """Counts since this process started. `store_calls`: calls of the object store by kind; `store_failures`: failed calls by
    kind and error (as in `get TierUnavailable`); `store_ended` and `store_seconds`: ended calls by kind, and their total
    seconds. `operations`: questions by name; `failures`: failed questions by the error's name. `retries`: reads retried."""

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
    """Asks for the counters, and serves as the heartbeat. It does not count as work, so it never keeps the process alive."""
