"""ListGroups, DescribeGroups, ListTransactions and DescribeTransactions while the flush of a record is held back: they
show the state before that record.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import chain
from typing import Any

import pytest

from grpc_api.contract.coordinator_errors import GroupIdNotFound, NotCoordinator, TransactionalIdNotFound
from grpc_api.contract.groups import (
    DeleteGroup,
    DescribedGroup,
    DescribeGroup,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    ListGroups,
    MemberProtocol,
    SyncGroup,
)
from grpc_api.contract.transactions import (
    NO_PRODUCER,
    AddPartitions,
    EndTransaction,
    InitProducer,
    ListTransactions,
    ProducerIdAndEpoch,
)
from service.broker.coordinators.coordinator_log import PartitionLog
from service.coordination.runtime import ShardHost
from service.coordination.shard_state import ShardState
from service.coordination.transactions.shard import TransactionSettings, TransactionShard
from service.coordination.transactions.transaction import TransactionEvent
from service.coordination.turn_writes import TurnWrites
from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.clock import SystemClock, SystemRng
from storage_tiers.errors import StorageError
from storage_tiers.turns import TurnScheduler
from storage_tiers.types import TopicPartition
from tests.service.broker.support import until
from tests.service.coordination.held import CALLER, Held, release, turn

RANGE = (MemberProtocol("range", b"topics"),)


# --- groups -----------------------------------------------------------------------------------------------------------
def described(held: Held) -> DescribedGroup:
    return held.host.look(lambda shard: shard.describe(DescribeGroup("g")))


def seen(held: Held) -> tuple[str, list[tuple[str, bytes, bytes]], list[str]]:
    """The group's state, its members' ids, subscriptions and assignments, and the states that ListGroups returns."""
    found = described(held)
    listed = held.host.look(lambda shard: list(chain(*shard.list(ListGroups()))))
    members = [(each.member_id, each.metadata, each.assignment) for each in found.members]
    return found.state, members, [each.state for each in listed]


async def member(held: Held, instance: str | None = None) -> str:
    """The only member of a group that waits for its assignment."""
    joined = held.host.ask(JoinGroup("g", "", instance, "consumer", RANGE, 30_000, 30_000, False), CALLER)
    await turn()
    release(held)
    member_id: str = (await joined).member_id
    return member_id


def sync(held: Held, member_id: str, instance: str | None = None) -> asyncio.Future[Any]:
    return held.host.ask(SyncGroup("g", 1, member_id, instance, [(member_id, b"all")]), CALLER)


async def done(held: Held, answer: asyncio.Future[Any]) -> Any:
    """The answer, which waits until its record is flushed."""
    await turn()
    assert not answer.done()
    release(held)
    return await answer


async def test_a_new_group_is_seen_once_its_record_is_committed(held: Held) -> None:
    joined = held.host.ask(JoinGroup("g", "", None, "consumer", RANGE, 30_000, 30_000, True), CALLER)
    await turn()
    assert (isinstance(described(held).error, GroupIdNotFound), seen(held)) == (True, ("Dead", [], []))
    await done(held, joined)
    assert seen(held) == ("Empty", [], ["Empty"])


async def test_a_group_is_stable_once_its_assignment_is_committed(held: Held) -> None:
    member_id = await member(held)
    before = ("CompletingRebalance", [(member_id, b"", b"")], ["CompletingRebalance"])
    synced = sync(held, member_id)
    await turn()
    assert seen(held) == before
    await done(held, synced)
    assert seen(held) == ("Stable", [(member_id, b"topics", b"all")], ["Stable"])


async def test_an_assignment_that_is_not_committed_before_the_disk_fails_is_never_seen(held: Held) -> None:
    synced = sync(held, await member(held))
    await turn()
    held.partition.fail(StorageError("the disk refuses"))
    with pytest.raises(NotCoordinator):
        await synced
    await held.loaded()
    assert seen(held) == ("Empty", [], ["Empty"])


async def test_a_group_is_empty_once_that_is_committed(held: Held) -> None:
    member_id = await member(held)
    await done(held, sync(held, member_id))
    left = held.host.ask(LeaveGroup("g", [LeavingMember(member_id)]), CALLER)
    await turn()
    assert seen(held) == ("PreparingRebalance", [], ["PreparingRebalance"])
    await done(held, left)
    assert seen(held) == ("Empty", [], ["Empty"])


async def test_a_deleted_group_is_seen_until_its_tombstone_is_committed(held: Held) -> None:
    joined = held.host.ask(JoinGroup("g", "", None, "consumer", RANGE, 30_000, 30_000, True), CALLER)
    await done(held, joined)
    deleted = held.host.ask(DeleteGroup("g"), CALLER)
    await turn()
    assert (described(held).error, seen(held)) == (None, ("Empty", [], ["Empty"]))
    first = held.partition.log.end_offset
    again = held.host.ask(JoinGroup("g", "", None, "consumer", RANGE, 30_000, 30_000, True), CALLER)
    await turn()
    assert seen(held) == ("Empty", [], ["Empty"])
    held.partition.flushed(first)
    await deleted
    assert seen(held) == ("Dead", [], [])  # although a record that is not committed creates it again
    await done(held, again)
    assert seen(held) == ("Empty", [], ["Empty"])


async def test_a_static_member_has_its_new_id_once_that_is_committed(held: Held) -> None:
    old = await member(held, "one")
    await done(held, sync(held, old, "one"))
    returned = held.host.ask(JoinGroup("g", "", "one", "consumer", RANGE, 30_000, 30_000, False), CALLER)
    await turn()
    assert seen(held) == ("Stable", [(old, b"topics", b"all")], ["Stable"])
    new = (await done(held, returned)).member_id
    assert new != old
    assert seen(held) == ("Stable", [(new, b"topics", b"all")], ["Stable"])


async def test_a_load_shows_a_groups_state_below_the_high_watermark(held: Held) -> None:
    synced = sync(held, await member(held))
    await turn()
    await held.reload()
    with pytest.raises(NotCoordinator):
        await synced
    assert seen(held) == ("Empty", [], ["Empty"])
    release(held)
    await held.host.settled()
    assert described(held).state == "Stable"


# --- transactions -----------------------------------------------------------------------------------------------------
class HeldTransactions:
    """A transaction coordinator over the held partition."""

    def __init__(self, held: Held) -> None:
        self.held = held
        self.host = ShardHost(
            TopicPartition("transactions", 0),
            PartitionLog(held.partition),
            lambda: TransactionShard(TransactionSettings()),
            clock=SystemClock(),
            scheduler=TurnScheduler(),
            backoff=lambda: Backoff(BackoffSettings(0.01, 0.02), SystemRng()),
            writes=TurnWrites(),
        )

    def ask(self, event: TransactionEvent) -> asyncio.Future[Any]:
        return self.host.ask(event, CALLER)

    async def begin(self) -> ProducerIdAndEpoch:
        begun = await done(self.held, self.ask(InitProducer("x", 60_000, NO_PRODUCER, 7)))
        producer: ProducerIdAndEpoch = begun.producer
        return producer

    @property
    def seen(self) -> tuple[str, Any, list[TopicPartition], list[tuple[str, int, str]]]:
        """The id's state, producer and partitions, and the rows of ListTransactions."""
        found = self.host.look(lambda shard: shard.describe("x"))
        rows = self.host.look(lambda shard: list(chain(*shard.list(ListTransactions(), 0))))
        return (
            found.state,
            found.producer,
            list(found.partitions),
            [(row.transactional_id, row.producer_id, row.state) for row in rows],
        )


