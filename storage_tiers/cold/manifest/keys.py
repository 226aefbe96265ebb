"""The grammar of object keys: no other module builds or parses them.

    <cluster>/cluster.json
    <cluster>/metadata/<incarnation:010>-<index:020>-<term:010>.snapshot
    <cluster>/topics/<topic>/topic.json
    <cluster>/topics/<topic>/<topic_id>/manifests/<partition:05d>.json
    <cluster>/topics/<topic>/<topic_id>/pages/<partition:05d>/<first>-<last>-<uuid>.json.gz
    <cluster>/topics/<topic>/<topic_id>/segments/<partition:05d>/<base_offset:020>-<leader_epoch>-<uuid>.log
    <cluster>/topics/<topic>/<topic_id>/segments/<partition:05d>/<base_offset:020>-<leader_epoch>-<uuid>.idx
    <cluster>/readers/<reader>/cursors/<topic>/<topic_id>/<partition:05d>.cursor
    <cluster>/readers/<reader>/verdicts/<topic>/<topic_id>/<partition:05d>/<commit:020>-<base_offset:020>.verdict
    <cluster>/readers/<reader>/missed/<topic>/<topic_id>/<partition:05d>/<after:020>-<swept:020>.missed

The objects that a reader of the bucket writes are JSON, too, but have other suffixes. Notifications about `.json` objects start
the reader, so its own writes do not start it again.

Keys are relative to the store's prefix. Invariants: `parse(key(x)) == x` for every legal x, and `key(parse(text)) == text` for
every text that `parse` accepts. Cluster ids and topic names are Kafka-legal and hence safe in a key; topic ids are printed as
Kafka prints a Uuid; every other uuid is 32 hexadecimal digits, so that `-` separates fields.

Not promised: that every key in a listing is ours; `parse` raises ValueError for any other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from storage_tiers.types import TopicId

MAX_TOPIC_LENGTH = 249
_NAME = re.compile(r"[A-Za-z0-9._-]+\Z")
_UUID = re.compile(r"[0-9a-f]{32}\Z")
_SEGMENT = re.compile(r"(\d{20})-(0|[1-9]\d*)-([0-9a-f]{32})\.(log|idx)\Z")
_PAGE = re.compile(r"(0|[1-9]\d*)-(0|[1-9]\d*)-([0-9a-f]{32})\.json\.gz\Z")
_SNAPSHOT = re.compile(r"(\d{10})-(\d{20})-(\d{10})\.snapshot\Z")
_NUMBERS = re.compile(r"(\d{20})-(\d{20})\.(verdict|missed)\Z")
_PARTITION = re.compile(r"\d{5}|[1-9]\d{5,9}\Z")


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """The key of a cluster's `cluster.json`."""

    cluster: str


@dataclass(frozen=True, slots=True)
class SnapshotKey:
    """A snapshot of the metadata log after entry `index` of `term`, written under `incarnation`."""

    cluster: str
    incarnation: int
    index: int
    term: int


@dataclass(frozen=True, slots=True)
class TopicFile:
    """The key of a topic's `topic.json`."""

    cluster: str
    topic: str


@dataclass(frozen=True, slots=True)
class ManifestKey:
    """The key of a partition's manifest."""

    cluster: str
    topic: str
    topic_id: TopicId
    partition: int


@dataclass(frozen=True, slots=True)
class PageKey:
    """`first` and `last` are offsets, both included; `uuid` is 32 hexadecimal digits."""

    cluster: str
    topic: str
    topic_id: TopicId
    partition: int
    first: int
    last: int
    uuid: str


@dataclass(frozen=True, slots=True)
class SegmentKey:
    """The key of a segment's `.log`. Its name has the base offset, the writer's leader epoch and 32 hexadecimal digits."""

    cluster: str
    topic: str
    topic_id: TopicId
    partition: int
    base: int
    epoch: int
    uuid: str


@dataclass(frozen=True, slots=True)
class SidecarKey:
    """The key of a segment's sidecar: its segment's name with another suffix."""

    cluster: str
    topic: str
    topic_id: TopicId
    partition: int
    base: int
    epoch: int
    uuid: str


@dataclass(frozen=True, slots=True)
class CursorKey:
    """The key of a cursor, which records a reader's progress through the commits of a partition."""

    cluster: str
    reader: str
    topic: str
    topic_id: TopicId
    partition: int


@dataclass(frozen=True, slots=True)
class VerdictKey:
    """The key of a reader's verdict on the segment at `base`, which `commit` added."""

    cluster: str
    reader: str
    topic: str
    topic_id: TopicId
    partition: int
    commit: int
    base: int


