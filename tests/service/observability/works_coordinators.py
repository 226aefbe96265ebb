"""The metrics of groups, transactions and held-back offloads, and the work that changes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from grpc_api.contract.groups import (
    JoinGroup,
    MemberProtocol,
    OffsetDelete,
    SyncGroup,
    TopicPartitionIndexes,
)
from service.broker.api.group_service import GroupService
from service.coordination.coordinator_runtime import CoordinatorRuntime
from service.coordination.groups.shard import GroupShard
from storage_tiers.errors import StorageError
from tests.service.broker.background.cleaner.test_cleaning import COMPACTED, LOCAL, closed, put
from tests.service.broker.coordinators.test_groups import CALLER, commit, coordinated
from tests.service.broker.coordinators.transactional import T0, Client, led, write
from tests.service.broker.support import TIERED, until
from tests.service.coordination.groups.shard_driver import expired
from tests.service.observability.works import partition
from tests.service.observability.world import ROSE, Is, Within, World, work

COORDINATORS = {"offsets_topic_num_partitions": "1", "transaction_state_log_num_partitions": "1"}
MANAGER = "kafka_coordinator_group_groupmetadatamanager_"
GROUPS = "kafka_server_group_coordinator_metrics_"
TRANSACTIONS = "kafka_server_transaction_coordinator_metrics_"
CLEANER, CLEANERS = "kafka_log_logcleaner_", "kafka_log_logcleanermanager_"
NO_DELAY = {**COORDINATORS, "group_initial_rebalance_delay_ms": "0"}


# --- groups -----------------------------------------------------------------------------------------------------------
async def join(groups: GroupService, member: str = "") -> str:
    """Joins as the only member, without SyncGroup; returns the member's id."""
    request = JoinGroup("g", member, None, "consumer", [MemberProtocol("range", b"sub")], 30_000, 30_000, False)
    joined = await groups.join(request, CALLER)
    assert joined.error is None
    return joined.member_id


@work(
    {
        MANAGER + "numgroups": 1,
        MANAGER + "numgroupscompletingrebalance": 1,
        MANAGER + "numgroupsstable": 0,
        MANAGER + "numgroupspreparingrebalance": 0,
        MANAGER + "numgroupsempty": 0,
        MANAGER + "numgroupsdead": Is(0),
        GROUPS + 'group_count{protocol="classic"}': 1,
        GROUPS + "group_completed_rebalance_total": 0,
        "tidelog_group_members": 1,
    },
    **NO_DELAY,
)
async def a_group_waits_for_its_leader(world: World) -> AsyncIterator[None]:
    groups = await coordinated(world.node, "g")
    yield
    await join(groups)
    yield


@work(
    {
        MANAGER + "numgroupscompletingrebalance": -1,
        MANAGER + "numgroupsstable": 1,
        GROUPS + "group_completed_rebalance_total": 1,
    },
    **NO_DELAY,
)
async def a_leader_assigns(world: World) -> AsyncIterator[None]:
    groups = await coordinated(world.node, "g")
    member = await join(groups)
    yield
    synced = await groups.sync(SyncGroup("g", 1, member, None, [(member, b"all")], "consumer", "range"), CALLER)
    assert synced.error is None
    yield


@work(
    {MANAGER + "numgroupsstable": -1, MANAGER + "numgroupspreparingrebalance": 1, "tidelog_group_members": 1},
    **NO_DELAY,
)
async def a_second_member_comes(world: World) -> AsyncIterator[None]:
    groups = await coordinated(world.node, "g")
    member = await join(groups)
    await groups.sync(SyncGroup("g", 1, member, None, [(member, b"all")], "consumer", "range"), CALLER)
    yield
    waits = asyncio.ensure_future(join(groups))
    await until(lambda: _members(world) == 2)
    yield
    waits.cancel()


def _members(world: World) -> int:
    (host,) = world.inner.broker.coordinators.shards.groups.hosts.values()
    (group,) = next(host.look(GroupShard.figures))
    return group.members


