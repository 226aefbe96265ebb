"""Runs the benchmarks: `make bench`, `make bench RIVAL=host:port`, `make bench-kafka`, `make bench-spark`.

  python -m benchmarks.run [--parts requests,starts,cold] [--rounds 7] [--seconds 2] [--warm-up 60] [--only WORD]
                           [--kafka] [--rival NAME=HOST:PORT] [--write]

Parts:
  requests      produce and fetch over raw sockets, with prebuilt requests
  fleet         many connections and partitions at once
  cluster       the rows of `fleet` with two brokers (`--brokers 2`), beside one broker
  moves         a partition moves to another broker
  controllers   kills, metadata commands and 10,000 partitions of three brokers
  changes       a broker's event loop while partitions change
  beside        produce while segments roll and are offloaded; consumers at the end of a log
  starts        the time from a start to the first answer
  java          Kafka's Java clients
  partitions    restarts with 10,000 partitions
  cold          reads of history that is only on an S3 server on this machine
  decoder       record batches into columns
  spark         a scan, beside Spark's Kafka source
  stalls        each API's largest request, and how long other requests wait meanwhile
  callers       gRPC callers with excessive requests, and how long other callers wait meanwhile
  sdk           the SDK's producers, beside confluent-kafka's
  groups        members of consumer groups
  transactions  transactions of Kafka's Java clients
  compaction    the log cleaner
  coordinators  many groups, large groups, many committed offsets
  history       the cost of many segments and many partitions

The brokers take turns row by row, and tables show medians and ratios. The machine's speed changes from minute to minute, so
only ratios within one run are meaningful. `--write` saves the figures of each part with its date, and updates the docs' tables
and the plot.

If a part fails or exceeds its limit, its rows are kept, the other parts still run, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from benchmarks import (
    beside,
    changes,
    cluster,
    cold,
    compaction,
    controllers,
    coordinators,
    decoder,
    fleet,
    groups,
    grpc_callers,
    history,
    history_node,
    java_clients,
    load,
    machine_limits,
    moves,
    report,
    sdk_producers,
    spark_scan,
    stalls,
    starts,
    transactions,
)
from benchmarks import brokers as of_brokers
from benchmarks.brokers import Broker
from benchmarks.table import JUDGED, ONE_BROKER, Table, rendered

#: Minutes that each part may take.
LIMITS = {
    "history": 10,
    "requests": 25,
    "fleet": 20,
    "cluster": 20,
    "moves": 15,
    "controllers": 40,
    "changes": 10,
    "beside": 25,
    "starts": 5,
    "java": 15,
    "partitions": 20,
    "cold": 8,
    "decoder": 2,
    "spark": 10,
    "stalls": 20,
    "callers": 4,
    "sdk": 5,
    "groups": 15,
    "transactions": 25,
    "compaction": 15,
    "coordinators": 40,
}


#: Parts that measure each figure once, whatever `--rounds` is.
ONCE = frozenset({"stalls", "callers"})

#: Broker configs.
Settings = Mapping[str, str | int | bool]
#: (row, unit, value) of one broker. A value is None if it is unknown for that broker.
Figures = Iterator[tuple[str, str, float | None]]


class TooLong(Exception):
    """A part has exceeded its time limit."""


class Bench:
    """Each part fills `table`, so that measured rows survive a failure."""

    def __init__(self, arguments: argparse.Namespace, directory: Path, stack: ExitStack, table: Table) -> None:
        self._arguments = arguments
        self._directory = directory
        self._stack = stack
        self._table = table
        self._tag = str(os.getpid())

    def brokers(self, *, floor: bool, settings: Settings | None = None, under: str = "") -> dict[str, Broker]:
        """Returns new brokers that are not started yet. They have the broker configs `settings`, except that a rival keeps its
        own. They are stopped at the end of the part. A second set in one part needs another directory, `under` the part's."""
        made: dict[str, Broker] = {}
        directory = self._directory / under
        if floor:
            made["floor"] = of_brokers.Floor(directory / "floor")
        for rival in self._arguments.rival:
            name, _, address = rival.rpartition("=")
            made[name or "rival"] = of_brokers.Rival(address)
        if self._arguments.kafka:
            made["kafka"] = of_brokers.Kafka(directory / "kafka", settings)
        made["tidelog"] = of_brokers.Tidelog(directory / "tidelog", settings)
        for broker in made.values():
            self._stack.callback(broker.stop)
        return made

    def ours(self, settings: Settings | None = None, under: str = "") -> dict[str, Broker]:
        """As `brokers`, but only those that this run may start and kill."""
        made = self.brokers(floor=False, settings=settings, under=under)
        return {name: broker for name, broker in made.items() if not isinstance(broker, of_brokers.Rival)}

    def running(self, *, floor: bool, settings: Settings | None = None) -> dict[str, Broker]:
        made = self.brokers(floor=floor, settings=settings)
        for broker in made.values():
            broker.spawn()
            of_brokers.wait_for_port(broker.address)
        return made

    def warm(self, made: Mapping[str, Broker], one: Callable[[str, str], Figures] | None = None) -> None:
        """Puts unmeasured load on each broker, long enough for a JVM to compile its hot code. `one` runs one round of the
        load."""
        for name, broker in made.items():
            began, n = time.monotonic(), 0
            while time.monotonic() < began + self._arguments.warm_up:
                tag = f"{self._tag}-warm-{name.replace(' ', '-')}-{n}"
                for _ in load.one_round(broker.address, tag, 0.5, "") if one is None else one(broker.address, tag):
                    pass
                n += 1

    def _rounds(self, made: Mapping[str, Broker], one: Callable[[Broker, str], Figures]) -> None:
        for n in range(self._arguments.rounds):
            begun = {name: one(broker, f"{self._tag}-{n}") for name, broker in made.items()}
            for name, (row, unit, value) in row_by_row(begun, n):
                if value is not None:
                    self._table.add(name, row, unit, value)

    def fleet(self) -> None:
        made = self.running(floor=False)
        self.warm(made)
        arguments = self._arguments
        self._rounds(made, lambda broker, tag: fleet.one_round(broker, tag, 2 * arguments.seconds, arguments.only))

    def cluster(self) -> None:
        """Two brokers have the column of tidelog. A single one has a column of its own, for comparison."""
        made = self.running(floor=False)
        made[ONE_BROKER] = made.pop(JUDGED)
        both = made[JUDGED] = of_brokers.Tidelog(self._directory / "two", brokers=2)
        self._stack.callback(both.stop)
        both.spawn()
        both.wait_ready()
        cluster.add_memory(self._table, made, "idle")
        at = {broker.address: broker for broker in made.values()}
        self.warm(made, lambda address, tag: fleet.one_round(at[address], tag, 0.5, ""))
        arguments = self._arguments
        self._rounds(made, lambda broker, tag: cluster.one_round(broker, tag, 2 * arguments.seconds, arguments.only))
        cluster.add_memory(self._table, made, "after the rows")
        cluster.add_arithmetic(self._table, JUDGED)

    def moves(self) -> None:
        moves.measure(self._table, self._directory, rounds=self._arguments.rounds, gibibytes=self._arguments.gibibytes)

    def controllers(self) -> None:
        controllers.measure(
            self._table,
            self._directory,
            rounds=self._arguments.rounds,
            seconds=2 * self._arguments.seconds,
            warm_up=self._arguments.warm_up,
            kafka=self._arguments.kafka,
        )

    def changes(self) -> None:
        changes.measure(
            self._table, self._directory, rounds=self._arguments.rounds, seconds=5 * self._arguments.seconds
        )

    def beside(self) -> None:
        made = self.running(floor=False)
        self.warm(made)
        self._rounds(made, lambda broker, tag: beside.sustained(broker, tag, self._arguments.only))
        self._rounds(made, lambda broker, tag: beside.tailing(broker, tag, self._arguments.only))

    def requests(self) -> None:
        table, made = self._table, self.running(floor=True)
        idle = made["tidelog"].resident_megabytes()
        if idle is not None:
            table.add("tidelog", "resident memory of an idle node", "MB", idle)
        self.warm(made)
        arguments = self._arguments
        self._rounds(made, lambda broker, tag: load.one_round(broker.address, tag, arguments.seconds, arguments.only))
        for name, broker in made.items():
            resident = broker.resident_megabytes()
            if resident is not None:
                table.add(name, "resident memory after the rows", "MB", resident)
        table.notes.append(
            f"The machine itself: loopback {machine_limits.loopback_megabytes_per_second():.0f} MB/s, "
            f"{machine_limits.loopback_round_trips_per_second():.0f} round trips/s of 200 B, "
            f"file append {machine_limits.file_write_megabytes_per_second(str(self._directory)):.0f} MB/s (page cache)."
        )

    def starts(self) -> None:
        made = self.ours()
        for n in range(self._arguments.rounds + 1):
            for name, broker in _turned(made, n).items():
                for row, unit, value in starts.first_answer(broker):
                    if n:  # the first start does not count: it creates the files that later starts find
                        self._table.add(name, row, unit, value)
                broker.stop()

    def partitions(self) -> None:
        made = self.ours()
        topics: list[str] = []
        for broker in made.values():
            broker.spawn()
            of_brokers.wait_for_port(broker.address)
            topics = starts.fill(broker.address, self._tag)
            broker.kill()
        for n in range(self._arguments.rounds):
            for name, broker in _turned(made, n).items():
                for row, unit, value in starts.after_kill(broker, topics):
                    self._table.add(name, row, unit, value)
                broker.kill()

    def java(self) -> None:
        made = self.running(floor=False)
        self.warm(made)
        share = self._arguments.share
        self._rounds(made, lambda broker, tag: java_clients.one_round(broker.address, tag, share))

    def cold(self) -> None:
        cold.measure(self._table, self._directory, rounds=self._arguments.rounds, gibibytes=self._arguments.gibibytes)

    def decoder(self) -> None:
        decoder.measure(self._table, rounds=self._arguments.rounds)

    def history(self) -> None:
        history.measure(self._table, rounds=self._arguments.rounds)
        history_node.measure(self._table, self._directory, rounds=self._arguments.rounds)
        history.plot(self._table)

    def stalls(self) -> None:
        stalls.measure(self._table, self._directory, only=self._arguments.only)

    def callers(self) -> None:
        grpc_callers.measure(self._table, self._directory, only=self._arguments.only)

    def sdk(self) -> None:
        sdk_producers.measure(self._table, self._directory, rounds=self._arguments.rounds)

    def groups(self) -> None:
        made = self.running(floor=False, settings=groups.SETTINGS)
        self.warm(made, lambda address, tag: groups.one_round(address, tag, 0.5, ""))
        arguments = self._arguments
        self._rounds(made, lambda broker, tag: groups.one_round(broker.address, tag, arguments.seconds, arguments.only))

    def transactions(self) -> None:
        made, arguments = self.running(floor=False, settings=transactions.SETTINGS), self._arguments
        self.warm(made, lambda address, tag: transactions.one_round(address, tag, 2, 0.1))
        self._rounds(
            made,
            lambda broker, tag: transactions.one_round(broker.address, tag, 2 * arguments.seconds, arguments.share),
        )
        transactions.beside_own(self._table)
        for broker in made.values():
            broker.stop()
        transactions.cold(self._table, self._directory, rounds=arguments.rounds, share=arguments.share)

    def compaction(self) -> None:
        made, share = self.running(floor=False, settings=compaction.SETTINGS), self._arguments.share
        self.warm(made)
        # This first round does not count, because a JVM compiles its cleaner's code in it.
        for broker in made.values():
            for _ in compaction.one_round(broker, f"{self._tag}-warm", share, Table()):
                pass
        self._rounds(made, lambda broker, tag: compaction.one_round(broker, tag, share, self._table))

    def coordinators(self) -> None:
        made = self.ours(coordinators.SETTINGS)
        for broker in made.values():
            broker.spawn()
            of_brokers.wait_for_port(broker.address)
        self.warm(made, lambda address, tag: groups.one_round(address, tag, 0.5, ""))
        self._rounds(made, lambda broker, tag: coordinators.one_round(broker, tag, self._table))
        for broker in made.values():
            broker.stop()
        for n in range(self._arguments.rounds):
            for name, broker in _turned(self.ours(coordinators.FRESH_SETTINGS, under=f"fresh-{n}"), n).items():
                broker.spawn()
                of_brokers.wait_for_port(broker.address)
                self.warm({name: broker}, coordinators.warm)
                for row, unit, value in coordinators.fresh(broker, f"{self._tag}-{n}", self._table):
                    if value is not None:
                        self._table.add(name, row, unit, value)
                broker.stop()

    def spark(self) -> None:
        records = int(self._arguments.million_records * 1e6)
        spark_scan.measure(self._table, self._directory, rounds=self._arguments.rounds, records=records)


