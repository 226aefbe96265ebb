"""Groups of many offsets are deleted, and expire, in steps: all at once would hold the event loop for a second."""

from __future__ import annotations

from itertools import pairwise

from grpc_api.contract.groups import DeleteGroup, OffsetCommit, PartitionCommit, TopicCommit
from service.coordination.groups.committed_offsets import OFFSETS_A_STEP
from tests.service.coordination.groups.driver import CALLER
from tests.service.coordination.groups.shard_driver import MINUTE, Broker, expired


def many_offsets(broker: Broker, count: int) -> None:
    rows = [PartitionCommit(each, 5) for each in range(count)]
    assert all(
        each.error is None
        for each in broker.ask(OffsetCommit("g", -1, "", None, [TopicCommit("t", rows)])).topics[0][1]
    )


def test_a_group_of_many_offsets_is_deleted_in_steps() -> None:
    broker = Broker()
    many_offsets(broker, 3 * OFFSETS_A_STEP)
    before, sizes = len(broker.log), []
    broker.keep(broker.shard.handle(DeleteGroup("g"), CALLER, "delete", broker.now))
    broker.keep(broker.shard.handle(OffsetCommit("g", -1, "", None, []), CALLER, "commit", broker.now))
    assert broker.commit_in_transaction(7) is None  # it waits for no step
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


def test_a_step_of_an_expiry_removes_so_many_offsets_and_the_last_one_the_group() -> None:
    broker = Broker()
    many_offsets(broker, 2 * OFFSETS_A_STEP + 1)
    broker.now += 10 * MINUTE
    shares, sizes = broker.shard.offset_shares("g"), []
    for some in shares:
        outcome = broker.shard.expire("g", some, broker.now, is_last=some is shares[-1])
        sizes.append(len(outcome.records))
        broker.keep(outcome)
    assert sizes == [OFFSETS_A_STEP, OFFSETS_A_STEP, 2]  # an offset and the group
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