@work(
    {
        MANAGER + "numoffsets": 2,
        MANAGER + "numgroupsempty": 1,
        GROUPS + "offset_commit_total": 3,
        GROUPS + "offset_deletion_total": 0,
        'tidelog_group_lag_records{group="g"}': 40 - 10 + 1,
        'tidelog_metrics_left_out{kind="group"}': 0,
    },
    **COORDINATORS,
)
async def a_group_commits_offsets(world: World) -> AsyncIterator[None]:
    await world.create("t", 2, {"remote.storage.enable": "false"})
    for number in range(40):
        await world.node.append("t", b"%d" % number)
    await world.node.append("t", b"one", partition=1)
    groups = await coordinated(world.node, "g")
    yield
    for offset in (5, 10):
        await commit(groups, offset)
    await commit(groups, 0, partition=1)
    yield


@work(
    {'tidelog_group_lag_records{group="g"}': 40, 'tidelog_group_lag_in_bucket_records{group="g"}': 38}, **COORDINATORS
)
async def what_a_group_lags_behind_is_in_the_bucket(world: World) -> AsyncIterator[None]:
    await world.create("t", configs=TIERED)
    for _ in range(38):
        await world.node.append("t", b"x" * 50)
    await world.node.seal("t")
    for _ in range(2):
        await world.node.append("t", b"x")
    groups = await coordinated(world.node, "g")
    yield
    await commit(groups, 0)
    yield


@work(
    {MANAGER + "numoffsets": 1, 'tidelog_group_lag_records{group="h"}': 0, 'tidelog_metrics_left_out{kind="group"}': 1},
    tidelog_metrics_groups="1",
    **COORDINATORS,
)
async def there_are_more_groups_than_are_listed(world: World) -> AsyncIterator[None]:
    await world.create("t")
    groups = await coordinated(world.node, "g")
    await commit(groups, 0)
    yield
    await commit(groups, 0, group="h")
    yield


@work({MANAGER + "numoffsets": -1, GROUPS + "offset_deletion_total": 1}, **COORDINATORS)
async def an_offset_is_deleted(world: World) -> AsyncIterator[None]:
    await world.create("t")
    groups = await coordinated(world.node, "g")
    await commit(groups, 0)
    yield
    deleted = await groups.delete_offsets(OffsetDelete("g", [TopicPartitionIndexes("t", [0])]), CALLER)
    assert deleted.error is None
    yield


@work({MANAGER + "numoffsets": -1, MANAGER + "numgroups": -1, GROUPS + "offset_expiration_total": 1}, **COORDINATORS)
async def an_offset_expires(world: World) -> AsyncIterator[None]:
    await world.create("t")
    groups = await coordinated(world.node, "g")
    await commit(groups, 0)
    (host,) = world.inner.broker.coordinators.shards.groups.hosts.values()
    yield
    later_ms = world.inner.ground.host.clock.unix_ms() + 8 * 24 * 60 * 60 * 1000
    host.change(lambda shard, now_ms: expired(shard, "g", later_ms))
    yield


@work(
    {
        GROUPS + 'num_partitions{state="active"}': 3,
        GROUPS + 'num_partitions{state="loading"}': Is(0),
        GROUPS + 'num_partitions{state="failed"}': Is(0),
        GROUPS + "partition_load_time_max": Within(0, 60_000),
        GROUPS + "partition_load_time_avg": Within(0, 60_000),
        TRANSACTIONS + "partition_load_time_max": Is(0),
        TRANSACTIONS + "partition_load_time_avg": Is(0),
    },
    offsets_topic_num_partitions="3",
)
async def a_coordinator_loads(world: World) -> AsyncIterator[None]:
    yield
    await coordinated(world.node, "g")
    hosts = world.inner.broker.coordinators.shards.groups.hosts
    await until(lambda: [host.state.value for host in hosts.values()] == ["active"] * 3)
    yield


@work(
    {
        GROUPS + "partition_load_time_max": Is(30),
        GROUPS + "partition_load_time_avg": Is(20),
        GROUPS + 'num_partitions{state="failed"}': 1,
        GROUPS + 'num_partitions{state="active"}': -1,
        "tidelog_coordinators_unreadable": 1,
    },
    offsets_topic_num_partitions="2",
)
async def a_coordinator_cannot_be_loaded(world: World) -> AsyncIterator[None]:
    await coordinated(world.node, "g")
    hosts = world.inner.broker.coordinators.shards.groups.hosts
    await until(lambda: [host.state.value for host in hosts.values()] == ["active"] * 2)
    yield
    hosts[0].load_ms, hosts[1].load_ms = 10, 30
    runtime: CoordinatorRuntime[GroupShard] = world.inner.broker.coordinators.shards.groups
    broken = runtime.host(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broken._log, "read", unreadable)
        broken._fail(StorageError("the disk"))
        await until(lambda: broken.state.value == "unreadable")
        yield


