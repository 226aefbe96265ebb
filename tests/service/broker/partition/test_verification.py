"""Verifications of transactions: how many are kept, for how long, and what ends with this node's leadership."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from grpc_api.contract.coordinator_errors import CoordinatorLoading
from grpc_api.contract.groups import TopicCommit, TxnOffsetCommit
from grpc_api.contract.log import Isolation
from grpc_api.contract.transactions import PartitionsAdded
from service.broker.appending.append_queues import Done
from service.broker.coordinators.transactional_offsets import TransactionalOffsets
from service.broker.partition import verification
from service.broker.partition.verification import Verifications
from storage_tiers.errors import (
    InvalidTransactionState,
    LeaderNotAvailable,
    LogError,
    NotEnoughReplicas,
    NotLeader,
    OutOfOrderSequence,
    RequestTimedOut,
)
from tests.service.broker.appending.test_append_lane import FIRST, T0, Coordinator, Lane, X, Y
from tests.service.broker.partition.test_leadership import ME, OTHER, elect
from tests.service.broker.support import running, until

UNTIERED = {"remote.storage.enable": "false"}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Verifications:
    """Keeps two verifications at most."""
    monkeypatch.setattr(verification, "MAX_VERIFICATIONS", 2)
    return Verifications()


def is_verified(known: Verifications, producer_id: int) -> bool:
    try:
        known.check(producer_id, 0)
    except InvalidTransactionState:
        return False
    return True


# --- the epoch of an answer -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("epoch", [4, 6])
def test_an_answer_is_for_the_epoch_that_was_asked_for(epoch: int) -> None:
    known = Verifications()
    known.verified(known.begin(7, 5, 0, adds=False))
    assert known.check(7, 5).epoch == 5
    with pytest.raises(InvalidTransactionState):
        known.check(7, epoch)


def test_an_answer_for_an_older_epoch_verifies_nothing() -> None:
    known = Verifications()
    newer, older = (known.begin(7, epoch, 0, adds=False) for epoch in (5, 4))
    known.verified(older)
    for epoch in (4, 5):
        with pytest.raises(InvalidTransactionState):
            known.check(7, epoch)
    known.verified(newer)
    assert known.check(7, 5) is newer
    assert (newer.holders, older.holders) == (1, 1)


def test_the_first_batch_is_the_one_with_the_lowest_sequence_that_was_asked_for() -> None:
    known = Verifications()
    begun = {id(known.begin(7, 5, sequence, adds=False)) for sequence in (3, 1, 6)}
    assert len(begun) == 1
    known.verified(known.begin(7, 5, 4, adds=False))
    known.check(7, 5).check_first(1)
    with pytest.raises(OutOfOrderSequence):
        known.check(7, 5).check_first(3)


# --- the bound --------------------------------------------------------------------------------------------------------
def test_the_oldest_verification_without_a_waiting_batch_is_forgotten(few: Verifications) -> None:
    for producer_id in (0, 1, 0, 2):  # producer 0 begins again, and is then newer than producer 1
        begun = few.begin(producer_id, 0, 0, adds=False)
        few.verified(begun)
        few.release(begun)
    assert [is_verified(few, each) for each in (0, 1, 2)] == [True, False, True]


def test_no_verification_with_a_waiting_batch_is_forgotten(few: Verifications) -> None:
    begun = [few.begin(each, 0, 0, adds=False) for each in (0, 1)]
    with pytest.raises(RequestTimedOut, match="send again"):
        few.begin(2, 0, 0, adds=False)
    for each in begun:
        few.verified(each)
    assert is_verified(few, 0) and is_verified(few, 1)
    again = few.begin(0, 0, 1, adds=False)  # two batches of one producer
    few.release(begun[0])
    with pytest.raises(RequestTimedOut):
        few.begin(2, 0, 0, adds=False)
    few.release(again)
    few.begin(2, 0, 0, adds=False)
    assert [is_verified(few, each) for each in (0, 1)] == [False, True]


async def test_a_producer_beyond_the_bound_sends_again_and_harms_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "MAX_VERIFICATIONS", 1)
    async with running(tmp_path) as node:
        await node.create("t")
        lane = Lane(node)
        first, second = lane.send(X, 0), lane.send(Y, 0)
        assert await lane.outcome(second) is RequestTimedOut
        lane.coordinator.says()
        assert await lane.outcome(first) == 0
        lane.coordinator.answer = PartitionsAdded(None)
        assert await lane.outcome(lane.send(Y, 0)) == 1
        assert lane.lane.held_bytes == 0


@pytest.mark.parametrize("refusal", [None, CoordinatorLoading("not yet")])
async def test_a_batch_that_has_its_answer_waits_for_nothing(tmp_path: Path, refusal: LogError | None) -> None:
    async with running(tmp_path) as node:
        await node.create("t")
        lane = Lane(node)
        sent = lane.send(X, 0)
        await until(lambda: bool(lane.coordinator.waiting))
        (begun,) = lane.partition.verifications._of.values()
        lane.coordinator.says(refusal)
        assert await lane.outcome(sent) == (0 if refusal is None else NotEnoughReplicas)
        assert begun.holders == 0


@pytest.mark.parametrize("refusal", [None, CoordinatorLoading("not yet")])
async def test_a_commit_in_a_transaction_that_has_its_answer_waits_for_nothing(
    tmp_path: Path, refusal: LogError | None
) -> None:
    async with running(tmp_path) as node:
        await node.create("t")
        coordinator, partitions = Coordinator(), node.node.broker.partitions
        coordinator.answer = refusal or PartitionsAdded(None)
        commit = TxnOffsetCommit("g", FIRST, *X, -1, "", None, [TopicCommit("t", [])])
        try:
            await TransactionalOffsets(partitions, coordinator).enter(T0, commit)
        except CoordinatorLoading:
            assert refusal is not None
        (begun,) = partitions.get(T0).verifications._of.values()
        assert (begun.holders, begun.is_verified) == (0, refusal is None)


# --- the end of leadership --------------------------------------------------------------------------------------------
async def test_no_verification_outlives_the_leadership_in_which_it_was_asked_for(tmp_path: Path) -> None:
    """The other leader may end the transaction without this node's knowledge."""
    async with running(tmp_path) as node:
        await node.create("t", configs=UNTIERED)
        lane = Lane(node)
        known = lane.partition.verifications
        known.verified(known.begin(X.id, X.epoch, 0, adds=False))
        await elect(node, "t", OTHER)
        await elect(node, "t", ME)
        assert not is_verified(known, X.id)


