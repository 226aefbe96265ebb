"""`make bench`, `make bench RIVAL=host:port`, `make bench-kafka`, `make bench-spark`: rows interleaved round by round,
medians and ratios.

  python -m benchmarks.run [--parts raw,starts,cold] [--rounds 3] [--seconds 2] [--only WORD]
                           [--kafka] [--rival NAME=HOST:PORT] [--write]

Parts: `raw` (sockets and prebuilt requests), `starts`, `partitions` (10,000 of them), `java` (Kafka's own clients), `cold`
(from an S3 server beside), `decoder` (batches into columns), `spark` (beside Spark's Kafka source). The machine changes from
minute to minute, so only ratios within one run count; `--write` puts tables and plot under benchmarks/results, each part
with its own date.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from benchmarks import brokers as of_brokers
from benchmarks import cold, decoder, java_clients, load, raw, spark_scan, starts
from benchmarks.brokers import Broker
from benchmarks.table import Table, keep, rendered

PARTS = ("raw", "starts", "partitions", "java", "cold", "decoder", "spark")


class Bench:
    def __init__(self, arguments: argparse.Namespace, directory: Path, stack: ExitStack) -> None:
        self._arguments = arguments
        self._directory = directory
        self._stack = stack
        self._tag = str(os.getpid())

    def brokers(self, part: str, *, floor: bool) -> dict[str, Broker]:
        """Fresh ones, not started; all are stopped at the end of the part."""
        made: dict[str, Broker] = {}
        if floor:
            made["floor"] = of_brokers.Floor(self._directory / part / "floor")
        for rival in self._arguments.rival:
            name, _, address = rival.rpartition("=")
            made[name or "rival"] = of_brokers.Rival(address)
        if self._arguments.kafka:
            made["kafka"] = of_brokers.Kafka(self._directory / part / "kafka")
        made["tidelog"] = of_brokers.Tidelog(self._directory / part / "tidelog")
        for broker in made.values():
            self._stack.callback(broker.stop)
        return made

    def running(self, part: str, *, floor: bool) -> dict[str, Broker]:
        made = self.brokers(part, floor=floor)
        for broker in made.values():
            broker.spawn()
            of_brokers.wait_for_port(broker.address)
        return made

    def raw(self) -> Table:
        table, made = Table(), self.running("raw", floor=True)
        idle = made["tidelog"].resident_megabytes() or 0.0
        for n in range(self._arguments.rounds):
            for name, broker in made.items():
                for row, unit, value in load.one_round(
                    broker.address, f"{self._tag}-{n}", self._arguments.seconds, self._arguments.only
                ):
                    table.add(name, row, unit, value)
        _add_resident(table, made, "resident memory after the rows")
        table.notes.append(f"The idle tidelog node: {idle:.0f} MB resident.")
        table.notes.append(
            f"The machine itself: loopback {raw.loopback_megabytes_per_second():.0f} MB/s, "
            f"{raw.loopback_round_trips_per_second():.0f} round trips/s of 200 B, "
            f"file append {raw.file_write_megabytes_per_second(str(self._directory)):.0f} MB/s (page cache)."
        )
        return table

    def starts(self) -> Table:
        table = Table()
        made = {name: broker for name, broker in self.brokers("starts", floor=False).items() if _is_ours(broker)}
        for n in range(self._arguments.rounds + 1):
            for name, broker in made.items():
                for row, unit, value in starts.first_answer(broker):
                    if n:  # the first start makes the files that later ones find
                        table.add(name, row, unit, value)
                broker.stop()
        return table

    def partitions(self) -> Table:
        table = Table()
        made = {name: broker for name, broker in self.brokers("many", floor=False).items() if _is_ours(broker)}
        topics: list[str] = []
        for broker in made.values():
            broker.spawn()
            of_brokers.wait_for_port(broker.address)
            topics = starts.fill(broker.address, self._tag)
            broker.kill()
        for _ in range(self._arguments.rounds):
            for name, broker in made.items():
                for row, unit, value in starts.after_kill(broker, topics):
                    table.add(name, row, unit, value)
                broker.kill()
        return table

    def java(self) -> Table:
        table, made = Table(), self.running("java", floor=False)
        for n in range(self._arguments.rounds):
            for name, broker in made.items():
                for row, unit, value in java_clients.one_round(
                    broker.address, f"{self._tag}-{n}", self._arguments.share
                ):
                    table.add(name, row, unit, value)
        return table

    def cold(self) -> Table:
        return cold.measured(
            self._directory / "cold", rounds=self._arguments.rounds, gibibytes=self._arguments.gibibytes
        )

    def decoder(self) -> Table:
        return decoder.measured(rounds=self._arguments.rounds)

    def spark(self) -> Table:
        return spark_scan.measured(
            self._directory, rounds=self._arguments.rounds, records=int(self._arguments.million_records * 1e6)
        )


def _is_ours(broker: Broker) -> bool:
    return not isinstance(broker, of_brokers.Rival)


def _add_resident(table: Table, made: Mapping[str, Broker], row: str) -> None:
    for name, broker in made.items():
        resident = broker.resident_megabytes()
        if resident is not None:
            table.add(name, row, "MB", resident)


def _machine(rounds: int) -> str:
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return (
        f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores of {model}, Linux {platform.release()}, "
        f"Python {platform.python_version()}, load average {os.getloadavg()[1]:.1f}; {rounds} rounds."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="raw,starts,cold")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2, help="of each raw figure")
    parser.add_argument("--only", default="", metavar="WORD", help="raw rows whose name has it")
    parser.add_argument("--share", type=float, default=1, help="of Java's record counts")
    parser.add_argument("--gibibytes", type=float, default=2.1, help="of cold data")
    parser.add_argument("--million-records", type=float, default=10, help="that Spark scans")
    parser.add_argument("--kafka", action="store_true", help="start Apache Kafka 4.2.1 beside")
    parser.add_argument("--rival", action="append", default=[], metavar="[NAME=]HOST:PORT")
    parser.add_argument("--write", action="store_true", help="keep tables and plot in benchmarks/results")
    arguments = parser.parse_args()
    wanted = arguments.parts.split(",")
    if unknown := set(wanted) - set(PARTS):
        parser.error(f"no such parts: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    for part in wanted:
        directory = Path(tempfile.mkdtemp(prefix="tidelog-bench-"))
        try:
            with ExitStack() as stack:
                measure: Callable[[], Table] = getattr(Bench(arguments, directory, stack), part)
                table = measure()
            table.notes.append(_machine(arguments.rounds))
            print(f"\n## {part}\n\n{rendered(table.medians())}\n", *table.notes, sep="\n", flush=True)
            if arguments.write:
                keep(part, table)
        finally:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
