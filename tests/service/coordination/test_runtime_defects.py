"""A shard that fails by a defect is loaded again: nothing that was answered is lost, and no other client is affected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from grpc_api.contract.coordinator_errors import CoordinatorNotAvailable
from service.coordination import runtime
from service.coordination.groups.shard import GroupShard
from service.coordination.outcome import Outcome
from service.coordination.runtime import ShardHost
from service.coordination.shard_state import ShardState
from storage_tiers.errors import InvalidRequest, LogError
from tests.service.broker.support import running, until
from tests.service.coordination.test_runtime_log import (
    CALLER,
    MemoryLog,
    active,
    commit,
    commit_in_transaction,
    end,
    fetched,
    hosted,
)

Host = ShardHost[GroupShard]


def fails(*_: object, **__: object) -> NoReturn:
    raise ValueError("a name does not fit")


def refuses(*_: object, **__: object) -> NoReturn:
    raise InvalidRequest("nobody has asked for this")


def asks(host: Host) -> None:
    with pytest.raises(CoordinatorNotAvailable, match="the coordinator failed"):
        commit(host, 6)


def changes(host: Host) -> None:
    def decide(shard: GroupShard, now_ms: int) -> Outcome:
        return shard.tick(now_ms)

    with pytest.raises(LogError):
        host.change(decide)


def ticks(host: Host) -> None:
    host._tick(host._timer, host._clock.steady_ms())


@pytest.mark.parametrize(
    ("what", "method", "how"),
    [(asks, "handle", fails), (changes, "tick", fails), (ticks, "tick", fails), (ticks, "tick", refuses)],
)
async def test_a_shard_that_fails_is_loaded_again(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    what: Callable[[Host], None],
    method: str,
    how: Callable[..., NoReturn],
) -> None:
    host = await active(MemoryLog())
    await commit(host, 5)
    failed = host._shard
    with monkeypatch.context() as patch:
        patch.setattr(GroupShard, method, how)
        what(host)
    assert host.state is ShardState.LOADING
    assert "coordinator.defect" in caplog.text
    await until(lambda: host.state is ShardState.ACTIVE)
    assert host._shard is not failed
    assert fetched(host) == [(5, False)]
    await commit(host, 7)
    assert fetched(host) == [(7, False)]
    await end(host)


async def test_records_that_cannot_be_encoded_end_their_requests_and_the_shard_is_loaded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = await active(MemoryLog())
    await commit(host, 5)
    with monkeypatch.context() as patch:
        patch.setattr(runtime, "encode_batch", fails)
        refused = commit(host, 6)
        with pytest.raises(CoordinatorNotAvailable):
            await refused
    await until(lambda: host.state is ShardState.ACTIVE)
    assert fetched(host) == [(5, False)]
    await end(host)


async def test_a_defect_in_writing_before_a_transaction_leaves_no_commit_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch belongs to one producer, so the records decided before are written first."""
    host = await active(MemoryLog())
    await commit(host, 5)
    with monkeypatch.context() as patch:
        patch.setattr(runtime, "encode_batch", fails)
        earlier = commit(host, 6)
        with pytest.raises(LogError):
            commit_in_transaction(host, 7)
        with pytest.raises(LogError):
            await earlier
    await until(lambda: host.state is ShardState.ACTIVE)
    assert fetched(host) == [(5, False)]
    await end(host)


async def test_a_load_that_fails_by_a_defect_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog()
    host = await active(log)
    await commit(host, 5)
    await end(host)
    with monkeypatch.context() as patch:
        patch.setattr(GroupShard, "load", fails)
        host = hosted(log)
        await until(lambda: host.state is ShardState.UNREADABLE)
    await until(lambda: host.state is ShardState.ACTIVE)
    assert fetched(host) == [(5, False)]
    await end(host)


async def test_an_id_that_no_record_can_hold_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        groups, transactions = node.node.broker.core.groups, node.node.broker.core.transactions
        for name in ("g" * 32_768, "ü" * 16_384):
            for asked in (groups.coordinator(name, CALLER), transactions.coordinator(name, CALLER)):
                with pytest.raises(InvalidRequest, match="at most 32767 are allowed"):
                    await asked
