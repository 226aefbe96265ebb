"""A group shard that is loaded while records of its log are not committed: the groups that exist, and those that
readers see.
"""

from __future__ import annotations

import pytest

from grpc_api.contract.coordinator_errors import NonEmptyGroup
from grpc_api.contract.groups import (
    DeleteGroup,
    DescribeGroup,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetDelete,
    TopicPartitionIndexes,
)
from storage_tiers.types import TopicPartition
from tests.service.coordination.groups.shard_driver import RANGE, Broker
from tests.service.coordination.whole_values import finish


def test_a_group_known_by_its_offsets_is_listed_after_a_load_while_its_first_record_is_not_committed() -> None:
    broker = Broker()
    broker.commit(4)
    broker.member()
    shard = broker.shard = broker.new_shard()
    for number, (record, *_) in enumerate(broker.log):
        assert record is not None
        shard.load(record.key, record.value, broker.now, is_committed=number < 1)
    shard.committed(1)
    finish(shard.loaded(broker.now))
    assert (broker.listed(), shard.describe(DescribeGroup("g")).state) == (["g"], "Empty")
    shard.committed(shard.written)
    assert (broker.listed(), shard.describe(DescribeGroup("g")).state) == (["g"], "Stable")


@pytest.mark.parametrize("with_members", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_a_deleted_group_does_not_come_back_while_its_tombstones_are_not_committed(
    *, with_members: bool, whole: bool
) -> None:
    """Readers see the group until its tombstones are committed."""
    broker = Broker()
    broker.commit(4)
    if with_members:
        broker.ask(LeaveGroup("g", [LeavingMember(broker.member().member_id, None)]))
    live = len(broker.log)
    broker.ask(DeleteGroup("g") if whole else OffsetDelete("g", [TopicPartitionIndexes("t", [0])]))
    shard = broker.shard = broker.new_shard()
    for number, (record, *_) in enumerate(broker.log):
        assert record is not None
        shard.load(record.key, record.value, broker.now, is_committed=number < live)
    shard.committed(live)
    finish(shard.loaded(broker.now))
    is_left = with_members and not whole  # the group has a record of its own
    assert (broker.listed(), shard.group_ids()) == (["g"], ["g"] if is_left else [])
    shard.committed(shard.written)
    assert broker.listed() == (["g"] if is_left else [])


def test_the_tombstones_of_a_deleted_groups_offsets_count_one_by_one() -> None:
    broker = Broker()
    broker.commit(4)
    broker.commit(5, partition=1)
    live, broker.held = broker.shard.written, True
    broker.ask(DeleteGroup("g"))
    broker.shard.committed(live + 1)
    assert [broker.fetch(partition=each).offset for each in (0, 1)] == [-1, 5]
    broker.shard.committed(live + 2)
    assert [broker.fetch(partition=each).offset for each in (0, 1)] == [-1, -1]


def test_an_offset_is_lowered_if_it_was_loaded_and_lies_above_the_end() -> None:
    broker = Broker()
    for partition, offset in ((0, 7), (1, 8), (2, 9)):
        broker.commit(offset, partition=partition)
    broker.restart()
    broker.commit(9, partition=2)
    written = broker.shard.written
    broker.keep(broker.shard.lower_offsets("g", {TopicPartition("t", each): 7 for each in (0, 1, 2)}, {}))
    assert broker.shard.written == written + 1
    assert [broker.fetch(partition=each)[1:3] for each in (0, 1, 2)] == [(7, 3), (7, -1), (9, 3)]


def test_an_offset_of_an_earlier_leader_epoch_is_lowered_and_a_loaded_newer_one_is_not() -> None:
    broker = Broker()
    for partition, offset in ((0, 7), (1, 8), (2, 9)):
        broker.commit(offset, partition=partition)  # leader epoch 3
    broker.restart()
    epochs = {TopicPartition("t", 0): 4, TopicPartition("t", 1): 4, TopicPartition("t", 2): 3}
    broker.keep(broker.shard.lower_offsets("g", dict.fromkeys(epochs, 7), epochs))
    assert [broker.fetch(partition=each)[1:3] for each in (0, 1, 2)] == [(7, 3), (7, -1), (9, 3)]


def test_records_of_newer_protocols_count_as_records() -> None:
    """Committed records are counted in the log, which holds the records of newer protocols, too."""
    shard = Broker().new_shard()
    shard.load(bytes.fromhex("0003 0001 67"), b"whatever", 0)
    assert shard.written == 1


def test_a_group_that_rebalances_is_not_deleted() -> None:
    broker = Broker()
    broker.member()
    broker.ask(JoinGroup("g", "", None, "consumer", RANGE, 30_000, 60_000, needs_member_id=False))
    assert broker.shard.describe(DescribeGroup("g")).state == "PreparingRebalance"
    assert isinstance(broker.ask(DeleteGroup("g")).error, NonEmptyGroup)
