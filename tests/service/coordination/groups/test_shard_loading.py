"""A group shard that is loaded while records of its log are not committed: which groups there are, and which readers see."""

from __future__ import annotations

import pytest

from grpc_api.contract.groups import (
    DeleteGroup,
    DescribeGroup,
    LeaveGroup,
    LeavingMember,
    OffsetDelete,
    TopicPartitionIndexes,
)
from service.coordination.record_fields import finish
from tests.service.coordination.groups.shard_driver import Broker


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
    """Readers see it until they are."""
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