async def test_no_verification_outlives_a_log_that_is_replaced_by_the_buckets(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await node.create("t", configs=UNTIERED)
        lane = Lane(node)
        known = lane.partition.verifications
        known.verified(known.begin(X.id, X.epoch, 0, adds=False))
        lane.partition.recover(LeaderNotAvailable("may lack records"))
        lane.partition.log.hot.truncate_fully_and_start_at(5)
        lane.partition.begin_at(5)
        lane.partition.reconciled()
        assert not is_verified(known, X.id)


async def test_batches_in_the_lane_end_with_the_leadership_and_may_be_sent_again(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await node.create("t", configs=UNTIERED)
        lane = Lane(node)
        sent = [lane.send(X, 0), lane.send(X, 1), lane.send(Y, 0)]
        await until(lambda: len(lane.coordinator.waiting) == 2)
        await elect(node, "t", OTHER)
        assert [await lane.outcome(each) for each in sent] == [NotLeader] * 3
        assert lane.lane.held_bytes == 0
        refused = lane.send(X, 0)
        assert await lane.outcome(refused) is NotLeader
        assert len(lane.coordinator.asked) == 2, "a node that does not lead asks no coordinator"
        await elect(node, "t", ME)
        again = lane.send(X, 0)
        await until(lambda: len(lane.coordinator.waiting) == 3)
        for _ in range(2):
            lane.coordinator.says()  # the answers to batches that have ended
        await asyncio.sleep(0)
        assert not again.done()
        assert lane.partition.readable_end(Isolation.LOG_END) == 0
        lane.coordinator.says()
        assert await lane.outcome(again) == 0
        assert lane.lane.held_bytes == 0


async def test_a_batch_that_was_handed_on_gets_its_answer_and_those_behind_it_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as node:
        await node.create("t", configs=UNTIERED)
        lane = Lane(node)
        handed: list[tuple[memoryview, Done]] = []
        monkeypatch.setattr(lane.lane, "_append", lambda _, batch, done: handed.append((batch, done)))
        first, second = lane.send(X, 0), lane.send(X, 1)
        await until(lambda: bool(lane.coordinator.waiting))
        lane.coordinator.says()
        await until(lambda: bool(handed))
        await elect(node, "t", OTHER)
        assert await lane.outcome(second) is NotLeader
        assert not first.done() and lane.lane.held_bytes > 0
        ((batch, done),) = handed
        done(NotLeader("another leads"), batch)
        assert await lane.outcome(first) is NotLeader
        assert lane.lane.held_bytes == 0


async def test_a_deleted_topic_ends_the_batches_in_the_lane(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await node.create("t", configs=UNTIERED)
        lane = Lane(node)
        sent = lane.send(X, 0)
        await until(lambda: bool(lane.coordinator.waiting))
        await node.core.topics.delete(["t"])
        (answer,) = await sent
        assert isinstance(answer, LogError) and "deleted" in str(answer)
        lane.coordinator.says()
        assert lane.lane.held_bytes == 0
