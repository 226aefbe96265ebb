"""Each client's producer: writes a sample to partition 0 of a topic with a codec."""

from __future__ import annotations

import asyncio
import base64
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from tests.clients.samples import Record, lines, records
from tests.support.talker import Talker

Write = Callable[[str, str, str, Sequence[Record]], None]


def confluent(address: str, topic: str, codec: str, sample: Sequence[Record]) -> None:
    from confluent_kafka import Producer

    failed: list[object] = []
    settings = {"bootstrap.servers": address, "compression.type": codec, "enable.idempotence": True}
    producer = Producer({**settings, "linger.ms": 50})
    for key, value, headers, timestamp in sample:
        producer.produce(
            topic,
            value,
            key,
            partition=0,
            headers=list(headers),
            timestamp=timestamp,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(60) == 0
    assert not failed


def kafka_python(address: str, topic: str, codec: str, sample: Sequence[Record]) -> None:
    from kafka import KafkaProducer

    compression = None if codec == "none" else codec
    producer = KafkaProducer(bootstrap_servers=address, acks="all", compression_type=compression, linger_ms=50)
    sent = [
        producer.send(topic, value, key, headers=list(headers), partition=0, timestamp_ms=timestamp)
        for key, value, headers, timestamp in sample
    ]
    for future in sent:
        future.get(60)
    producer.close()


def aiokafka(address: str, topic: str, codec: str, sample: Sequence[Record]) -> None:
    from aiokafka import AIOKafkaProducer

    async def run() -> None:
        settings: dict[str, Any] = {"compression_type": None if codec == "none" else codec, "linger_ms": 50}
        async with AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True, **settings) as producer:
            for sent in [
                await producer.send(topic, value, key, partition=0, timestamp_ms=timestamp, headers=list(headers))
                for key, value, headers, timestamp in sample
            ]:
                await sent

    asyncio.run(run())


def kcat(address: str, topic: str, codec: str, sample: Sequence[Record]) -> None:
    text = b"".join((key or b"") + b"|" + (value or b"") + b"\n" for key, value, _, _ in sample)
    command = ["kcat", "-b", address, "-P", "-t", topic, "-p", "0", "-K", "|", "-Z", "-z", codec, "-X", "linger.ms=50"]
    for name, value in sample[0].headers:
        command += ["-H", name if value is None else f"{name}={value.decode()}"]
    subprocess.run(command, input=text, check=True, timeout=60)


def java(talker: Talker) -> Write:
    def write(address: str, topic: str, codec: str, sample: Sequence[Record]) -> None:
        configs = {"compression.type": codec, "linger.ms": 50}
        answers = talker.ask(command="produce", bootstrap=address, topic=topic, configs=configs, records=told(sample))
        assert [answer.get("offset") for answer in answers] == list(range(len(sample)))

    return write


def kafkajs(talker: Talker) -> Write:
    def write(address: str, topic: str, codec: str, sample: Sequence[Record]) -> None:
        # Not idempotent: such a kafkajs producer sends epoch 0 and sequence 0 without a producer id.
        talker.ask(command="produce", bootstrap=address, topic=topic, codec=codec, records=told(sample))

    return write


def told(sample: Sequence[Record]) -> list[dict[str, object]]:
    """The sample as JSON values for the driver."""
    return [
        {
            "key": _text(key),
            "value": _text(value),
            "headers": [[name, _text(each)] for name, each in headers],
            "timestamp": timestamp,
        }
        for key, value, headers, timestamp in sample
    ]


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


WRITERS = ("confluent-kafka", "kafka-python", "aiokafka", "kcat", "Java", "kafkajs")


def writers(java_talker: Talker, javascript_talker: Talker) -> dict[str, tuple[Write, Sequence[Record]]]:
    """By client, its writer and the records that it can write."""
    return {
        "confluent-kafka": (confluent, records()),
        "kafka-python": (kafka_python, records(null_headers=False, nothing=False)),
        "aiokafka": (aiokafka, records(nothing=False)),
        "kcat": (kcat, lines()),
        "Java": (java(java_talker), records()),
        "kafkajs": (kafkajs(javascript_talker), records(null_headers=False)),
    }
