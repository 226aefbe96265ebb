"""Answers that wait for records to be committed: what ends the wait, and in which turns of the loop."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from grpc_api.contract.coordinator_errors import CoordinatorNotAvailable, NotCoordinator
from grpc_api.contract.groups import Heartbeat
from service.coordination.answer_queue import ANSWERS_A_TURN
from service.coordination.ports import WriteSettings
from service.coordination.shard_state import ShardState
from tests.service.broker.support import until
from tests.service.coordination.test_runtime_log import CALLER, MemoryLog, active, commit, end, fetched


async def test_records_of_a_cancelled_commit_do_not_count_as_committed() -> None:
    log = MemoryLog()
    host = await active(log)
    given_up = asyncio.get_running_loop().create_future()
    log.pending = [given_up]
    waiting = commit(host, 1)
    await until(lambda: len(log.batches) == 1)
    given_up.cancel()
    with pytest.raises(CoordinatorNotAvailable):
        await waiting
    assert host.state is ShardState.LOADING
    # The log has the record, so the shard finds it when it reads the log again.
    await until(lambda: host.state is ShardState.ACTIVE)
    assert fetched(host) == [(1, False)]
    await end(host)


async def test_a_heartbeat_behind_an_overdue_batch_waits_no_longer_than_the_timeout() -> None:
    log = MemoryLog()
    log.writing = WriteSettings(timeout_ms=20)
    host = await active(log)
    log.pending = [asyncio.get_running_loop().create_future()]
    with pytest.raises(CoordinatorNotAvailable, match="not committed after 20 ms"):
        await commit(host, 1)
    for _ in range(2):
        beat = host.ask(Heartbeat("g", 1, "m", None), CALLER)
        await until(beat.done)
        assert isinstance(beat.exception(), CoordinatorNotAvailable)
    await end(host)


@pytest.mark.parametrize("is_overdue", [True, False])
async def test_errors_of_many_requests_leave_in_many_turns_of_the_loop(*, is_overdue: bool) -> None:
    log = MemoryLog()
    log.writing = WriteSettings(timeout_ms=20 if is_overdue else None)
    host = await active(log)
    log.pending = [asyncio.get_running_loop().create_future()]
    waiting = [commit(host, number) for number in range(5 * ANSWERS_A_TURN)]
    await until(lambda: len(log.batches) == 1)
    closing = None if is_overdue else asyncio.create_task(host.close(NotCoordinator("another node leads")))
    seen = [0]
    while seen[-1] < len(waiting):
        await asyncio.sleep(0)
        seen.append(sum(each.done() for each in waiting))
    assert max(after - before for before, after in pairwise(seen)) <= ANSWERS_A_TURN
    expected = CoordinatorNotAvailable if is_overdue else NotCoordinator
    assert all(isinstance(each.exception(), expected) for each in waiting)
    await (closing or end(host))
