"""A group shard: commits, fetches, deletions and expiry, what readers see while records are not committed, and loading."""

from __future__ import annotations

import sys
from itertools import chain

import pytest

from grpc_api.contract.coordinator_errors import (
    GroupIdNotFound,
    GroupSubscribedToTopic,
    IllegalGeneration,
    NonEmptyGroup,
    OffsetMetadataTooLarge,
    RebalanceInProgress,
    UnknownMemberId,
    UnstableOffsetCommit,
)
from grpc_api.contract.groups import (
    DeleteGroup,
    DescribeGroup,
    FetchedOffset,
    JoinGroup,
    ListedGroup,
    ListGroups,
    MemberProtocol,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    PartitionCommit,
    SyncGroup,
    TopicCommit,
    TopicPartitionIndexes,
)
from service.coordination.groups.group_offsets import FETCHED
from storage_tiers.errors import CorruptRecord
from storage_tiers.types import TopicId, TopicPartition
from tests.service.coordination.groups.shard_driver import MINUTE, SUBSCRIPTION, Broker, expired
from tests.service.coordination.whole_values import finish


# --- committing and fetching ------------------------------------------------------------------------------------------
def test_a_commit_from_outside_makes_a_group_and_is_fetched() -> None:
    broker = Broker()
    assert broker.fetch() == FetchedOffset(0)
    assert broker.commit(5, metadata="half") is None
    assert broker.fetch() == FetchedOffset(0, 5, 3, "half")
    assert list(chain(*broker.shard.list(ListGroups()))) == [ListedGroup("g", "", "Empty", "classic")]
    assert broker.fetch(partition=1) == FetchedOffset(1)


def test_all_offsets_of_a_group_are_fetched_without_naming_them() -> None:
    broker = Broker()
    broker.commit(5)
    broker.commit(6, partition=3)
    broker.commit(7, group="other")
    found = finish(broker.shard.fetch_offsets(OffsetFetch("g", None)))
    assert [(topic.topic, [(each.partition, each.offset) for each in topic.partitions]) for topic in found.topics] == [
        ("t", [(0, 5), (3, 6)])
    ]


def test_all_offsets_of_a_group_with_many_are_those_of_the_first_step_and_no_step_names_them_all() -> None:
    broker = Broker()
    for partition in range(10 * FETCHED):
        broker.commit(5, partition=partition)
    steps, calls = broker.shard.fetch_offsets(OffsetFetch("g", None)), [0]

    def count(_: object, event: str, __: object) -> None:
        calls[-1] += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        while True:
            next(steps)
            calls.append(0)
            broker.commit(6)
    except StopIteration as fetched:
        found = fetched.value
    finally:
        sys.setprofile(None)
    assert [(each.partition, each.offset) for each in found.topics[0].partitions] == [
        (partition, 5) for partition in range(10 * FETCHED)
    ]
    assert calls[0] < 5 * FETCHED


def test_an_offset_of_a_deleted_topic_is_not_the_one_of_a_topic_that_has_its_name() -> None:
    old, new = TopicId(bytes(15) + b"1"), TopicId(bytes(15) + b"2")
    broker = Broker()
    broker.ask(OffsetCommit("g", -1, "", None, [TopicCommit("t", [PartitionCommit(0, 5)], old)]))
    broker.commit(6, partition=1)  # without a topic id

    def fetched(topic_id: TopicId | None) -> list[int]:
        wanted = [TopicPartitionIndexes("t", [0, 1], topic_id)]
        return [
            each.offset for each in finish(broker.shard.fetch_offsets(OffsetFetch("g", wanted))).topics[0].partitions
        ]

    assert [fetched(each) for each in (old, new, None)] == [[5, 6], [-1, 6], [5, 6]]


@pytest.mark.parametrize(("metadata", "refused"), [("é" * 4_096, False), ("😀" * 2_048, False), ("😀" * 2_049, True)])
def test_metadata_is_measured_in_the_characters_of_java(metadata: str, refused: bool) -> None:
    assert (Broker().commit(5, metadata=metadata) is OffsetMetadataTooLarge) == refused


def test_readers_see_neither_the_offset_nor_the_group_before_the_record_is_committed() -> None:
    broker = Broker()
    broker.held = True
    broker.commit(5)
    assert (broker.fetch(), broker.listed()) == (FetchedOffset(0), [])
    assert isinstance(broker.shard.describe(DescribeGroup("g")).error, GroupIdNotFound)
    broker.shard.committed(broker.shard.written)
    assert (broker.fetch().offset, broker.listed()) == (5, ["g"])


