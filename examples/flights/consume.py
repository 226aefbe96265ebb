"""Reads the flights back: all of them with an ordinary Kafka consumer, and a few by time with kcat."""

from __future__ import annotations

import subprocess
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from confluent_kafka import Consumer, Message, TopicPartition

from examples.flights.data import Flight

BATCH = 5000
#: The longest time to fill a batch, in seconds.
POLL_S = 0.2
#: Seconds without a record after which reading fails.
PATIENCE_S = 60.0


class ReadBackFailed(RuntimeError):
    """The records could not be read, or differ from those written."""


@dataclass
class ReadBack:
    """`ends` has the next offset of each partition, and `keys` has the carriers in each partition."""

    records: int = 0
    checksum: int = 0
    ends: dict[int, int] = field(default_factory=dict)
    keys: dict[int, set[bytes]] = field(default_factory=dict)

    def take(self, message: Message) -> None:
        error, value, key = message.error(), message.value(), message.key()
        partition, offset = message.partition(), message.offset()
        if error is not None or value is None or key is None or partition is None:
            raise ReadBackFailed(f"reading failed: {error or 'a record has no key or no value'}")
        following = self.ends.get(partition, 0)
        if offset != following:
            raise ReadBackFailed(f"partition {partition}: read offset {offset}, expected {following}")
        self.ends[partition] = following + 1
        self.keys.setdefault(partition, set()).add(key)
        self.records += 1
        self.checksum += zlib.crc32(value)


class Found(NamedTuple):
    """A record in kcat's output."""

    offset: int
    flight: Flight


def read_all(bootstrap: str, topic: str, partitions: int, count: int, advance: Callable[[int], object]) -> ReadBack:
    """Reads all `count` records from offset 0 on. Raises ReadBackFailed at a gap, a repeated offset, or a timeout."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "flights", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found = ReadBack()
    silent_since = time.monotonic()
    try:
        while found.records < count:
            batch = consumer.consume(BATCH, POLL_S)
            for message in batch:
                found.take(message)
            advance(len(batch))
            if batch:
                silent_since = time.monotonic()
            elif time.monotonic() - silent_since > PATIENCE_S:
                raise ReadBackFailed(f"only {found.records} of {count} records arrived")
    finally:
        consumer.close()
    return found


def kcat_command(bootstrap: str, topic: str, partition: int, timestamp: int, count: int) -> list[str]:
    """Returns a kcat command that prints the first `count` records at or after `timestamp` (ms since 1970) as lines of offset,
    timestamp, key, value."""
    words = ["kcat", "-C", "-b", bootstrap, "-t", topic, "-p", str(partition)]
    return [*words, "-o", f"s@{timestamp}", "-c", str(count), "-q", "-f", r"%o\t%T\t%k\t%s\n"]


def seek_with_kcat(bootstrap: str, topic: str, partition: int, timestamp: int, count: int) -> list[Found]:
    command = kcat_command(bootstrap, topic, partition, timestamp, count)
    printed = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout
    return [_parsed(line) for line in printed.splitlines()]


def _parsed(line: bytes) -> Found:
    offset, timestamp, key, value = line.split(b"\t", 3)
    return Found(int(offset), Flight(key, value, int(timestamp)))


def expected_at(flights: Iterable[Flight], keys: set[bytes], timestamp: int, count: int) -> list[Found]:
    """Returns the records that a seek must find in the partition of `keys`, according to the table. The partition's flights
    have the offsets 0, 1, and so on."""

    def found() -> Iterator[Found]:
        begun = False
        for offset, flight in enumerate(flight for flight in flights if flight.key in keys):
            begun = begun or flight.timestamp >= timestamp
            if begun:
                yield Found(offset, flight)

    return list(islice(found(), count))