async def unreadable() -> AsyncIterator[bytes]:
    raise StorageError("the disk")
    yield b""


# --- transactions -----------------------------------------------------------------------------------------------------
@work(
    {
        'tidelog_transactional_ids{state="Ongoing"}': 1,
        'tidelog_transactional_ids{state="Empty"}': -1,
        "tidelog_transaction_open_seconds_max": Within(0.001, 60),
        'tidelog_transactions_ended_total{outcome="committed"}': 0,
    },
    **COORDINATORS,
)
async def a_transaction_begins(world: World) -> AsyncIterator[None]:
    await world.create("t")
    client = await Client(world.node).begin()
    yield
    await client.add(T0)
    began_ms = world.inner.ground.host.clock.steady_ms()
    await until(lambda: world.inner.ground.host.clock.steady_ms() > began_ms + 1)
    yield


@work(
    {
        'tidelog_transactions_ended_total{outcome="committed"}': 1,
        'tidelog_transactions_ended_total{outcome="aborted"}': 1,
        'tidelog_transactional_ids{state="CompleteCommit"}': 1,
        'tidelog_transactional_ids{state="CompleteAbort"}': 1,
        "tidelog_transactions_fenced_total": 0,
        "tidelog_transactions_timed_out_total": 0,
        "tidelog_transaction_open_seconds_max": Is(0),
    },
    **COORDINATORS,
)
async def transactions_end(world: World) -> AsyncIterator[None]:
    await world.create("t")
    commits, aborts = await Client(world.node, "x").begin(), await Client(world.node, "y").begin()
    await commits.add(T0)
    await aborts.add(T0)
    yield
    assert await commits.end(commit=True) is None
    assert await aborts.end(commit=False) is None
    await commits.reaches("CompleteCommit")
    await aborts.reaches("CompleteAbort")
    yield


@work(
    {
        "tidelog_transactions_fenced_total": 1,
        "tidelog_transactions_timed_out_total": 1,
        'tidelog_transactions_ended_total{outcome="aborted"}': 2,
    },
    **COORDINATORS,
)
async def producers_leave_their_transactions_open(world: World) -> AsyncIterator[None]:
    await world.create("t")
    gone, slow = await Client(world.node, "x").begin(), await Client(world.node, "y").begin(timeout_ms=1)
    yield
    await gone.add(T0)
    await Client(world.node, "x").begin()
    await slow.add(T0)
    await slow.reaches("CompleteAbort")
    yield


@work({"kafka_server_replicamanager_partitionswithlatetransactionscount": 1}, **COORDINATORS)
async def a_transaction_is_late(world: World) -> AsyncIterator[None]:
    await world.create("t", 2)
    client = await Client(world.node).begin()
    await client.add(T0)
    yield
    write(world.node, T0, client.producer)
    entry = led(world.node, T0).log.hot.end.producers.producers[client.producer.id]
    longest_ms = world.inner.configs.broker.transaction_max_timeout_ms
    entry.seen_ms = world.inner.ground.host.clock.steady_ms() - longest_ms - 5 * 60_000 - 1
    yield


@work({"kafka_server_replicamanager_partitionswithlatetransactionscount": 0}, **COORDINATORS)
async def a_transaction_is_long_and_not_late(world: World) -> AsyncIterator[None]:
    await world.create("t")
    client = await Client(world.node).begin()
    await client.add(T0)
    yield
    write(world.node, T0, client.producer)
    entry = led(world.node, T0).log.hot.end.producers.producers[client.producer.id]
    entry.seen_ms = world.inner.ground.host.clock.steady_ms() - world.inner.configs.broker.transaction_max_timeout_ms
    yield