def test_a_part_of_the_records_that_is_committed_shows_no_more_than_that_part() -> None:
    broker = Broker()
    broker.held = True
    both = [TopicCommit("t", [PartitionCommit(0, 5), PartitionCommit(1, 6)])]
    broker.ask(OffsetCommit("g", -1, "", None, both))
    broker.commit(7, group="other")
    seen = []
    for written in (1, 2, 3):
        broker.shard.committed(written)
        seen.append((broker.fetch().offset, broker.fetch(partition=1).offset, broker.listed()))
    assert seen == [(5, -1, ["g"]), (5, 6, ["g"]), (5, 6, ["g", "other"])]
    held = [("g", 0), ("g", 1), ("other", 0)]
    for group, each in held:
        broker.keep(broker.shard.forget_partitions(group, {TopicPartition("t", each): broker.shard.written}))
    left = []
    for written in (3, 4, 5, 6):
        broker.shard.committed(written)
        left.append(sum(broker.fetch(group=group, partition=each).offset >= 0 for group, each in held))
    assert left == [3, 2, 1, 0]


def test_a_member_commits_in_its_generation_only() -> None:
    broker = Broker()
    member = broker.member().member_id
    assert broker.commit(5, generation=1, member=member) is None
    assert broker.commit(6, generation=0, member=member) is IllegalGeneration
    assert broker.commit(6, generation=1, member="other") is UnknownMemberId
    assert broker.commit(6, generation=1, member=member, instance="i") is UnknownMemberId
    assert broker.commit(6) is UnknownMemberId
    assert broker.commit(6, group="new", generation=4, member="m") is GroupIdNotFound
    assert broker.commit(6, group="") is None  # as from old clients
    assert (broker.fetch().offset, broker.listed()) == (5, ["g", ""])


def test_a_commit_waits_for_the_assignment_and_one_in_a_transaction_does_not() -> None:
    broker = Broker()
    member = broker.join().member_id
    assert broker.commit(5, generation=1, member=member) is RebalanceInProgress
    assert broker.commit_in_transaction(5, generation=1, member=member) is None


def test_a_commit_keeps_its_member_alive() -> None:
    broker = Broker()
    member = broker.member().member_id
    for _ in range(3):
        broker.now += 20_000
        assert broker.commit(5, generation=1, member=member) is None
        broker.keep(broker.shard.tick(broker.now))
    broker.now += 30_000
    broker.keep(broker.shard.tick(broker.now))
    assert broker.commit(5, generation=1, member=member) is UnknownMemberId


def test_metadata_beyond_its_bound_refuses_its_partition_alone() -> None:
    broker = Broker()
    topics = [TopicCommit("t", [PartitionCommit(0, 5, -1, "x" * 4_097), PartitionCommit(1, 6, -1, "x" * 4_096)])]
    answer = broker.ask(OffsetCommit("g", -1, "", None, topics))
    assert [type(each.error) for each in answer.topics[0].partitions] == [OffsetMetadataTooLarge, type(None)]
    assert (broker.fetch().offset, broker.fetch(partition=1).offset) == (-1, 6)


# --- transactions -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("commit", [True, False])
def test_offsets_of_a_transaction_count_when_it_is_committed(commit: bool) -> None:
    broker = Broker()
    broker.commit(1)
    assert broker.commit_in_transaction(5) is None
    assert (broker.fetch().offset, broker.fetch(stable=True).offset) == (1, -1)
    assert isinstance(broker.fetch(stable=True).error, UnstableOffsetCommit)
    broker.restart()
    assert isinstance(broker.fetch(stable=True).error, UnstableOffsetCommit)
    broker.marker(7, commit=commit)
    assert broker.fetch(stable=True).offset == (5 if commit else 1)
    broker.restart()
    assert broker.fetch(stable=True).offset == (5 if commit else 1)


# --- deleting ---------------------------------------------------------------------------------------------------------
def test_deleting_a_group_removes_its_offsets_and_a_restart_does_not_bring_them_back() -> None:
    broker = Broker()
    broker.commit(5)
    broker.commit_in_transaction(6)
    assert broker.ask(DeleteGroup("g")).error is None
    assert (broker.listed(), broker.fetch()) == ([], FetchedOffset(0))
    broker.marker(7, commit=True)
    broker.restart()
    assert (broker.listed(), broker.fetch()) == ([], FetchedOffset(0))
    assert isinstance(broker.ask(DeleteGroup("g")).error, GroupIdNotFound)


