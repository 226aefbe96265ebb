"""Decisions that are planned and written before the shard changes (`ShardHost.write_first`)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from grpc_api.contract.coordinator_errors import CoordinatorNotAvailable, NotCoordinator
from grpc_api.contract.groups import OffsetCommit, PartitionCommit, TopicCommit
from service.coordination.groups.shard import GroupShard
from service.coordination.runtime import ShardHost
from service.coordination.shard_state import ShardState
from service.coordination.turn_writes import MOST_AT_ONCE
from storage_tiers.errors import StorageError
from tests.service.broker.support import until
from tests.service.coordination.test_runtime_log import CALLER, MemoryLog, active, end, fetched


def commit(host: ShardHost[GroupShard], offset: int, partitions: int = 1) -> asyncio.Future[Any]:
    topics = [TopicCommit("t", [PartitionCommit(number, offset) for number in range(partitions)])]
    request = OffsetCommit("g", -1, "", None, topics)
    return host.write_first(GroupShard.plan_commit, GroupShard.wrote_commit, request, CALLER)


async def planning(log: MemoryLog) -> ShardHost[GroupShard]:
    """A host in a caller's turn, with a group whose next commit is planned."""
    host = await active(log)
    await commit(host, 0)
    host._gathering._turns.begin()
    return host


async def test_a_planned_decision_is_written_committed_and_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog()
    host = await planning(log)
    monkeypatch.delattr(GroupShard, "handle")  # a decision that is not planned would call it
    assert commit(host, 5).result().topics[0].partitions[0].error is None
    assert (len(log.batches), fetched(host)) == (2, [(5, False)])
    monkeypatch.undo()
    await end(host)


async def test_the_answer_waits_until_the_records_are_committed() -> None:
    log = MemoryLog()
    host = await planning(log)
    log.pending = [asyncio.get_running_loop().create_future()]
    (pending,) = log.pending
    assert pending is not None
    waiting = [commit(host, 5), commit(host, 6)]
    assert (len(log.batches), fetched(host)) == (3, [(0, False)])
    await asyncio.sleep(0)
    assert not any(each.done() for each in waiting)
    pending.set_result(None)
    await asyncio.gather(*waiting)
    assert fetched(host) == [(6, False)]
    await end(host)


async def test_a_write_that_fails_changes_nothing_and_the_shard_is_loaded_again() -> None:
    log = MemoryLog()
    host = await planning(log)
    log.refusal = StorageError("the disk refuses")
    with pytest.raises(NotCoordinator, match="the disk refuses"):
        commit(host, 5)
    assert host.state is ShardState.LOADING
    log.refusal = None
    await until(lambda: host.state is ShardState.ACTIVE)
    assert fetched(host) == [(0, False)]
    await end(host)


@pytest.mark.parametrize("method", ["plan_commit", "wrote_commit"])
async def test_after_a_defect_the_shard_is_loaded_again(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError

    log = MemoryLog()
    host = await planning(log)
    monkeypatch.setattr(GroupShard, method, fails)
    with pytest.raises(CoordinatorNotAvailable, match="the coordinator failed"):
        commit(host, 5)
    monkeypatch.undo()
    await until(lambda: host.state is ShardState.ACTIVE)
    assert fetched(host) == [(0 if method == "plan_commit" else 5, False)]
    await end(host)


async def test_records_that_one_batch_does_not_hold_are_divided() -> None:
    log = MemoryLog()
    host = await planning(log)
    log.max_batch_bytes = 1_000
    await commit(host, 1)
    log.batches.clear()
    await commit(host, 5, partitions=20)
    assert len(log.batches) > 1
    assert all(len(batch) <= 1_000 for batch in log.batches)
    assert host.look(lambda known: known._counts.commits) == 22
    await end(host)


async def test_decisions_of_a_turn_that_brings_many_are_gathered() -> None:
    log = MemoryLog()
    host = await planning(log)
    commits = [commit(host, number) for number in range(MOST_AT_ONCE + 2)]
    assert [each.done() for each in commits] == [*[True] * MOST_AT_ONCE, False, False]
    host._gathering._turns.end()
    assert [each.done() for each in commits] == [True] * len(commits)
    assert (len(log.batches), fetched(host)) == (1 + MOST_AT_ONCE + 1, [(MOST_AT_ONCE + 1, False)])
    await end(host)
