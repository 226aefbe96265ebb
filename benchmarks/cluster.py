"""Rows of a cluster of two brokers, one per core: those of `fleet`, beside Apache Kafka and one broker of tidelog, and what the
machine's two cores allow.

The client runs on the same cores as the brokers, so the rate of a row says little about the brokers alone. Two figures are
computed from the processor time that the same rounds measured. *Two cores* is the rate at which the client and both brokers
would use both cores fully. *Brokers alone* is the rate that the brokers' processor time allows if the client takes none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks import fleet
from benchmarks.brokers import Broker
from benchmarks.table import ONE_BROKER, OVER, TWO_CORES, Table, cluster_row

CORES = 2


def one_round(broker: Broker, tag: str, seconds: float, only: str) -> Iterator[tuple[str, str, float | None]]:
    """The rows of `fleet` under the names of this part."""
    for row, unit, value in fleet.one_round(broker, tag, seconds, only):
        yield cluster_row(row), unit, value


def add_memory(table: Table, made: Mapping[str, Broker], when: str) -> None:
    for name, broker in made.items():
        if (used := broker.proportional_megabytes()) is not None:
            table.add(name, cluster_row(f"memory of all processes (PSS), {when}"), "MB", used)


def add_arithmetic(table: Table, column: str) -> None:
    """Adds the two computed figures of each round. `column` has the figures of the two brokers. Processor times are in s/GB, so
    1,000 / s/GB is the MB/s of one core."""
    for each in fleet.FLEETS:
        spent = table.rows.get((cluster_row(f"{each.name}: broker processor"), "s/GB"))
        clients = table.rows.get((cluster_row(f"{each.name}: client processor"), "s/GB"))
        if spent is None or clients is None:
            continue
        for broker, client in zip(spent.rounds.get(column, ()), clients.rounds.get(column, ()), strict=True):
            table.add(TWO_CORES, cluster_row(each.name), "MB/s", CORES * 1000 / (broker + client))
        for name, cores in ((ONE_BROKER, 1), (column, CORES)):
            for broker in spent.rounds.get(name, ()):
                table.add(name, cluster_row(f"{each.name}: {OVER}"), "MB/s", cores * 1000 / broker)