def test_a_group_with_members_is_not_deleted() -> None:
    broker = Broker()
    broker.member()
    assert isinstance(broker.ask(DeleteGroup("g")).error, NonEmptyGroup)
    assert isinstance(broker.ask(DeleteGroup("")).error, GroupIdNotFound)


def test_offsets_of_topics_that_no_member_reads_can_be_deleted() -> None:
    broker = Broker()
    member = broker.member().member_id
    broker.commit(5, generation=1, member=member)
    answer = broker.ask(OffsetDelete("g", [TopicPartitionIndexes("t", [0]), TopicPartitionIndexes("u", [0])]))
    assert [type(topic.partitions[0].error) for topic in answer.topics] == [GroupSubscribedToTopic, type(None)]
    assert broker.fetch().offset == 5


def test_offsets_of_an_empty_group_can_be_deleted() -> None:
    broker = Broker()
    broker.commit(5)
    answer = broker.ask(OffsetDelete("g", [TopicPartitionIndexes("t", [0, 9])]))
    assert (answer.error, [each.error for each in answer.topics[0].partitions]) == (None, [None, None])
    assert broker.fetch() == FetchedOffset(0)
    broker.restart()
    assert broker.fetch() == FetchedOffset(0)


@pytest.mark.parametrize("committed", [(), (4,)])
def test_a_deleted_offset_is_deleted_from_open_transactions(committed: tuple[int, ...]) -> None:
    broker = Broker()
    for offset in committed:
        broker.commit(offset)
    broker.commit_in_transaction(5)
    assert broker.ask(OffsetDelete("g", [TopicPartitionIndexes("t", [0])])).error is None
    assert broker.fetch(stable=True) == FetchedOffset(0)
    broker.marker(7, commit=True)
    assert broker.fetch(stable=True) == FetchedOffset(0)
    broker.restart()
    assert broker.fetch(stable=True) == FetchedOffset(0)


def test_offsets_of_members_whose_topics_are_not_known_stay() -> None:
    broker = Broker()
    broker.member((MemberProtocol("range", b"own format"),))
    answer = broker.ask(OffsetDelete("g", [TopicPartitionIndexes("t", [0])]))
    assert isinstance(answer.topics[0].partitions[0].error, GroupSubscribedToTopic)
    other = Broker()
    other.member(protocol_type="connect")
    assert isinstance(other.ask(OffsetDelete("g", [TopicPartitionIndexes("t", [0])])).error, NonEmptyGroup)
    assert isinstance(broker.ask(OffsetDelete("none", [])).error, GroupIdNotFound)


def test_offsets_of_a_deleted_topic_are_removed_from_every_group_and_transaction() -> None:
    broker = Broker()
    broker.commit(5)
    broker.commit(6, group="other", partition=1)
    broker.commit_in_transaction(7)
    broker.keep(broker.shard.forget_partitions("g", {TopicPartition("t", 0): broker.shard.written}))
    broker.marker(7, commit=True)
    assert (broker.fetch(), broker.fetch(group="other", partition=1).offset) == (FetchedOffset(0), 6)
    broker.restart()
    assert (broker.fetch(), broker.fetch(group="other", partition=1).offset) == (FetchedOffset(0), 6)


@pytest.mark.parametrize(("commits", "left"), [(True, 7), (False, -1)])
def test_an_offset_of_a_deleted_topic_beside_a_newer_one_in_a_transaction_goes_once_that_has_ended(
    commits: bool, left: int
) -> None:
    """A tombstone before the end of the transaction would delete the newer offset, too."""
    broker = Broker()
    broker.commit(5)
    before = {TopicPartition("t", 0): broker.shard.written}
    broker.commit_in_transaction(7)
    broker.keep(broker.shard.forget_partitions("g", before))
    assert broker.shard.has_pending_beside("g", before)
    broker.marker(7, commit=commits)
    broker.keep(broker.shard.forget_partitions("g", before))
    assert not broker.shard.has_pending_beside("g", before)
    assert broker.fetch().offset == left
    broker.restart()
    assert broker.fetch().offset == left


