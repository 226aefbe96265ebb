"""The broker's questions to the tier process about a cluster, its topics and its metadata's snapshots, with their answers.

Values only: both sides import them. Errors are those of `operations.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage_tiers.cold.manifest.cluster_file import ClusterState, Holder
from storage_tiers.cold.manifest.clusters import ClusterFound
from storage_tiers.cold.manifest.topic_file import TopicState
from storage_tiers.cold.process.question import Question
from storage_tiers.cold.process.settings import TierSettings

#: The most names in one answer.
MAX_NAMES = 1000
#: Seconds that reading all manifests of a cluster may take.
REPAIR_S_PER_CLUSTER = 3600.0


@dataclass(frozen=True, slots=True)
class Probe(Question[None]):
    """Tests with a key under `key_prefix` whether the store honours conditional writes. StoreRefused if not."""

    key_prefix: str


@dataclass(frozen=True, slots=True)
class ReadStoreTime(Question[int]):
    """Reads the store's clock (ms since 1970, exact to a second) by writing and deleting an object under `key_prefix`."""

    key_prefix: str


@dataclass(frozen=True, slots=True)
class FindClusters(Question[tuple[ClusterFound, ...]]):
    """`clusters.find_clusters`: the clusters under the store's prefix."""


@dataclass(frozen=True, slots=True)
class ReadCluster(Question[ClusterState | None]):
    """`cluster_file.read_cluster`: the cluster's file; None if there is none."""

    cluster_id: str


@dataclass(frozen=True, slots=True)
class OpenCluster(Question[int]):
    """`cluster_file.open_cluster`: raises the incarnation from exactly `expected_incarnation`. The answer is the new one.
    FencedWriter or StoreBehind if the bucket has another incarnation."""

    cluster_id: str
    holder: Holder
    expected_incarnation: int
    raised_by: int = 1


@dataclass(frozen=True, slots=True)
class ShownCluster(Question[ClusterState | None]):
    """Like ReadCluster, but the answer is None also for an unreadable file."""

    cluster_id: str


@dataclass(frozen=True, slots=True)
class FoundIncarnation:
    """`number` is the incarnation. `key` names the object that holds it, and is empty if no object does."""

    number: int
    key: str


@dataclass(frozen=True, slots=True)
class HighestIncarnation(Question[FoundIncarnation]):
    """The highest incarnation in the cluster's manifests, topic files and metadata snapshots. Lists the cluster's objects and
    reads each manifest and each topic's file; may take REPAIR_S_PER_CLUSTER."""

    cluster_id: str

    def extra_s(self, settings: TierSettings) -> float:
        return REPAIR_S_PER_CLUSTER


@dataclass(frozen=True, slots=True)
class RecreateCluster(Question[None]):
    """`cluster_file.recreate_cluster`: writes the cluster's file again over the one `shown`. For repairs only."""

    new: ClusterState
    shown: ClusterState | None


@dataclass(frozen=True, slots=True)
class PutSnapshot(Question[None]):
    """`snapshot_files.put_snapshot` of the whole file at `path`, which still belongs to the broker."""

    cluster_id: str
    incarnation: int
    index: int
    term: int
    path: str
    length: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class FoundSnapshot:
    """`key` is None if there is no snapshot; `size` in bytes."""

    key: str | None
    size: int = 0


@dataclass(frozen=True, slots=True)
class FindSnapshot(Question[FoundSnapshot]):
    """The newest metadata snapshot; FetchObject reads it."""

    cluster_id: str


@dataclass(frozen=True, slots=True)
class ListTopics(Question[tuple[str, ...]]):
    """The names of topics that follow `after`, in order, at most MAX_NAMES. Repeat with the last name until the answer is
    empty."""

    cluster_id: str
    after: str


@dataclass(frozen=True, slots=True)
class ListTopicIds(Question[tuple[str, ...]]):
    """All ids of topics named `topic` that have an object in the bucket."""

    cluster_id: str
    topic: str


@dataclass(frozen=True, slots=True)
class ListManifests(Question[tuple[int, ...]]):
    """The partitions of a topic id that have a manifest."""

    cluster_id: str
    topic: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class ReadTopic(Question[TopicState | None]):
    """`topic_file.read_topic`: the topic's file; None if there is none. TierCorrupt if the file is unreadable."""

    cluster_id: str
    topic: str


@dataclass(frozen=True, slots=True)
class PublishTopic(Question[TopicState]):
    """`topic_file.publish_topic`: makes a live topic's file current."""

    topic: TopicState


@dataclass(frozen=True, slots=True)
class ShownTopic(Question[TopicState | None]):
    """Like ReadTopic, but the answer is None also for an unreadable file."""

    cluster_id: str
    topic: str


@dataclass(frozen=True, slots=True)
class RepublishTopic(Question[TopicState]):
    """`topic_file.republish_topic`: replaces a topic's file that is older than the one last seen, missing or unreadable. For
    repairs only."""

    topic: TopicState


@dataclass(frozen=True, slots=True)
class MarkTopicDeleted(Question[TopicState]):
    """`topic_file.delete_topic`: marks the topic's file as deleted, unless the file names another id. The answer is the file's
    state."""

    topic: TopicState
