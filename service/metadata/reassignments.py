"""Moves of partitions between brokers (KIP-455): a reassignment begins, is cancelled, or ends with the leader's consent.

    replicas [1]  --reassign to [2]-->  replicas [2, 1], adding [2], removing [1]  --broker 1 hands over-->  replicas [2]
         ^                                                 |
         +------------------ cancelled --------------------+

Pure: planners that turn an image into records. A partition moves through the bucket. Its leader offloads everything, then hands
the partition over at its log end, and the target begins at that offset. So no records pass between brokers, and the target is
never in sync before it leads.

Invariant: only the partition's leader, under its current registration, leader epoch and partition epoch, hands it over. A
consent that is late, or is sent by an earlier start of that broker, is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from service.metadata import records_pb2 as pb
from service.metadata.image import MetadataImage
from service.metadata.parts import PartitionImage
from service.metadata.registrations import registration
from storage_tiers.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    NoReassignmentInProgress,
    UnknownTopicOrPartition,
)
from storage_tiers.types import TopicId

Records = tuple[pb.MetadataRecord, ...]


def reassign(
    image: MetadataImage, name: str, index: int, replicas: Sequence[int] | None, *, is_tiered: bool
) -> Records:
    """Returns the records that begin a move of the partition to the brokers `replicas`, or with None those that cancel the move
    in progress. Returns no records if the partition is there already. Raises UnknownTopicOrPartition, NoReassignmentInProgress,
    InvalidReplicationFactor for several replicas, and InvalidReplicaAssignment for unknown brokers or a topic that is not
    tiered."""
    topic_id, placed = _partition(image, name, index)
    if replicas is None:
        if not placed.adding:
            raise NoReassignmentInProgress(f"{name}-{index} is not being moved")
        return (_reverted(topic_id, placed),)
    _check(image, replicas)
    now, wanted = placed.own_replicas, tuple(replicas)
    if wanted == now:
        return (_reverted(topic_id, placed),) if placed.adding else ()
    if len(wanted) > 1:
        raise InvalidReplicationFactor(
            f"Unable to replicate the partition {len(wanted)} time(s): a partition has one replica here, and its history is "
            "as durable as the bucket; name one broker."
        )
    if placed.adding == wanted:
        return ()
    if not is_tiered:
        raise InvalidReplicaAssignment(
            f"{name}-{index} cannot move: its records are on the disk of broker {now[0]} alone, and partitions move through "
            "the bucket; set remote.storage.enable=true and remote.log.copy.disable=false for the topic first"
        )
    change = _change(topic_id, placed, (*wanted, *now), adding=wanted, removing=now)
    if placed.directories:
        known = dict(zip(placed.replicas, placed.directories, strict=True))
        added = [image.brokers[each].disk_identity for each in wanted]
        change.directories.CopyFrom(pb.DirectoryList(ids=[*added, *(known[each] for each in now)]))
    return (pb.MetadataRecord(partition_change=change),)


def hand_over(
    image: MetadataImage,
    topic_id: TopicId,
    index: int,
    broker_id: int,
    broker_epoch: int,
    leader_epoch: int,
    partition_epoch: int,
    end: int,
) -> Records:
    """Plans the end of a move that the leader is ready for: the leader appends nothing more, and the bucket has everything
    below `end`, the leader's log end. The target leads from then on. Raises InvalidRequest if the partition has changed since
    the leader's consent, and InvalidReplicaAssignment if the target cannot lead now; both change nothing."""
    registration(image, broker_id, broker_epoch)
    topic = image.topics.get(topic_id)
    if topic is None or not 0 <= index < len(topic.partitions):
        raise InvalidRequest(f"the partition {index} of the topic id {topic_id} is gone")
    placed = topic.partitions[index]
    known = (placed.leader, placed.leader_epoch, placed.partition_epoch)
    if known != (broker_id, leader_epoch, partition_epoch) or not placed.adding:
        raise InvalidRequest(
            f"{topic.name}-{index} has changed: its leader, leader epoch and partition epoch are {known}, and "
            f"{list(placed.adding)} are being added"
        )
    target = image.brokers.get(placed.adding[0])
    if target is None or not target.may_lead:
        raise InvalidReplicaAssignment(
            f"broker {placed.adding[0]} cannot lead now: it is fenced, shutting down or gone"
        )
    change = _change(topic_id, placed, placed.adding, adding=(), removing=())
    change.leader, change.moved_end = target.broker_id, end
    change.isr.nodes.extend(placed.adding)
    change.directories.ids.append(target.disk_identity)
    return (pb.MetadataRecord(partition_change=change),)


def _partition(image: MetadataImage, name: str, index: int) -> tuple[TopicId, PartitionImage]:
    topic = image.topic(name)
    if topic is None:
        raise UnknownTopicOrPartition(f"Unable to find a topic named {name}.")
    if not 0 <= index < len(topic.partitions):
        raise UnknownTopicOrPartition(f"Unable to find partition {name}:{index}.")
    return topic.topic_id, topic.partitions[index]


def _check(image: MetadataImage, replicas: Sequence[int]) -> None:
    if not replicas or len(set(replicas)) < len(replicas) or not image.brokers.keys() >= set(replicas):
        raise InvalidReplicaAssignment(
            f"the replicas must be one or more different, registered brokers, not {list(replicas)}"
        )


def _reverted(topic_id: TopicId, placed: PartitionImage) -> pb.MetadataRecord:
    change = _change(topic_id, placed, placed.own_replicas, adding=(), removing=())
    if placed.directories:
        pairs = zip(placed.replicas, placed.directories, strict=True)
        change.directories.CopyFrom(pb.DirectoryList(ids=[d for each, d in pairs if each not in placed.adding]))
    return pb.MetadataRecord(partition_change=change)


def _change(
    topic_id: TopicId,
    placed: PartitionImage,
    replicas: Sequence[int],
    *,
    adding: Sequence[int],
    removing: Sequence[int],
) -> pb.PartitionChangeRecord:
    return pb.PartitionChangeRecord(
        topic_id=topic_id,
        index=placed.index,
        replicas=pb.ReplicaList(nodes=replicas),
        adding=pb.ReplicaList(nodes=adding),
        removing=pb.ReplicaList(nodes=removing),
    )
