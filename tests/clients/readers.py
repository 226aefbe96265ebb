"""Each client's consumer under assign(): reads a given range of offsets from partition 0 of each topic.

Results are by topic, in offset order. The readers assert that offsets have neither gaps nor repeats.
"""

from __future__ import annotations

import asyncio
import base64
import subprocess
import time
from collections.abc import Mapping
from typing import Any, Protocol

from tests.clients.samples import Record
from tests.support.talker import Talker

#: By topic, the first offset wanted and the offset after the last.
Wanted = Mapping[str, tuple[int, int]]
Found = dict[str, list[Record]]


class Read(Protocol):
    def __call__(self, address: str, wanted: Wanted, **settings: object) -> Found: ...


PATIENCE_S = 60


class Gathered:
    """Collects records until none is missing."""

    def __init__(self, wanted: Wanted) -> None:
        self.found: Found = {topic: [] for topic in wanted}
        self._wanted = wanted
        self._missing = sum(end - first for first, end in wanted.values())
        self._deadline = time.monotonic() + PATIENCE_S

    def add(self, topic: str, offset: int, record: Record) -> None:
        first, end = self._wanted[topic]
        if offset < end:
            assert offset == first + len(self.found[topic]), f"{topic}: {offset}"
            self.found[topic].append(record)
            self._missing -= 1

    def more(self) -> bool:
        assert time.monotonic() < self._deadline, f"{self._missing} records did not come"
        return self._missing > 0


def confluent(address: str, wanted: Wanted, **settings: object) -> Found:
    from confluent_kafka import Consumer, TopicPartition

    gathered = Gathered(wanted)
    consumer = Consumer({"bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False, **settings})
    consumer.assign([TopicPartition(topic, 0, first) for topic, (first, _) in wanted.items()])
    while gathered.more():
        for message in consumer.consume(500, timeout=1):
            assert message.error() is None, message.error()
            headers = tuple(message.headers() or ())
            record = Record(message.key(), message.value(), headers, message.timestamp()[1])  # type: ignore[arg-type]
            gathered.add(str(message.topic()), int(message.offset() or 0), record)
    consumer.close()
    return gathered.found


def kafka_python(address: str, wanted: Wanted, **settings: object) -> Found:
    from kafka import KafkaConsumer, TopicPartition

    gathered = Gathered(wanted)
    consumer = KafkaConsumer(bootstrap_servers=address, group_id=None, **settings)
    consumer.assign([TopicPartition(topic, 0) for topic in wanted])
    for topic, (first, _) in wanted.items():
        consumer.seek(TopicPartition(topic, 0), first)
    while gathered.more():
        for partition, messages in consumer.poll(1000).items():
            for each in messages:
                record = Record(each.key, each.value, tuple(map(tuple, each.headers)), each.timestamp)
                gathered.add(partition.topic, each.offset, record)
    consumer.close()
    return gathered.found


def aiokafka(address: str, wanted: Wanted, **settings: object) -> Found:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    gathered = Gathered(wanted)

    async def run() -> None:
        async with AIOKafkaConsumer(bootstrap_servers=address, **settings) as consumer:
            consumer.assign([TopicPartition(topic, 0) for topic in wanted])
            for topic, (first, _) in wanted.items():
                consumer.seek(TopicPartition(topic, 0), first)
            while gathered.more():
                for partition, messages in (await consumer.getmany(timeout_ms=1000)).items():
                    for each in messages:
                        record = Record(each.key, each.value, tuple(map(tuple, each.headers)), each.timestamp)
                        gathered.add(partition.topic, each.offset, record)

    asyncio.run(run())
    return gathered.found


def kcat(address: str, wanted: Wanted, **settings: object) -> Found:
    """One kcat process per topic, because kcat reads only one topic."""
    gathered = Gathered(wanted)
    for topic, (first, end) in wanted.items():
        command = ["kcat", "-b", address, "-C", "-q", "-t", topic, "-p", "0", "-o", str(first), "-c", str(end - first)]
        command += [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
        done = subprocess.run([*command, "-f", "%o %T %K %S %h\n%k%s\n"], check=True, capture_output=True, timeout=60)
        rest = done.stdout
        while rest:
            rest = _kcat_record(rest, topic, gathered)
    assert not gathered.more()
    return gathered.found


def _kcat_record(text: bytes, topic: str, gathered: Gathered) -> bytes:
    """Adds the first record of the text and returns the rest. A length of -1 is a null."""
    line, _, body = text.partition(b"\n")
    offset, timestamp, key_length, value_length, headers = line.split(b" ", 4)
    key_bytes, value_bytes = max(int(key_length), 0), max(int(value_length), 0)
    key = None if int(key_length) < 0 else body[:key_bytes]
    value = None if int(value_length) < 0 else body[key_bytes : key_bytes + value_bytes]
    gathered.add(topic, int(offset), Record(key, value, _kcat_headers(headers), int(timestamp)))
    return body[key_bytes + value_bytes + 1 :]


def _kcat_headers(text: bytes) -> tuple[tuple[str, bytes | None], ...]:
    pairs = [each.partition(b"=") for each in text.split(b",")] if text else []
    return tuple((name.decode(), None if value == b"NULL" else value) for name, _, value in pairs)


def java(talker: Talker) -> Read:
    def read(address: str, wanted: Wanted, **settings: object) -> Found:
        gathered = Gathered(wanted)
        places = [[topic, 0, first, None] for topic, (first, _) in wanted.items()]
        talker.ask(command="open", bootstrap=address, name="reader", partitions=places, configs=settings)
        try:
            while gathered.more():
                for each in talker.ask(command="poll", name="reader", count=1):
                    gathered.add(each["topic"], each["offset"], from_java(each))
        finally:
            talker.ask(command="close", name="reader")
        return gathered.found

    return read


def from_java(told: Mapping[str, Any]) -> Record:
    headers = tuple((name, _bytes(value)) for name, value in told["headers"])
    return Record(_bytes(told["key"]), _bytes(told["value"]), headers, told["timestamp"])


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


READERS = ("confluent-kafka", "kafka-python", "aiokafka", "kcat", "Java")


def readers(java_talker: Talker) -> dict[str, Read]:
    made = (confluent, kafka_python, aiokafka, kcat, java(java_talker))
    return dict(zip(READERS, made, strict=True))
