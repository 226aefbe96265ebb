"""A partition moves to another broker: the move begins, is cancelled, and ends with the consent of its leader alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.metadata import records_pb2 as pb
from service.metadata.image import MetadataImage
from service.metadata.parts import NO_LEADER, PartitionImage
from service.metadata.planner import create_partitions, lead_everything
from service.metadata.reassignments import Records, hand_over, reassign
from service.metadata.registrations import elect_unclean, fence, unfence
from service.metadata.snapshot import partition_record, to_records
from storage_tiers.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    LeaderNotAvailable,
    LogError,
    NoReassignmentInProgress,
    StaleBrokerEpoch,
    UnknownTopicOrPartition,
)
from tests.service.metadata.records import broker_change, elected, image_with_brokers, new_topic, topic_id

A = topic_id(1)
THREE = image_with_brokers([None, None, None]).apply_batch(new_topic("a", 1, 2))
#: As `THREE`, where the directory ids of the partition's replicas are known.
ON_DISK = THREE.apply_batch(
    [pb.MetadataRecord(partition=partition_record(A, replace(THREE.topics[A].partitions[0], directories=(b"first",))))]
)


def placed(image: MetadataImage) -> PartitionImage:
    return image.topics[A].partitions[0]


def begun(image: MetadataImage, *replicas: int) -> MetadataImage:
    return image.apply_batch(reassign(image, "a", 0, replicas, is_tiered=True))


def consent(
    image: MetadataImage,
    *,
    broker_id: int = 1,
    broker_epoch: int = 1,
    leader_epoch: int | None = None,
    partition_epoch: int | None = None,
    end: int = 70,
) -> Records:
    """The records of a consent, with the epochs of the image unless others are given."""
    known = placed(image)
    leader_epoch = known.leader_epoch if leader_epoch is None else leader_epoch
    partition_epoch = known.partition_epoch if partition_epoch is None else partition_epoch
    return hand_over(image, A, 0, broker_id, broker_epoch, leader_epoch, partition_epoch, end)


def test_a_move_adds_the_target_and_changes_no_leader() -> None:
    moving = placed(begun(ON_DISK, 2))
    assert (moving.replicas, moving.adding, moving.removing, moving.isr) == ((2, 1), (2,), (1,), (1,))
    assert moving.directories == (b"disk", b"first")
    assert (moving.leader, moving.leader_epoch, moving.partition_epoch) == (1, 0, 1)
    assert moving.own_replicas == (1,)
    assert placed(begun(THREE, 2)).directories == (), "directory ids that are unknown stay unknown"


def test_the_consent_of_the_leader_ends_the_move() -> None:
    moving = begun(ON_DISK, 2)
    moved = placed(moving.apply_batch(consent(moving)))
    assert (moved.replicas, moved.isr, moved.adding, moved.removing) == ((2,), (2,), (), ())
    assert (moved.leader, moved.leader_epoch, moved.moved_end, moved.directories) == (2, 1, 70, (b"disk",))


def test_the_end_of_a_move_lasts_until_a_disk_is_given_up() -> None:
    """A target that dies before its log has begun must not begin at offset 0 afterwards."""
    moving = begun(THREE, 2)
    moved = moving.apply_batch(consent(moving))
    again = MetadataImage().apply_batch(to_records(moved))
    assert placed(again) == placed(moved)
    isr = pb.PartitionChangeRecord(topic_id=A, index=0, isr=pb.ReplicaList(nodes=[2]))
    assert placed(moved.apply_batch([pb.MetadataRecord(partition_change=isr)])).moved_end == 70
    assert placed(moved.apply_batch([elected(1, 0, 2)])).moved_end == 70
    dead = moved.apply_batch(fence(moved, 2, 1)).apply_batch([broker_change(2, fenced=False)])
    given_up = dead.apply_batch(elect_unclean(dead, "a", 0))
    assert (placed(given_up).leader, placed(given_up).moved_end) == (2, 0)
    assert elect_unclean(moved, "a", 0) == elect_unclean(moved, "a", 0, 69) == ()
    accepted = placed(moved.apply_batch(elect_unclean(moved, "a", 0, 70)))
    assert (accepted.leader, accepted.leader_epoch, accepted.moved_end) == (2, placed(moved).leader_epoch + 1, 0)
    never = moved.apply_batch(elect_unclean(moved, "a", 0, 70))
    assert elect_unclean(never, "a", 0, 0) == (), "the partition waits for nothing"


def test_a_move_is_cancelled_and_its_consent_comes_too_late() -> None:
    moving = begun(ON_DISK, 2)
    cancelled = moving.apply_batch(reassign(moving, "a", 0, None, is_tiered=True))
    assert placed(cancelled) == replace(placed(ON_DISK), partition_epoch=2)
    assert placed(moving.apply_batch(reassign(moving, "a", 0, [1], is_tiered=True))) == placed(cancelled)
    with pytest.raises(InvalidRequest, match="has changed"):
        consent(cancelled, partition_epoch=1)
    again = begun(cancelled, 2)
    with pytest.raises(InvalidRequest, match="has changed"):
        consent(again, partition_epoch=1)


def test_another_target_replaces_the_first() -> None:
    moving = begun(begun(ON_DISK, 2), 3)
    assert (placed(moving).replicas, placed(moving).adding, placed(moving).removing) == ((3, 1), (3,), (1,))
    assert placed(moving).directories == (b"disk", b"first")
    with pytest.raises(InvalidRequest, match="has changed"):
        consent(moving, partition_epoch=1)
    assert placed(moving.apply_batch(consent(moving))).leader == 3


@pytest.mark.parametrize("replicas", [[1], [2]])
def test_a_move_that_changes_nothing_has_no_records(replicas: list[int]) -> None:
    image = begun(THREE, 2) if replicas == [2] else THREE
    assert reassign(image, "a", 0, replicas, is_tiered=True) == ()


@pytest.mark.parametrize(
    ("topic", "index", "replicas", "is_tiered", "error"),
    [
        ("other", 0, [2], True, UnknownTopicOrPartition),
        ("a", 2, [2], True, UnknownTopicOrPartition),
        ("a", -1, [2], True, UnknownTopicOrPartition),
        ("a", 0, None, True, NoReassignmentInProgress),
        ("a", 0, [], True, InvalidReplicaAssignment),
        ("a", 0, [4], True, InvalidReplicaAssignment),
        ("a", 0, [2, 2], True, InvalidReplicaAssignment),
        ("a", 0, [2, 3], True, InvalidReplicationFactor),
        ("a", 0, [2], False, InvalidReplicaAssignment),
    ],
)
def test_impossible_moves_are_refused(
    topic: str, index: int, replicas: list[int] | None, is_tiered: bool, error: type[LogError]
) -> None:
    with pytest.raises(error):
        reassign(THREE, topic, index, replicas, is_tiered=is_tiered)


def test_a_consent_of_another_broker_start_or_leadership_is_refused() -> None:
    moving = begun(THREE, 2)
    with pytest.raises(StaleBrokerEpoch):
        consent(moving, broker_epoch=2)
    for image, known in ((moving, {"broker_id": 2}), (moving, {"leader_epoch": 1}), (THREE, {})):
        with pytest.raises(InvalidRequest, match="has changed"):
            consent(image, **known)
    with pytest.raises(InvalidRequest, match="is gone"):
        hand_over(moving, topic_id(9), 0, 1, 1, 0, 1, 70)
    fenced = moving.apply_batch(fence(moving, 1, 1))
    with pytest.raises(InvalidRequest, match="has changed"):
        consent(fenced, leader_epoch=0)


@pytest.mark.parametrize("change", [{"fenced": True}, {"shutting_down": True}])
def test_a_target_that_cannot_lead_gets_nothing(change: dict[str, bool]) -> None:
    moving = begun(THREE, 2).apply_batch([broker_change(2, **change)])
    with pytest.raises(InvalidReplicaAssignment, match="broker 2 cannot lead now"):
        consent(moving)


def test_the_target_is_not_elected_before_the_consent() -> None:
    moving = begun(THREE, 2)
    dead = moving.apply_batch(fence(moving, 1, 1))
    assert placed(dead).leader == NO_LEADER
    target = dead.apply_batch([broker_change(2, fenced=True)])
    assert placed(target.apply_batch(unfence(target, 2, 1))).leader == NO_LEADER
    with pytest.raises(LeaderNotAvailable):
        elect_unclean(dead, "a", 0)
    assert [each.partition_change.index for each in lead_everything(moving, 2)] == []
    assert placed(dead.apply_batch(unfence(dead, 1, 1))).leader == 1, "the move continues with its leader"


def test_new_partitions_have_as_many_replicas_as_the_moved_one() -> None:
    moving = begun(THREE, 2)
    grown = moving.apply_batch(create_partitions(moving, "a", 3, None))
    assert len(grown.topics[A].partitions[2].replicas) == 1
