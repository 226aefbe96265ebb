"""Transactional batches wait until their partition is in the transaction, each producer's in the order of their arrival."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest
import pytest_asyncio

from grpc_api.contract.caller import Caller
from grpc_api.contract.coordinator_errors import (
    ConcurrentTransactions,
    CoordinatorLoading,
    InvalidProducerIdMapping,
    ProducerFenced,
    TransactionAbortable,
)
from grpc_api.contract.log import Append, Appended, Fetch, Fetched, FetchPartition, Isolation
from grpc_api.contract.ready import settled
from grpc_api.contract.transactions import (
    AddPartitions,
    Markers,
    PartitionsAdded,
    ProducerIdAndEpoch,
    ProducerTransaction,
)
from service.broker.api.log_service import LogService
from service.broker.appending import append_lane
from service.broker.appending.append_lane import AppendLane
from service.broker.appending.append_queues import Done
from service.broker.appending.appending import Appending
from service.broker.partition.partition import Partition
from storage_tiers.errors import (
    InvalidProducerEpoch,
    InvalidTransactionState,
    LogError,
    NotEnoughReplicas,
    OutOfOrderSequence,
    RequestTimedOut,
)
from storage_tiers.types import TopicPartition
from tests.service.broker.support import TIERED, Running, manifest_of, records, running, until
from tests.storage_tiers.hot.support import batch_of

T0 = TopicPartition("t", 0)
X, Y = ProducerIdAndEpoch(7, 0), ProducerIdAndEpoch(8, 0)
FIRST, SECOND = ProducerTransaction("x"), ProducerTransaction("x", 2, knows_abortable=True)


class Coordinator:
    """Answers when the test calls `says`, or at once with `answer`."""

    def __init__(self) -> None:
        self.asked: list[AddPartitions] = []
        self.waiting: list[asyncio.Future[PartitionsAdded]] = []
        self.answer: PartitionsAdded | LogError | None = None

    def add_partitions(self, request: AddPartitions, caller: Caller) -> asyncio.Future[PartitionsAdded]:
        future: asyncio.Future[PartitionsAdded] = asyncio.get_running_loop().create_future()
        self.asked.append(request)
        if isinstance(self.answer, LogError):
            future.set_exception(self.answer)
        elif self.answer is not None:
            future.set_result(self.answer)
        else:
            self.waiting.append(future)
        return future

    def says(self, error: LogError | None = None) -> None:
        """Answers the oldest request."""
        self.waiting.pop(0).set_result(PartitionsAdded(error))


class Lane:
    def __init__(self, node: Running) -> None:
        self.node, self.coordinator = node, Coordinator()
        service = node.node.broker.core.log
        assert isinstance(service, LogService)
        appending = service._append.__self__  # type: ignore[attr-defined]
        assert isinstance(appending, Appending)
        #: Batches that were appended from the lane.
        self.passed = 0

        def append_later(partition: Partition, batch: memoryview, done: Done) -> None:
            self.passed += 1
            appending._append_later(partition, batch, done)

        self.lane = appending._lane = AppendLane(self.coordinator, append_later)

    @property
    def partition(self) -> Partition:
        return self.node.node.broker.partitions.get(T0)

    def send(
        self,
        producer: ProducerIdAndEpoch,
        sequence: int,
        transaction: ProducerTransaction = FIRST,
        partitions: Sequence[int] = (0,),
    ) -> asyncio.Future[Sequence[Appended | LogError]]:
        batch = memoryview(batch_of(1, producer=(*producer, sequence), transactional=True))
        appends = [Append(TopicPartition("t", each), batch) for each in partitions]
        return asyncio.ensure_future(settled(self.node.log.append(appends, transaction=transaction)))

    async def outcome(self, sent: asyncio.Future[Sequence[Appended | LogError]]) -> int | type[LogError]:
        (result,) = await sent
        return type(result) if isinstance(result, LogError) else result.base_offset

    def mark(self, producer: ProducerIdAndEpoch, *, commit: bool = False, version: int = 0) -> None:
        self.partition.append_marker(Markers("x", producer, commit, [T0], version), 0)


@pytest_asyncio.fixture
async def lane(tmp_path: Path) -> AsyncIterator[Lane]:
    async with running(tmp_path) as node:
        await node.create("t", partitions=2)
        yield Lane(node)


async def test_five_in_flight_are_appended_in_their_order_and_others_pass(lane: Lane) -> None:
    sent = [lane.send(X, sequence) for sequence in range(5)]
    other = lane.send(Y, 0)
    await until(lambda: len(lane.coordinator.waiting) == 2)
    assert lane.lane.held_bytes > 0
    plain = await lane.node.append("t", b"plain")
    lane.coordinator.waiting.reverse()
    lane.coordinator.says()
    assert await lane.outcome(other) == plain.base_offset + 1
    assert not any(each.done() for each in sent)
    lane.coordinator.says()
    assert [await lane.outcome(each) for each in sent] == [2, 3, 4, 5, 6]
    assert len(lane.coordinator.asked) == 2  # the transaction is open after the first batch
    assert lane.lane.held_bytes == 0


async def test_a_batch_that_comes_while_earlier_ones_wait_is_appended_behind_them_in_an_open_transaction(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_lane, "SLICE_S", 0.0)  # one batch in each turn of the loop
    sent = [lane.send(X, sequence) for sequence in range(30)]
    await until(lambda: bool(lane.coordinator.waiting))
    lane.coordinator.says()
    assert await lane.outcome(sent[0]) == 0  # the transaction is open; the others follow
    assert not sent[-1].done()
    late = lane.send(X, 30)
    assert [await lane.outcome(each) for each in (*sent, late)] == list(range(31))


async def test_a_producer_with_five_in_flight_leaves_the_lane_once_its_transaction_is_open(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer lets the producer send its next batch, in the next turn of the loop."""
    monkeypatch.setattr(append_lane, "SLICE_S", 60.0)
    sent = [lane.send(X, sequence) for sequence in range(5)]
    await until(lambda: bool(lane.coordinator.waiting))
    lane.coordinator.says()
    for sequence in range(5, 30):
        assert await lane.outcome(sent[sequence - 5]) == sequence - 5
        sent.append(lane.send(X, sequence))
    assert [await lane.outcome(each) for each in sent] == list(range(30))
    batch = memoryview(batch_of(1, producer=(*X, 30), transactional=True))
    assert isinstance(lane.node.log.append([Append(T0, batch)], transaction=FIRST), list), "it waits for nothing"
    assert lane.passed < 12, "later batches pass by the lane"


