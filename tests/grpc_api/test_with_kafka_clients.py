"""gRPC and Kafka clients on one node: each reads what the other wrote; and a Kafka gateway that reaches the core over gRPC."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from grpc_api.contract.cold import Cold
from grpc_api.contract.features import Features
from grpc_api.contract.groups import Groups
from grpc_api.contract.log import Log
from grpc_api.contract.node import ActiveProducer, LogDirectory, NodeQueries, QuorumDescription
from grpc_api.contract.topics import Configs, Endpoint, Topics
from grpc_api.contract.transactions import Transactions
from grpc_api.remote import RemoteCore
from grpc_api.sdk.blocking import BlockingClient
from grpc_api.sdk.values import Compression, Message, ProducerOptions, ReaderOptions
from kafka_gateway.options import Options
from kafka_gateway.server import serve
from kafka_gateway.settings import GatewaySettings
from service.coordination.turn_writes import TurnWrites
from storage_tiers.clock import SystemClock, SystemRng
from tests.kafka_gateway.memory_features import MemoryFeatures
from tests.kafka_gateway.memory_groups import MemoryTopics, memory_groups
from tests.kafka_gateway.memory_transactions import memory_transactions
from tests.support.node import Node
from tests.support.ports import free_port

UNTIL_END = ReaderOptions(until_end=True)
CODECS: list[Compression] = ["none", "gzip", "snappy", "lz4", "zstd"]
COUNT = 300


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("grpc")) as started:
        yield started


def consumed(bootstrap: str, topic: str, partitions: int, count: int) -> list[Message]:
    """The records that librdkafka reads, ordered by partition and offset."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "nobody", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in range(partitions)])
    found: list[Message] = []
    try:
        while len(found) < count:
            record = consumer.poll(30)
            assert record is not None, f"{len(found)} of {count} records"
            assert record.error() is None, record.error()
            headers = tuple(record.headers() or ())
            place = (record.topic(), record.partition(), record.offset(), record.timestamp()[1])
            found.append(Message(*place, record.key(), record.value(), headers))  # type: ignore[arg-type]
    finally:
        consumer.close()
    return sorted(found, key=lambda message: (message.partition, message.offset))


def sent_by_confluent(bootstrap: str, topic: str, compression: str) -> None:
    settings = {"compression.type": compression, "enable.idempotence": True, "partitioner": "murmur2_random"}
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    for number in range(COUNT):
        key = None if number % 10 == 0 else b"key %d" % (number % 17)
        value = None if number % 11 == 0 else b"%d " % number * 20
        producer.produce(
            topic, value, key, headers=[("n", b"%d" % number), ("nothing", None)], timestamp=1_700_000_000_000 + number
        )
    assert producer.flush(60) == 0


def read_by_sdk(client: BlockingClient, topic: str) -> list[Message]:
    with client.reader(topic, options=UNTIL_END) as reader:
        return sorted(reader, key=lambda message: (message.partition, message.offset))


@pytest.mark.parametrize("compression", CODECS)
def test_each_client_reads_records_of_the_other(node: Node, compression: Compression) -> None:
    theirs, ours = f"theirs-{compression}", f"ours-{compression}"
    with BlockingClient.connect(node.grpc) as client:
        for topic in (theirs, ours):
            client.create_topic(topic, partitions=3)
        sent_by_confluent(node.kafka, theirs, compression)
        found = read_by_sdk(client, theirs)
        assert found == consumed(node.kafka, theirs, 3, COUNT)
        with client.producer(ProducerOptions(compression=compression)) as producer:
            for message in found:
                producer.send(
                    ours, message.value, key=message.key, headers=message.headers, timestamp=message.timestamp
                )
        again = consumed(node.kafka, ours, 3, COUNT)
    assert again != []
    same = {message.headers: message[3:] for message in again}
    assert same == {message.headers: message[3:] for message in found}
    keyed = {message.key: message.partition for message in found if message.key}
    assert {message.key: message.partition for message in again if message.key} == keyed


class Elsewhere:
    """A core across a channel, with stand-ins for the parts of the contract that a gateway needs from its own node."""

    def __init__(self, core: RemoteCore) -> None:
        self.log: Log = core.log
        self.topics: Topics = core.topics
        self.configs: Configs = core.configs
        self.cold: Cold = core.cold
        self.node: NodeQueries = self
        topics, self.turns = MemoryTopics({}, {}), TurnWrites()
        self.groups: Groups = memory_groups(topics, self.turns)
        self.transactions: Transactions = memory_transactions(topics, self.turns)
        self.features: Features = MemoryFeatures()

    def quorum(self) -> QuorumDescription:
        return QuorumDescription(1, 1, 1, 0)

    def log_directories(self) -> Sequence[LogDirectory]:
        return []

    def producers(self, partition: object) -> Sequence[ActiveProducer]:
        return []

    def client_metrics(self) -> Sequence[str]:
        return []


@contextmanager
def gateway_over(node: Node, port: int) -> Iterator[None]:
    """Runs a Kafka gateway in this process whose core is on the other side of a channel."""
    ready, over = threading.Event(), threading.Event()

    async def run() -> None:
        async with RemoteCore.connect(node.grpc, clock=SystemClock(), rng=SystemRng()) as core:
            settings = GatewaySettings((Endpoint("PLAINTEXT", "127.0.0.1", port),))
            gateway = await serve(Elsewhere(core), Options(settings))
            ready.set()
            await asyncio.to_thread(over.wait)
            await gateway.stop()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    try:
        assert ready.wait(60)
        yield
    finally:
        over.set()
        thread.join()


def test_kafka_clients_are_served_by_a_gateway_in_another_process_than_the_core(tmp_path: Path) -> None:
    port = free_port()
    with (
        Node(tmp_path, flags=["--advertised-listeners", f"PLAINTEXT://127.0.0.1:{port}"]) as node,
        gateway_over(node, port),
    ):
        address = f"127.0.0.1:{port}"
        with BlockingClient.connect(node.grpc) as client:
            client.create_topic("t", partitions=2)
            sent_by_confluent(address, "t", "lz4")
            assert consumed(address, "t", 2, COUNT) == read_by_sdk(client, "t")
