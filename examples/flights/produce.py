"""Writes the flights with an ordinary Kafka producer."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from examples.flights.data import Flight

#: Records between two polls for delivery reports.
POLL_EVERY = 1000


class Written(NamedTuple):
    """`checksum` is the sum of the values' CRC-32s, which does not depend on their order."""

    records: int
    checksum: int


class NotWritten(RuntimeError):
    """The node refused a record, or did not acknowledge it in time."""


def produce(bootstrap: str, topic: str, flights: Iterable[Flight], advance: Callable[[int], object]) -> Written:
    """Returns once every record is acknowledged; raises NotWritten otherwise. Calls `advance` with the number of records
    produced since its last call."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "delivery.report.only.error": True,
        }
    )
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    records = checksum = 0
    for flight in flights:
        _send(producer, topic, flight, delivered)
        records += 1
        checksum += zlib.crc32(flight.value)
        if records % POLL_EVERY == 0:
            producer.poll(0)
            advance(POLL_EVERY)
    advance(records % POLL_EVERY)
    if producer.flush(120) or failed:
        raise NotWritten(f"not every record was acknowledged: {failed[0] if failed else 'timed out'}")
    return Written(records, checksum)


def _send(
    producer: Producer, topic: str, flight: Flight, delivered: Callable[[KafkaError | None, Message], None]
) -> None:
    while True:
        try:
            producer.produce(topic, flight.value, flight.key, timestamp=flight.timestamp, on_delivery=delivered)
            return
        except BufferError:
            producer.poll(0.1)
