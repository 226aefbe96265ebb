"""Reads records through librdkafka as a member of a group, and measures the rate of reading and the time of rebalances.

A group that exists only for one run commits nothing, so that the node removes it. Ctrl-C ends a run early.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer

from service.cli.client.perf_figures import PROGRESS_COLUMNS, TOTAL_COLUMNS, Consumed
from service.cli.client.positions import topic_partitions
from service.cli.errors import CommandError
from service.cli.kafka import as_command_error, client_config, explain
from service.cli.listener import require_reachable
from service.cli.output import counted, moment, print_json

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

    from storage_tiers.clock import Clock

BATCH = 1000
POLL_S = 0.1


class Begin(StrEnum):
    """Where reading starts in partitions without a committed offset."""

    beginning = "beginning"
    end = "end"


@dataclass(frozen=True)
class ConsumePlan:
    """The records to read. `interval_s` is None if no progress is printed."""

    topic: str
    records: int
    begin: Begin
    group: str
    commits: bool
    timeout_s: float
    interval_s: float | None


def measure_consuming(
    bootstrap: str, plan: ConsumePlan, settings: Mapping[str, str], clock: Clock, *, as_json: bool
) -> None:
    from confluent_kafka import Consumer, KafkaException

    require_reachable(bootstrap)
    try:
        consumer = Consumer({**_config(bootstrap, plan), **settings})
    except KafkaException as error:
        raise typer.BadParameter(error.args[0].str(), param_hint="--config") from None
    run = _ConsumeRun(bootstrap, consumer, plan, clock, prints=not as_json)
    try:
        run.run()
    except KafkaException as error:
        raise as_command_error(bootstrap, error, f"cannot read {plan.topic}") from None
    finally:
        consumer.close()
    _print(run, as_json=as_json)
    if run.gave_up:
        read = counted(run.records, "record")
        raise CommandError(
            f"read {read} of {plan.records}, then no more for {plan.timeout_s:g} s; raise --timeout, or lower --records"
        )


def _config(bootstrap: str, plan: ConsumePlan) -> dict[str, Any]:
    return {
        **client_config(bootstrap),
        "group.id": plan.group,
        "enable.auto.commit": plan.commits,
        "auto.offset.reset": "latest" if plan.begin is Begin.end else "earliest",
    }


class _ConsumeRun:
    def __init__(self, bootstrap: str, consumer: Consumer, plan: ConsumePlan, clock: Clock, *, prints: bool) -> None:
        self.plan = plan
        self.records = 0
        self.gave_up = False
        self.intervals: list[Consumed] = []
        self._bootstrap = bootstrap
        self._consumer = consumer
        self._clock = clock
        self._prints = prints
        self._stopped = False
        self._bytes = 0
        self._began_unix_ms = clock.unix_ms()
        self._began_s = self._window_s = self._join_s = clock.monotonic()
        self._rebalance_ms = 0.0
        #: The totals when the window began: records, bytes, ms of rebalances.
        self._window = 0, 0, 0.0

    def run(self) -> None:
        """Returns after the last record, or after the timeout without a record. Raises KafkaException or CommandError if
        reading fails."""
        topic_partitions(
            self._bootstrap, self._consumer, [self.plan.topic], None
        )  # refuses a topic that does not exist
        if self._prints and self.plan.interval_s is not None:
            typer.echo(PROGRESS_COLUMNS)
        handler = signal.signal(signal.SIGINT, lambda *_: self._stop())
        try:
            self._began_unix_ms = self._clock.unix_ms()
            self._began_s = self._window_s = self._join_s = self._clock.monotonic()
            self._consumer.subscribe([self.plan.topic], on_assign=self._joined, on_revoke=self._revoked)
            self._read_all()
        finally:
            signal.signal(signal.SIGINT, handler)
        self._ended_s = self._clock.monotonic()
        if self.plan.interval_s is not None and self.records > self._window[0]:
            self._report(self._ended_s)  # the last interval, which may be shorter

    @property
    def total(self) -> Consumed:
        return self._since(self._began_unix_ms, self._began_s, (0, 0, 0.0), self._ended_s)

    def _stop(self) -> None:
        self._stopped = True

    def _joined(self, *_: object) -> None:
        self._rebalance_ms += (self._clock.monotonic() - self._join_s) * 1000

    def _revoked(self, *_: object) -> None:
        self._join_s = self._clock.monotonic()

    def _read_all(self) -> None:
        last_s = self._began_s
        while self.records < self.plan.records and not self._stopped:
            batch = self._consumer.consume(min(BATCH, self.plan.records - self.records), POLL_S)
            now_s = self._clock.monotonic()
            for message in batch:
                self._take(message)
            if batch:
                last_s = now_s
                # As in Kafka's tool, nothing is printed while no records arrive, so a window includes the wait for the group.
                if self.plan.interval_s is not None and now_s - self._window_s >= self.plan.interval_s:
                    self._report(now_s)
            elif now_s - last_s > self.plan.timeout_s:
                self.gave_up = True
                return

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            raise explain(self._bootstrap, error, f"cannot read {self.plan.topic}")
        self.records += 1
        self._bytes += len(message) + len(message.key() or b"")

    def _report(self, now_s: float) -> None:
        began_ms = self._began_unix_ms + round((self._window_s - self._began_s) * 1000)
        window = self._since(began_ms, self._window_s, self._window, now_s)
        self._window_s, self._window = now_s, (self.records, self._bytes, self._rebalance_ms)
        self.intervals.append(window)
        if self._prints:
            so_far = self._since(self._began_unix_ms, self._began_s, (0, 0, 0.0), now_s)
            typer.echo(window.progress(so_far))
            sys.stdout.flush()

    def _since(self, unix_ms: int, since_s: float, counted_then: tuple[int, int, float], now_s: float) -> Consumed:
        records, size, rebalance_ms = counted_then
        return Consumed(
            unix_ms,
            (now_s - since_s) * 1000,
            self.records - records,
            self._bytes - size,
            self._rebalance_ms - rebalance_ms,
        )


def _print(run: _ConsumeRun, *, as_json: bool) -> None:
    total = run.total
    if as_json:
        began = {"start": moment(total.began_unix_ms)}
        detailed = {"intervals": [each.as_json() for each in run.intervals]} if run.plan.interval_s is not None else {}
        print_json({**began, **total.as_json(), **detailed})
    elif run.plan.interval_s is None:
        typer.echo(TOTAL_COLUMNS)
        typer.echo(total.summary())
