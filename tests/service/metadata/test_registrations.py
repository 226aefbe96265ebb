"""A broker registers, leads, is fenced, shuts down and registers again; a change for an older registration has no
effect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from grpc_api.contract.topics import Endpoint
from service.metadata import records_pb2 as pb
from service.metadata.image import MetadataImage
from service.metadata.parts import NO_LEADER, PartitionImage
from service.metadata.registrations import (
    MAX_BROKERS,
    MAX_EPOCH_RISE,
    Records,
    elect_unclean,
    elsewhere,
    fence,
    raise_leader_epoch,
    register,
    registration,
    shut_down,
    unfence,
    unregister,
)
from service.metadata.snapshot import partition_record, to_records
from storage_tiers.errors import (
    BrokerNotRegistered,
    DuplicateBroker,
    InvalidRequest,
    LeaderNotAvailable,
    StaleBrokerEpoch,
    UnknownTopicOrPartition,
)
from tests.service.metadata.records import broker, image_with_brokers, new_topic, topic_id

#: Brokers 1 and 2; topic 1 is led by broker 1, topic 2 by broker 2.
TWO = image_with_brokers([None, None]).apply_batch([*new_topic("a", 1, 2, leader=1), *new_topic("b", 2, 1, leader=2)])


def registered(image: MetadataImage, broker_id: int, disk: bytes = b"disk", start: bytes = b"s") -> MetadataImage:
    return image.apply_batch(register(image, broker_id, disk, (), None, start_id=start, fenced=True).records)


def leaders(image: MetadataImage) -> list[tuple[int, int]]:
    """Leader and leader epoch of each partition of topic 1."""
    return [(placed.leader, placed.leader_epoch) for placed in image.topics[topic_id(1)].partitions]


def test_a_broker_that_registers_leads_nothing_before_it_is_unfenced() -> None:
    image = registered(TWO, 1)
    assert (image.brokers[1].broker_epoch, image.brokers[1].fenced) == (2, True)
    assert leaders(image) == [(NO_LEADER, 1)] * 2
    assert [placed.isr for placed in image.topics[topic_id(1)].partitions] == [(1,)] * 2, (
        "no other replica has its records"
    )
    back = image.apply_batch(unfence(image, 1, 2))
    assert leaders(back) == [(1, 2)] * 2
    assert back.brokers[1].may_lead
    assert back.topics[topic_id(2)] is TWO.topics[topic_id(2)]
    assert unfence(back, 1, 2) == ()


def test_a_repeated_registration_of_one_start_changes_nothing() -> None:
    once = registered(TWO, 3)
    assert register(once, 3, b"disk", (), None, start_id=b"s", fenced=True) == ((), 1)
    assert registered(once, 3, start=b"t").brokers[3].broker_epoch == 2


def test_the_same_disk_registers_at_once_and_another_one_only_for_a_dead_broker() -> None:
    alive = TWO
    assert registered(alive, 1).brokers[1].broker_epoch == 2
    with pytest.raises(DuplicateBroker, match="stop it, or choose another"):
        registered(alive, 1, disk=b"other")
    assert registered(alive, 3, disk=b"other").brokers[3].broker_epoch == 1
    dead = alive.apply_batch(fence(alive, 1, 1))
    assert registered(dead, 1, disk=b"other").brokers[1].disk_identity == b"other"


@pytest.mark.parametrize("end", [fence, shut_down])
def test_the_partitions_that_a_broker_led_wait_for_it(end: Callable[[MetadataImage, int, int], Records]) -> None:
    image = TWO.apply_batch(end(TWO, 1, 1))
    assert not image.brokers[1].may_lead
    assert leaders(image) == [(NO_LEADER, 1)] * 2
    assert image.topics[topic_id(2)] is TWO.topics[topic_id(2)]
    assert end(image, 1, 1) == ()


def test_a_broker_that_shuts_down_is_fenced_at_its_end() -> None:
    image = TWO.apply_batch(shut_down(TWO, 1, 1))
    ended = image.apply_batch(fence(image, 1, 1))
    assert (ended.brokers[1].fenced, ended.brokers[1].shutting_down) == (True, False)
    assert leaders(ended) == leaders(image), "the broker no longer led a partition"


def test_a_fenced_broker_that_asks_to_stop_stays_fenced() -> None:
    """Otherwise it would count as stopping until its next start, and could not be removed."""
    fenced = TWO.apply_batch(fence(TWO, 1, 1))
    assert shut_down(fenced, 1, 1) == ()


@pytest.mark.parametrize("change", [unfence, fence, shut_down])
def test_another_registration_is_refused(change: Callable[[MetadataImage, int, int], Records]) -> None:
    with pytest.raises(
        StaleBrokerEpoch, match=r"has the epoch 1, not 2.*start the controller with its newest directory"
    ):
        change(TWO, 1, 2)
    with pytest.raises(StaleBrokerEpoch, match="has the epoch 2, not 1: a newer start has registered"):
        change(registered(TWO, 1, start=b"second"), 1, 1)
    with pytest.raises(BrokerNotRegistered, match="broker 7 is not registered"):
        change(TWO, 7, 1)
    assert registration(TWO, 1, 1) is TWO.brokers[1]
    assert change(registered(TWO, 7), 7, 1) is not None, "a start registers it"


# --- bounds -----------------------------------------------------------------------------------------------------------
def test_a_broker_beyond_the_maximum_is_refused_until_one_is_removed() -> None:
    full = TWO
    for broker_id in range(3, MAX_BROKERS + 1):
        full = registered(full, broker_id)
    with pytest.raises(InvalidRequest, match=r"has 64 registered brokers.*`tidelog cluster unregister`$"):
        registered(full, 100)
    assert registered(full, 3, start=b"t").brokers[3].broker_epoch == 2, "a registered broker may register again"
    freed = full.apply_batch(unregister(full, 3))
    assert 100 in registered(freed, 100).brokers


def test_a_registration_is_bounded_in_bytes() -> None:
    listeners = [Endpoint("A" * 100, "host", 9092)] * 200
    with pytest.raises(
        InvalidRequest, match=r"bytes, and 16384 is the maximum; give it fewer listeners, or shorter names$"
    ):
        register(TWO, 3, b"disk", listeners, None, fenced=True)
    fitting = register(TWO, 3, b"disk", listeners[:100], None, fenced=True)
    assert len(TWO.apply_batch(fitting.records).brokers[3].endpoints) == 100


# --- removed for good -------------------------------------------------------------------------------------------------
def test_a_stopped_broker_without_partitions_is_removed() -> None:
    image = registered(TWO, 3)
    gone = image.apply_batch(unregister(image, 3))
    assert sorted(gone.brokers) == [1, 2]
    with pytest.raises(BrokerNotRegistered, match=r"^Broker ID 3 is not currently registered$"):
        unregister(gone, 3)


def test_a_process_of_a_removed_registration_never_passes_for_a_later_one() -> None:
    """This also holds for an image from a snapshot."""
    image = registered(registered(TWO, 3), 3, start=b"t")
    gone = image.apply_batch(unregister(image, 3))
    restored = MetadataImage().apply_batch(to_records(gone))
    assert restored == gone
    for known in (gone, restored):
        assert registered(known, 3, disk=b"other").brokers[3].broker_epoch == 3
        assert registered(known, 4).brokers[4].broker_epoch == 3


def test_a_broker_that_is_stopping_is_removed_a_moment_later() -> None:
    image = registered(TWO, 3)
    image = image.apply_batch(unfence(image, 3, 1))
    image = image.apply_batch(shut_down(image, 3, 1))
    with pytest.raises(InvalidRequest, match="is stopping; retry in a second"):
        unregister(image, 3)
    stopped = image.apply_batch(fence(image, 3, 1))
    assert 3 not in stopped.apply_batch(unregister(stopped, 3)).brokers


def test_a_broker_that_runs_or_has_partitions_is_not_removed() -> None:
    with pytest.raises(InvalidRequest, match="is a running broker of this cluster; stop it first"):
        unregister(TWO, 1)
    stopped = TWO.apply_batch(fence(TWO, 1, 1))
    with pytest.raises(InvalidRequest, match=r"^broker 1 has partitions \(a-0, a-1\).*drain 1 --execute"):
        unregister(stopped, 1)
    many = image_with_brokers([None]).apply_batch(new_topic("a", 1, 4, leader=1))
    with pytest.raises(InvalidRequest, match=r"\(a-0, a-1, a-2, …\)"):
        unregister(many.apply_batch(fence(many, 1, 1)), 1)


def test_a_broker_leads_only_partitions_without_a_leader_with_which_it_is_in_sync() -> None:
    """Another replica leads partition 0; the broker lacks records of partition 1."""
    both = PartitionImage(0, 2, 0, 0, (1, 2), (1, 2)), PartitionImage(1, NO_LEADER, 0, 0, (1, 2), (2,))
    records = [pb.MetadataRecord(partition=partition_record(topic_id(1), each)) for each in both]
    image = MetadataImage().apply_batch([broker(1), broker(2), new_topic("a", 1)[0], *records])
    image = image.apply_batch(fence(image, 1, 1))
    assert leaders(image.apply_batch(unfence(image, 1, 1))) == [(2, 0), (NO_LEADER, 0)]


def test_a_broker_with_another_disk_does_not_lead_what_was_on_the_first() -> None:
    """The broker would lead an empty log, and assign its offsets a second time."""
    placed = PartitionImage(0, 1, 0, 0, (1,), (1,), (b"disk",))
    record = pb.MetadataRecord(partition=partition_record(topic_id(1), placed))
    image = MetadataImage().apply_batch([broker(1), new_topic("a", 1)[0], record])
    image = image.apply_batch(fence(image, 1, 1))
    replaced = registered(image, 1, disk=b"new")
    assert elsewhere(replaced, 1) == 1
    replaced = replaced.apply_batch(unfence(replaced, 1, 2))
    assert (replaced.brokers[1].may_lead, leaders(replaced)) == (True, [(NO_LEADER, 1)])
    back = replaced.apply_batch(fence(replaced, 1, 2))
    back = registered(back, 1, start=b"again")
    assert elsewhere(back, 1) == 0
    assert leaders(back.apply_batch(unfence(back, 1, 3))) == [(1, 2)], "the first disk is back"


def test_a_partition_that_another_one_leads_by_now_is_left_to_it() -> None:
    image = MetadataImage().apply_batch([broker(1), broker(2), *new_topic("a", 1, 1, leader=2)])
    assert leaders(image.apply_batch(fence(image, 1, 1))) == [(2, 0)]


def test_a_leader_epoch_is_raised_above_the_one_of_a_replicas_log() -> None:
    a = topic_id(1)
    raised = TWO.apply_batch(raise_leader_epoch(TWO, a, 0, 1, 1, above=40))
    assert leaders(raised) == [(1, 41), (1, 0)]
    assert raised.topics[a].partitions[0].partition_epoch == TWO.topics[a].partitions[0].partition_epoch + 1
    assert raise_leader_epoch(raised, a, 0, 1, 1, above=40) == (), "the epoch is above 40 already"
    dead = TWO.apply_batch(fence(TWO, 1, 1))
    assert leaders(dead.apply_batch(raise_leader_epoch(dead, a, 0, 1, 1, above=1))) == [(NO_LEADER, 2), (NO_LEADER, 1)]
    with pytest.raises(InvalidRequest, match="leader epoch 0; a log with batches of epoch 1048577 is damaged"):
        raise_leader_epoch(TWO, a, 0, 1, 1, above=MAX_EPOCH_RISE + 1)
    for missing, index, broker_id in ((a, 2, 1), (a, -1, 1), (topic_id(9), 0, 1), (a, 0, 2)):
        with pytest.raises(InvalidRequest, match=f"broker {broker_id} has no replica of the partition {index}"):
            raise_leader_epoch(TWO, missing, index, broker_id, 1, above=40)
    with pytest.raises(StaleBrokerEpoch):
        raise_leader_epoch(TWO, a, 0, 1, 7, above=40)


def test_an_unclean_election_accepts_the_loss_of_a_disk() -> None:
    placed = replace(TWO.topics[topic_id(1)].partitions[0], directories=(b"first",))
    image = TWO.apply_batch([pb.MetadataRecord(partition=partition_record(topic_id(1), placed))])
    assert elect_unclean(image, "a", 0) == (), "the partition has a leader"
    dead = image.apply_batch(fence(image, 1, 1))
    with pytest.raises(LeaderNotAvailable, match="Eligible topic partition leaders are not available"):
        elect_unclean(dead, "a", 0)
    replaced = registered(dead, 1, disk=b"second")
    with pytest.raises(LeaderNotAvailable):
        elect_unclean(replaced, "a", 0)  # the broker is still fenced
    back = replaced.apply_batch(unfence(replaced, 1, 2))
    assert leaders(back) == [(NO_LEADER, 1), (1, 2)]
    elected = back.apply_batch(elect_unclean(back, "a", 0))
    assert leaders(elected) == [(1, 2), (1, 2)]
    assert elected.topics[topic_id(1)].partitions[0].directories == (b"second",)
    assert elsewhere(elected, 1) == 0
    for name, index in (("a", 2), ("a", -1), ("other", 0)):
        with pytest.raises(UnknownTopicOrPartition, match=f"No such partition as {name}-{index}"):
            elect_unclean(back, name, index)
