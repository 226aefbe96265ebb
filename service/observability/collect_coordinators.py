"""Collects the metrics of groups, transactions and the log cleaner.

A node may have a hundred thousand groups and a million committed offsets. Shards therefore yield their figures in shares, one
per iteration of the event loop, and the lag is computed for a limited number of groups and offsets.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from service.coordination.groups.classic_group import DEAD, GroupState
from service.coordination.groups.readers import GroupFigures
from service.coordination.groups.shard import GroupShard
from service.coordination.runtime import ShardHost
from service.coordination.shard_state import ShardState
from service.coordination.transaction_records import TransactionStatus
from service.coordination.transactions.shard import TransactionShard
from service.coordination.transactions.transaction import NAMES
from service.observability.exposition import Exposition, labels_of
from storage_tiers.errors import LogError

if TYPE_CHECKING:
    from service.broker.partition.partitions import Partitions
    from service.coordination.coordinator_runtime import CoordinatorRuntime
    from service.coordination.ports import Shard
    from service.node import Node

State = TypeVar("State", bound="Shard")
Figures = TypeVar("Figures")

#: The most committed offsets that one scrape compares with the ends of the logs.
OFFSETS_A_SCRAPE = 20_000
#: The most committed offsets compared in one iteration of the event loop.
OFFSETS_A_TURN = 250
#: Kafka's words for the states of a coordinator's partition.
_STATES = {
    ShardState.LOADING: "loading",
    ShardState.ACTIVE: "active",
    ShardState.UNREADABLE: "failed",
}
_MANAGER = "kafka_coordinator_group_groupmetadatamanager_"
_GROUPS = "kafka_server_group_coordinator_metrics_"
_TRANSACTIONS = "kafka_server_transaction_coordinator_metrics_"
_CLEANER, _CLEANERS = "kafka_log_logcleaner_", "kafka_log_logcleanermanager_"
#: The states that a transactional id can have.
_FOUND = [NAMES[each] for each in TransactionStatus if each.name not in ("DEAD", "PREPARE_EPOCH_FENCE")]


async def collect_coordinators(node: Node, into: Exposition) -> None:
    shards = node.broker.coordinators.shards
    await _groups(node, into)
    await _transactions(node, into)
    unreadable = 0
    kinds: tuple[tuple[str, Sequence[ShardHost[Any]]], ...] = (
        (_GROUPS, tuple(shards.groups.hosts.values())),
        (_TRANSACTIONS, tuple(shards.transactions.hosts.values())),
    )
    for name, hosts in kinds:
        loads = [host.load_ms for host in hosts if host.load_ms is not None]
        into.put(name + "partition_load_time_max", max(loads, default=0))
        into.put(name + "partition_load_time_avg", sum(loads) / len(loads) if loads else 0)
        unreadable += sum(host.state is ShardState.UNREADABLE for host in hosts)
    states = Counter(host.state for host in shards.groups.hosts.values())
    for state, kafkas in _STATES.items():
        into.put(_GROUPS + "num_partitions", states[state], labels_of(state=kafkas))
    into.put("tidelog_coordinators_unreadable", unreadable)


async def _shares(
    runtime: CoordinatorRuntime[State], figures: Callable[[State], Iterator[Sequence[Figures]]]
) -> AsyncIterator[Sequence[Figures]]:
    """The figures of all loaded shards. Other work of the event loop runs after each share."""
    for host in tuple(runtime.hosts.values()):
        for share in _figures_of(host, figures):
            yield share
            await asyncio.sleep(0)


def _figures_of(
    host: ShardHost[State], figures: Callable[[State], Iterator[Sequence[Figures]]]
) -> Iterator[Sequence[Figures]]:
    try:
        return host.look(figures)
    except LogError:
        return iter(())


class _Lags:
    """The lag of as many groups as the limits allow."""

    def __init__(self, partitions: Partitions, most: int, into: Exposition) -> None:
        self._partitions, self._most, self._into = partitions, most, into
        self._left, self.left_out, self._turn = OFFSETS_A_SCRAPE, 0, 0

    async def add(self, group: GroupFigures) -> None:
        if not group.offsets:
            return
        if self._most <= 0 or group.offsets > self._left:
            self.left_out += 1
            return
        self._most -= 1
        self._left -= group.offsets
        behind = in_bucket = 0
        for partition, committed in group.committed:
            self._turn += 1
            if self._turn % OFFSETS_A_TURN == 0:
                await asyncio.sleep(0)
            led = self._partitions.find(partition)
            if led is None:
                continue
            offset = max(committed, led.log.log_start_offset)
            end = led.state.high_watermark
            behind += max(0, end - offset)
            in_bucket += max(0, min(end, led.log.tiered_end) - offset)
        labels = labels_of(group=group.group_id)
        self._into.put("tidelog_group_lag_records", behind, labels)
        self._into.put("tidelog_group_lag_in_bucket_records", in_bucket, labels)


async def _groups(node: Node, into: Exposition) -> None:
    shards = node.broker.coordinators.shards
    counts, lags = shards.group_counts, _Lags(node.broker.partitions, node.configs.broker.tidelog_metrics_groups, into)
    states: Counter[str] = Counter()
    members = offsets = 0
    async for share in _shares(shards.groups, GroupShard.figures):
        for group in share:
            states[group.state.value] += 1
            members += group.members
            offsets += group.offsets
            await lags.add(group)
    into.put(_MANAGER + "numgroups", states.total())
    for state in (*(each.value for each in GroupState), DEAD):
        into.put(_MANAGER + "numgroups" + state.lower(), states[state])
    into.put(_MANAGER + "numoffsets", offsets)
    into.put(_GROUPS + "group_count", states.total(), labels_of(protocol="classic"))
    into.put(_GROUPS + "offset_commit_total", counts.commits)
    into.put(_GROUPS + "offset_deletion_total", counts.deletions)
    into.put(_GROUPS + "offset_expiration_total", counts.expirations)
    into.put(_GROUPS + "group_completed_rebalance_total", counts.rebalances)
    into.put("tidelog_group_members", members)
    into.put("tidelog_metrics_left_out", lags.left_out, labels_of(kind="group"))


async def _transactions(node: Node, into: Exposition) -> None:
    shards = node.broker.coordinators.shards
    counts, now_ms = shards.transaction_counts, node.ground.host.clock.steady_ms()
    states: Counter[str] = Counter()
    oldest_ms = now_ms
    async for share in _shares(shards.transactions, TransactionShard.figures):
        for state, start_ms in share:
            states[state] += 1
            if start_ms >= 0:
                oldest_ms = min(oldest_ms, start_ms)
    for state in _FOUND:
        into.put("tidelog_transactional_ids", states[state], labels_of(state=state))
    into.put("tidelog_transaction_open_seconds_max", max(0, now_ms - oldest_ms) / 1000)
    into.put("tidelog_transactions_ended_total", counts.committed, labels_of(outcome="committed"))
    into.put("tidelog_transactions_ended_total", counts.aborted, labels_of(outcome="aborted"))
    into.put("tidelog_transactions_timed_out_total", counts.timed_out)
    into.put("tidelog_transactions_fenced_total", counts.fenced)


def collect_cleaner(node: Node, into: Exposition) -> None:
    cleaning, now_ms = node.broker.cleaning, node.ground.host.clock.steady_ms()
    figures, uncleanable = cleaning.figures, cleaning.uncleanable
    last = figures.last
    read = last.counted.bytes_read
    into.put(_CLEANER + "cleaner_recopy_percent", 100 * last.counted.bytes_written / read if read else 0)
    into.put(_CLEANER + "max_buffer_utilization_percent", 100 * last.buffer_share)
    into.put(_CLEANER + "max_clean_time_secs", last.ms / 1000)
    into.put(_CLEANER + "max_compaction_delay_secs", figures.overdue_ms / 1000)
    into.put(_CLEANERS + "max_dirty_percent", 100 * figures.dirtiest_ratio)
    into.put(_CLEANERS + "time_since_last_run_ms", now_ms - figures.looked_ms)
    into.put(_CLEANERS + "uncleanable_partitions_count", len(uncleanable))
    into.put(_CLEANERS + "uncleanable_bytes", sum(hot.size_bytes for hot in uncleanable))
    into.put("kafka_utils_throttler_cleaner_io_total", sum(each.read + each.written for each in figures.done.values()))
    for tier, done in figures.done.items():
        labels = labels_of(tier=tier)
        into.put("tidelog_cleaner_passes_total", done.passes, labels)
        into.put("tidelog_cleaner_read_bytes_total", done.read, labels)
        into.put("tidelog_cleaner_written_bytes_total", done.written, labels)
