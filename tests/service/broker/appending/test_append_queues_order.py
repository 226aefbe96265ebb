"""Order in a partition's append queue: kept for each producer; batches of other producers, markers and coordinators pass."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from grpc_api.contract.log import Append, Appended
from grpc_api.contract.ready import settled
from grpc_api.contract.transactions import Markers, ProducerIdAndEpoch
from service.broker.appending.append_queues import AppendQueues
from service.broker.partition.append_origin import AppendOrigin
from service.broker.partition.partition import Partition
from storage_tiers.errors import LogError
from storage_tiers.hot.batch_write import BatchWrite
from storage_tiers.records.batch import headers, read_header
from storage_tiers.records.recompress import recompress
from storage_tiers.types import NO_PRODUCER_ID, TopicPartition
from tests.service.broker.support import Running, running, until
from tests.storage_tiers.hot.support import batch_of
from tests.support.thread_gates import ThreadGate

T0 = TopicPartition("t", 0)
SLOW, OTHER = 7, 8


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path / "data") as started:
        await started.create("t", configs={"compression.type": "gzip", "remote.storage.enable": "false"})
        yield started


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadGate]:
    """Holds the thread that packs the first batch of the slow producer, or the first one without a producer."""
    held, pack = ThreadGate(), recompress

    def slow(data: memoryview, header: object, wanted: object) -> bytearray | None:
        if header.producer_id in (SLOW, NO_PRODUCER_ID) and not held.waiting:  # type: ignore[attr-defined]
            held.wait()
        return pack(data, header, wanted)  # type: ignore[arg-type]

    monkeypatch.setattr("service.broker.partition.validating.recompress", slow)
    yield held
    held.open.set()


def led(node: Running) -> Partition:
    return node.node.broker.partitions.get(T0)


def send(node: Running, producer_id: int, sequence: int = 0) -> asyncio.Future[list[Appended | LogError]]:
    producer = None if producer_id == NO_PRODUCER_ID else (producer_id, 0, sequence)
    batch = batch_of(1, producer=producer)
    return asyncio.ensure_future(settled(node.log.append([Append(T0, memoryview(batch))])))  # type: ignore[arg-type]


async def base(sent: asyncio.Future[list[Appended | LogError]]) -> int:
    (answer,) = await sent
    assert isinstance(answer, Appended), answer
    return answer.base_offset


def logged(node: Running) -> list[tuple[int, int]]:
    """Producer id and sequence of each batch."""
    directory = Path(led(node).log.hot.directory)
    data = memoryview(b"".join(path.read_bytes() for path in sorted(directory.glob("*.log"))))
    return [(header.producer_id, header.base_sequence) for _, header in headers(data)]


async def test_a_slow_batch_holds_up_its_own_producer_alone(node: Running, gate: ThreadGate) -> None:
    first, second = send(node, SLOW), send(node, OTHER)
    assert await base(second) == 0
    third = send(node, OTHER, 1)
    assert await base(third) == 1
    assert not first.done()
    gate.open.set()
    assert await base(first) == 2


async def test_a_batch_that_needs_no_packing_passes_those_of_others_and_none_of_its_own(
    node: Running, gate: ThreadGate
) -> None:
    first = send(node, SLOW)
    await until(lambda: gate.waiting == 1)
    hot = led(node).log.hot
    hot.reconfigure(hot.settings.__class__())  # compression as produced
    behind, passing = send(node, SLOW, 1), send(node, OTHER)
    assert await base(passing) == 0
    assert not first.done() and not behind.done()
    gate.open.set()
    assert [await base(first), await base(behind)] == [1, 2]


async def test_batches_without_a_producer_keep_their_order(node: Running, gate: ThreadGate) -> None:
    """The queue does not know the connections of such batches."""
    first, second, other = send(node, NO_PRODUCER_ID), send(node, NO_PRODUCER_ID), send(node, OTHER)
    assert await base(other) == 0
    assert not second.done()
    gate.open.set()
    assert [await base(first), await base(second)] == [1, 2]


async def test_markers_and_coordinators_pass_one_that_is_being_packed(node: Running, gate: ThreadGate) -> None:
    waiting = send(node, SLOW)
    await until(lambda: gate.waiting == 1)
    partition, own = led(node), batch_of(1)
    partition.append_validated(memoryview(own), read_header(own), origin=AppendOrigin.COORDINATOR)
    assert partition.append_marker(Markers("x", ProducerIdAndEpoch(9, 0), False, (T0,), 0), 0).base_offset == 1
    assert not waiting.done()
    gate.open.set()
    assert await base(waiting) == 2


async def test_markers_and_coordinators_pass_one_that_a_thread_writes(
    node: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread's write is stopped, and repeated behind them."""
    gate, write = ThreadGate(), BatchWrite._write

    def waits(self: BatchWrite) -> None:
        gate.wait()
        write(self)

    monkeypatch.setattr(BatchWrite, "_write", waits)
    monkeypatch.setattr("service.broker.appending.append_queues.WriteCost.for_thread", lambda _: True)
    await node.create("plain")
    partition = node.node.broker.partitions.get(TopicPartition("plain", 0))
    larger = batch_of(1, value=random.Random(1).randbytes(20_000), producer=(SLOW, 0, 0))
    appends = [Append(partition.partition, memoryview(larger))]
    waiting = asyncio.ensure_future(settled(node.log.append(appends)))
    await until(lambda: gate.waiting == 1)
    opener = threading.Timer(0, gate.open.set)  # to stop the write, the loop waits for its thread
    opener.start()
    own = batch_of(1)
    assert (
        partition.append_validated(memoryview(own), read_header(own), origin=AppendOrigin.COORDINATOR).base_offset == 0
    )
    marker = Markers("x", ProducerIdAndEpoch(9, 0), False, (partition.partition,), 0)
    assert partition.append_marker(marker, 0).base_offset == 1
    (answer,) = await waiting
    assert isinstance(answer, Appended) and answer.base_offset == 2
    opener.join()


@pytest.mark.parametrize("seed", range(5))
async def test_no_producer_is_appended_out_of_order(node: Running, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Batches are packed, or stored as they come, in an order that threads decide."""
    chance, pack = random.Random(seed), recompress
    delays = threading.Semaphore(1)

    def uneven(data: memoryview, header: object, wanted: object) -> bytearray | None:
        with delays:
            rounds = chance.randrange(1, 4)
        for _ in range(rounds - 1):
            pack(data, header, wanted)  # type: ignore[arg-type]
        return pack(data, header, wanted)  # type: ignore[arg-type]

    monkeypatch.setattr("service.broker.partition.validating.recompress", uneven)
    hot, next_sequence = led(node).log.hot, dict.fromkeys(range(6), 0)
    packed, plain = hot.settings, hot.settings.__class__()
    sent = []
    for _ in range(300):
        hot.reconfigure(chance.choice((packed, plain)))
        producer = chance.randrange(6)
        sent.append(send(node, producer, next_sequence[producer]))
        next_sequence[producer] += 1
        if chance.random() < 0.3:
            await asyncio.sleep(0)
    offsets = [await base(each) for each in sent]
    assert sorted(offsets) == list(range(300))
    for producer, end in next_sequence.items():
        assert [sequence for found, sequence in logged(node) if found == producer] == list(range(end))
    queues: AppendQueues = node.node.broker.append_queues
    assert (queues.held_bytes, queues.writing_bytes, queues.validated_bytes, len(queues._queues)) == (0, 0, 0, 0)
    assert led(node).queued == 0