# --- the log cleaner --------------------------------------------------------------------------------------------------
@work(
    {
        'tidelog_cleaner_passes_total{tier="local"}': ROSE,
        'tidelog_cleaner_passes_total{tier="bucket"}': 0,
        'tidelog_cleaner_read_bytes_total{tier="local"}': ROSE,
        'tidelog_cleaner_written_bytes_total{tier="local"}': ROSE,
        "kafka_utils_throttler_cleaner_io_total": ROSE,
        CLEANER + "cleaner_recopy_percent": Within(0.1, 50),
        CLEANER + "max_buffer_utilization_percent": Is(100 * 7 * 24 / (2 << 20)),
        CLEANER + "max_clean_time_secs": Within(0, 60),
        CLEANER + "max_compaction_delay_secs": Is(0),
        CLEANERS + "max_dirty_percent": Is(0),
        CLEANERS + "time_since_last_run_ms": Within(0, 60_000),
        CLEANERS + "uncleanable_partitions_count": Is(0),
        CLEANERS + "uncleanable_bytes": Is(0),
    },
    log_cleaner_backoff_ms="1",
    log_cleaner_dedupe_buffer_size=str(2 << 20),
)
async def a_log_is_cleaned(world: World) -> AsyncIterator[None]:
    await world.create("t", configs=LOCAL)
    for number in range(100):
        await put(world.node, (f"k{number % 7}", f"{number}"))
    yield
    await closed(world.node)
    done = world.inner.broker.cleaning.figures.done["local"]
    await until(lambda: done.passes >= 1 and world.inner.broker.cleaning.figures.dirtiest_ratio == 0)
    yield


@work(
    {
        CLEANERS + "max_dirty_percent": Is(100),
        CLEANER + "max_compaction_delay_secs": Is(0),
        'tidelog_cleaner_passes_total{tier="local"}': 0,
    },
    log_cleaner_backoff_ms="1",
)
async def a_log_is_dirty_and_not_due(world: World) -> AsyncIterator[None]:
    await world.create("t", configs={**LOCAL, "min.cleanable.dirty.ratio": "1"})
    await put(world.node, ("k", "v"))
    yield
    await closed(world.node)
    await until(lambda: world.inner.broker.cleaning.figures.dirtiest_ratio > 0)
    yield


@work(
    {CLEANERS + "uncleanable_partitions_count": 1, CLEANERS + "uncleanable_bytes": ROSE},
    log_cleaner_backoff_ms="1",
)
async def a_log_cannot_be_cleaned(world: World) -> AsyncIterator[None]:
    await world.create("t", configs=LOCAL)
    for number in range(100):
        await put(world.node, ("k", f"{number}"))
    yield
    (segment, *_) = partition(world).log.hot.segments()
    with open(segment.path, "r+b") as file:
        file.seek(70)
        file.write(b"damage")
    await closed(world.node)
    await until(lambda: len(world.inner.broker.cleaning.uncleanable) == 1)
    yield


@work({'tidelog_cleaner_passes_total{tier="bucket"}': ROSE}, log_cleaner_backoff_ms="1")
async def the_buckets_segments_are_cleaned(world: World) -> AsyncIterator[None]:
    await world.create("t", configs={**COMPACTED, "local.retention.bytes": "1"})
    yield
    for number in range(200):
        await put(world.node, (f"k{number % 7}", f"{number}"))
    await world.node.seal("t")
    await until(lambda: world.inner.broker.cleaning.figures.done["bucket"].passes > 0)
    yield


# --- offloads that are held back ---------------------------------------------------------------------------------------
@work(
    {
        'tidelog_tier_offload_held_back_bytes{topic="t",partition="0",producer_id="0"}': Is(3 * 999 + 120),
        "tidelog_tier_offload_held_back_partitions": 1,
    },
    **COORDINATORS,
)
async def a_transaction_holds_offloads_back(world: World) -> AsyncIterator[None]:
    await world.create("t", configs=TIERED)
    client = await Client(world.node).begin()
    await client.add(T0)
    write(world.node, T0, client.producer)
    yield
    for number in range(5):
        await world.node.append("t", b"%d" % number * 928)
    yield


@work({"tidelog_tier_offload_held_back_partitions": -1}, **COORDINATORS)
async def a_transaction_that_held_offloads_back_ends(world: World) -> AsyncIterator[None]:
    await world.create("t", configs=TIERED)
    client = await Client(world.node).begin()
    await client.add(T0)
    write(world.node, T0, client.producer)
    for number in range(5):
        await world.node.append("t", b"%d" % number * 928)
    yield
    assert await client.end(commit=True) is None
    await client.reaches("CompleteCommit")
    yield