async def test_the_batches_behind_a_refused_one_are_verified_in_their_turn(lane: Lane) -> None:
    lane.coordinator.answer = PartitionsAdded(ConcurrentTransactions("the one before is ending"))
    sent = [lane.send(X, sequence) for sequence in range(3)]
    assert [await lane.outcome(each) for each in sent] == [NotEnoughReplicas] * 3
    lane.coordinator.answer = PartitionsAdded(None)
    assert [await lane.outcome(lane.send(X, sequence)) for sequence in range(3)] == [0, 1, 2]
    assert (lane.lane.held_bytes, len(lane.lane._waiting)) == (0, 0)


async def test_a_batch_is_appended_as_it_was_sent_whatever_its_senders_buffer_holds_by_then(lane: Lane) -> None:
    """A connection reads its next request into the same memory."""
    buffer = bytearray(batch_of(1, producer=(*X, 0), transactional=True))
    sent = asyncio.ensure_future(settled(lane.node.log.append([Append(T0, memoryview(buffer))], transaction=FIRST)))
    await until(lambda: bool(lane.coordinator.waiting))
    buffer[:] = bytes(len(buffer))
    lane.coordinator.says()
    assert await lane.outcome(sent) == 0


async def test_no_verification_is_kept_for_a_transaction_that_has_begun(lane: Lane) -> None:
    """Verifications are bounded, and those that batches wait for need the room."""
    lane.coordinator.answer = PartitionsAdded(None)
    assert await lane.outcome(lane.send(X, 0)) == 0
    assert len(lane.partition.verifications) == 0


async def test_partitions_of_one_request_are_asked_for_together(lane: Lane) -> None:
    lane.coordinator.answer = PartitionsAdded(None)
    results = await lane.send(X, 0, SECOND, partitions=(0, 1))
    assert [type(each) for each in results] == [Appended, Appended]
    (asked,) = lane.coordinator.asked
    assert ([each.partition for each in asked.partitions], asked.verify_only, asked.client_version) == (
        [0, 1],
        False,
        2,
    )


async def test_before_version_2_nothing_is_added(lane: Lane) -> None:
    lane.coordinator.answer = PartitionsAdded(None)
    assert await lane.outcome(lane.send(X, 0)) == 0
    assert lane.coordinator.asked[0].verify_only


