"""Groups of many offsets are deleted, and expire, in steps: all at once would hold the event loop for a second."""

from __future__ import annotations

from itertools import pairwise

from grpc_api.contract.groups import (
    DeleteGroup,
    MemberProtocol,
    OffsetCommit,
    PartitionCommit,
    TopicCommit,
    TxnOffsetCommit,
)
from grpc_api.contract.transactions import ProducerTransaction
from service.coordination.counts import GroupCounts
from service.coordination.groups.unfinished import OFFSETS_A_STEP
from storage_tiers.types import TopicPartition
from tests.service.coordination.groups.driver import CALLER
from tests.service.coordination.groups.shard_driver import MINUTE, Broker, expired


def many_offsets(broker: Broker, count: int) -> None:
    rows = [PartitionCommit(each, 5) for each in range(count)]
    (answered,) = broker.ask(OffsetCommit("g", -1, "", None, [TopicCommit("t", rows)])).topics
    assert all(each.error is None for each in answered.partitions)


def test_a_group_of_many_offsets_is_deleted_in_steps() -> None:
    broker = Broker()
    many_offsets(broker, 3 * OFFSETS_A_STEP)
    before, sizes = len(broker.log), []
    broker.keep(broker.shard.handle(DeleteGroup("g"), CALLER, "delete", broker.now))
    broker.keep(broker.shard.handle(OffsetCommit("g", -1, "", None, []), CALLER, "commit", broker.now))
    assert broker.commit_in_transaction(7) is None  # such a commit waits for no step
    broker.marker(7, commit=True)
    while "delete" not in broker.answers:
        sizes.append(len(broker.log))
        broker.keep(broker.shard.tick(broker.now))
    assert sizes[0] - before == OFFSETS_A_STEP + 2
    assert max(after - size for size, after in pairwise([*sizes, len(broker.log)])) <= OFFSETS_A_STEP + 2
    assert broker.answers["delete"].error is None
    assert "commit" in broker.answers
    assert [broker.fetch(partition=each).offset for each in range(3 * OFFSETS_A_STEP)] == [-1] * (3 * OFFSETS_A_STEP)
    assert not broker.shard._committed.has_any("g")
    broker.restart()
    assert not broker.shard._committed.has_any("g")


def test_a_step_of_an_expiry_removes_a_bounded_number_of_offsets_and_the_last_step_the_group() -> None:
    broker = Broker()
    many_offsets(broker, 2 * OFFSETS_A_STEP + 1)
    broker.now += 10 * MINUTE
    shares, sizes = broker.shard.offset_shares("g"), []
    for some in shares:
        outcome = broker.shard.expire("g", some, broker.now, is_last=some is shares[-1])
        sizes.append(len(outcome.records))
        broker.keep(outcome)
    assert sizes == [OFFSETS_A_STEP, OFFSETS_A_STEP, 2]  # one offset and the group
    assert broker.listed() == []


def test_a_group_that_is_being_deleted_in_steps_does_not_expire_meanwhile() -> None:
    broker = Broker()
    many_offsets(broker, 2 * OFFSETS_A_STEP)
    broker.keep(broker.shard.handle(DeleteGroup("g"), CALLER, "delete", broker.now))
    broker.now += 10 * MINUTE
    before = len(broker.log)
    broker.keep(expired(broker.shard, "g", broker.now))
    assert len(broker.log) == before
    while "delete" not in broker.answers:
        broker.keep(broker.shard.tick(broker.now))
    assert (broker.answers["delete"].error, broker.listed()) == (None, [])


def test_an_offset_that_a_transaction_commits_meanwhile_is_seen_until_its_own_tombstone_is_committed() -> None:
    broker = Broker()
    many_offsets(broker, 2 * OFFSETS_A_STEP)
    broker.keep(broker.shard.handle(DeleteGroup("g"), CALLER, "delete", broker.now))
    assert broker.commit_in_transaction(7) is None
    broker.marker(7, commit=True)
    broker.held, written = True, broker.shard.written
    while "delete" not in broker.answers:
        broker.keep(broker.shard.tick(broker.now))
    assert broker.shard.written == written + OFFSETS_A_STEP + 2  # the share's offsets, the transaction's, and the group
    broker.shard.committed(broker.shard.written - 2)
    assert broker.fetch().offset == 7
    broker.shard.committed(broker.shard.written - 1)
    assert broker.fetch().offset == -1


def test_an_offset_that_is_held_twice_gets_one_tombstone_and_counts_as_one_deletion() -> None:
    counts = GroupCounts()
    broker = Broker(counts)
    assert broker.commit(5) is None
    assert broker.commit_in_transaction(7) is None
    before = len(broker.log)
    assert broker.ask(DeleteGroup("g")).error is None
    assert (len(broker.log) - before, counts.deletions) == (2, 1)  # one offset and the group


def test_shares_name_what_is_committed_what_is_written_and_what_is_in_an_open_transaction() -> None:
    """An offset that no share names outlives its deleted topic."""
    broker = Broker()
    assert broker.commit(5) is None
    broker.held = True
    assert broker.commit(5, partition=1) is None
    topics = [TopicCommit("t", [PartitionCommit(2, 5)])]
    request = TxnOffsetCommit("g", ProducerTransaction("copier"), 7, 0, -1, "", None, topics)
    assert broker.ask(request).topics[0].partitions[0].error is None
    (share,) = broker.shard.offset_shares("g")
    assert set(share) == {TopicPartition("t", number) for number in range(3)}


def test_a_deleted_topics_partition_without_an_offset_gets_no_tombstone() -> None:
    broker = Broker()
    assert broker.commit(5) is None
    before = {TopicPartition("t", number): broker.shard.written for number in range(2)}
    first, again = (broker.shard.forget_partitions("g", before) for _ in range(2))
    assert (len(first.records), len(again.records)) == (1, 0)


def test_a_group_that_stays_when_all_its_offsets_have_expired_counts_as_one_without() -> None:
    """The group's own bytes count then: a group with offsets counts by its offsets."""
    broker = Broker()
    topics_of = bytes.fromhex("0001 00000001 0001 75 ffffffff")  # subscribes to "u" alone
    broker.member((MemberProtocol("range", topics_of),))
    (group,) = broker.shard._groups.groups.values()
    bare = group.own_bytes
    (member,) = group.members
    assert broker.commit(5, generation=1, member=member) is None
    assert group.own_bytes < bare
    broker.now += 10 * MINUTE
    broker.keep(expired(broker.shard, "g", broker.now))
    assert broker.fetch().offset == -1
    assert (broker.listed(), group.own_bytes) == (["g"], bare)
