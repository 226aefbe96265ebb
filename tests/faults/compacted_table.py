"""A compacted table that one producer writes, and the check that exactly its newest values are read back."""

from __future__ import annotations

import random

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.faults.clients import QUICK_RETRIES

TOPIC, KEYS = "table", 30
CONFIGS = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "6000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
    "retention.ms": "-1",
}


class Table:
    """`acked` and `sent` hold, by key, the number of the newest record that was acknowledged, and of the newest sent; `values`
    the value of each number, None for a tombstone."""

    def __init__(self, bootstrap: str, rng: random.Random) -> None:
        self.bootstrap, self.rng = bootstrap, rng
        self.count = 0
        self.errors: set[str] = set()
        self.acked: dict[bytes, int] = {}
        self.sent: dict[bytes, int] = {}
        self.values: dict[int, bytes | None] = {}

    def producer(self) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "batch.size": 2000,  # a batch fits a segment
                **QUICK_RETRIES,
            }
        )

    def write(self, producer: Producer, count: int) -> None:
        for _ in range(count):
            self.count += 1
            key, number = b"k%d" % self.rng.randrange(KEYS), self.count
            value = None if self.rng.random() < 0.2 else b"%d" % number * self.rng.randrange(1, 20)
            self.sent[key], self.values[number] = number, value

            def told(error: object, _: object, key: bytes = key, number: int = number) -> None:
                if error is not None:
                    self.errors.add(str(error))
                else:
                    self.acked[key] = max(number, self.acked.get(key, 0))

            producer.produce(TOPIC, key=key, value=value, on_delivery=told)
            producer.poll(0)

    def found(self) -> dict[bytes, bytes]:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "g", "enable.partition.eof": True})
        table: dict[bytes, bytes] = {}
        try:
            consumer.assign([TopicPartition(TOPIC, 0, 0)])
            while (message := consumer.poll(30)) is not None and message.error() is None:
                key, value = message.key(), message.value()
                assert key is not None
                if value is None:
                    table.pop(key, None)
                else:
                    table[key] = value
            assert message is not None, "the log was not read to its end"
            error = message.error()
            assert error is not None
            assert error.code() == KafkaError._PARTITION_EOF, error
        finally:
            consumer.close()
        return table

    def judge(self) -> None:
        """Asserts that all that was sent is acknowledged, and that exactly the newest values are read."""
        assert not self.errors
        assert self.acked == self.sent
        expected = {key: value for key, number in self.sent.items() if (value := self.values[number]) is not None}
        assert self.found() == expected
