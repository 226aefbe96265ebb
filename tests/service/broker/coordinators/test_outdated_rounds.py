"""The rounds that end outdated transactions, on a node of thousands of partitions: no step looks at all of them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import ref

from service.broker.background.turns import GLANCES_A_TURN
from service.broker.coordinators.outdated_transactions import OutdatedTransactions
from service.broker.partition.record_loss import RecoveredEnd
from service.coordination.kept_memory import KeptMemory
from service.coordination.transactions.shard import TransactionSettings, TransactionShard
from storage_tiers.errors import NotEnoughReplicas
from storage_tiers.turns import TurnScheduler
from storage_tiers.types import TopicPartition
from tests.service.broker.coordinators.transactional import SETTINGS, Client
from tests.service.broker.support import running

PARTITIONS = 5 * GLANCES_A_TURN
#: The most partitions examined in one turn of the loop: those of a slice, and of the next one, which may begin in that turn.
A_TURN = 2 * GLANCES_A_TURN


class Partitions:
    """Partitions that all have lost records. `looks` counts the partitions looked at in each turn of the loop."""

    def __init__(self) -> None:
        producers = SimpleNamespace(producers={7: SimpleNamespace(epoch=3)}, in_transaction=(7,))
        hot = SimpleNamespace(end=SimpleNamespace(producers=producers))
        self.all = [
            SimpleNamespace(
                partition=TopicPartition("t", number),
                recovered_end=RecoveredEnd(5),
                is_recovering=False,
                leads=True,
                log=SimpleNamespace(hot=hot),
            )
            for number in range(PARTITIONS)
        ]
        self.looks = [0]

    def __iter__(self) -> Iterator[Any]:
        for each in self.all:
            self.looks[-1] += 1
            yield each

    async def count(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.looks.append(0)


class Host:
    """A loaded shard; all its decisions are committed at once. `settlements` counts the rounds' waits for them."""

    def __init__(self, number: int) -> None:
        self.partition = TopicPartition("__transaction_state", number)
        self.shard = TransactionShard(TransactionSettings(), memory=KeptMemory(1 << 20))
        self.settlements = 0

    def look(self, read: Any) -> Any:
        return read(self.shard)

    async def is_settled(self, shard: TransactionShard) -> bool:
        self.settlements += 1
        return shard is self.shard


async def test_no_step_of_a_round_looks_at_all_partitions() -> None:
    partitions, hosts = Partitions(), {number: Host(number) for number in range(3)}
    # The clock is virtual: a fast machine would look at more partitions in a slice of real time.
    rounds: Any = OutdatedTransactions(partitions, TurnScheduler(count(step=1e-5).__next__))
    runtime: Any = SimpleNamespace(hosts={**hosts, 3: Host(3)})  # the last one is not loaded
    for host in hosts.values():
        rounds.loaded(host)
    counting = asyncio.ensure_future(partitions.count())
    try:
        await asyncio.sleep(0)
        partitions.looks = [0]
        await rounds.tick(runtime)
        assert [host.settlements for host in hosts.values()] == [1, 1, 1]
        assert {each.recovered_end.settled_in for each in partitions.all} == {frozenset({0, 1, 2})}
        assert max(partitions.looks) <= A_TURN
        assert sum(partitions.looks) == 2 * PARTITIONS  # once for losses, once for epochs
        partitions.looks = [0]
        await rounds._open()
        assert max(partitions.looks) <= A_TURN
        partitions.looks = [0]
        await rounds.tick(runtime)  # the notes stay, for the shard that is not loaded
        assert sum(partitions.looks) == PARTITIONS
        assert [host.settlements for host in hosts.values()] == [1, 1, 1]
    finally:
        counting.cancel()


async def test_a_settled_loss_is_not_settled_again_when_it_is_found_later() -> None:
    """The loss's note says that the shard has settled it, and the shard is loaded before the partition leads."""
    partitions, host, asked = Partitions(), Host(0), list[Any]()
    del partitions.all[2:]
    settled, other = partitions.all
    settled.recovered_end, settled.is_recovering = RecoveredEnd(5, settled_in=frozenset({0})), True
    other.recovered_end = None

    def outdate(lost: Any, epochs: Any, open_in: Any = None) -> list[Any]:
        if open_in is None:
            asked.append(lost)
        return []

    host.shard.outdate = outdate  # type: ignore[method-assign]
    rounds: Any = OutdatedTransactions(partitions, TurnScheduler())
    runtime: Any = SimpleNamespace(hosts={0: host})
    rounds.loaded(host)
    settled.is_recovering = False
    await rounds.tick(runtime)
    assert asked == []
    settled.is_recovering, other.recovered_end = True, RecoveredEnd(7)
    await rounds.tick(runtime)
    assert asked[0] == {other.partition}
    settled.is_recovering, before = False, len(asked)
    await rounds.tick(runtime)
    assert len(asked) == before
    assert other.recovered_end.settled_in == frozenset({0})


async def test_a_dropped_shard_gives_its_memory_back_before_the_next_one_is_loaded(tmp_path: Path) -> None:
    """Otherwise the ids of the shard would be counted twice while it is loaded again."""
    async with running(tmp_path / "data", broker=SETTINGS, store_url="none") as node:
        await Client(node).begin()
        hosts = list(node.node.broker.coordinators.shards.transactions.hosts.values())
        assert hosts
        for host in hosts:
            kept = ref(host.look(lambda shard: shard))
            host._fail(NotEnoughReplicas("a write failed"))
            gc.collect()
            assert kept() is None
