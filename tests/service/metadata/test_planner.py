"""The planner against Apache Kafka 4.2.1: each expected error and message is Kafka's own answer to the same request."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest

from grpc_api.contract.topics import Endpoint, NewTopic
from service.configs.resolve import Resolver, check_static
from service.metadata import placement, planner, registrations
from service.metadata import records_pb2 as pb
from service.metadata.image import MetadataImage
from service.metadata.planner import create_partitions, create_topic, delete_topic, delete_topic_by_id
from storage_tiers.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    LogError,
    PolicyViolation,
    TopicDeletionDisabled,
    TopicExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from storage_tiers.types import TopicId
from tests.service.metadata.records import broker_change, deleted, image_with_brokers, new_topic, topic_id
from tests.support.clock import SeededRng

CONFIGS = Resolver({}, node_id=1, has_store=False)
ONE = image_with_brokers([None]).apply_batch(new_topic("a.b", 1, 3))


def refused(error: type[LogError], message: str, topic: NewTopic) -> None:
    with pytest.raises(error) as raised:
        create_topic(ONE, topic, CONFIGS, topic_id(9))
    assert type(raised.value) is error
    assert str(raised.value) == message


ILLEGAL = "contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
NAMES = {
    "": "the empty string is not allowed",
    ".": "'.' is not allowed",
    "..": "'..' is not allowed",
    "a" * 250: f"the length of '{'a' * 250}' is longer than the max allowed length 249",
    "a b": f"'a b' {ILLEGAL}",
    "ä": f"'ä' {ILLEGAL}",
    "a/b": f"'a/b' {ILLEGAL}",
    "a\n": f"'a\n' {ILLEGAL}",
}


@pytest.mark.parametrize("name", NAMES)
def test_illegal_names_are_refused(name: str) -> None:
    refused(InvalidTopic, f"Topic name is invalid: {NAMES[name]}", NewTopic(name, 1, 1))


@pytest.mark.parametrize("name", ["a", "-", "_", "...", "A.b_c-9", "a" * 249])
def test_legal_names_are_accepted(name: str) -> None:
    assert create_topic(ONE, NewTopic(name, 1, 1), CONFIGS, topic_id(9)).partitions == 1


def test_names_that_metrics_could_not_tell_apart_collide() -> None:
    refused(InvalidTopic, "Topic 'a_b' collides with existing topic: a.b", NewTopic("a_b", 1, 1))


def test_an_existing_name_is_reported_before_any_other_error() -> None:
    refused(TopicExists, "Topic 'a.b' already exists.", NewTopic("a.b", 0, 0, {"nope": "1"}))


def test_the_name_of_the_metadata_log_is_reserved() -> None:
    refused(
        InvalidRequest,
        "Creation of internal topic __cluster_metadata is prohibited.",
        NewTopic("__cluster_metadata", 1, 1),
    )


POSITIVE = "Number of partitions was set to an invalid non-positive value."
FACTOR = "Replication factor must be larger than 0, or -1 to use the default value."
EXCESSIVE = "Excessively large number of partitions per request."
SIZES: Sequence[tuple[int, int, type[LogError], str]] = [
    (0, 1, InvalidPartitions, POSITIVE),
    (-2, 1, InvalidPartitions, POSITIVE),
    (1, 0, InvalidReplicationFactor, FACTOR),
    (1, -2, InvalidReplicationFactor, FACTOR),
    (0, 0, InvalidReplicationFactor, FACTOR),
    (
        1,
        2,
        InvalidReplicationFactor,
        "Unable to replicate the partition 2 time(s): The target replication factor of 2 cannot be reached because only "
        "1 broker(s) are registered.",
    ),
    (10_001, 1, PolicyViolation, EXCESSIVE),
    (100_000, 1, PolicyViolation, EXCESSIVE),
]


@pytest.mark.parametrize(("partitions", "factor", "error", "message"), SIZES)
def test_illegal_sizes_are_refused(partitions: int, factor: int, error: type[LogError], message: str) -> None:
    refused(error, message, NewTopic("t", partitions, factor))


def test_sizes_default_to_the_brokers_configs() -> None:
    configs = Resolver(check_static({"num.partitions": "7"}), node_id=1, has_store=False)
    plan = create_topic(ONE, NewTopic("t"), configs, topic_id(9))
    assert (plan.partitions, plan.replication_factor) == (7, 1)


MANUAL: Sequence[tuple[int, int, Mapping[int, Sequence[int]], type[LogError], str]] = [
    (
        1,
        -1,
        {0: [1]},
        InvalidRequest,
        "A manual partition assignment was specified, but numPartitions was not set to -1.",
    ),
    (
        1,
        1,
        {0: [1]},
        InvalidRequest,
        "A manual partition assignment was specified, but replication factor was not set to -1.",
    ),
    (
        -1,
        -1,
        {1: [1]},
        InvalidReplicaAssignment,
        "partitions should be a consecutive 0-based integer sequence",
    ),
    (
        -1,
        -1,
        {0: [1], 2: [1]},
        InvalidReplicaAssignment,
        "partitions should be a consecutive 0-based integer sequence",
    ),
    (-1, -1, {-1: [1]}, InvalidReplicaAssignment, "partitions should be a consecutive 0-based integer sequence"),
    (-1, -1, {0: []}, InvalidReplicaAssignment, "The manual partition assignment includes an empty replica list."),
    (
        -1,
        -1,
        {0: [1, 1]},
        InvalidReplicaAssignment,
        "The manual partition assignment includes the broker 1 more than once.",
    ),
    (
        -1,
        -1,
        {0: [1], 1: [1, 2]},
        InvalidReplicaAssignment,
        "The manual partition assignment includes broker 2, but no such broker is registered.",
    ),
]


@pytest.mark.parametrize(("partitions", "factor", "assignments", "error", "message"), MANUAL)
def test_illegal_assignments_are_refused(
    partitions: int, factor: int, assignments: Mapping[int, Sequence[int]], error: type[LogError], message: str
) -> None:
    refused(error, message, NewTopic("t", partitions, factor, assignments=assignments))


def test_unknown_and_illegal_configs_are_refused() -> None:
    refused(InvalidConfig, "Unknown topic config name: nope", NewTopic("t", configs={"nope": "1"}))
    refused(
        InvalidConfig,
        "Null value not supported for topic configs: retention.ms",
        NewTopic("t", configs={"retention.ms": None}),
    )


def test_a_new_topic_is_led_by_its_first_replica_at_epoch_zero() -> None:
    image = image_with_brokers([None, None])
    plan = create_topic(
        image,
        NewTopic("t", configs={"segment.ms": "5"}, assignments={1: [2], 0: [1]}),
        CONFIGS,
        topic_id(9),
    )
    assert (plan.topic_id, plan.partitions, plan.replication_factor) == (topic_id(9), 2, 1)
    created = image.apply_batch(plan.records)
    topic = created.topic("t")
    assert topic is not None
    assert [(p.leader, p.leader_epoch, p.replicas, p.isr) for p in topic.partitions] == [
        (1, 0, (1,), (1,)),
        (2, 0, (2,), (2,)),
    ]
    assert created.topic_config("t") == {"segment.ms": "5"}


def test_a_validated_topic_is_planned_without_records() -> None:
    """The request has forty bytes, may ask for 10,000 partitions, and can be repeated without end."""
    plan = create_topic(ONE, NewTopic("t", 10_000, 1), CONFIGS, topic_id(9), validate_only=True)
    assert plan == ((), topic_id(9), 10_000, 1)


def test_partitions_of_the_same_replicas_have_records_of_their_own() -> None:
    image = image_with_brokers(["a", "b"])
    made = create_topic(image, NewTopic("t", 5, 1), CONFIGS, topic_id(9)).records[1:6]
    assert [each.partition.index for each in made] == [0, 1, 2, 3, 4]
    leaders = [each.partition.leader for each in made]
    assert [list(each.partition.replicas) for each in made] == [[leader] for leader in leaders]
    assert leaders[0] != leaders[1] == leaders[3]


def test_a_partition_has_one_replica_whatever_is_asked_for_or_configured() -> None:
    image = image_with_brokers([None] * 3)
    three = Resolver(check_static({"default.replication.factor": "3"}), node_id=1, has_store=False)
    for topic, configs in (
        (NewTopic("t", 1, 2), CONFIGS),
        (NewTopic("t"), three),
        (NewTopic("t", assignments={0: [1, 2]}), CONFIGS),
    ):
        with pytest.raises(InvalidReplicationFactor, match=r"ask for a replication factor of 1\."):
            create_topic(image, topic, configs, topic_id(9))
    assert create_topic(image, NewTopic("t", 1, 1), three, topic_id(9)).replication_factor == 1


def test_brokers_that_may_not_lead_get_no_partition() -> None:
    image = image_with_brokers([None] * 3).apply_batch(
        [broker_change(1, fenced=True), broker_change(3, shutting_down=True)]
    )
    made = image.apply_batch(create_topic(image, NewTopic("t", 4, 1), CONFIGS, topic_id(9)).records)
    assert {(p.leader, p.directories) for p in made.topics[topic_id(9)].partitions} == {(2, (b"disk",))}
    for broker_id in (1, 3):
        with pytest.raises(InvalidReplicaAssignment, match="for partition 0 are fenced or in controlled shutdown"):
            create_topic(image, NewTopic("t", assignments={0: [broker_id]}), CONFIGS, topic_id(9))
    alone = image.apply(broker_change(2, fenced=True))
    with pytest.raises(InvalidReplicationFactor, match="All brokers are currently fenced"):
        create_topic(alone, NewTopic("t", 1, 1), CONFIGS, topic_id(9))


# --- more partitions --------------------------------------------------------------------------------------------------

GROWTH: Sequence[tuple[int, Sequence[Sequence[int]] | None, type[LogError], str]] = [
    (3, None, InvalidPartitions, "Topic already has 3 partition(s)."),
    (2, None, InvalidPartitions, "The topic a.b currently has 3 partition(s); 2 would not be an increase."),
    (-1, None, InvalidPartitions, "The topic a.b currently has 3 partition(s); -1 would not be an increase."),
    (20_000, None, PolicyViolation, EXCESSIVE),
    (
        4,
        [],
        InvalidReplicaAssignment,
        "Attempted to add 1 additional partition(s), but only 0 assignment(s) were specified.",
    ),
    (
        5,
        [[1]],
        InvalidReplicaAssignment,
        "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
    ),
    (4, [[1, 1]], InvalidReplicaAssignment, "The manual partition assignment includes the broker 1 more than once."),
    (
        4,
        [[2]],
        InvalidReplicaAssignment,
        "The manual partition assignment includes broker 2, but no such broker is registered.",
    ),
    (4, [[]], InvalidReplicaAssignment, "The manual partition assignment includes an empty replica list."),
]


@pytest.mark.parametrize(("count", "assignments", "error", "message"), GROWTH)
def test_illegal_growth_is_refused(
    count: int, assignments: Sequence[Sequence[int]] | None, error: type[LogError], message: str
) -> None:
    with pytest.raises(error) as raised:
        create_partitions(ONE, "a.b", count, assignments)
    assert str(raised.value) == message


@pytest.mark.parametrize("assignments", [None, [[1], [1]]])
def test_growth_adds_partitions_after_the_last(assignments: Sequence[Sequence[int]] | None) -> None:
    grown = ONE.apply_batch(create_partitions(ONE, "a.b", 5, assignments)).topic("a.b")
    assert grown is not None
    assert [(p.index, p.leader, p.replicas) for p in grown.partitions] == [(i, 1, (1,)) for i in range(5)]


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_a_coordinators_topic_does_not_grow(name: str) -> None:
    """Kafka lets the topic grow, and then finds none of its groups' offsets."""
    image = ONE.apply_batch(new_topic(name, 2, 3))
    with pytest.raises(InvalidPartitions, match="keeps its 3 partition"):
        create_partitions(image, name, 4, None)
    with pytest.raises(InvalidPartitions, match="already has 3 partition"):
        create_partitions(image, name, 3, None)


