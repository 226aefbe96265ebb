"""A program that copies a topic exactly once: it reads committed records as a member of a group, and writes them, with the
offsets to continue from, in transactions. It runs until it is killed.

    python -m tests.faults.copier CLIENT BOOTSTRAP SOURCE TARGET SEED
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.faults.clients import QUICK_RETRIES
from tests.support import kafka_jars, node_packages

HERE = Path(__file__).parent

GROUP = TRANSACTIONAL_ID = "copier"
AT_A_TIME = 25
SECONDS = 30.0
#: The longest pause before a transaction ends. It waits for no condition: it makes kills more likely to hit open transactions.
A_PAUSE_S = 0.03
#: One in this many of its transactions is aborted, and its records are read again.
ABORTED = 6


def librdkafka(bootstrap: str, source: str, target: str, rng: random.Random) -> None:
    common = {"bootstrap.servers": bootstrap, **QUICK_RETRIES}
    producer = Producer({**common, "transactional.id": TRANSACTIONAL_ID, "transaction.timeout.ms": 10_000})
    producer.init_transactions(SECONDS)
    consumer = Consumer(
        {
            **common,
            "group.id": GROUP,
            "session.timeout.ms": 1_000,
            "heartbeat.interval.ms": 200,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([source])
    while True:
        messages = [each for each in consumer.consume(AT_A_TIME, 0.5) if each.error() is None]
        if not messages:
            continue
        producer.begin_transaction()
        for message in messages:
            producer.produce(target, message.value(), partition=message.partition() or 0)
        ends: dict[int, int] = {}
        for message in messages:
            ends[message.partition() or 0] = (message.offset() or 0) + 1
        places = [TopicPartition(source, partition, offset) for partition, offset in ends.items()]
        try:
            producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), SECONDS)
            time.sleep(rng.uniform(0, A_PAUSE_S))
            if rng.randrange(ABORTED):
                producer.commit_transaction(SECONDS)
                continue
        except KafkaException as error:
            if error.args[0].fatal():
                raise
        producer.abort_transaction(SECONDS)
        go_back(consumer, source, ends)


def go_back(consumer: Consumer, source: str, partitions: dict[int, int]) -> None:
    """Seeks to the committed offsets, as an application does after an abort."""
    wanted = [TopicPartition(source, partition) for partition in partitions]
    for place in consumer.committed(wanted, SECONDS):
        consumer.seek(TopicPartition(source, place.partition, max(place.offset, 0)))


#: Options of the consumers of kafka-python and aiokafka.
READING: dict[str, Any] = {
    "group_id": GROUP,
    "session_timeout_ms": 1_000,
    "heartbeat_interval_ms": 200,
    "enable_auto_commit": False,
    "auto_offset_reset": "earliest",
    "isolation_level": "read_committed",
    "max_poll_records": AT_A_TIME,
}
WRITING: dict[str, Any] = {"transactional_id": TRANSACTIONAL_ID, "transaction_timeout_ms": 10_000}


def kafka_python(bootstrap: str, source: str, target: str, rng: random.Random) -> None:
    """An error ends the program."""
    from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata

    producer = KafkaProducer(bootstrap_servers=bootstrap, **WRITING)
    producer.init_transactions()
    consumer = KafkaConsumer(source, bootstrap_servers=bootstrap, **READING)
    while True:
        if not (batches := consumer.poll(500)):
            continue
        producer.begin_transaction()
        for place, records in batches.items():
            for record in records:
                producer.send(target, record.value, partition=place.partition)
        ends = {place: OffsetAndMetadata(records[-1].offset + 1, "", -1) for place, records in batches.items()}
        producer.send_offsets_to_transaction(ends, consumer.group_metadata())
        if rng.randrange(ABORTED):
            producer.commit_transaction()
            continue
        producer.flush()
        producer.abort_transaction()
        for place, records in batches.items():
            consumer.seek(place, records[0].offset)


def aiokafka(bootstrap: str, source: str, target: str, rng: random.Random) -> None:
    asyncio.run(_aiokafka(bootstrap, source, target, rng))


async def _aiokafka(bootstrap: str, source: str, target: str, rng: random.Random) -> None:
    """An error ends the program."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async with (
        AIOKafkaProducer(bootstrap_servers=bootstrap, **WRITING) as producer,
        AIOKafkaConsumer(source, bootstrap_servers=bootstrap, **READING) as consumer,
    ):
        while True:
            if not (batches := await consumer.getmany(timeout_ms=500, max_records=AT_A_TIME)):
                continue
            await producer.begin_transaction()
            for place, records in batches.items():
                for record in records:
                    await producer.send(target, record.value, partition=place.partition)
            ends = {place: records[-1].offset + 1 for place, records in batches.items()}
            await producer.send_offsets_to_transaction(ends, GROUP)
            if rng.randrange(ABORTED):
                await producer.commit_transaction()
                continue
            await producer.abort_transaction()
            for place, records in batches.items():
                consumer.seek(place, records[0].offset)


def java(bootstrap: str, source: str, target: str, rng: random.Random) -> None:
    """An error ends the program."""
    words = ["java", "-Xmx128m", *kafka_jars.QUICK_START, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    _become(
        [*words, "-cp", kafka_jars.class_path(), str(HERE / "java" / "Copier.java")], bootstrap, source, target, rng
    )


def kafkajs(bootstrap: str, source: str, target: str, rng: random.Random) -> None:
    """An error ends the program. A member of kafkajs does not send its generation with a transaction's offsets."""
    os.environ["NODE_PATH"] = str(node_packages.node_path())
    _become(["node", str(HERE / "javascript" / "copier.js")], bootstrap, source, target, rng)


def _become(command: list[str], bootstrap: str, source: str, target: str, rng: random.Random) -> None:
    """Replaces this process by the other program, so that a kill of this process id kills the program."""
    numbers = (rng.getrandbits(30), GROUP, AT_A_TIME, round(1000 * A_PAUSE_S), ABORTED)
    os.execvp(command[0], [*command, bootstrap, source, target, *map(str, numbers)])


CLIENTS = {each.__name__: each for each in (librdkafka, kafka_python, aiokafka, java, kafkajs)}


if __name__ == "__main__":
    CLIENTS[sys.argv[1]](sys.argv[2], sys.argv[3], sys.argv[4], random.Random(int(sys.argv[5])))
