"""Moves a partition between two brokers on one machine while a client writes. Measures how long the move takes, how many bytes
it adds to the bucket, and the longest wait for an acknowledgement. Only tidelog is measured: Kafka would copy the whole
partition.

The partition's history is in the bucket, except for HOT_BYTES that only its leader has. The writer sends RATE records a second
and waits for each acknowledgement. The longest wait includes the client's own search for the new leader.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from benchmarks.brokers import Tidelog
from benchmarks.load import LoadFailed
from benchmarks.table import MOVED_BYTES as BYTES
from benchmarks.table import MOVED_WAIT as LONGEST_WAIT
from benchmarks.table import Table

TOPIC = "moved"
HOT_BYTES = 64 << 20
SEGMENT_BYTES = 128 << 20
RECORD_BYTES = 1 << 16
RATE = 200
LIMIT_S = 300.0
UNTIL_LED = "a partition moves: until the other broker leads"


def measure(table: Table, directory: Path, *, rounds: int, gibibytes: float) -> None:
    broker = Tidelog(directory / "two", {"tidelog.tier.max.lag.ms": 86_400_000, "log.local.retention.ms": 1}, brokers=2)
    broker.spawn()
    try:
        broker.wait_ready()
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic(TOPIC, 1, 1, config={"segment.bytes": str(SEGMENT_BYTES)})])[TOPIC].result(30)
        _fill(broker.address, round(gibibytes * (1 << 30)))
        for _ in range(rounds):
            _one(table, broker.address, admin, directory / "two" / "store")
        table.notes.append(
            f"The partition has {gibibytes:g} GiB in the bucket, and {HOT_BYTES >> 20} MiB that only its leader has."
        )
    finally:
        broker.stop()


def _one(table: Table, address: str, admin: AdminClient, store: Path) -> None:
    _fill(address, HOT_BYTES)
    _wait_offloaded(store)
    target = 3 - _leader(admin)
    stored, writer = _bytes(store), _Writer(address)
    asking = KafkaAdminClient(bootstrap_servers=address)
    began = time.perf_counter()
    asking.alter_partition_reassignments({TopicPartition(TOPIC, 0): [target]})
    while _leader(admin) != target:
        if time.perf_counter() > began + LIMIT_S:
            raise LoadFailed(f"the partition has not moved within {LIMIT_S:g} s")
        time.sleep(0.005)
    took = time.perf_counter() - began
    asking.close()
    table.add("tidelog", UNTIL_LED, "s", took)
    table.add("tidelog", LONGEST_WAIT, "ms", writer.stop() * 1000)
    table.add("tidelog", BYTES, "MB", (_bytes(store) - stored) / 1e6)


class _Writer:
    """Sends records one by one; `stop` returns the longest wait for an acknowledgement, in seconds."""

    def __init__(self, address: str) -> None:
        self._producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 0})
        self._stop, self._longest = threading.Event(), 0.0
        self._one()  # opens the connections, which is not measured
        self._longest = 0.0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(1 / RATE):
            self._one()

    def _one(self) -> None:
        began = time.perf_counter()
        self._producer.produce(TOPIC, bytes(1024), partition=0)
        if self._producer.flush(LIMIT_S):
            raise LoadFailed("a record was not acknowledged")
        self._longest = max(self._longest, time.perf_counter() - began)

    def stop(self) -> float:
        """Stops a second later, so that the new leader gets some records."""
        time.sleep(1)
        self._stop.set()
        self._thread.join()
        return self._longest


def _fill(address: str, size: int) -> None:
    producer = Producer({"bootstrap.servers": address, "batch.size": 900_000, "linger.ms": 5, "acks": "all"})
    value = bytes(RECORD_BYTES)
    for _ in range(size // RECORD_BYTES):
        while True:
            try:
                producer.produce(TOPIC, value, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    if producer.flush(LIMIT_S):
        raise LoadFailed("the partition was not filled")


def _wait_offloaded(store: Path) -> None:
    """Returns once the bucket's size has not changed for two seconds. Then it has all closed segments."""
    size, since, began = _bytes(store), time.perf_counter(), time.perf_counter()
    while time.perf_counter() < since + 2:
        if time.perf_counter() > began + LIMIT_S:
            raise LoadFailed(f"the closed segments are not in the bucket after {LIMIT_S:g} s")
        time.sleep(0.1)
        if (now := _bytes(store)) != size:
            size, since = now, time.perf_counter()


def _leader(admin: AdminClient) -> int:
    found: int = admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions[0].leader
    return found


def _bytes(store: Path) -> int:
    return sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