@dataclass(frozen=True, slots=True)
class MissedKey:
    """The key of a reader's note that it may have missed segments, which were added after commit `after` and are removed and
    swept by commit `swept` at the latest."""

    cluster: str
    reader: str
    topic: str
    topic_id: TopicId
    partition: int
    after: int
    swept: int


Key = (
    ClusterFile
    | SnapshotKey
    | TopicFile
    | ManifestKey
    | PageKey
    | SegmentKey
    | SidecarKey
    | CursorKey
    | VerdictKey
    | MissedKey
)


def cluster_prefix(cluster: str) -> str:
    return f"{_checked(cluster)}/"


def cluster_key(cluster: str) -> str:
    return f"{_checked(cluster)}/cluster.json"


def metadata_prefix(cluster: str) -> str:
    return f"{_checked(cluster)}/metadata/"


def snapshot_key(cluster: str, incarnation: int, index: int, term: int) -> str:
    if not 0 <= incarnation < 10**10 or not 0 <= index < 1 << 63 or not 0 <= term < 10**10:
        raise ValueError(f"there is no entry {index} of term {term} and incarnation {incarnation}")
    return f"{metadata_prefix(cluster)}{incarnation:010}-{index:020}-{term:010}.snapshot"


def topics_prefix(cluster: str) -> str:
    return f"{_checked(cluster)}/topics/"


def topic_prefix(cluster: str, topic: str) -> str:
    """The prefix of all objects of all topics that ever had this name."""
    return f"{_checked(cluster)}/topics/{_checked_topic(topic)}/"


def topic_file_key(cluster: str, topic: str) -> str:
    return f"{topic_prefix(cluster, topic)}topic.json"


def topic_id_prefix(cluster: str, topic: str, topic_id: TopicId) -> str:
    """The prefix of all objects of one topic id. The keys inside a manifest are relative to it."""
    return f"{topic_prefix(cluster, topic)}{topic_id}/"


def manifests_prefix(cluster: str, topic: str, topic_id: TopicId) -> str:
    return f"{topic_id_prefix(cluster, topic, topic_id)}manifests/"


def pages_prefix(cluster: str, topic: str, topic_id: TopicId, partition: int) -> str:
    return f"{topic_id_prefix(cluster, topic, topic_id)}pages/{_partition(partition)}/"


def segments_prefix(cluster: str, topic: str, topic_id: TopicId, partition: int) -> str:
    return f"{topic_id_prefix(cluster, topic, topic_id)}segments/{_partition(partition)}/"


def key(parsed: Key) -> str:
    """The text of a parsed key: the inverse of `parse`."""
    match parsed:
        case ClusterFile(cluster):
            return cluster_key(cluster)
        case SnapshotKey(cluster, incarnation, index, term):
            return snapshot_key(cluster, incarnation, index, term)
        case TopicFile(cluster, topic):
            return topic_file_key(cluster, topic)
        case ManifestKey(cluster, topic, topic_id, partition):
            return f"{manifests_prefix(cluster, topic, topic_id)}{_partition(partition)}.json"
        case PageKey(cluster, topic, topic_id, partition, first, last, uuid):
            if not 0 <= first <= last:
                raise ValueError(f"a page cannot hold offsets {first} to {last}")
            return f"{pages_prefix(cluster, topic, topic_id, partition)}{first}-{last}-{_checked_uuid(uuid)}.json.gz"
        case SegmentKey():
            return f"{_segment_stem(parsed)}.log"
        case SidecarKey():
            return f"{_segment_stem(parsed)}.idx"
        case CursorKey():
            return f"{_reader_stem(parsed, 'cursors')}.cursor"
        case VerdictKey(commit=commit, base=base):
            return f"{_reader_stem(parsed, 'verdicts')}/{_numbers(commit, base)}.verdict"
        case MissedKey(after=after, swept=swept):
            return f"{_reader_stem(parsed, 'missed')}/{_numbers(after, swept)}.missed"


def is_key(text: str) -> bool:
    """Whether `parse` accepts `text`."""
    try:
        parse(text)
    except ValueError:
        return False
    return True


