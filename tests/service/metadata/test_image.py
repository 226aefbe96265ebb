"""Metadata records build immutable images; an image refuses records that do not fit it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpc_api.contract.topics import Resource, ResourceKind
from service.metadata import records_pb2 as pb
from service.metadata.delta import MAX_GONE_TOPICS, MAX_UNCONFIRMED_STARTS
from service.metadata.image import MetadataImage
from service.metadata.parts import Changes, DeletingTopic, PartitionImage, SessionImage, StartImage
from service.metadata.snapshot import partition_record, to_records, topic_files_record
from storage_tiers.errors import MetadataCorrupt
from tests.service.metadata.records import (
    broker,
    broker_change,
    command,
    configured,
    deleted,
    elected,
    forgotten,
    new_topic,
    topic_id,
    unregistered,
)


def image_of(*records: pb.MetadataRecord) -> MetadataImage:
    return MetadataImage().apply_batch(records)


def test_a_topic_is_found_by_name_and_by_id() -> None:
    image = image_of(*new_topic("flights", 7, partitions=2))
    topic = image.topic("flights")
    assert topic is not None
    assert topic is image.topic_by_id(topic_id(7))
    assert topic.partitions == (PartitionImage(0, 1, 0, 0, (1,), (1,)), PartitionImage(1, 1, 0, 0, (1,), (1,)))
    assert image.partition("flights", 1) == topic.partitions[1]
    assert image.partition("flights", 2) is None
    assert image.partition("flights", -1) is None
    assert image.topic("trains") is None


def test_an_older_image_is_unchanged_and_shares_unchanged_parts() -> None:
    old = image_of(*new_topic("a", 1, 3), *new_topic("b", 2), configured("a", "retention.ms", "5"))
    new = old.apply(elected(1, 1, 4))
    assert [p.leader for p in old.topics[topic_id(1)].partitions] == [1, 1, 1]
    assert [p.leader for p in new.topics[topic_id(1)].partitions] == [1, 4, 1]
    assert new.topics[topic_id(2)] is old.topics[topic_id(2)]
    assert new.topics[topic_id(1)].partitions[0] is old.topics[topic_id(1)].partitions[0]
    assert new.configs is old.configs
    assert new.topic_ids is old.topic_ids
    assert old.apply_batch([]) == old


def test_every_election_raises_the_leader_epoch_also_of_the_same_leader() -> None:
    image = image_of(*new_topic("a", 1)).apply_batch([elected(1, 0, 1), elected(1, 0, 1)])
    assert image.partition("a", 0) == PartitionImage(0, 1, 2, 2, (1,), (1,))


def test_a_change_without_a_leader_keeps_the_leader_epoch() -> None:
    change = pb.PartitionChangeRecord(
        topic_id=topic_id(1), index=0, isr=pb.ReplicaList(nodes=[2]), replicas=pb.ReplicaList(nodes=[1, 2])
    )
    image = image_of(*new_topic("a", 1)).apply(pb.MetadataRecord(partition_change=change))
    assert image.partition("a", 0) == PartitionImage(0, 1, 0, 1, (1, 2), (2,))


def test_an_isr_may_become_empty() -> None:
    change = pb.PartitionChangeRecord(topic_id=topic_id(1), index=0, leader=-1, isr=pb.ReplicaList())
    image = image_of(*new_topic("a", 1)).apply(pb.MetadataRecord(partition_change=change))
    assert image.partition("a", 0) == PartitionImage(0, -1, 1, 1, (1,), ())


def test_a_change_sets_only_the_fields_that_it_has() -> None:
    whole = PartitionImage(0, 1, 0, 0, (1, 2), (1,), (b"a", b"b"), (2,), (3,), (4,), (5,), recovering=True)
    record = pb.MetadataRecord(partition=partition_record(topic_id(1), whole))
    image = image_of(new_topic("a", 1)[0], record)
    assert image.partition("a", 0) == whole

    def changed(**fields: Any) -> PartitionImage | None:
        change = pb.PartitionChangeRecord(topic_id=topic_id(1), index=0, **fields)
        return image.apply(pb.MetadataRecord(partition_change=change)).partition("a", 0)

    assert changed() == replace(whole, partition_epoch=1)
    assert changed(directories=pb.DirectoryList(ids=[b"c"])) == replace(whole, partition_epoch=1, directories=(b"c",))
    assert changed(recovering=False) == replace(whole, partition_epoch=1, recovering=False)
    assert changed(removing=pb.ReplicaList()) == replace(whole, partition_epoch=1, removing=())
    for name in ("adding", "eligible_leaders", "last_known_leaders"):
        given: Any = {name: pb.ReplicaList(nodes=[7])}
        wanted: Any = {name: (7,)}
        assert changed(**given) == replace(whole, partition_epoch=1, **wanted)


def test_a_broker_is_fenced_shuts_down_and_leaves() -> None:
    image = image_of(broker(1, epoch=3), broker(2))
    assert [each.may_lead for each in image.brokers.values()] == [True, True]
    fenced = image.apply(broker_change(1, epoch=3, fenced=True))
    assert [each.may_lead for each in fenced.brokers.values()] == [False, True]
    assert fenced.apply(broker_change(1, epoch=3, fenced=False)) == image
    leaving = image.apply(broker_change(1, epoch=3, shutting_down=True)).brokers[1]
    assert (leaving.fenced, leaving.shutting_down, leaving.may_lead) == (False, True, False)
    assert list(image.apply(unregistered(1, epoch=3)).brokers) == [2]


def test_results_of_commands_stay_until_their_broker_has_them() -> None:
    image = image_of(broker(1), command(1, 1), command(1, 2), command(1, 4, answered_below=2))
    assert image.sessions[1] == SessionImage(1, 2, {2: b"2", 4: b"4"})
    assert image.apply(command(1, 5)).sessions[1].answered_below == 2, "`answered_below` never falls"
    assert image.apply(broker(1, epoch=2)).sessions == {}, "the new registration's commands are others"
    assert image.apply(unregistered(1)).sessions == {}


def test_a_change_takes_no_memory_that_grows_with_the_topics() -> None:
    """A copied dictionary of 10,000 topics has 300 KB and more."""
    image = image_of(*(record for number in range(1, 10_000) for record in new_topic(f"t.{number}", number)))
    changes = ([elected(1, 0, 2)], new_topic("more.1", 20_000), [configured("t.1", "retention.ms", "5")], [deleted(1)])
    for change in changes:
        tracemalloc.start()
        try:
            image = image.apply_batch(change)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 50_000


def test_deleting_frees_the_name_and_keeps_the_partition_count_until_forgotten() -> None:
    created = image_of(
        *new_topic("a", 1, 5), configured("a", "retention.ms", "5"), configured("b", "retention.ms", "6")
    )
    deleting = created.apply(deleted(1))
    assert deleting.topic("a") is None
    assert deleting.topic_config("a") == {}
    assert deleting.topic_config("b") == {"retention.ms": "6"}
    assert deleting.deleting == {topic_id(1): DeletingTopic("a", topic_id(1), 5)}
    again = deleting.apply_batch(new_topic("a", 2))
    assert dict(again.topic_ids) == {"a": topic_id(2)}
    assert again.apply(forgotten(1)).deleting == {}


def test_create_configure_delete_and_create_again_in_one_batch() -> None:
    image = image_of(
        *new_topic("a", 1, 3),
        configured("a", "retention.ms", "5"),
        elected(1, 2, 9),
        deleted(1),
        *new_topic("a", 2),
        configured("a", "segment.ms", "7"),
        forgotten(1),
    )
    assert dict(image.topic_ids) == {"a": topic_id(2)}
    assert image.topic_config("a") == {"segment.ms": "7"}
    assert image.deleting == {}


def test_configs_of_topics_brokers_and_all_brokers_are_apart() -> None:
    def record(kind: int, name: str, value: str | None) -> pb.MetadataRecord:
        return pb.MetadataRecord(config=pb.ConfigRecord(resource_kind=kind, resource_name=name, key="k", value=value))

    image = image_of(record(2, "1", "topic"), record(4, "1", "broker"), record(4, "", "every broker"))
    assert image.topic_config("1") == {"k": "topic"}
    assert image.broker_config(1) == {"k": "broker"}
    assert image.broker_config(None) == {"k": "every broker"}
    assert image.broker_config(2) == {}
    emptied = image.apply(record(4, "1", None))
    assert Resource(ResourceKind.BROKER, "1") not in emptied.configs
    assert image.broker_config(1) == {"k": "broker"}


def test_an_empty_config_value_is_not_an_absent_one() -> None:
    assert image_of(configured("a", "cleanup.policy", "")).topic_config("a") == {"cleanup.policy": ""}


def test_completely_deleted_topics_are_remembered_for_a_while() -> None:
    image = image_of(*new_topic("a", 1), *new_topic("b", 2), deleted(1), forgotten(1), deleted(2), forgotten(2))
    assert image.gone == (topic_id(1), topic_id(2))
    many = [bytes(14) + number.to_bytes(2, "big") for number in range(MAX_GONE_TOPICS + 5)]
    kept = image.apply(pb.MetadataRecord(gone_topics=pb.GoneTopicsRecord(topic_ids=many))).gone
    assert kept == tuple(many[5:])


def test_revisions_of_topic_files_rise_and_end_with_their_topics() -> None:
    image = image_of(*new_topic("a", 1), *new_topic("b", 2))
    seen = {topic_id(1): 4, topic_id(2): 2, topic_id(3): 9}
    image = image.apply(pb.MetadataRecord(topic_files=topic_files_record(seen)))
    assert dict(image.topic_files) == {topic_id(1): 4, topic_id(2): 2}
    image = image.apply(pb.MetadataRecord(topic_files=topic_files_record({topic_id(1): 3, topic_id(2): 5})))
    assert dict(image.topic_files) == {topic_id(1): 4, topic_id(2): 5}
    assert MetadataImage().apply_batch(to_records(image)) == image
    assert dict(image.apply(deleted(1)).topic_files) == {topic_id(2): 5}


def test_an_image_has_feature_levels_and_the_cluster_id() -> None:
    level = pb.MetadataRecord(feature_level=pb.FeatureLevelRecord(name="metadata.version", level=1))
    gone = pb.MetadataRecord(feature_level=pb.FeatureLevelRecord(name="metadata.version", level=0))
    named = pb.MetadataRecord(cluster=pb.ClusterRecord(cluster_id="abc"))
    assert image_of(level, named).features == {"metadata.version": 1}
    assert image_of(level, gone).features == {}
    assert image_of(named, named).cluster_id == "abc"


def test_a_start_stays_unconfirmed_until_the_bucket_names_it() -> None:
    def start(number: int) -> pb.MetadataRecord:
        record = pb.StartRecord(node_id=1, incarnation=4, start_id=number.to_bytes(16, "big"))
        return pb.MetadataRecord(start=record)

    image = image_of(start(1), start(2))
    assert image.incarnation == 0
    assert [s.start_id[-1] for s in image.unconfirmed_starts] == [1, 2]
    confirmed = pb.MetadataRecord(start_confirmed=pb.StartConfirmedRecord(incarnation=4, start_id=b"2"))
    assert image.apply(confirmed).unconfirmed_starts == ()
    assert (image.apply(confirmed).incarnation, image.apply(confirmed).start_id) == (4, b"2")
    many = image_of(*(start(number) for number in range(MAX_UNCONFIRMED_STARTS + 5)))
    assert len(many.unconfirmed_starts) == MAX_UNCONFIRMED_STARTS
    assert many.unconfirmed_starts[0] == StartImage(1, 4, (5).to_bytes(16, "big"))


MISFITS: dict[str, tuple[Callable[[], pb.MetadataRecord], str]] = {
    "a name twice": (lambda: new_topic("a", 9)[0], "exists already"),
    "an id twice": (lambda: new_topic("b", 1)[0], "to a second topic"),
    "the id of a deleting topic": (lambda: new_topic("b", 2)[0], "to a second topic"),
    "a short id": (lambda: pb.MetadataRecord(topic=pb.TopicRecord(name="b", topic_id=b"1")), "of 1 bytes"),
    "a partition of nothing": (lambda: new_topic("b", 9)[1], "not live"),
    "a gap in the partitions": (lambda: new_topic("b", 1, 3)[3], "makes partition 2"),
    "a change of no partition": (lambda: elected(1, 1, 1), "changes partition 1"),
    "a change in a deleting topic": (lambda: elected(2, 0, 1), "not live"),
    "a second deletion": (lambda: deleted(2), "not live"),
    "forgetting what lives": (lambda: forgotten(1), "not being deleted"),
    "a stale broker": (lambda: broker(1, epoch=3), "not above its last, 3"),
    "a change of another registration": (lambda: broker_change(1, epoch=2, fenced=True), "broker 1 of epoch 2"),
    "a change of no broker": (lambda: broker_change(9, fenced=True), "broker 9 of epoch 1"),
    "an unregistration of another one": (lambda: unregistered(1, epoch=2), "broker 1 of epoch 2"),
    "a command of another registration": (lambda: command(1, 1, epoch=2), "broker 1 of epoch 2"),
    "producer ids again": (
        lambda: pb.MetadataRecord(producer_id_block=pb.ProducerIdBlockRecord(first_producer_id=999, count=1000)),
        "the next one is 1000",
    ),
    "another cluster": (lambda: pb.MetadataRecord(cluster=pb.ClusterRecord(cluster_id="other")), "another cluster"),
    "an older incarnation": (
        lambda: pb.MetadataRecord(start_confirmed=pb.StartConfirmedRecord(incarnation=1)),
        "confirms incarnation 1 after 2",
    ),
    "an unknown resource": (lambda: pb.MetadataRecord(config=pb.ConfigRecord(resource_kind=77)), "unknown kind 77"),
    "a record of a newer version": (lambda: pb.MetadataRecord.FromString(b"\xfa\x06\x00"), "does not know"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_a_record_that_does_not_fit_is_refused_with_its_whole_batch(case: str) -> None:
    image = image_of(
        *new_topic("a", 1),
        *new_topic("gone", 2),
        deleted(2),
        broker(1, epoch=3),
        pb.MetadataRecord(producer_id_block=pb.ProducerIdBlockRecord(first_producer_id=0, count=1000)),
        pb.MetadataRecord(cluster=pb.ClusterRecord(cluster_id="abc")),
        pb.MetadataRecord(start_confirmed=pb.StartConfirmedRecord(incarnation=2)),
    )
    before = list(to_records(image))
    misfit, message = MISFITS[case]
    with pytest.raises(MetadataCorrupt, match=message):
        image.apply_batch([*new_topic("whole", 50), misfit()])
    assert list(to_records(image)) == before


def test_ten_thousand_elections_build_the_next_image_once() -> None:
    image = image_of(*new_topic("big", 1, 10_000), *new_topic("other", 2))
    after = image.apply_batch(elected(1, index, 1) for index in range(10_000))
    assert {p.leader_epoch for p in after.topics[topic_id(1)].partitions} == {1}
    assert after.topics[topic_id(2)] is image.topics[topic_id(2)]


# --- any history ------------------------------------------------------------------------------------------------------

STEPS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4), st.integers(0, 3)), max_size=40)


def history(steps: list[tuple[int, int, int]]) -> MetadataImage:
    """Applies every step that fits, and skips the others."""
    image = MetadataImage()
    for serial, (kind, one, two) in enumerate(steps):
        name = f"t{one}"
        live = image.topic_ids.get(name)
        number = int.from_bytes(live, "big") if live is not None else serial + 100
        epoch = image.brokers[one].broker_epoch if one in image.brokers else 1
        choices: list[Callable[[], list[pb.MetadataRecord]]] = [
            lambda: new_topic(name, serial + 100, two + 1),  # noqa: B023
            lambda: [elected(number, two, one)],  # noqa: B023
            lambda: [deleted(number)],  # noqa: B023
            lambda: [forgotten(int.from_bytes(next(iter(image.deleting), b""), "big"))],  # noqa: B023
            lambda: [configured(name, f"k{two}", f"v{serial}" if two else None)],  # noqa: B023
            lambda: [broker(one, epoch=serial + 1, rack="r" if two else None)],  # noqa: B023
            lambda: [
                pb.MetadataRecord(start=pb.StartRecord(node_id=1, incarnation=serial, start_id=bytes(16))),  # noqa: B023
                pb.MetadataRecord(
                    producer_id_block=pb.ProducerIdBlockRecord(first_producer_id=serial * 1000, count=1000)  # noqa: B023
                ),
            ],
            lambda: [broker_change(one, epoch=epoch, fenced=bool(two & 1), shutting_down=bool(two & 2))],  # noqa: B023
            lambda: [unregistered(one, epoch=epoch)],  # noqa: B023
            lambda: [command(one, serial, epoch=epoch, answered_below=serial - two)],  # noqa: B023
        ]
        try:
            image = image.apply_batch(choices[kind]())
        except (MetadataCorrupt, OverflowError):
            continue
    return image


@settings(max_examples=200, deadline=None)
@given(steps=STEPS)
def test_a_snapshot_makes_the_same_image(steps: list[tuple[int, int, int]]) -> None:
    image = history(steps)
    encoded = pb.MetadataBatch(records=to_records(image)).SerializeToString()
    assert MetadataImage().apply_batch(pb.MetadataBatch.FromString(encoded).records) == image


def test_an_image_lists_what_its_batch_touched() -> None:
    image = image_of(*new_topic("a", 1), *new_topic("b", 2), configured("b", "retention.ms", "5"))
    assert image.changes.topics == (topic_id(1), topic_id(2))
    assert image.changes.configs == (Resource(ResourceKind.TOPIC, "b"),)
    for record, topics in (
        (elected(1, 0, 2), (topic_id(1),)),
        (deleted(1), (topic_id(1),)),
        (forgotten(1), (topic_id(1),)),
    ):
        image = image.apply(record)
        assert image.changes == Changes(topics)
    assert image.apply(broker(1)).changes == Changes(brokers=(1,))
    assert image_of(broker(1), broker(2)).apply(broker_change(2, fenced=True)).changes == Changes(brokers=(2,))
    joined = Changes.joined((Changes((topic_id(2), topic_id(1))), Changes((topic_id(1), topic_id(3)))))
    assert joined == Changes((topic_id(2), topic_id(1), topic_id(3)))
    assert Changes.joined((Changes(brokers=(2, 1)), Changes(brokers=(1,)))) == Changes(brokers=(2, 1))
