"""Ten thousand transactions of producers with five batches in flight, whose coordinator answers 50 ms late by a virtual clock.

Some transactions are aborted while the coordinator's answer is on its way. A batch that was verified before the abort must not
begin the transaction again behind its marker, since nothing would end it. Half of the producers have an epoch for each
transaction, as in version 2. The others keep their epoch until a transaction is aborted, so only the verification detects a
late batch. The test judges the log itself.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from grpc_api.contract.caller import Caller
from grpc_api.contract.log import Appended
from grpc_api.contract.transactions import (
    AddPartitions,
    Markers,
    PartitionsAdded,
    ProducerIdAndEpoch,
    ProducerTransaction,
)
from service.broker.api.log_service import LogService
from service.broker.appending.append_lane import AppendLane
from service.broker.appending.appending import Appending
from storage_tiers.errors import InvalidProducerEpoch, InvalidTransactionState, LogError
from storage_tiers.records.batch import headers
from storage_tiers.records.builder import ControlKind
from storage_tiers.records.decoder import decode_control
from tests.service.broker.appending.test_append_lane import T0, Lane
from tests.service.broker.support import running

TRANSACTIONS, PRODUCERS, IN_FLIGHT, LATE_MS = 10_000, 16, 5, 50
#: The range of the number of batches in an undisturbed transaction, its end excluded.
BATCHES = 10, 21
FIRST, SECOND = ProducerTransaction("x"), ProducerTransaction("x", 2, knows_abortable=True)


class LateCoordinator:
    """Decides when it is asked, and answers LATE_MS later."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.asked = 0
        #: By producer id: the epoch of its open transaction.
        self.open: dict[int, int] = {}
        self._late: list[tuple[int, int, asyncio.Future[PartitionsAdded], LogError | None]] = []

    def add_partitions(self, request: AddPartitions, caller: Caller) -> asyncio.Future[PartitionsAdded]:
        future: asyncio.Future[PartitionsAdded] = asyncio.get_running_loop().create_future()
        producer_id, epoch = request.producer
        error = None if self.open.get(producer_id) == epoch else InvalidProducerEpoch("another epoch is open")
        self.asked += 1
        heapq.heappush(self._late, (self.now_ms + LATE_MS, self.asked, future, error))
        return future

    def advance(self, ms: int) -> None:
        self.now_ms += ms
        while self._late and self._late[0][0] <= self.now_ms:
            _, _, future, error = heapq.heappop(self._late)
            future.set_result(PartitionsAdded(error))


class Producer:
    """Runs transactions one after another; `orders` holds the base offsets of each undisturbed transaction."""

    def __init__(self, lane: Lane, coordinator: LateCoordinator, number: int, chance: random.Random) -> None:
        self.lane, self.coordinator, self.id, self.chance = lane, coordinator, number, chance
        self.has_epochs = number % 2 == 0
        self.epoch = self.sequence = 0
        self.orders: list[list[int]] = []
        #: Epochs of transactions that were disturbed.
        self.disturbed: set[int] = set()

    async def run(self, transactions: int) -> None:
        for _ in range(transactions):
            await (self._disturbed() if self.chance.random() < 0.2 else self._undisturbed())

    async def _undisturbed(self) -> None:
        """A window of IN_FLIGHT batches slides: each acknowledgement of the oldest batch sends the next one."""
        count = self.chance.randrange(*BATCHES)
        flying = deque(self._begun())
        results: list[Appended | LogError] = []
        for number in range(IN_FLIGHT, count + IN_FLIGHT):
            results += await flying.popleft()
            if number < count:
                flying.append(self._send(number))
        offsets = [each.base_offset for each in results if isinstance(each, Appended)]
        assert len(offsets) == count, results
        self.orders.append(offsets)
        self._end(commit=True)
        if self.has_epochs:
            self.epoch, self.sequence = self.epoch + 1, 0
        else:
            self.sequence += count

    async def _disturbed(self) -> None:
        """Aborts the transaction at a random time, whatever is on its way."""
        sent = self._begun()
        until_ms = self.coordinator.now_ms + self.chance.randrange(2 * LATE_MS)
        while self.coordinator.now_ms < until_ms:
            await asyncio.sleep(0)
        self._end(commit=False)
        for each in await self._settled(sent):
            assert isinstance(each, Appended | InvalidProducerEpoch | InvalidTransactionState), each
        self.disturbed.add(self.epoch)
        self.epoch, self.sequence = self.epoch + 1, 0

    def _begun(self) -> list[asyncio.Future[Sequence[Appended | LogError]]]:
        self.coordinator.open[self.id] = self.epoch
        return [self._send(number) for number in range(IN_FLIGHT)]

    def _send(self, number: int) -> asyncio.Future[Sequence[Appended | LogError]]:
        """Sends a batch of the open transaction."""
        producer, transaction = ProducerIdAndEpoch(self.id, self.epoch), SECOND if self.has_epochs else FIRST
        return self.lane.send(producer, self.sequence + number, transaction)

    def _end(self, *, commit: bool) -> None:
        del self.coordinator.open[self.id]
        epoch = self.epoch + 1 if self.has_epochs else self.epoch
        markers = Markers("x", ProducerIdAndEpoch(self.id, epoch), commit, [T0], 2 if self.has_epochs else 0)
        self.lane.partition.append_marker(markers, 0)

    async def _settled(
        self, sent: Sequence[asyncio.Future[Sequence[Appended | LogError]]]
    ) -> list[Appended | LogError]:
        return [result for each in sent for result in await each]


