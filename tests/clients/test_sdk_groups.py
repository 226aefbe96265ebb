"""Members of the SDK and of Kafka's clients in one group: whoever leads, all partitions are shared and each record is read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from grpc_api.sdk.blocking import BlockingClient, BlockingGroupConsumer
from grpc_api.sdk.values import ConsumerOptions
from tests.clients import tools
from tests.support.clients import create, produce
from tests.support.node import Node
from tests.support.talker import Talker

pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated", "ignore:open_text is deprecated")
COUNT, PARTITIONS = 200, 4
PATIENCE_S = 60.0


@pytest.fixture
def topic(node: Node, request: pytest.FixtureRequest) -> str:
    name = "".join(each if each.isalnum() else "-" for each in request.node.name)
    create(node, name, PARTITIONS, {})
    return name


@pytest.fixture
def client(node: Node) -> Iterator[BlockingClient]:
    with BlockingClient.connect(node.grpc) as connected:
        yield connected


def until(step: Callable[[], object], condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        step()


def options(*assignors: str) -> ConsumerOptions:
    return ConsumerOptions(heartbeat_s=0.3, assignors=assignors or ConsumerOptions().assignors)


@contextmanager
def librdkafka(node: Node, topic: str, assignor: str) -> Iterator[Consumer]:
    settings = {"bootstrap.servers": node.kafka, "group.id": "shared", "auto.offset.reset": "earliest"}
    made = Consumer({**settings, "heartbeat.interval.ms": 300, "partition.assignment.strategy": assignor})
    made.subscribe([topic])
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("leader", ["the SDK", "librdkafka"])
@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_librdkafka_and_the_sdk_share_a_group(
    node: Node, client: BlockingClient, topic: str, assignor: str, leader: str
) -> None:
    read: list[tuple[int, int]] = []
    with ExitStack() as stack:

        def poll_ours() -> None:
            read.extend((each.partition, each.offset) for each in ours.take(500, 0.1))

        def poll_theirs() -> None:
            for message in theirs.consume(500, 0.1):
                assert message.error() is None, message.error()
                read.append((message.partition() or 0, message.offset() or 0))

        def poll() -> None:
            poll_ours()
            poll_theirs()

        ours: BlockingGroupConsumer
        if leader == "the SDK":
            ours = stack.enter_context(client.consumer("shared", [topic], options(assignor)))
            until(poll_ours, lambda: len(ours.assignment) == PARTITIONS)
            theirs = stack.enter_context(librdkafka(node, topic, assignor))
        else:
            theirs = stack.enter_context(librdkafka(node, topic, assignor))
            until(poll_theirs, lambda: len(theirs.assignment()) == PARTITIONS)
            ours = stack.enter_context(client.consumer("shared", [topic], options(assignor)))
        until(poll, lambda: len(ours.assignment) == len(theirs.assignment()) == PARTITIONS // 2)
        mine, others = {p.partition for p in ours.assignment}, {p.partition for p in theirs.assignment()}
        assert mine | others == set(range(PARTITIONS))
        assert client.group("shared").assignor == assignor
        produce(node, topic, COUNT)
        until(poll, lambda: len(read) >= COUNT)
        assert len(read) == len(set(read)) == COUNT
    client.delete_group("shared")


def test_kafka_python_and_the_sdk_share_a_group(node: Node, client: BlockingClient, topic: str) -> None:
    from kafka import KafkaConsumer

    produce(node, topic, COUNT)
    theirs = KafkaConsumer(
        topic,
        bootstrap_servers=node.kafka,
        group_id="python",
        auto_offset_reset="earliest",
        heartbeat_interval_ms=300,
    )
    try:
        with client.consumer("python", [topic], options()) as ours:
            until(lambda: ours.take(500, 0.1), lambda: len(ours.assignment) == PARTITIONS)

            def poll() -> None:
                ours.take(500, 0.1)
                theirs.poll(100)

            until(poll, lambda: len(ours.assignment) == len(theirs.assignment()) == PARTITIONS // 2)
    finally:
        theirs.close()


@pytest.mark.parametrize("assignor", ["Range", "CooperativeSticky"])
def test_kafkas_console_consumer_and_the_sdk_share_a_group(
    node: Node, client: BlockingClient, topic: str, java: Talker, assignor: str
) -> None:
    """The console consumer reads the half that the SDK's member has given up; then it leaves."""
    strategy = f"partition.assignment.strategy=org.apache.kafka.clients.consumer.{assignor}Assignor"
    words = ["--bootstrap-server", node.kafka, "--topic", topic, "--group", topic, "--max-messages", str(COUNT // 2)]
    words += ["--command-property", strategy, "--command-property", "heartbeat.interval.ms=300"]
    name = "range" if assignor == "Range" else "cooperative-sticky"
    ours_read: list[int] = []
    with client.consumer(topic, [topic], options(name)) as ours, ThreadPoolExecutor(1) as pool:

        def poll() -> None:
            ours_read.extend(each.partition for each in ours.take(500, 0.1))

        until(poll, lambda: len(ours.assignment) == PARTITIONS)
        theirs = pool.submit(java.ask, command="tool", tool=tools.CLASSES["kafka-console-consumer"], arguments=words)
        until(poll, lambda: len(ours.assignment) == PARTITIONS // 2 or theirs.done())
        until(poll, lambda: shared(client, topic) or theirs.done())
        assert not theirs.done(), theirs.result()
        in_turn = Producer({"bootstrap.servers": node.kafka})
        for number in range(COUNT):
            in_turn.produce(topic, f"value-{number}", partition=number % PARTITIONS)
        assert in_turn.flush(PATIENCE_S) == 0
        until(poll, theirs.done)
        assert theirs.result()["printed"].count("value-") == COUNT // 2
        until(poll, lambda: len(ours_read) == COUNT // 2 and len(ours.assignment) == PARTITIONS)


def shared(client: BlockingClient, group: str) -> bool:
    found = client.group(group)
    return [len(each.partitions) for each in found.members] == [PARTITIONS // 2] * 2


def test_the_sdk_leaves_no_lag_behind_a_transaction(node: Node, client: BlockingClient, topic: str) -> None:
    """A transaction's marker is no record, but the committed offset is after the marker."""
    producer = Producer({"bootstrap.servers": node.kafka, "transactional.id": "one"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"in a transaction", partition=1)
    producer.commit_transaction(60)
    every_s = ConsumerOptions(heartbeat_s=0.1, auto_commit_s=0.1)
    with client.consumer("behind", [topic], every_s) as ours:
        until(lambda: ours.take(500, 0.3), lambda: sum(client.group_offsets("behind").values()) == 2)
    checked = Consumer({"bootstrap.servers": node.kafka, "group.id": "behind"})
    (committed,) = checked.committed([TopicPartition(topic, 1)], 30)
    assert committed.offset == checked.get_watermark_offsets(TopicPartition(topic, 1), 30)[1] == 2
    checked.close()