def _turned(made: Mapping[str, Broker], number: int) -> dict[str, Broker]:
    """Reverses the order of the brokers in every other round, because each one waits for the disk writes that the one before
    it left in the queue."""
    names = list(made)
    return {name: made[name] for name in (reversed(names) if number % 2 else names)}


def row_by_row(begun: Mapping[str, Figures], number: int) -> Iterator[tuple[str, tuple[str, str, float | None]]]:
    """Runs each row on every broker before the next row. The order of the brokers is reversed with each round. With an odd
    number of rounds, one broker comes first once more than the other. The order is also reversed with each row, so this broker
    is not the same in all rows."""
    names, place = list(begun), 0
    while True:
        turned = list(reversed(names)) if (number + place) % 2 else names
        taken = {name: next(begun[name], None) for name in turned}
        ended = [name for name, figure in taken.items() if figure is None]
        if ended:
            if len(ended) < len(names):
                raise load.LoadFailed(f"{', '.join(ended)} gave fewer figures than the others")
            return
        row = {figure[:2] for figure in taken.values() if figure is not None}
        if len(row) != 1:
            raise load.LoadFailed(f"the brokers gave different rows: {', '.join(name for name, _ in sorted(row))}")
        yield from ((name, figure) for name, figure in taken.items() if figure is not None)
        place += 1