@pytest.fixture
async def transactions(held: Held) -> AsyncIterator[HeldTransactions]:
    coordinator = HeldTransactions(held)
    await until(lambda: coordinator.host.state is ShardState.ACTIVE)
    yield coordinator
    await coordinator.host.close(NotCoordinator("the test is over"))


async def test_a_transaction_is_seen_as_its_committed_records_have_it(transactions: HeldTransactions) -> None:
    host, a = transactions.host, TopicPartition("t", 0)
    begun = transactions.ask(InitProducer("x", 60_000, NO_PRODUCER, 7))
    await turn()
    assert isinstance(host.look(lambda shard: shard.describe("x")).error, TransactionalIdNotFound)
    assert transactions.seen[3] == []
    producer = (await done(transactions.held, begun)).producer
    assert transactions.seen == ("Empty", producer, [], [("x", 7, "Empty")])
    added = transactions.ask(AddPartitions("x", producer, [a], client_version=2))
    await turn()
    assert transactions.seen == ("Empty", producer, [], [("x", 7, "Empty")])
    await done(transactions.held, added)
    ongoing = ("Ongoing", producer, [a], [("x", 7, "Ongoing")])
    assert transactions.seen == ongoing
    ended = transactions.ask(EndTransaction("x", producer, True, 2, 8))
    await turn()
    assert (transactions.seen, host.look(lambda shard: shard.prepared())) == (ongoing, [])
    later = (await done(transactions.held, ended)).producer
    prepared = ("PrepareCommit", later, [a], [("x", 7, "PrepareCommit")])
    assert transactions.seen == prepared
    (markers,) = host.look(lambda shard: shard.prepared())
    host.change(lambda shard, now_ms: shard.completed(markers, now_ms))
    await turn()
    assert transactions.seen == prepared
    release(transactions.held)
    await host.settled()
    assert transactions.seen == ("CompleteCommit", later, [], [("x", 7, "CompleteCommit")])


async def test_a_loaded_transaction_is_seen_as_its_committed_records_have_it(transactions: HeldTransactions) -> None:
    producer = await transactions.begin()
    transactions.ask(AddPartitions("x", producer, [TopicPartition("t", 0)], client_version=2))
    await turn()
    again = HeldTransactions(transactions.held)
    await until(lambda: again.host.state is ShardState.ACTIVE)
    assert again.seen == ("Empty", producer, [], [("x", 7, "Empty")])
    release(transactions.held)
    await again.host.settled()
    assert again.seen == ("Ongoing", producer, [TopicPartition("t", 0)], [("x", 7, "Ongoing")])
    await again.host.close(NotCoordinator("the test is over"))