# --- expiry -----------------------------------------------------------------------------------------------------------
def expire(broker: Broker) -> None:
    for group in broker.shard.group_ids():
        broker.keep(expired(broker.shard, group, broker.now))


def test_an_offset_from_outside_expires_after_its_retention_and_its_group_with_it() -> None:
    broker = Broker()
    broker.commit(5)
    broker.now += 10 * MINUTE - 1
    expire(broker)
    assert broker.fetch().offset == 5
    broker.now += 1
    expire(broker)
    assert (broker.fetch(), broker.listed()) == (FetchedOffset(0), [])
    broker.restart()
    assert (broker.fetch(), broker.listed()) == (FetchedOffset(0), [])


def test_offsets_stay_while_the_group_reads_the_topic_and_expire_after_it_emptied() -> None:
    broker = Broker()
    member = broker.member().member_id
    broker.commit(5, generation=1, member=member)
    for _ in range(30):
        broker.now += MINUTE // 2
        broker.commit(5, partition=1, generation=1, member=member)
        broker.keep(broker.shard.tick(broker.now))
    expire(broker)
    assert broker.fetch().offset == 5
    broker.now += MINUTE
    broker.keep(broker.shard.tick(broker.now))  # the member's session has ended
    expire(broker)
    assert broker.fetch().offset == 5
    broker.now += 10 * MINUTE
    expire(broker)
    assert (broker.fetch(), broker.listed()) == (FetchedOffset(0), [])


def test_an_offset_of_a_topic_that_no_member_reads_expires_while_the_group_is_stable() -> None:
    broker = Broker()
    member = broker.member().member_id
    both = [TopicCommit(topic, [PartitionCommit(0, 5)]) for topic in ("t", "unread")]
    broker.ask(OffsetCommit("g", 1, member, None, both))

    def fetched() -> list[str]:
        found = finish(broker.shard.fetch_offsets(OffsetFetch("g", None)))
        return [topic.topic for topic in found.topics]

    for kept in (["t", "unread"], ["t"]):
        broker.now += 10 * MINUTE - 1 if len(kept) == 2 else 1
        expire(broker)
        assert fetched() == kept
    broker.restart()
    assert fetched() == ["t"]


def test_an_offset_that_was_set_on_a_group_long_empty_is_kept_for_its_own_retention() -> None:
    broker = Broker()
    broker.member()
    broker.now += MINUTE
    broker.keep(broker.shard.tick(broker.now))
    broker.now += 60 * MINUTE
    broker.commit(5)
    expire(broker)
    assert broker.fetch().offset == 5


def test_values_of_a_process_whose_clock_was_behind_are_as_old_as_their_records() -> None:
    broker = Broker()
    broker.member()
    broker.now += MINUTE
    broker.keep(broker.shard.tick(broker.now))  # the member's session has ended
    broker.commit(5)
    broker.commit(6, group="own", retention=MINUTE)
    written = broker.now + 1_000 * MINUTE
    broker.shard = broker.new_shard()
    for record, *_ in broker.log:
        assert record is not None
        broker.shard.load(record.key, record.value, written, written_ms=written)
    broker.shard.committed(broker.shard.written)
    broker.keep(finish(broker.shard.loaded(written)))
    broker.now = written + MINUTE - 1
    expire(broker)
    assert (broker.fetch().offset, broker.fetch(group="own").offset) == (5, 6)
    broker.now += 1
    expire(broker)
    assert (broker.fetch().offset, broker.fetch(group="own").offset) == (5, -1)
    broker.now = written + 10 * MINUTE
    expire(broker)
    assert broker.fetch().offset == -1


def test_an_offset_committed_with_a_retention_expires_after_it_though_restarted() -> None:
    broker = Broker()
    broker.commit(5, retention=MINUTE)
    broker.commit(6, partition=1)
    broker.restart()
    broker.now += MINUTE
    expire(broker)
    assert (broker.fetch().offset, broker.fetch(partition=1).offset) == (-1, 6)


def test_a_group_that_a_member_is_about_to_join_does_not_expire() -> None:
    broker = Broker()
    request = JoinGroup("g", "", None, "consumer", [MemberProtocol("range", b"")], 30_000, 60_000, needs_member_id=True)
    broker.ask(request)
    expire(broker)
    assert broker.listed() == ["g"]
    broker.now += 30_000
    broker.keep(broker.shard.tick(broker.now))
    expire(broker)
    assert broker.listed() == []