@contextmanager
def _limited(minutes: float) -> Iterator[None]:
    """Raises TooLong in the block after `minutes`, even while the block waits for an answer."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise TooLong(f"after {minutes:g} minutes")

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, minutes * 60)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _one_part(part: str, arguments: argparse.Namespace) -> bool:
    """Runs the part and keeps its rows. Returns True if it completed."""
    directory, table, began = Path(tempfile.mkdtemp(prefix="tidelog-bench-")), Table(), time.monotonic()
    cut_short = ""
    try:
        with ExitStack() as stack, _limited(LIMITS[part]):
            getattr(Bench(arguments, directory, stack, table), part)()
    except Exception as error:  # noqa: BLE001 - the other parts still run
        traceback.print_exc()
        cut_short = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    rounds = 1 if part in ONCE else arguments.rounds
    kept = report.described(part, table, rounds=rounds, cut_short=cut_short)
    print(f"\n## {part}\n\n{rendered(kept.rows)}\n", *kept.notes, kept.description, sep="\n")
    print(f"({part} took {(time.monotonic() - began) / 60:.1f} minutes)", flush=True)
    if arguments.write and kept.rows:
        report.keep(kept)
        report.write()
    return not cut_short


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="requests,starts,cold")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--seconds",
        type=float,
        default=2,
        help="seconds for which each figure of `requests` and `groups` is measured; `fleet`, `cluster`, `controllers` and "
        "`transactions` take twice as long",
    )
    parser.add_argument(
        "--warm-up", type=float, default=60, help="seconds of load on each broker before the first round"
    )
    parser.add_argument("--only", default="", metavar="WORD", help="run only the rows whose name contains WORD")
    parser.add_argument(
        "--share",
        type=float,
        default=1,
        help="factor for the record counts of `java` and `transactions`, and for the log size of `compaction`",
    )
    parser.add_argument("--gibibytes", type=float, default=2.1, help="GiB of cold data")
    parser.add_argument("--million-records", type=float, default=5, help="millions of records that Spark scans")
    parser.add_argument("--kafka", action="store_true", help="also start and measure Apache Kafka 4.2.1")
    parser.add_argument("--rival", action="append", default=[], metavar="[NAME=]HOST:PORT")
    parser.add_argument("--write", action="store_true", help="save the figures, update the docs' tables and the plot")
    arguments = parser.parse_args()
    # SIGTERM becomes an exit, so that the started processes end too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    wanted = arguments.parts.split(",")
    if unknown := set(wanted) - set(report.PARTS):
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}; the parts are {', '.join(report.PARTS)}")
    failed = [part for part in wanted if not _one_part(part, arguments)]
    if failed:
        print(f"these parts did not complete: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
