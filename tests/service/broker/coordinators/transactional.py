"""A transactional producer on a whole node, and helpers that write and read its transactions in the partitions."""

from __future__ import annotations

import asyncio

from grpc_api.contract.caller import Caller
from grpc_api.contract.coordinator_errors import ConcurrentTransactions
from grpc_api.contract.transactions import AddPartitions, EndTransaction, InitProducer, ProducerIdAndEpoch
from service.broker.api.transaction_service import TransactionService
from service.broker.coordinators.coordinator_log import PartitionLog
from service.broker.partition.append_origin import AppendOrigin
from service.broker.partition.partition import Partition
from storage_tiers.errors import LogError
from storage_tiers.records.batch import headers, read_header
from storage_tiers.records.builder import ControlKind
from storage_tiers.records.decoder import decode_control
from storage_tiers.types import TopicPartition
from tests.service.broker.support import Running, once_loaded
from tests.storage_tiers.hot.support import batch_of

CALLER = Caller("User:ANONYMOUS", "app", "/127.0.0.1")
SETTINGS = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "2"}
MINUTE = 60_000
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Client:
    """A transactional producer with one transactional id."""

    def __init__(self, node: Running, name: str = "x") -> None:
        self.node, self.name = node, name
        self.transactions: TransactionService = node.node.broker.core.transactions
        self.producer = ProducerIdAndEpoch(-1, -1)

    async def begin(self, timeout_ms: int = MINUTE) -> Client:
        await once_loaded(lambda: self.transactions.coordinator(self.name, CALLER))
        request = InitProducer(self.name, timeout_ms)
        async with asyncio.timeout(60):
            while True:
                begun = await once_loaded(lambda: self.transactions.init_producer(request, CALLER))
                if not isinstance(begun.error, ConcurrentTransactions):
                    break
                await asyncio.sleep(0.02)
        assert begun.error is None
        self.producer = begun.producer
        return self

    async def add(self, *partitions: TopicPartition) -> None:
        added = await self.transactions.add_partitions(AddPartitions(self.name, self.producer, partitions), CALLER)
        assert (added.error, list(added.errors)) == (None, [])

    async def end(self, *, commit: bool, version: int = 0) -> LogError | None:
        request = EndTransaction(self.name, self.producer, commit, version)
        ended = await self.transactions.end(request, CALLER)
        if version >= 2 and ended.error is None:
            self.producer = ended.producer
        return ended.error

    async def state(self) -> str:
        return (await once_loaded(lambda: self.transactions.describe(self.name, CALLER))).state

    async def reaches(self, state: str) -> None:
        async with asyncio.timeout(60):
            while await self.state() != state:
                await asyncio.sleep(0.005)


def led(node: Running, partition: TopicPartition) -> Partition:
    return node.node.broker.partitions.get(partition)


def write(node: Running, partition: TopicPartition, producer: ProducerIdAndEpoch, sequence: int = 0) -> None:
    """Appends one record of the producer's transaction, as the partition does once the transaction is verified."""
    batch = batch_of(1, producer=(*producer, sequence), transactional=True)
    led(node, partition).append_validated(memoryview(batch), read_header(batch), origin=AppendOrigin.COORDINATOR)


async def markers_in(node: Running, partition: TopicPartition) -> list[tuple[ControlKind, int, int]]:
    """The kind, producer id and producer epoch of each marker in the partition."""
    found = []
    async for piece in PartitionLog(led(node, partition)).read():
        data = memoryview(piece)
        for position, header in headers(data):
            if header.control:
                control = decode_control(data[position : position + header.size])
                assert control is not None
                found.append((control.kind, header.producer_id, header.producer_epoch))
    return found