def test_an_offset_that_an_open_transaction_replaces_does_not_expire() -> None:
    broker = Broker()
    broker.commit(5)
    broker.commit(6, partition=1)
    broker.commit_in_transaction(7)
    broker.now += 60 * MINUTE
    expire(broker)
    assert (broker.fetch().offset, broker.fetch(partition=1).offset) == (5, -1)
    broker.marker(7, commit=False)
    expire(broker)
    assert (broker.fetch(), broker.listed()) == (FetchedOffset(0), [])


def test_no_offset_expires_while_a_member_joins_whose_protocol_is_not_the_last_generations() -> None:
    broker = Broker()
    broker.member((MemberProtocol("range", SUBSCRIPTION), MemberProtocol("sticky", SUBSCRIPTION)))
    broker.commit_in_transaction(5)
    broker.marker(7, commit=True)
    sticky = [MemberProtocol("sticky", SUBSCRIPTION)]
    broker.ask(JoinGroup("g", "", None, "consumer", sticky, 30_000, 60_000, needs_member_id=False))
    broker.now += 60 * MINUTE
    expire(broker)
    assert broker.fetch().offset == 5


def test_an_offset_in_an_open_transaction_keeps_the_group() -> None:
    broker = Broker()
    broker.commit_in_transaction(5)
    broker.now += 60 * MINUTE
    expire(broker)
    assert broker.listed() == ["g"]
    broker.marker(7, commit=True)
    assert broker.fetch().offset == 5


# --- reading and loading ----------------------------------------------------------------------------------------------
def test_groups_are_listed_by_state_and_type() -> None:
    broker = Broker()
    broker.member()
    broker.commit(5, group="outside")
    shard = broker.shard
    assert [each.group for each in chain(*shard.list(ListGroups(frozenset({"stable"}))))] == ["g"]
    assert [each.group for each in chain(*shard.list(ListGroups(frozenset({"empty"}), frozenset({"classic"}))))] == [
        "outside"
    ]
    assert not any(shard.list(ListGroups(types=frozenset({"consumer"}))))


def test_a_stable_group_is_described_with_its_members_and_another_without_their_bytes() -> None:
    broker = Broker()
    member = broker.join().member_id
    assert [each.assignment for each in broker.shard.describe(DescribeGroup("g")).members] == [b""]
    broker.ask(SyncGroup("g", 1, member, None, [(member, b"all")]))
    described = broker.shard.describe(DescribeGroup("g"))
    assert (described.state, described.protocol_type, described.protocol) == ("Stable", "consumer", "range")
    (found,) = described.members
    assert (found.member_id, found.client_id, found.client_host) == (member, "app", "/127.0.0.1")
    assert (found.metadata, found.assignment) == (SUBSCRIPTION, b"all")
    missing = broker.shard.describe(DescribeGroup("none"))
    assert (missing.state, type(missing.error)) == ("Dead", GroupIdNotFound)


def test_a_member_continues_with_a_shard_that_was_loaded_elsewhere() -> None:
    broker = Broker()
    member = broker.member().member_id
    broker.commit(5, generation=1, member=member)
    broker.restart()
    assert broker.commit(6, generation=1, member=member) is None
    assert broker.fetch().offset == 6


def test_records_of_newer_protocols_are_passed_over_and_damaged_ones_named() -> None:
    shard = Broker().shard
    shard.load(bytes.fromhex("0003 0001 67"), b"whatever", 0)
    assert not any(shard.list(ListGroups()))
    with pytest.raises(CorruptRecord):
        shard.load(bytes.fromhex("0002 0005 67"), b"\0\3", 0)
    shard.load(bytes.fromhex("0002 0001 67"), b"\0\3", 0)
    with pytest.raises(CorruptRecord):
        finish(shard.loaded(0))


def test_an_offset_whose_retention_has_no_end_is_accepted_and_loaded() -> None:
    broker = Broker()
    assert broker.commit(5, retention=(1 << 63) - 1) is None
    (record, *_) = broker.log[0]
    assert record is not None
    broker.shard = broker.new_shard()
    broker.shard.load(record.key, record.value, broker.now, written_ms=broker.now + MINUTE)
    broker.keep(finish(broker.shard.loaded(broker.now)))
    assert broker.fetch().offset == 5
