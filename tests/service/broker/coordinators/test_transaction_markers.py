"""The tasks that write markers, over partitions whose commits a test holds back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from grpc_api.contract.coordinator_errors import CoordinatorNotAvailable, NotCoordinator
from grpc_api.contract.log import Appended
from grpc_api.contract.transactions import Markers, ProducerIdAndEpoch
from service.broker.coordinators.transaction_markers import MARKERS_A_TURN, TransactionMarkers
from service.coordination.coordinator_runtime import CoordinatorRuntime
from service.coordination.turn_writes import TurnWrites
from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.clock import SystemClock, SystemRng
from storage_tiers.errors import (
    InvalidProducerEpoch,
    LogError,
    NotLeader,
    TransactionCoordinatorFenced,
    UnknownTopicOrPartition,
)
from storage_tiers.turns import TurnScheduler
from storage_tiers.types import TopicPartition
from tests.service.broker.support import until
from tests.service.coordination.test_runtime_log import shard

PRODUCER = ProducerIdAndEpoch(7, 3)


class HeldPartitions:
    """Each partition takes every marker; `commits` are the futures that the writers wait for, `epochs` the coordinators'
    epochs."""

    def __init__(self) -> None:
        self.commits: list[asyncio.Future[None]] = []
        self.epochs: list[int] = []

    def get(self, partition: TopicPartition) -> HeldPartitions:
        return self

    def append_marker(self, markers: Markers, coordinator_epoch: int) -> Appended:
        self.commits.append(asyncio.get_running_loop().create_future())
        self.epochs.append(coordinator_epoch)
        return Appended(0, 0, -1, 0, self.commits[-1])

    def has(self, topic: str, partition: int) -> bool:
        return True


class PreparedHost:
    """A transaction shard whose decisions are committed; nothing is ever completed."""

    partition = TopicPartition("__transaction_state", 0)

    def __init__(self, prepared: list[Markers]) -> None:
        self._prepared = prepared

    def look(self, read: Any) -> Any:
        return read(self)

    def prepared(self) -> list[Markers]:
        found, self._prepared = self._prepared, []
        return found


async def turns() -> None:
    """Runs all callbacks that are due now."""
    for _ in range(10):
        await asyncio.sleep(0)


def retries() -> Backoff:
    return Backoff(BackoffSettings(0.01, 0.02), SystemRng())


class Elsewhere:
    """Another broker, 2, leads these partitions of t. It answers each request with the next of `answers`: the error of all its
    partitions, or None."""

    def __init__(self, *partitions: int, answers: Sequence[LogError | None] = ()) -> None:
        self._partitions = partitions
        self._answers = list(answers)
        self.asked: list[tuple[int, list[int], int]] = []

    def leader_of(self, partition: TopicPartition) -> int | None:
        return 2 if partition.partition in self._partitions else None

    async def write_markers(
        self, broker_id: int, markers: Markers, coordinator_epoch: int
    ) -> Sequence[tuple[TopicPartition, LogError]]:
        self.asked.append((broker_id, [each.partition for each in markers.partitions], coordinator_epoch))
        error = self._answers.pop(0)
        return [] if error is None else [(each, error) for each in markers.partitions]


def writer(
    partitions: HeldPartitions, epoch: Callable[[], int] = lambda: 0, elsewhere: Elsewhere | None = None
) -> TransactionMarkers:
    clock = SystemClock()
    groups = CoordinatorRuntime(
        "__consumer_offsets", shard, clock=clock, scheduler=TurnScheduler(), backoff=retries, writes=TurnWrites()
    )
    return TransactionMarkers(
        partitions,
        groups,
        partitions,
        lambda _: epoch(),
        elsewhere or Elsewhere(),
        admit=lambda: None,
        clock=clock,
        backoff=retries,
    )


def markers(number: int = 0, partitions: int = 1) -> Markers:
    return Markers(f"tx-{number}", PRODUCER, True, tuple(TopicPartition("t", each) for each in range(partitions)), 0)


async def test_partitions_of_another_broker_get_their_markers_there_until_all_have_them() -> None:
    partitions = HeldPartitions()
    busy = CoordinatorNotAvailable("it does not answer")
    elsewhere = Elsewhere(1, 3, answers=[busy, None])
    writing = writer(partitions, lambda: 7, elsewhere)
    tried = asyncio.create_task(writing._write(list(markers(partitions=4).partitions), markers(), 7))
    await until(lambda: len(partitions.commits) == 2)
    for commit in partitions.commits:
        commit.set_result(None)
    assert [each.partition for each in await tried] == [1, 3], "the broker did not answer"
    assert await writing._write([TopicPartition("t", 1), TopicPartition("t", 3)], markers(), 7) == []
    assert elsewhere.asked == [(2, [1, 3], 7)] * 2


async def test_another_brokers_word_ends_the_writing_as_a_partition_of_this_one_does() -> None:
    one = [TopicPartition("t", 1)]
    fenced = Elsewhere(1, answers=[TransactionCoordinatorFenced("a newer one")])
    with pytest.raises(TransactionCoordinatorFenced):
        await writer(HeldPartitions(), elsewhere=fenced)._write(one, markers(), 0)
    later = Elsewhere(1, answers=[InvalidProducerEpoch("it has ended there")])
    assert await writer(HeldPartitions(), elsewhere=later)._write(one, markers(), 0) == []


async def test_a_request_that_is_cancelled_leaves_the_commit_of_its_marker_to_others() -> None:
    partitions = HeldPartitions()
    asked = asyncio.create_task(writer(partitions).write_once(markers(), 0))
    await until(lambda: len(partitions.commits) == 1)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert not partitions.commits[0].cancelled()


async def test_a_writer_that_closes_leaves_the_commits_of_its_markers_to_others() -> None:
    partitions = HeldPartitions()
    writes = writer(partitions)
    writes.decided(PreparedHost([markers()]))  # type: ignore[arg-type]
    await until(lambda: len(partitions.commits) == 1)
    await writes.close()
    assert not partitions.commits[0].cancelled()


async def test_the_markers_of_many_transactions_begin_in_many_turns_of_the_loop() -> None:
    partitions = HeldPartitions()
    writes = writer(partitions)
    writes.decided(PreparedHost([markers(number) for number in range(3 * MARKERS_A_TURN)]))  # type: ignore[arg-type]
    begun = [0]
    while begun[-1] < 3 * MARKERS_A_TURN:
        await asyncio.sleep(0)
        begun.append(len(partitions.commits))
    assert max(after - before for before, after in pairwise(begun)) == MARKERS_A_TURN
    await writes.close()


async def test_transactions_with_many_partitions_share_each_turn_of_the_loop() -> None:
    partitions = HeldPartitions()
    writes = writer(partitions)
    wide = [markers(number, partitions=3 * MARKERS_A_TURN) for number in range(10)]
    writes.decided(PreparedHost(wide[:9]))  # type: ignore[arg-type]
    asked = asyncio.create_task(writes.write_once(wide[9], 0))
    begun = [0]
    while begun[-1] < len(wide) * 3 * MARKERS_A_TURN:
        await asyncio.sleep(0)
        begun.append(len(partitions.commits))
    assert max(after - before for before, after in pairwise(begun)) == MARKERS_A_TURN
    await writes.close()
    asked.cancel()


async def test_a_writer_that_is_cancelled_takes_no_share_of_the_turns() -> None:
    partitions = HeldPartitions()
    writes = writer(partitions)
    first, second = (asyncio.create_task(writes.write_once(markers(each, 3 * MARKERS_A_TURN), 0)) for each in range(2))
    while not partitions.commits:
        await asyncio.sleep(0)
    first.cancel()
    await until(lambda: len(partitions.commits) >= 3 * MARKERS_A_TURN)
    second.cancel()


async def test_a_writer_that_is_closed_begins_no_more_markers() -> None:
    partitions = HeldPartitions()
    writes = writer(partitions)
    writes.decided(PreparedHost([markers(number) for number in range(3 * MARKERS_A_TURN)]))  # type: ignore[arg-type]
    while len(partitions.commits) < MARKERS_A_TURN:
        await asyncio.sleep(0)
    await writes.close()
    begun = len(partitions.commits)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(partitions.commits) == begun < 3 * MARKERS_A_TURN


async def test_writers_that_are_cancelled_with_all_shares_of_a_turn_leave_the_next_turns_to_others() -> None:
    partitions = HeldPartitions()
    writes = writer(partitions)
    wide = asyncio.create_task(writes.write_once(markers(0, MARKERS_A_TURN), 0))
    others = [asyncio.create_task(writes.write_once(markers(each), 0)) for each in range(1, MARKERS_A_TURN + 1)]
    await asyncio.sleep(0)
    assert len(partitions.commits) == MARKERS_A_TURN  # the first writer's; the others wait for the next turn
    await asyncio.sleep(0)  # this turn has given each its share
    for each in others:
        each.cancel()
    await asyncio.wait(others)
    assert len(partitions.commits) == MARKERS_A_TURN
    later = asyncio.create_task(writes.write_once(markers(99), 0))
    await until(lambda: len(partitions.commits) > MARKERS_A_TURN)
    for task in (wide, later):
        task.cancel()


class LostHost(PreparedHost):
    """A shard that can be lost; `completed` counts the changes made."""

    def __init__(self, prepared: list[Markers]) -> None:
        super().__init__(prepared)
        self.is_lost = False
        self.completed = 0

    def look(self, read: Any) -> Any:
        if self.is_lost:
            raise NotCoordinator("lost")
        return super().look(read)

    def change(self, decide: Any) -> None:
        self.look(lambda _: None)
        self.completed += 1


async def test_a_coordinator_that_is_gained_again_completes_what_the_lost_one_had_begun() -> None:
    partitions = HeldPartitions()
    writes = writer(partitions)
    lost, gained = LostHost([markers()]), LostHost([markers()])
    writes.decided(lost)  # type: ignore[arg-type]
    await until(lambda: len(partitions.commits) == 1)
    lost.is_lost = True
    writes.decided(gained)  # type: ignore[arg-type]
    for _ in range(5):
        await asyncio.sleep(0)
    for commit in partitions.commits:
        commit.set_result(None)
    await until(lambda: bool(gained.completed))
    assert (lost.completed, gained.completed, len(partitions.commits)) == (0, 1, 2)
    await writes.close()


async def test_no_marker_of_a_lost_coordinator_follows_those_of_the_next_one() -> None:
    """The next coordinator's decision may differ."""
    partitions, epoch = HeldPartitions(), [1]
    writes = writer(partitions, lambda: epoch[0])
    lost, gained = (LostHost([markers(partitions=3 * MARKERS_A_TURN)]) for _ in range(2))
    writes.decided(lost)  # type: ignore[arg-type]
    while not partitions.commits:
        await asyncio.sleep(0)
    lost.is_lost, epoch[0] = True, 2
    writes.decided(gained)  # type: ignore[arg-type]
    await until(lambda: partitions.epochs.count(2) == 3 * MARKERS_A_TURN)
    assert partitions.epochs == sorted(partitions.epochs)
    assert partitions.epochs.count(1) < 3 * MARKERS_A_TURN
    await writes.close()


