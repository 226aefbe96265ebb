"""Load from Kafka's Java clients: ProducerPerformance, and a consumer that uses assign()."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import load
from tests.support.kafka_jars import class_path

CONSUMER = Path(__file__).parent / "java" / "AssignedConsumer.java"
PRODUCER = "org.apache.kafka.tools.ProducerPerformance"
LIMIT_S = 600
_RATE = re.compile(r"records sent, ([0-9.]+) records/sec \(([0-9.]+) MB/sec\)")


def one_round(address: str, tag: str, share: float = 1.0) -> Iterator[tuple[str, str, float]]:
    """Yields (row, unit, value) for one broker. A `share` below 1 reduces the record counts, for a quick run."""
    large, small = int(1_000_000 * share), int(3_000_000 * share)
    topic = f"java-{tag}-large"
    load.create_topic(address, topic)
    _, megabytes = produce(address, topic, large, 1024, "1")
    yield "Java producer, 1 M x 1 KiB, acks=1", "MB/s", megabytes
    yield "Java consumer with assign(), the same", "MB/s", consume(address, topic, large)
    topic = f"java-{tag}-small"
    load.create_topic(address, topic)
    records, _ = produce(address, topic, small, 100, "all")
    yield "Java producer, 3 M x 100 B, acks=all", "records/s", records


def produce(
    address: str, topic: str, records: int, size: int, acks: str, words_of_tool: Sequence[str] = ()
) -> tuple[float, float]:
    """Runs ProducerPerformance with the additional arguments `words_of_tool`. Returns the rates that it reports: (records/s,
    MB/s), where a MB is 10^6 bytes."""
    words = [PRODUCER, "--topic", topic, "--num-records", str(records), "--record-size", str(size)]
    words += ["--throughput", "-1", "--bootstrap-server", address, "--command-property", f"acks={acks}"]
    printed = java(*words, *words_of_tool)
    rates = _RATE.findall(printed)
    if not rates:
        raise load.LoadFailed(f"{address}: ProducerPerformance printed no rate:\n{printed}")
    # The last line has the rates of the whole run. Its "MB" are MiB.
    return float(rates[-1][0]), float(rates[-1][1]) * (1 << 20) / 1e6


def consume(address: str, topic: str, records: int, isolation: str = "read_uncommitted") -> float:
    """Runs the consumer; returns the MB/s of record values."""
    _, size, seconds = java(str(CONSUMER), address, topic, str(records), isolation).split()
    return int(size) / float(seconds) / 1e6


def java(*words: str) -> str:
    """Runs one of Kafka's tools, or a Java source file, and returns its output. Raises LoadFailed if it fails."""
    command = ["java", "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", class_path(), *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode != 0:
        raise load.LoadFailed(f"{words[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout
