"""Measures transactions of Kafka's Java clients: small ones, the consume-transform-produce loop, and the throughput that they
cost.

The producer uses version 2 of transactions (KIP-890) with both brokers, which set `group.initial.rebalance.delay.ms` to 0.
Some rows compare a figure with another one of the same broker and round. That other figure has a column of its own.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import java_clients, load
from benchmarks.table import JUDGED, Table
from tests.support.clients import local_bytes
from tests.support.node import ROOT, Node

PROGRAM = Path(__file__).parent / "java" / "Transactions.java"
#: Number and size of the records in the rows that compare rates.
RECORDS, RECORD_BYTES = 500_000, 1024
TRANSACTION_MS = 500
#: The settings of the brokers under test.
SETTINGS: dict[str, str | int | bool] = {"group.initial.rebalance.delay.ms": 0}
LIMIT_S = 300.0

SMALL = "transactions of 10 records, one producer"
COPY = "consume-transform-produce loop, 100 records a transaction"
PLAIN, IDEMPOTENT, TRANSACTIONAL = (
    f"Java producer, 1 KiB, acks=all: {kind}" for kind in ("plain", "idempotent", "in transactions of 500 ms")
)
UNCOMMITTED, COMMITTED = (f"Java consumer of these, {level}" for level in ("read_uncommitted", "read_committed"))
COLD = "the same from the bucket, read_committed"
#: (row, column, other row): the `column` of `row` repeats the broker's own figure from `other row`, for comparison.
BESIDE_OWN = (
    (IDEMPOTENT, "plain", PLAIN),
    (TRANSACTIONAL, "plain", PLAIN),
    (COMMITTED, "read_uncommitted", UNCOMMITTED),
)


def one_round(address: str, tag: str, seconds: float, share: float = 1.0) -> Iterator[tuple[str, str, float | None]]:
    """Yields (row, unit, value) for one broker. A `share` below 1 reduces the record counts, for a quick run."""
    with load.topic_for(address, f"small-{tag}") as topic:
        yield SMALL, "transactions/s", _timed("write", address, topic, str(seconds))
    with load.topic_for(address, f"from-{tag}") as source, load.topic_for(address, f"to-{tag}") as target:
        yield COPY, "records/s", _timed("copy", address, source, target, str(seconds))
    records = int(RECORDS * share)
    for row, words in (
        (PLAIN, ("enable.idempotence=false",)),
        (IDEMPOTENT, ("enable.idempotence=true",)),
    ):
        with load.topic_for(address, f"{'plain' if row == PLAIN else 'idempotent'}-{tag}") as topic:
            yield row, "MB/s", java_clients.produce(address, topic, records, RECORD_BYTES, "all", words)[1]
    with load.topic_for(address, f"transactional-{tag}") as topic:
        yield TRANSACTIONAL, "MB/s", fill(address, topic, records)
        yield UNCOMMITTED, "MB/s", java_clients.consume(address, topic, records)
        yield COMMITTED, "MB/s", java_clients.consume(address, topic, records, "read_committed")


def fill(address: str, topic: str, records: int) -> float:
    """Fills the topic in transactions of TRANSACTION_MS each; returns MB/s."""
    words = ("--transactional-id", topic, "--transaction-duration-ms", str(TRANSACTION_MS))
    return java_clients.produce(address, topic, records, RECORD_BYTES, "all", words)[1]


def cold(table: Table, directory: Path, *, rounds: int, share: float = 1.0) -> None:
    """Adds the consumer's rates when it reads from the bucket alone. The two isolation levels take turns."""
    records = int(RECORDS * share)
    settings = {"log.local.retention.bytes": 1, "log.local.retention.ms": 1000}
    with Node(directory / "cold", store=f"file://{directory}/cold-store", settings=settings) as node:
        load.create_topic(node.kafka, "cold", segment_bytes=64 << 20)
        fill(node.kafka, "cold", records)
        command = [
            sys.executable,
            "-m",
            "service.cli.main",
            "topic",
            "seal",
            "cold",
            "--wait",
            "--timeout",
            str(LIMIT_S),
        ]
        subprocess.run([*command, "--bootstrap-server", node.kafka], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + LIMIT_S
        while local_bytes(node, "cold", 1) > 0:
            if time.monotonic() > deadline:
                raise load.LoadFailed(f"{node.partition_dir('cold')} still has records after {LIMIT_S:g} s")
            time.sleep(0.1)
        for _ in range(rounds):
            for column, isolation in (("read_uncommitted", "read_uncommitted"), (JUDGED, "read_committed")):
                table.add(column, COLD, "MB/s", java_clients.consume(node.kafka, "cold", records, isolation))
        node.stop()


def beside_own(table: Table) -> None:
    """Adds the columns of BESIDE_OWN."""
    for row, column, other in BESIDE_OWN:
        for value in table.rows[other, "MB/s"].rounds[JUDGED]:
            table.add(column, row, "MB/s", value)


def _timed(*words: str) -> float:
    """Runs the program and returns its count per second."""
    count, seconds = java_clients.java(str(PROGRAM), *words).split()
    return int(count) / float(seconds)