async def test_a_writer_ends_with_its_coordinator_even_if_a_partition_still_lacks_its_marker() -> None:
    elsewhere = Elsewhere(0, answers=[CoordinatorNotAvailable("it does not answer")] * 100_000)
    host, writing = LostHost([markers()]), writer(HeldPartitions(), elsewhere=elsewhere)
    writing.decided(host)  # type: ignore[arg-type]
    await until(lambda: len(elsewhere.asked) > 1)
    host.is_lost = True
    await until(lambda: not writing._writing)


async def test_a_coordinator_that_is_lost_while_its_transactions_begin_takes_none_from_the_next_one() -> None:
    partitions = HeldPartitions()
    writes = writer(partitions)
    many = [markers(number) for number in range(3 * MARKERS_A_TURN)]
    lost, gained = LostHost(many[:]), LostHost(many[::-1])
    writes.decided(lost)  # type: ignore[arg-type]
    await asyncio.sleep(0)
    lost.is_lost = True
    writes.decided(gained)  # type: ignore[arg-type]
    async with asyncio.timeout(60):
        while gained.completed < len(many):
            await asyncio.sleep(0)
            for commit in partitions.commits:
                if not commit.done():
                    commit.set_result(None)
    assert lost.completed == 0
    await writes.close()


async def test_a_newer_decision_of_an_id_ends_the_writer_of_the_previous_one_and_has_one_of_its_own() -> None:
    partitions, host = HeldPartitions(), LostHost([markers()])
    writes = writer(partitions)
    writes.decided(host)  # type: ignore[arg-type]
    await until(lambda: len(partitions.commits) == 1)
    newer = markers()._replace(producer=PRODUCER._replace(epoch=PRODUCER.epoch + 1))
    for _ in range(2):  # committed records are reported more than once
        host._prepared = [newer]
        writes.decided(host)  # type: ignore[arg-type]
        await turns()
        assert len(partitions.commits) == 2
    for commit in partitions.commits:
        commit.set_result(None)
    await until(lambda: bool(host.completed))
    await turns()
    assert host.completed == 1
    await writes.close()