def test_growth_of_an_unknown_topic_is_refused() -> None:
    with pytest.raises(UnknownTopicOrPartition):
        create_partitions(ONE, "none", 3, None)


# --- deletion ---------------------------------------------------------------------------------------------------------


def test_topics_are_deleted_by_name_and_by_id() -> None:
    records, topic = delete_topic(ONE, "a.b", CONFIGS)
    assert topic is ONE.topic("a.b")
    assert delete_topic_by_id(ONE, topic_id(1), CONFIGS) == (records, topic)
    after = ONE.apply_batch(records)
    assert after.deleting[topic_id(1)].partition_count == 3
    with pytest.raises(UnknownTopicOrPartition, match="does not host this topic-partition"):
        delete_topic(after, "a.b", CONFIGS)
    with pytest.raises(UnknownTopicId, match="does not host this topic ID"):
        delete_topic_by_id(after, topic_id(1), CONFIGS)


def test_deletion_may_be_switched_off() -> None:
    configs = Resolver(check_static({"delete.topic.enable": "false"}), node_id=1, has_store=False)
    with pytest.raises(TopicDeletionDisabled):
        delete_topic(ONE, "a.b", configs)


def test_forgetting_may_be_repeated() -> None:
    deleting = ONE.apply(deleted(1))
    forgotten = deleting.apply_batch(planner.forget_topic(deleting, topic_id(1)))
    assert forgotten.deleting == {}
    assert planner.forget_topic(forgotten, topic_id(1)) == ()


