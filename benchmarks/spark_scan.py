"""Measures a Spark scan of a cold topic of 100-byte records, in `local[2]`, with all columns into Spark's `noop` sink.

Three sources take turns: tidelog's source, which reads the bucket; prebuilt Arrow batches of the same rows, the upper limit for
a source in Python; and Spark's Kafka source, which reads the same records from Apache Kafka. The bucket is a directory, and the
node is stopped.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import pyspark_tidelog
from benchmarks import load, spark_jars
from benchmarks.prebuilt_source import PrebuiltSource
from benchmarks.table import Table
from examples.flights.spark_python import python_for_spark
from tests.support.apache_kafka import ApacheKafka
from tests.support.node import ROOT, Node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "scan"
ROW = "Spark scan of cold 100 B records, local[2]"
UNIT = "M rows/s"
PROCESSOR = "the same, processor time with workers and broker"
TICKS = os.sysconf("SC_CLK_TCK")
VALUE_BYTES = 100
#: Records of a batch of about 16 KiB, the default `batch.size` of producers.
BATCH_RECORDS = 150
#: Tasks of Spark's Kafka source. By default it makes one for each partition.
KAFKA_TASKS = 8
LIMIT_S = 600
LEADER_S = 30


def measure(table: Table, directory: Path, *, rounds: int, records: int) -> None:
    store = directory / "store"
    with ExitStack() as stack:
        kafka = stack.enter_context(ApacheKafka(directory / "kafka"))
        _fill(kafka.address, records)
        _cold(directory / "node", store, records)
        spark = stack.enter_context(_session(directory))
        prebuilt = _prebuilt(store, directory / "prebuilt")
        ours = spark.read.format("tidelog").option("store", str(store)).option("topics", TOPIC).load()
        sources: dict[str, Callable[[], DataFrame]] = {
            "tidelog": lambda: spark.read.format("tidelog").option("store", str(store)).option("topics", TOPIC).load(),
            "prebuilt": lambda: spark.read.format("prebuilt").schema(ours.schema).option("folder", prebuilt).load(),
            "kafka": lambda: _kafka(spark, kafka.address),
        }
        counts = {name: source().count() for name, source in sources.items()}
        if len(set(counts.values())) != 1:
            raise load.LoadFailed(f"the sources have different numbers of records: {counts}")
        table.notes.append(
            f"Spark: {counts['tidelog']:,} records in batches of {BATCH_RECORDS}, a directory as the bucket."
        )
        for _ in range(rounds):
            for name, source in sources.items():
                seconds, processor_seconds = _scanned(source)
                table.add(name, ROW, UNIT, counts[name] / seconds / 1e6)
                table.add(name, PROCESSOR, "s a M rows", processor_seconds / counts[name] * 1e6)


def _fill(address: str, records: int) -> None:
    load.create_topic(address, TOPIC)
    size = len(load.record_batch(BATCH_RECORDS, VALUE_BYTES))
    deadline = time.monotonic() + LEADER_S
    while True:
        try:
            load.produce_bytes(address, TOPIC, BATCH_RECORDS, VALUE_BYTES, size)
            break
        except load.LoadFailed:  # Kafka's metadata may name a leader before that leader accepts records
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    load.produce_bytes(address, TOPIC, BATCH_RECORDS, VALUE_BYTES, size * (records // BATCH_RECORDS - 1))


def _cold(directory: Path, store: Path, records: int) -> None:
    """Makes a topic whose records are in the bucket, and stops its node."""
    with Node(directory, store=f"file://{store}") as node:
        _fill(node.kafka, records)
        command = [sys.executable, "-m", "service.cli.main", "topic", "seal", TOPIC, "--wait"]
        command += ["--timeout", str(LIMIT_S), "--bootstrap-server", node.kafka]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        node.stop()


@contextmanager
def _session(directory: Path) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    os.environ.update(PYSPARK_PYTHON=python_for_spark(directory), SPARK_LOCAL_IP="127.0.0.1", PYTHONPATH=str(ROOT))
    session = (
        SparkSession.builder.master("local[2]")
        .appName("tidelog bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "3g")
        .config("spark.log.level", "ERROR")
        .config("spark.local.dir", str(directory / "spark"))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.jars", ",".join(map(str, spark_jars.kafka_source())))
        .getOrCreate()
    )
    session.dataSource.register(PrebuiltSource)
    try:
        yield session
    finally:
        session.stop()


def _prebuilt(store: Path, folder: Path) -> str:
    """Writes the same rows in the same batches and tasks as Arrow files; returns their folder."""
    folder.mkdir()
    found = pyspark_tidelog.tables(store=str(store), topics=TOPIC)
    for split in range(found.splits):
        with pa.OSFile(str(folder / f"{split:05}.arrow"), "wb") as sink, pa.ipc.new_stream(sink, found.schema) as out:
            for batch in found.reader(split):
                out.write_batch(batch)
    return str(folder)


def _kafka(spark: SparkSession, address: str) -> Any:
    return (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", address)
        .option("subscribe", TOPIC)
        .option("minPartitions", str(KAFKA_TASKS))
        .load()
    )


def _scanned(source: Callable[[], DataFrame]) -> tuple[float, float]:
    """Scans; returns elapsed seconds, and processor seconds of all descendants, which depend less on other load."""
    before, began = _processor_seconds(), time.perf_counter()
    source().write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - began
    return seconds, sum(now - before.get(pid, 0.0) for pid, now in _processor_seconds().items())


def _processor_seconds() -> dict[int, float]:
    """Processor seconds of each living descendant: Spark's JVM, its Python workers (which it reuses), and Kafka."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:  # the process has ended
            continue
        pid = int(status.parent.name)
        parents[pid], spent[pid] = int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS

    def ours(pid: int) -> bool:
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
        return pid == os.getpid()

    return {pid: seconds for pid, seconds in spent.items() if pid != os.getpid() and ours(pid)}