def parse(text: str) -> Key:
    """Parses a key. Raises ValueError if the text is not in the grammar above."""
    match text.split("/"):
        case [cluster, "cluster.json"]:
            return ClusterFile(_checked(cluster))
        case [cluster, "metadata", name]:
            found = _SNAPSHOT.match(name)
            if found is None:
                raise ValueError(f"{text!r} is not the key of a metadata snapshot")
            incarnation, index, term = map(int, found.groups())
            snapshot_key(cluster, incarnation, index, term)
            return SnapshotKey(_checked(cluster), incarnation, index, term)
        case [cluster, "topics", topic, "topic.json"]:
            return TopicFile(_checked(cluster), _checked_topic(topic))
        case [cluster, "topics", topic, topic_id, "manifests", name] if name.endswith(".json"):
            partition = _parse_partition(text, name.removesuffix(".json"))
            return ManifestKey(_checked(cluster), _checked_topic(topic), _parse_topic_id(topic_id), partition)
        case [cluster, "topics", topic, topic_id, "pages", partition_name, name]:
            found = _PAGE.match(name)
            if found is None or int(found[1]) > int(found[2]):
                raise ValueError(f"{text!r} is not the key of a manifest page")
            owner = (_checked(cluster), _checked_topic(topic), _parse_topic_id(topic_id))
            return PageKey(*owner, _parse_partition(text, partition_name), int(found[1]), int(found[2]), found[3])
        case [cluster, "topics", topic, topic_id, "segments", partition_name, name]:
            found = _SEGMENT.match(name)
            if found is None:
                raise ValueError(f"{text!r} is not the key of a segment or a sidecar")
            owner = (_checked(cluster), _checked_topic(topic), _parse_topic_id(topic_id))
            kind = SegmentKey if found[4] == "log" else SidecarKey
            return kind(*owner, _parse_partition(text, partition_name), int(found[1]), int(found[2]), found[3])
        case [cluster, "readers", reader, "cursors", topic, topic_id, name] if name.endswith(".cursor"):
            partition = _parse_partition(text, name.removesuffix(".cursor"))
            return CursorKey(
                _checked(cluster), _checked(reader), _checked_topic(topic), _parse_topic_id(topic_id), partition
            )
        case [cluster, "readers", reader, ("verdicts" | "missed") as folder, topic, topic_id, partition_name, name]:
            numbers = _NUMBERS.match(name)
            if numbers is None or not folder.startswith(numbers[3]):
                raise ValueError(f"{text!r} is not the key of a reader's verdict or missed range")
            partition = _parse_partition(text, partition_name)
            found_by = (
                _checked(cluster),
                _checked(reader),
                _checked_topic(topic),
                _parse_topic_id(topic_id),
                partition,
            )
            found_kind = VerdictKey if folder == "verdicts" else MissedKey
            return found_kind(*found_by, int(numbers[1]), int(numbers[2]))
        case _:
            raise ValueError(f"{text!r} is not a key of this layout")


def _reader_stem(of: CursorKey | VerdictKey | MissedKey, folder: str) -> str:
    partition = f"{_checked_topic(of.topic)}/{of.topic_id}/{_partition(of.partition)}"
    return f"{_checked(of.cluster)}/readers/{_checked(of.reader)}/{folder}/{partition}"


def _numbers(first: int, second: int) -> str:
    if not 0 <= first < 1 << 63 or not 0 <= second < 1 << 63:
        raise ValueError(f"{first} and {second} are not both numbers of 63 bits")
    return f"{first:020}-{second:020}"


def _segment_stem(of: SegmentKey | SidecarKey) -> str:
    if not 0 <= of.base < 1 << 63 or of.epoch < 0:
        raise ValueError(f"a segment cannot begin at offset {of.base} in epoch {of.epoch}")
    prefix = segments_prefix(of.cluster, of.topic, of.topic_id, of.partition)
    return f"{prefix}{of.base:020}-{of.epoch}-{_checked_uuid(of.uuid)}"


def _partition(partition: int) -> str:
    if not 0 <= partition < 1 << 31:
        raise ValueError(f"{partition} is not a partition: 0 to 2147483647")
    return f"{partition:05}"


def _parse_partition(text: str, name: str) -> int:
    if _PARTITION.fullmatch(name) is None:
        raise ValueError(f"{text!r} names no partition")
    partition = int(name)
    _partition(partition)
    return partition


def _parse_topic_id(text: str) -> TopicId:
    try:
        topic_id = TopicId.parse(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a topic id") from error
    if str(topic_id) != text:
        raise ValueError(f"{text!r} is not a topic id as Kafka prints it")
    return topic_id


def _checked(name: str) -> str:
    if _NAME.match(name) is None or name in (".", ".."):
        raise ValueError(f"{name!r} cannot be part of a key: letters, digits, '.', '_' and '-' only")
    return name


def _checked_topic(topic: str) -> str:
    if len(topic) > MAX_TOPIC_LENGTH:
        raise ValueError(f"a topic's name has at most {MAX_TOPIC_LENGTH} characters, not {len(topic)}")
    return _checked(topic)


def _checked_uuid(uuid: str) -> str:
    if _UUID.match(uuid) is None:
        raise ValueError(f"{uuid!r} is not 32 hexadecimal digits")
    return uuid