# --- when a transaction is completed ----------------------------------------------------------------------------------
async def test_a_transaction_is_completed_once_all_its_markers_are_committed() -> None:
    """A reader of committed records that begins after the completion would otherwise miss a partition's records."""
    partitions, host = HeldPartitions(), LostHost([markers(partitions=3)])
    writes = writer(partitions)
    writes.decided(host)  # type: ignore[arg-type]
    await until(lambda: len(partitions.commits) == 3)
    for commit in partitions.commits:
        await turns()
        assert not host.completed
        commit.set_result(None)
    await until(lambda: bool(host.completed))
    assert (host.completed, len(partitions.commits)) == (1, 3)
    await writes.close()


async def test_a_marker_that_was_not_committed_is_written_again() -> None:
    partitions, host = HeldPartitions(), LostHost([markers(partitions=2)])
    writes = writer(partitions)
    writes.decided(host)  # type: ignore[arg-type]
    await until(lambda: len(partitions.commits) == 2)
    partitions.commits[0].set_exception(NotLeader("another node leads"))
    partitions.commits[1].set_result(None)
    await until(lambda: len(partitions.commits) == 3)
    await turns()
    assert not host.completed
    partitions.commits[2].set_result(None)
    await until(lambda: bool(host.completed))
    await writes.close()