# --- ids and starts ---------------------------------------------------------------------------------------------------


def test_producer_id_blocks_follow_one_another() -> None:
    first = planner.producer_id_block(ONE, 1)
    after = ONE.apply_batch(first.records)
    second = planner.producer_id_block(after, 1)
    assert [(plan.first, plan.size) for plan in (first, second)] == [(0, 1000), (1000, 1000)]
    assert after.apply_batch(second.records).next_producer_id == 2000


def test_producer_ids_end_with_63_bits() -> None:
    last = MetadataImage(next_producer_id=planner.MAX_PRODUCER_ID - 10)
    with pytest.raises(PolicyViolation):
        planner.producer_id_block(last, 1)


class ScriptedRng(SeededRng):
    def __init__(self, *tokens: bytes) -> None:
        super().__init__(0)
        self._tokens = list(tokens)

    def token(self, size: int) -> bytes:
        return self._tokens.pop(0)


def test_a_topic_id_is_new_and_prints_well() -> None:
    image = ONE.apply_batch(new_topic("gone", 2)).apply(deleted(2))
    taken = [bytes(16), topic_id(1), topic_id(1 << 8 | 2), b"\xf8" + bytes(15)]
    image = image.apply_batch(new_topic("third", 1 << 8 | 2))
    good = bytes(range(16))
    rng = ScriptedRng(*taken, topic_id(2), good)
    assert planner.new_topic_id(image, rng) == TopicId(good)
    assert str(TopicId(taken[3])).startswith("-")


