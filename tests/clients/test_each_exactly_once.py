"""Transactions of each client but librdkafka: committed and aborted, copying with offsets, and taken over by a younger
producer.

`test_transactions.py` has the same tests of librdkafka, and commits and aborts of aiokafka and Java.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from tests.clients.test_transactions import found, transact, transactional
from tests.support.clients import create, produce
from tests.support.node import Node
from tests.support.talker import Talker

pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated", "ignore:open_text is deprecated")
COUNT, PARTITIONS = 100, 2
#: Runs the named task with the client: "copy" returns the number of records copied, "fence" the name of the error.
Ask = Callable[..., Any]
FENCED = {
    "kafka-python": "ProducerFencedError",
    "aiokafka": "ProducerFenced",
    "kafkajs": "INVALID_PRODUCER_EPOCH",
    "Java": "ProducerFencedException",
}


class KafkaPython:
    def __init__(self, node: Node) -> None:
        self.bootstrap = node.kafka

    def producer(self, name: str) -> Any:
        from kafka import KafkaProducer

        made = KafkaProducer(bootstrap_servers=self.bootstrap, transactional_id=name)
        made.init_transactions()
        return made

    def transact(self, topic: str, values: list[str], aborts: list[str]) -> None:
        with closing(self.producer(topic)) as producer:
            for value in values:
                producer.begin_transaction()
                producer.send(topic, value.encode(), partition=0)
                producer.flush()
                (producer.abort_transaction if value in aborts else producer.commit_transaction)()

    def copy(self, source: str, topic: str, count: int) -> int:
        from kafka import KafkaConsumer, OffsetAndMetadata

        how: dict[str, Any] = {
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "isolation_level": "read_committed",
        }
        copied, aborted = 0, False
        reader = KafkaConsumer(source, bootstrap_servers=self.bootstrap, group_id=topic, **how)
        with closing(self.producer(topic)) as producer, closing(reader):
            while copied < count:
                if not (batches := reader.poll(500)):
                    continue
                producer.begin_transaction()
                for place, records in batches.items():
                    for record in records:
                        producer.send(topic, record.value, partition=place.partition)
                ends = {at: OffsetAndMetadata(records[-1].offset + 1, "", -1) for at, records in batches.items()}
                producer.send_offsets_to_transaction(ends, reader.group_metadata())
                if not aborted:
                    aborted = True
                    producer.flush()
                    producer.abort_transaction()
                    for place, records in batches.items():
                        reader.seek(place, records[0].offset)
                    continue
                producer.commit_transaction()
                copied += sum(map(len, batches.values()))
        return copied

    def fence(self, topic: str) -> str | None:
        with closing(self.producer(topic)) as old:
            old.begin_transaction()
            old.send(topic, b"of the old one", partition=0)
            old.flush()
            with closing(self.producer(topic)) as young:
                young.begin_transaction()
                young.send(topic, b"of the new one", partition=0)
                try:
                    old.commit_transaction()
                except Exception as error:  # noqa: BLE001 - its name is the answer
                    return type(error).__name__
                finally:
                    young.commit_transaction()
        return None


class Aiokafka:
    def __init__(self, node: Node) -> None:
        self.bootstrap = node.kafka

    def producer(self, name: str) -> Any:
        from aiokafka import AIOKafkaProducer

        return AIOKafkaProducer(bootstrap_servers=self.bootstrap, transactional_id=name)

    def copy(self, source: str, topic: str, count: int) -> int:
        return asyncio.run(self._copy(source, topic, count))

    async def _copy(self, source: str, topic: str, count: int) -> int:
        from aiokafka import AIOKafkaConsumer

        how: dict[str, Any] = {
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "isolation_level": "read_committed",
        }
        copied, aborted = 0, False
        producer = self.producer(topic)
        reader = AIOKafkaConsumer(source, bootstrap_servers=self.bootstrap, group_id=topic, **how)
        async with producer, reader:
            while copied < count:
                if not (batches := await reader.getmany(timeout_ms=500)):
                    continue
                await producer.begin_transaction()
                for place, records in batches.items():
                    for record in records:
                        await producer.send(topic, record.value, partition=place.partition)
                ends = {place: records[-1].offset + 1 for place, records in batches.items()}
                await producer.send_offsets_to_transaction(ends, topic)
                if not aborted:
                    aborted = True
                    await producer.abort_transaction()
                    for place, records in batches.items():
                        reader.seek(place, records[0].offset)
                    continue
                await producer.commit_transaction()
                copied += sum(map(len, batches.values()))
        return copied

    def fence(self, topic: str) -> str | None:
        return asyncio.run(self._fence(topic))

    async def _fence(self, topic: str) -> str | None:
        old = self.producer(topic)
        await old.start()
        await old.begin_transaction()
        await old.send_and_wait(topic, b"of the old one", partition=0)
        async with self.producer(topic) as young:
            await young.begin_transaction()
            await young.send_and_wait(topic, b"of the new one", partition=0)
            try:
                await old.commit_transaction()
            except Exception as error:  # noqa: BLE001 - its name is the answer
                return type(error).__name__
            finally:
                await young.commit_transaction()
                await old.client.close()  # the producer's `stop` would wait for the transaction
        return None


class Kafkajs:
    def __init__(self, node: Node, talker: Talker) -> None:
        self.bootstrap, self._talker = node.kafka, talker

    def ask(self, command: str, topic: str, **question: Any) -> Any:
        return self._talker.ask(command=command, bootstrap=self.bootstrap, topic=topic, id=topic, **question)

    def transact(self, topic: str, values: list[str], aborts: list[str]) -> None:
        self.ask("transact", topic, values=values, aborts=aborts)

    def copy(self, source: str, topic: str, count: int) -> int:
        return int(self.ask("copy", topic, source=source, group=topic, count=count))

    def fence(self, topic: str) -> Any:
        return self.ask("fence", topic)


class Java:
    def __init__(self, node: Node, talker: Talker) -> None:
        self.bootstrap, self._talker = node.kafka, talker

    def copy(self, source: str, topic: str, count: int) -> int:
        configs = {"group.id": topic, "enable.auto.commit": "false", "auto.offset.reset": "earliest"}
        configs["isolation.level"] = "read_committed"
        self._talker.ask(command="open", name=topic, bootstrap=self.bootstrap, configs=configs, subscribe=source)
        how: dict[str, Any] = {"name": topic, "bootstrap": self.bootstrap, "configs": {"transactional.id": topic}}
        copied = self._talker.ask(command="copy", topic=topic, count=count, **how)
        self._talker.ask(command="close", name=topic)
        return int(copied)

    def fence(self, topic: str) -> Any:
        configs = {"transactional.id": topic}
        return self._talker.ask(command="fence", bootstrap=self.bootstrap, topic=topic, configs=configs)


@pytest.fixture(params=FENCED)
def client(node: Node, request: pytest.FixtureRequest) -> Any:
    made: dict[str, Callable[[], object]] = {
        "kafka-python": lambda: KafkaPython(node),
        "aiokafka": lambda: Aiokafka(node),
        "kafkajs": lambda: Kafkajs(node, request.getfixturevalue("javascript")),
        "Java": lambda: Java(node, request.getfixturevalue("java")),
    }
    return made[request.param]()


@pytest.fixture
def topic(node: Node, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").replace("]", "")
    create(node, name, PARTITIONS, {})
    return str(name)


@pytest.mark.parametrize("client", ["kafka-python", "kafkajs"], indirect=True)
def test_each_client_commits_and_aborts(node: Node, client: Any, topic: str) -> None:
    client.transact(topic, ["kept", "lost", "kept too"], ["lost"])
    assert found(node, topic, 2) == ["kept", "kept too"]
    assert found(node, topic, 3, "read_uncommitted") == ["kept", "kept too", "lost"]


def test_each_client_copies_each_record_once_and_commits_the_offsets_with_them(
    node: Node, client: Any, topic: str
) -> None:
    """The client's first transaction is aborted."""
    source = f"{topic}-source"
    create(node, source, PARTITIONS, {})
    transact(transactional(node, source), source, "aborted", commit=False)
    produce(node, source, COUNT)
    assert client.copy(source, topic, COUNT) == COUNT
    assert len(found(node, topic, COUNT)) == len(set(found(node, topic, COUNT))) == COUNT
    assert len(found(node, topic, COUNT + 1, "read_uncommitted")) > COUNT
    produce(node, source, 3, first=COUNT)
    assert client.copy(source, topic, 3) == 3
    assert len(found(node, topic, COUNT + 3)) == COUNT + 3


def test_the_older_of_two_producers_is_fenced(
    node: Node, client: Any, topic: str, request: pytest.FixtureRequest
) -> None:
    assert client.fence(topic) == FENCED[request.node.callspec.params["client"]]
    assert found(node, topic, 1) == ["of the new one"]