@pytest.mark.parametrize("exists", [True, False])
async def test_a_partition_that_this_node_does_not_know_needs_no_marker_only_if_it_is_deleted(
    monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    """A new topic's metadata may come after the request that wrote to it."""
    partitions, host = HeldPartitions(), LostHost([markers()])
    unknown = [UnknownTopicOrPartition("not here yet")]

    def get(_: TopicPartition) -> HeldPartitions:
        if unknown:
            raise unknown.pop()
        return partitions

    monkeypatch.setattr(partitions, "get", get)
    monkeypatch.setattr(partitions, "has", lambda *_: exists)
    writes = writer(partitions)
    writes.decided(host)  # type: ignore[arg-type]
    await until(lambda: bool(partitions.commits or host.completed))
    assert (len(partitions.commits), host.completed) == ((1, 0) if exists else (0, 1))
    await writes.close()


class NewerProducer(HeldPartitions):
    """Partition 1 knows a later epoch of the producer."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def get(self, partition: TopicPartition) -> HeldPartitions:
        self.number = partition.partition
        return self

    def append_marker(self, markers: Markers, coordinator_epoch: int) -> Appended:
        if self.number == 1:
            raise InvalidProducerEpoch("a newer instance holds epoch 9")
        return super().append_marker(markers, coordinator_epoch)


async def test_a_partition_that_knows_a_later_epoch_of_the_producer_needs_no_marker() -> None:
    """The coordinator has lost records. Unless the transaction ends, no producer can begin under the id."""
    partitions = NewerProducer()
    writes = writer(partitions)
    host = LostHost([markers(partitions=3)])
    writes.decided(host)  # type: ignore[arg-type]
    await until(lambda: len(partitions.commits) == 2)
    for commit in partitions.commits:
        commit.set_result(None)
    await until(lambda: bool(host.completed))
    await writes.close()