async def test_a_marker_makes_an_answer_void(lane: Lane) -> None:
    late = lane.send(X, 0)
    await until(lambda: bool(lane.coordinator.waiting))
    lane.mark(X)
    lane.coordinator.says()
    assert await lane.outcome(late) is InvalidTransactionState
    assert lane.partition.readable_end(Isolation.READ_COMMITTED) == 1  # no transaction hangs


async def test_the_marker_of_the_previous_transaction_leaves_the_answer_for_the_next_one(lane: Lane) -> None:
    """With version 2 the producer continues under its next epoch once the end is decided, which may be before the marker."""
    lane.coordinator.answer = PartitionsAdded(None)
    assert await lane.outcome(lane.send(X, 0, SECOND)) == 0
    lane.coordinator.answer = None
    following = X._replace(epoch=X.epoch + 1)
    early = lane.send(following, 0, SECOND)
    await until(lambda: bool(lane.coordinator.waiting))
    lane.mark(following, commit=True, version=2)
    lane.coordinator.says()
    assert await lane.outcome(early) == 2


async def test_a_marker_of_version_2_makes_an_answer_for_its_own_transaction_void(lane: Lane) -> None:
    late = lane.send(X, 0, SECOND)
    await until(lambda: bool(lane.coordinator.waiting))
    lane.mark(X._replace(epoch=X.epoch + 1), version=2)
    lane.coordinator.says()
    assert await lane.outcome(late) is InvalidProducerEpoch


async def test_a_newer_epoch_makes_an_answer_void(lane: Lane) -> None:
    old = lane.send(X, 0)
    await until(lambda: bool(lane.coordinator.waiting))
    lane.partition.verifications.begin(X.id, 1, 0, adds=False)
    lane.coordinator.says()
    assert await lane.outcome(old) is InvalidTransactionState


async def test_a_producer_begins_with_its_first_batch(lane: Lane) -> None:
    first, second = lane.send(X, 0), lane.send(X, 1)
    await until(lambda: bool(lane.coordinator.waiting))
    lane.coordinator.says(CoordinatorLoading("not yet"))
    assert await lane.outcome(first) is NotEnoughReplicas
    await until(lambda: bool(lane.coordinator.waiting))
    lane.coordinator.says()
    assert await lane.outcome(second) is OutOfOrderSequence
    lane.coordinator.answer = PartitionsAdded(None)
    assert [await lane.outcome(lane.send(X, each)) for each in (0, 1)] == [0, 1]


async def test_in_version_2_a_producer_begins_with_sequence_0(lane: Lane) -> None:
    lane.coordinator.answer = PartitionsAdded(None)
    assert await lane.outcome(lane.send(X, 5, SECOND)) is OutOfOrderSequence
    assert await lane.outcome(lane.send(X, 0, SECOND)) == 0


@pytest.mark.parametrize(
    ("refusal", "transaction", "told"),
    [
        (ConcurrentTransactions("x"), FIRST, NotEnoughReplicas),
        (ConcurrentTransactions("x"), SECOND, ConcurrentTransactions),
        (ProducerFenced("x"), FIRST, InvalidProducerEpoch),
        (TransactionAbortable("x"), FIRST, InvalidTransactionState),
        (TransactionAbortable("x"), SECOND, TransactionAbortable),
        (InvalidProducerIdMapping("x"), FIRST, InvalidProducerIdMapping),
    ],
)
async def test_a_coordinators_refusals_have_kafkas_messages(
    lane: Lane, refusal: LogError, transaction: ProducerTransaction, told: type[LogError]
) -> None:
    for answer in (PartitionsAdded(refusal), PartitionsAdded(None, [(T0, refusal)]), refusal):
        lane.coordinator.answer = answer
        (result,) = await lane.send(X, 0, transaction)
        assert isinstance(result, told)
        assert result.log_start_offset == -1
    assert lane.lane.held_bytes == 0


