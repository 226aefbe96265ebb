"""Loading a coordinator: readers see what is committed, whatever else its partition holds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from grpc_api.contract.coordinator_errors import NotCoordinator
from grpc_api.contract.groups import (
    Heartbeat,
)
from service.broker.coordinators.coordinator_log import PartitionLog
from storage_tiers.errors import StorageError
from tests.service.coordination.held import CALLER, Held, release, turn


async def test_readers_do_not_see_loaded_records_above_the_high_watermark(held: Held) -> None:
    first = held.commit(4)
    await turn()
    release(held)
    await first
    untold = held.commit(5), held.commit(6, "other")
    await turn()
    await held.reload()
    for answer in untold:
        with pytest.raises(NotCoordinator):
            await answer
    watermark = held.partition.state.high_watermark
    assert (watermark, held.partition.log.end_offset) == (1, 3)
    assert (held.fetched(), held.fetched("other"), held.listed()) == ([4], [], ["g"])
    heartbeat, commit = held.host.ask(Heartbeat("g", 1, "nobody", None), CALLER), held.commit(7, "other")
    await turn()
    assert (heartbeat.done(), commit.done()) == (False, False)
    held.partition.flushed(3)
    await heartbeat
    assert (held.fetched(), held.fetched("other"), held.listed(), commit.done()) == ([5], [6], ["g", "other"], False)
    release(held)
    await commit
    assert held.fetched("other") == [7]


async def test_a_load_after_the_disk_has_failed_ends_at_the_high_watermark(held: Held) -> None:
    first = held.commit(4)
    await turn()
    release(held)
    await first
    refused = held.commit(5), held.commit(6, "other")
    await turn()
    held.partition.fail(StorageError("the disk refuses"))
    for answer in refused:
        with pytest.raises(NotCoordinator, match="the disk refuses"):
            await answer
    await held.loaded()
    assert (held.fetched(), held.fetched("other"), held.listed()) == ([4], [], ["g"])
    assert held.host.ask(Heartbeat("g", 1, "nobody", None), CALLER).done()


async def test_a_partition_that_fails_while_it_is_loaded_is_loaded_again(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    untold = held.commit(5)
    await turn()
    read = PartitionLog.read

    async def and_then_fails(log: PartitionLog, before_wait: Callable[[], None]) -> AsyncIterator[bytes]:
        async for piece in read(log, before_wait):
            yield piece
        monkeypatch.undo()
        held.partition.fail(StorageError("the disk refuses"))

    monkeypatch.setattr(PartitionLog, "read", and_then_fails)
    await held.reload()
    with pytest.raises(NotCoordinator):
        await untold
    assert (held.fetched(), held.listed()) == ([], [])
