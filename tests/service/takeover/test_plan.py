"""The live topics that a take-over finds when the metadata snapshot and the files in the bucket differ in age."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from immutables import Map

from grpc_api.contract.topics import Resource, ResourceKind
from service.metadata.image import MetadataImage
from service.metadata.parts import BrokerImage, DeletingTopic, PartitionImage, TopicImage
from service.metadata.planner import PRODUCER_ID_GAP
from service.metadata.registrations import register
from service.takeover.plan import (
    EPOCH_GAP,
    Claimed,
    Inventory,
    SeenTopic,
    inventory,
    least_epoch,
    records,
)
from storage_tiers.cold.manifest.model import State
from storage_tiers.cold.manifest.topic_file import TopicState
from storage_tiers.types import TopicId

A, B, C = (TopicId(bytes([number] * 16)) for number in (1, 2, 3))


def known(live: TopicId | None = None, deleting: TopicId | None = None, partitions: int = 1) -> MetadataImage:
    made = tuple(PartitionImage(number, 1, 7, 9, (1,), (1,)) for number in range(partitions))
    return MetadataImage(
        cluster_id="c",
        topics=Map({} if live is None else {live: TopicImage("t", live, made)}),
        topic_ids=Map({} if live is None else {"t": live}),
        deleting={} if deleting is None else {deleting: DeletingTopic("t", deleting, 2)},
        configs=Map(
            {
                Resource(ResourceKind.TOPIC, "t"): {"retention.ms": "1"},
                Resource(ResourceKind.BROKER, ""): {"num.partitions": "3"},
            }
        ),
        features={"f": 2},
        next_producer_id=5000,
    )


def gone(deleted: TopicId, live: TopicId | None = None) -> MetadataImage:
    return replace(known(live), gone=(deleted,))


def seen(
    topic_id: TopicId | None,
    state: State = State.LIVE,
    *,
    earlier: Sequence[TopicId] = (),
    manifests: Mapping[TopicId, Sequence[int]] | None = None,
) -> SeenTopic:
    file = TopicState("c", "t", topic_id, state, 3, 1, {"retention.ms": "2"}, tuple(earlier)) if topic_id else None
    return SeenTopic("t", file, manifests or {})


def told(found: Inventory) -> tuple[list[TopicId], list[TopicId]]:
    return [topic.topic_id for topic in found.live], [topic.topic_id for topic in found.doomed]


@pytest.mark.parametrize(
    ("snapshot", "topic", "live", "doomed"),
    [
        (None, seen(A), [A], []),
        (None, seen(A, State.DELETED), [], [A]),
        (None, seen(None, manifests={A: [0]}), [], [A]),
        (known(A), seen(None), [A], []),
        (known(A), seen(A), [A], []),
        (known(A), seen(A, State.DELETED), [], [A]),
        (known(A), seen(B, earlier=[A]), [B], [A]),
        (known(A), seen(B), [B], [A]),
        (known(B), seen(A, State.DELETED), [B], [A]),
        (known(B, deleting=A), seen(A), [B], [A]),
        (known(deleting=A), seen(A), [], [A]),
        (known(B, deleting=A), seen(B, earlier=[A]), [B], [A]),
        (known(B), seen(C, earlier=[A, B], manifests={A: [0], B: [0, 1], C: [5]}), [C], [A, B]),
        # The topic was fully deleted, and then somebody restored its objects and its file by hand.
        (gone(A), seen(A), [], [A]),
        (gone(A), seen(A, manifests={A: [0]}), [], [A]),
        (gone(A), seen(None, manifests={A: [0]}), [], [A]),
        (gone(A, live=B), seen(A, manifests={A: [0], B: [0]}), [B], [A]),
        (gone(A), seen(B, manifests={A: [0], B: [0]}), [B], [A]),
    ],
)
def test_topic_ids_are_live_or_deleted_as_the_snapshot_and_the_bucket_show(
    snapshot: MetadataImage | None, topic: SeenTopic, live: list[TopicId], doomed: list[TopicId]
) -> None:
    assert told(inventory(snapshot, [topic])) == (live, doomed)


@pytest.mark.parametrize(
    ("snapshot", "topic", "unexplained"),
    [
        (None, seen(None, manifests={A: [0]}), [A]),
        (None, seen(None, manifests={A: []}), [A]),
        (None, seen(A, State.DELETED, manifests={A: [0], B: [0]}), [B]),
        (None, seen(A, manifests={A: [0], B: [0]}), [B]),
        (known(B), seen(A, manifests={A: [0], B: [0]}), [B]),
        (known(A), seen(A, State.DELETED, manifests={A: [0]}), []),
        (known(A), seen(B), []),
        (known(A), seen(B, earlier=[A], manifests={A: [0], B: [0]}), []),
        (known(B, deleting=A), seen(None, manifests={A: [0], B: [0]}), []),
        (gone(A), seen(None, manifests={A: [0]}), []),
        (gone(A, live=B), seen(A, manifests={A: [0], B: [0]}), []),
    ],
)
def test_no_topic_id_is_deleted_without_evidence_of_its_deletion(
    snapshot: MetadataImage | None, topic: SeenTopic, unexplained: list[TopicId]
) -> None:
    found = inventory(snapshot, [topic])
    assert [gone.topic_id for gone in found.unexplained] == unexplained
    assert set(found.unexplained) <= set(found.doomed)


def test_deleted_topics_stay_deleted_in_the_next_take_over() -> None:
    before = gone(A)
    after = MetadataImage().apply_batch(records(before, inventory(before, [seen(A)]), {}, node_id=1))
    assert (after.gone, list(after.deleting)) == ((A,), [A])


def test_a_topic_has_as_many_partitions_as_anything_shows() -> None:
    (topic,) = inventory(known(A, partitions=2), [seen(A)]).live
    assert (topic.partitions, topic.configs) == (3, {"retention.ms": "2"})
    (topic,) = inventory(known(A, partitions=4), [seen(A)]).live
    assert topic.partitions == 4
    (topic,) = inventory(known(A), [seen(A, manifests={A: [0, 8]})]).live
    assert topic.partitions == 9
    (topic,) = inventory(known(A), []).live
    assert (topic.partitions, topic.configs) == (1, {"retention.ms": "1"})
    (gone,) = inventory(known(deleting=A), [seen(A, State.DELETED, manifests={A: [4]})]).doomed
    assert gone.partitions == 5


def test_epochs_and_producer_ids_begin_far_above_all_that_is_known() -> None:
    snapshot = known(A, partitions=2)
    found = inventory(snapshot, [seen(A)])
    claimed = {(A, 0): Claimed(7, 0, 5, 0), (A, 1): Claimed(20, 0, 5, 0, producer_id=9000), (A, 2): Claimed(0, 0, 0, 0)}
    image = MetadataImage(cluster_id="c").apply_batch(records(snapshot, found, claimed, node_id=4))
    partitions = image.topics[A].partitions
    assert [each.leader_epoch - EPOCH_GAP for each in partitions] == [7, 20, 0]
    assert [each.partition_epoch - EPOCH_GAP for each in partitions] == [9, 9, 0]
    assert {each.replicas for each in partitions} == {(4,)}
    assert image.next_producer_id == 9001 + PRODUCER_ID_GAP
    assert image.features == {"f": 2}
    assert image.broker_config(None) == {"num.partitions": "3"}
    assert image.topic_config("t") == {"retention.ms": "2"}
    assert least_epoch(snapshot, A, 1) == 7
    assert least_epoch(snapshot, A, 2) == least_epoch(None, A, 0) == -1


@pytest.mark.parametrize(
    ("brokers", "removed", "floor"),
    [
        pytest.param({1: 3, 2: 7}, 5, 7, id="a broker that the take-over drops has the highest epoch"),
        pytest.param({1: 3, 2: 4}, 9, 9, id="a broker that was removed before has it"),
        pytest.param({}, 0, 0, id="no broker is known"),
    ],
)
def test_a_broker_that_registers_later_has_an_epoch_of_no_process_of_the_old_cluster(
    brokers: Mapping[int, int], removed: int, floor: int
) -> None:
    registered = {number: BrokerImage(number, epoch, b"disk", (), None) for number, epoch in brokers.items()}
    snapshot = replace(known(A), brokers=registered, gone_broker_epoch=removed)
    claimed = {(A, 0): Claimed(7, 0, 5, 0)}
    image = MetadataImage(cluster_id="c").apply_batch(records(snapshot, inventory(snapshot, []), claimed, node_id=1))
    assert set(image.brokers) == set(brokers) & {1}, "the others are no part of the new cluster"
    assert image.gone_broker_epoch == floor + EPOCH_GAP
    assert register(image, 2, b"disk", (), None).broker_epoch == floor + EPOCH_GAP + 1