async def test_a_defect_of_the_coordinator_delays_no_append(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise KeyError("a bug")

    with monkeypatch.context() as broken:
        broken.setattr(lane.coordinator, "add_partitions", fail)
        assert await lane.outcome(lane.send(X, 0)) is LogError
    lane.coordinator.answer = PartitionsAdded(None)
    with monkeypatch.context() as broken:
        broken.setattr(Partition, "append", fail)
        assert await lane.outcome(lane.send(X, 0)) is LogError
    assert await lane.outcome(lane.send(X, 0)) == 0
    assert lane.lane.held_bytes == 0


async def test_waiting_bytes_are_bounded(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_lane, "VERIFYING_BYTES", len(batch_of(1)) + 1)
    first, second = lane.send(X, 0), lane.send(Y, 0)
    assert await lane.outcome(second) is RequestTimedOut
    lane.coordinator.says()
    assert await lane.outcome(first) == 0


async def test_two_producers_in_one_request_are_refused(lane: Lane) -> None:
    appends = [
        Append(TopicPartition("t", number), memoryview(batch_of(1, producer=(*each, 0), transactional=True)))
        for number, each in enumerate((X, Y))
    ]
    with pytest.raises(InvalidProducerIdMapping):
        await settled(lane.node.log.append(appends, transaction=FIRST))


async def test_a_batch_that_names_no_transaction_begins_none(lane: Lane) -> None:
    batch = memoryview(batch_of(1, producer=(*X, 0), transactional=True))
    (result,) = await settled(lane.node.log.append([Append(T0, batch)]))
    assert isinstance(result, InvalidTransactionState)


# --- readers and the bucket -------------------------------------------------------------------------------------------
async def committed(node: Running, offset: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Offsets that a reader of committed records gets, before it leaves out aborted ones; and the aborted transactions."""
    wanted = FetchPartition(T0, offset, 1 << 20)
    (answer,) = await settled(node.log.fetch(Fetch((wanted,), 20_000, 1, 1 << 20, Isolation.READ_COMMITTED)))
    assert isinstance(answer, Fetched) and answer.error is None
    aborted = [(each.producer_id, each.first_offset) for each in answer.aborted or ()]
    return [each.offset for each in records(answer)], aborted


async def test_aborted_transactions_are_listed_from_both_tiers(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await node.create("t", configs={**TIERED, "internal.segment.bytes": "200"})
        lane = Lane(node)
        lane.coordinator.answer = PartitionsAdded(None)
        assert await lane.outcome(lane.send(X, 0)) == 0
        await node.append("t", b"plain")
        lane.mark(X)
        before = await committed(node, 0)
        assert before[1] == [(X.id, 0)]
        assert await lane.outcome(lane.send(X, 1)) == 3
        await node.append("t", b"more")
        lane.mark(X, commit=True)
        await node.append("t", b"end")
        await node.seal("t")
        await until(lambda: lane.partition.log.hot.local_start_offset > 3)
        assert (await committed(node, 0))[1] == [(X.id, 0)]
        assert (await committed(node, 3))[1] == []
        found: list[int] = []
        while not found or found[-1] < 6:
            found += (await committed(node, found[-1] + 1 if found else 0))[0]
        assert found == [0, 1, 3, 4, 6]  # the others are markers


async def test_nothing_above_the_last_stable_offset_is_offloaded(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await node.create("t", configs={**TIERED, "internal.segment.bytes": "200"})
        lane = Lane(node)
        lane.coordinator.answer = PartitionsAdded(None)
        for _ in range(3):
            await node.append("t", b"before" * 20)
        opened = await lane.outcome(lane.send(X, 0))
        for _ in range(6):
            await node.append("t", b"after" * 20)
        with pytest.raises(RequestTimedOut):
            await node.log.seal("t", wait=True, timeout_ms=300)
        await until(lambda: lane.partition.log.tier is not None and lane.partition.log.tier.end >= 3)
        assert (await manifest_of(lane.partition)).end == 3 == opened
        lane.mark(X)
        await node.seal("t")
        manifest = await manifest_of(lane.partition)
        assert manifest.end == lane.partition.log.end_offset


async def test_the_producer_that_delays_offloading_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def said() -> list[tuple[str, object]]:
        found = [record.__dict__ for record in caplog.records if "offload." in record.__dict__.get("event", "")]
        return [
            (each["event"], each["fields"].get("producer_id")) for each in found if each["event"] != "offload.finished"
        ]

    async with running(tmp_path) as node:
        await node.create("t", configs={**TIERED, "internal.segment.bytes": "200"})
        lane = Lane(node)
        lane.coordinator.answer = PartitionsAdded(None)
        assert await lane.outcome(lane.send(X, 0)) == 0
        for _ in range(6):
            await node.append("t", b"after" * 20)
        for _ in range(2):
            await node.node.broker.maintenance.checkpoint()
        assert said() == [("offload.held_back", X.id)]
        lane.mark(X)
        await node.node.broker.maintenance.checkpoint()
        assert said() == [("offload.held_back", X.id), ("offload.released", None)]
