"""A program that copies a topic exactly once: it reads committed records as a member of a group, and writes them, with the
offsets to go on from, in transactions. It runs until it is killed.

    python -m tests.faults.copier BOOTSTRAP SOURCE TARGET SEED
"""

from __future__ import annotations

import random
import sys

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.faults.clients import QUICK_RETRIES

GROUP = TRANSACTIONAL_ID = "copier"
AT_A_TIME = 25
SECONDS = 30.0
#: Of its transactions, one in this many is aborted, and its records are read again.
ABORTED = 6


def copy(bootstrap: str, source: str, target: str, seed: int) -> None:
    rng = random.Random(seed)
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
            if rng.randrange(ABORTED):
                producer.commit_transaction(SECONDS)
                continue
        except KafkaException as error:
            if error.args[0].fatal():
                raise
        producer.abort_transaction(SECONDS)
        go_back(consumer, source, ends)


def go_back(consumer: Consumer, source: str, partitions: dict[int, int]) -> None:
    """To what is committed, as an application does after an abort."""
    wanted = [TopicPartition(source, partition) for partition in partitions]
    for place in consumer.committed(wanted, SECONDS):
        consumer.seek(TopicPartition(source, place.partition, max(place.offset, 0)))


if __name__ == "__main__":
    copy(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
