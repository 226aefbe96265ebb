"""The runtime while a group of many members ends a rebalance in steps: the disk fills up, the wall clock is set back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from grpc_api.contract.coordinator_errors import CoordinatorNotAvailable
from grpc_api.contract.groups import DescribeGroup, Heartbeat, JoinGroup, MemberProtocol, SyncGroup
from service.coordination.groups.rebalancing import GroupSettings
from service.coordination.groups.shard import AT_ONCE_MS, GroupShard
from service.coordination.groups.unfinished import MEMBERS_A_STEP
from service.coordination.runtime import ShardHost
from service.coordination.shard_state import ShardState
from service.coordination.turn_writes import TurnWrites
from storage_tiers.records.batch import headers
from storage_tiers.turns import TurnScheduler
from storage_tiers.types import TopicPartition
from tests.service.broker.support import until
from tests.service.coordination.test_runtime_log import CALLER, MemoryLog, end, retries, shard
from tests.support.clock import ManualClock

MEMBERS = 3 * MEMBERS_A_STEP
HOUR_MS = 3_600_000


async def coordinator(log: MemoryLog, clock: ManualClock) -> ShardHost[GroupShard]:
    settings = GroupSettings(initial_rebalance_delay_ms=0)
    at = TopicPartition("offsets", 0)
    host = ShardHost(
        at, log, lambda: shard(settings), clock=clock, scheduler=TurnScheduler(), backoff=retries, writes=TurnWrites()
    )
    await until(lambda: host.state is ShardState.ACTIVE)
    return host


def join(host: ShardHost[GroupShard], member_id: str = "", metadata: bytes = b"") -> asyncio.Future[Any]:
    protocols = [MemberProtocol("range", metadata)]
    return host.ask(JoinGroup("g", member_id, None, "consumer", protocols, 30_000, 30_000, False), CALLER)


async def completing(host: ShardHost[GroupShard]) -> list[str]:
    """A group of MEMBERS that awaits its leader's assignment."""
    joined = await asyncio.gather(*(join(host) for _ in range(MEMBERS)))
    ids = [each.member_id for each in joined]
    again = await asyncio.gather(*(join(host, each, b"again") for each in ids))
    assert {(each.error, each.generation) for each in again} == {(None, again[0].generation)}
    return ids


def sync(host: ShardHost[GroupShard], member_id: str, given: Sequence[tuple[str, bytes]] = ()) -> asyncio.Future[Any]:
    return host.ask(SyncGroup("g", generation(host), member_id, None, given), CALLER)


def generation(host: ShardHost[GroupShard]) -> int:
    return host.look(lambda known: known._groups.groups["g"].generation)


def takes_steps(host: ShardHost[GroupShard]) -> bool:
    return host.look(lambda known: known.next_deadline_ms()) == AT_ONCE_MS


async def test_heartbeats_are_answered_between_two_steps_while_there_is_no_room() -> None:
    log, clock = MemoryLog(), ManualClock()
    host = await coordinator(log, clock)
    ids = await completing(host)
    synced = sync(host, ids[0], [(each, b"part") for each in ids])
    assert takes_steps(host)
    log.no_room = CoordinatorNotAvailable("the disk is full")
    for _ in range(50):
        await asyncio.sleep(0)
    assert takes_steps(host) and not synced.done()
    for member_id in ids:
        beat = host.ask(Heartbeat("g", generation(host), member_id, None), CALLER)
        assert beat.done() and beat.result().error is None
    log.no_room = None
    assert (await synced).assignment == b"part"
    await end(host)


async def test_a_wall_clock_that_is_set_back_between_two_steps_changes_nothing() -> None:
    """Sessions and steps follow the monotonic clock; only the timestamps of records follow the wall clock."""
    log, clock = MemoryLog(), ManualClock()
    host = await coordinator(log, clock)
    ids = await completing(host)
    waiting = [sync(host, each) for each in ids[1:]]
    synced = sync(host, ids[0], [(each, b"part") for each in ids])
    assert takes_steps(host)
    before_ms = clock.unix_ms()
    clock.step(-HOUR_MS)
    for each in (synced, *waiting):
        assert (await each).assignment == b"part"
    described = host.look(lambda known: known.describe(DescribeGroup("g")))
    assert (described.state, len(described.members)) == ("Stable", MEMBERS)
    (last,) = [header for _, header in headers(memoryview(log.batches[-1]))]
    assert last.max_timestamp == before_ms - HOUR_MS
    again = [join(host, each, b"more") for each in ids]
    await until(lambda: takes_steps(host))
    clock.step(2 * HOUR_MS)
    assert {(await each).error for each in again} == {None}
    clock.advance(29)
    beats = [host.ask(Heartbeat("g", generation(host), each, None), CALLER).result() for each in ids]
    assert {each.error for each in beats} == {None}
    await end(host)
