"""After a failed write of a shard, no later record of it is written, and its decisions are not settled."""

from __future__ import annotations

import pytest

from grpc_api.contract.coordinator_errors import CoordinatorLoading, NotCoordinator
from grpc_api.contract.log import Appended
from service.coordination.shard_state import ShardState
from storage_tiers.errors import NotEnoughReplicas, StorageError
from tests.service.broker.support import until
from tests.service.coordination.test_runtime_log import MemoryLog, active, commit, end


async def test_no_marker_is_written_after_decisions_that_could_not_be() -> None:
    """The marker would decide about offsets that the log does not have."""
    log = MemoryLog()
    host = await active(log)
    deciding = [commit(host, 1, group) for group in "gh"]
    assert host._records, "a decision waits for the end of the turn"
    log.refusal = StorageError("the disk refuses")
    written: list[int] = []

    def append() -> Appended:
        written.append(7)
        return Appended(9, 0, -1, 0, None)

    with pytest.raises(CoordinatorLoading):
        host.end_transaction(append, 7, commit=True)
    assert not written
    for each in deciding:
        with pytest.raises(NotCoordinator):
            await each
    log.refusal = None
    await end(host)


async def test_only_the_shard_that_decided_settles_its_decisions() -> None:
    """One that was loaded meanwhile may lack them."""
    host = await active(MemoryLog())
    before = host.look(lambda shard: shard)
    assert await host.is_settled(before)
    host._fail(NotEnoughReplicas("a write failed"))
    assert not await host.is_settled(before)
    await until(lambda: host.state is ShardState.ACTIVE)
    assert not await host.is_settled(before)
    assert await host.is_settled(host.look(lambda shard: shard))
    await end(host)