def test_a_start_registers_the_broker_again_and_raises_every_leader_epoch() -> None:
    at = Endpoint("INSIDE", "localhost", 9092)
    image = MetadataImage()
    for expected in (1, 2):
        image = image.apply_batch(planner.name_cluster(image, "cluster"))
        image = image.apply_batch(registrations.register(image, 1, b"disk", (at,), "rack").records)
        assert image.brokers[1].broker_epoch == expected
        assert image.brokers[1].endpoints == (at,)
        if expected == 1:
            plan = create_topic(image, NewTopic("t", 3), CONFIGS, topic_id(1))
            image = image.apply_batch(plan.records)
        image = image.apply_batch(planner.lead_everything(image, 1))
        assert {p.leader_epoch for p in image.topics[topic_id(1)].partitions} == {expected}
    assert planner.name_cluster(image, "cluster") == ()


def test_a_broker_leads_only_partitions_it_replicates() -> None:
    assert planner.lead_everything(ONE, 2) == ()


def test_an_incarnation_is_claimed_then_confirmed() -> None:
    claimed = ONE.apply_batch(planner.claim_incarnation(1, 5, b"me"))
    assert [start.start_id for start in claimed.unconfirmed_starts] == [b"me"]
    confirmed = claimed.apply_batch(planner.confirm_incarnation(5, b"me"))
    assert (confirmed.incarnation, confirmed.start_id, confirmed.unconfirmed_starts) == (5, b"me", ())


# --- placement --------------------------------------------------------------------------------------------------------


def placed(racks: Sequence[str | None], partitions: int, factor: int) -> list[tuple[int, ...]]:
    brokers = list(image_with_brokers(racks).brokers.values())
    found = placement.place(brokers, 0, partitions, factor, topic_id(1 << 70))
    assert len(found) == partitions
    return found


def test_leaders_are_spread_evenly() -> None:
    leaders = [replicas[0] for replicas in placed([None] * 4, 12, 2)]
    assert sorted(leaders) == sorted([1, 2, 3, 4] * 3)


def test_followers_of_one_leader_differ() -> None:
    replicas = placed([None] * 4, 12, 2)
    assert len({pair for pair in replicas if pair[0] == 1}) == 3


def test_replicas_of_a_partition_are_in_different_racks() -> None:
    racks = ["a", "a", "a", "b", "b", "c"]
    for replicas in placed(racks, 30, 3):
        assert len({racks[broker - 1] for broker in replicas}) == 3
    for replicas in placed(racks, 30, 5):
        assert len(set(replicas)) == 5


def test_topics_of_one_partition_do_not_all_land_on_one_broker() -> None:
    image = image_with_brokers([None] * 3)
    rng = SeededRng(7)
    leaders = set()
    for number in range(20):
        plan = create_topic(image, NewTopic(f"t{number}"), CONFIGS, planner.new_topic_id(image, rng))
        partition: pb.PartitionRecord = plan.records[1].partition
        leaders.add(partition.leader)
    assert leaders == {1, 2, 3}


def test_new_partitions_continue_the_placement() -> None:
    image = image_with_brokers([None] * 3)
    image = image.apply_batch(create_topic(image, NewTopic("t", 2), CONFIGS, topic_id(5)).records)
    image = image.apply_batch(create_partitions(image, "t", 6, None))
    topic = image.topic("t")
    assert topic is not None
    steps = {(b.leader - a.leader) % 3 for a, b in pairwise(topic.partitions)}
    assert steps == {1}


def test_messages_name_no_internal_class() -> None:
    with pytest.raises(InvalidReplicationFactor) as raised:
        create_topic(MetadataImage(), NewTopic("t"), CONFIGS, topic_id(1))
    assert not re.search(r"[a-z]_[a-z]|object at", str(raised.value))