class Batch(NamedTuple):
    """A batch in the log; `sequence` is None for a marker."""

    producer_id: int
    epoch: int
    sequence: int | None
    is_abort: bool


def logged(directory: Path) -> Iterator[Batch]:
    for path in sorted(directory.glob("*.log")):
        data = path.read_bytes()
        for at, header in headers(data):
            control = decode_control(data[at : at + header.size]) if header.control else None
            sequence = None if header.control else header.base_sequence
            is_abort = control is not None and control.kind is ControlKind.ABORT
            yield Batch(header.producer_id, header.producer_epoch, sequence, is_abort)


@pytest_asyncio.fixture
async def lane(tmp_path: Path) -> AsyncIterator[Lane]:
    async with running(tmp_path) as node:
        await node.create("t", configs={"remote.storage.enable": "false"})
        yield Lane(node)


@pytest.mark.timeout(240)
async def test_no_batch_is_appended_out_of_order_or_behind_its_transactions_marker(lane: Lane) -> None:
    coordinator, chance = LateCoordinator(), random.Random(10)
    service = lane.node.node.broker.core.log
    assert isinstance(service, LogService)
    appending = service._append.__self__  # type: ignore[attr-defined]
    assert isinstance(appending, Appending)
    appending._lane = AppendLane(coordinator, appending._append_later)
    producers = [Producer(lane, coordinator, number, random.Random(number)) for number in range(PRODUCERS)]
    running_producers = [asyncio.ensure_future(each.run(TRANSACTIONS // PRODUCERS)) for each in producers]
    while not all(each.done() for each in running_producers):
        for _ in range(chance.randrange(1, 6)):
            await asyncio.sleep(0)
        coordinator.advance(chance.randrange(15))
    await asyncio.gather(*running_producers)

    assert sum(len(each.orders) + len(each.disturbed) for each in producers) == TRANSACTIONS
    for each in producers:
        for offsets in each.orders:
            assert offsets == sorted(offsets)
    newest: dict[int, tuple[int, int]] = {}
    ended: dict[int, int] = {}
    for batch in logged(Path(lane.partition.log.hot.directory)):
        producer = producers[batch.producer_id]
        if batch.sequence is None:
            is_over = not producer.has_epochs and batch.epoch in producer.disturbed and batch.is_abort
            ended[batch.producer_id] = batch.epoch + is_over
            continue
        assert batch.epoch >= ended.get(batch.producer_id, 0), f"{batch} lies behind its marker"
        epoch, sequence = newest.get(batch.producer_id, (-1, -1))
        assert batch.sequence == (sequence + 1 if batch.epoch == epoch else 0), f"{batch} is out of order"
        newest[batch.producer_id] = batch.epoch, batch.sequence
    state = lane.partition.state
    assert state.last_stable_offset == state.high_watermark == state.log_end
