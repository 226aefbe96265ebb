"""Sends records through librdkafka at a rate, with or without transactions, and measures the acknowledgements.

A record's latency is the time from its entry into librdkafka's queue to its delivery report. If no rate is given, the sender
fills that queue, and the latencies are mostly time in the queue. Ctrl-C ends the run; the figures cover the records sent so
far. A run may not reach the node's limit, because one Python thread may be slower.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from service.cli.client import silence
from service.cli.client.perf_figures import Acknowledged, Latencies
from service.cli.client.produce import Compression, RequiredAcks, producer_config, report_unacknowledged
from service.cli.errors import CommandError
from service.cli.kafka import REQUEST_TIMEOUT_S, as_command_error, explain
from service.cli.listener import require_reachable
from service.cli.output import counted, print_json

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

    from storage_tiers.clock import Clock, Rng

#: Records between two polls for delivery reports; each report waits for the next poll.
POLL_EVERY = 16
#: The longest poll, in seconds. Ctrl-C takes effect only after it.
POLL_S = 0.1
#: Seconds by which a record may be early, as in Kafka's tool. Poll timeouts are whole ms, so shorter waits would busy-loop.
LEAST_WAIT_S = 0.002
#: How long a transaction may stay open after its duration, in ms, until its records are acknowledged.
TRANSACTION_SPARE_MS = 60_000
#: The number of random letters from which records are cut, and the number of payload lines chosen in advance.
_LETTERS = 4 << 20
_CHOSEN = 1 << 16
#: Errors of the records that are purged after a refusal.
_DROPPED = ("_PURGE_QUEUE", "_PURGE_INFLIGHT")
#: Errors of a producer that another one with the same transactional id has fenced.
_FENCED = ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
_TO_LETTERS = bytes(65 + value % 26 for value in range(256))


@dataclass(frozen=True)
class ProducePlan:
    """The records to send. `throughput` is in records per second, None for no limit. A transactional id makes the run
    transactional."""

    topic: str
    records: int
    payloads: Iterator[bytes]
    warmup: int
    throughput: float | None
    transactional_id: str | None
    transaction_ms: int | None
    interval_s: float


# --- payloads ---------------------------------------------------------------------------------------------------------
def payloads_of(size: int, rng: Rng) -> Iterator[bytes]:
    """Random upper-case letters, as in Kafka's tool. Successive records have different bytes."""
    letters = rng.token(_LETTERS + size).translate(_TO_LETTERS)
    at = 0
    while True:
        yield letters[at : at + size]
        at = (at + size) % _LETTERS


def payload_lines(file: Path, rng: Rng) -> Iterator[bytes]:
    """Lines of the file, chosen at random. Raises BadParameter if there are none."""
    lines = [line for line in file.read_bytes().split(b"\n") if line]
    if not lines:
        raise typer.BadParameter(f"{file} has no line that is not empty", param_hint="--payload-file")
    drawn = memoryview(rng.token(4 * _CHOSEN)).cast("I")
    return cycle([lines[number % len(lines)] for number in drawn])


# --- the run ----------------------------------------------------------------------------------------------------------
def measure_producing(
    bootstrap: str,
    plan: ProducePlan,
    acks: RequiredAcks,
    compression: Compression,
    settings: Mapping[str, str],
    clock: Clock,
    *,
    as_json: bool,
) -> None:
    from confluent_kafka import KafkaException, Producer

    require_reachable(bootstrap)
    config = {**producer_config(bootstrap, compression, acks), **_transactions(plan), **settings}
    try:
        producer = Producer(config)
    except KafkaException as error:
        raise typer.BadParameter(error.args[0].str(), param_hint="--config") from None
    run = _ProduceRun(producer, plan, clock, say=_nothing if as_json else _say)
    try:
        run.run()
    except KafkaException as error:
        if error.args[0].name() in _FENCED:
            raise _fenced(plan) from None
        raise as_command_error(bootstrap, error, f"cannot send to {plan.topic}") from None
    finally:
        producer.purge()
    if run.failure is not None:
        raise _refusal(bootstrap, run)
    _print(run, as_json=as_json)


def _transactions(plan: ProducePlan) -> dict[str, Any]:
    if plan.transactional_id is None or plan.transaction_ms is None:
        return {}
    timeout_ms = plan.transaction_ms + TRANSACTION_SPARE_MS
    # librdkafka refuses a record that may outlive its transaction.
    return {
        "transactional.id": plan.transactional_id,
        "transaction.timeout.ms": timeout_ms,
        "message.timeout.ms": timeout_ms,
    }


def _refusal(bootstrap: str, run: _ProduceRun) -> CommandError:
    assert run.failure is not None
    if run.failure.name() in _FENCED:
        return _fenced(run.plan)
    aborted = " and its transaction aborted" if run.plan.transactional_id is not None else ""
    written = counted(run.all.records, "record")
    return explain(bootstrap, run.failure, f"{written} written to {run.plan.topic}, then one was refused{aborted}")


def _fenced(plan: ProducePlan) -> CommandError:
    return CommandError(
        f"cannot send to {plan.topic}: another producer uses the transactional id {plan.transactional_id}, or `tidelog txn "
        "abort` ended the transaction; give this run an id of its own with --transactional-id"
    )


def _say(line: str) -> None:
    typer.echo(line)
    sys.stdout.flush()


def _nothing(_: str) -> None:
    pass


class _ProduceRun:
    def __init__(self, producer: Producer, plan: ProducePlan, clock: Clock, *, say: Callable[[str], None]) -> None:
        self.plan = plan
        self.failure: KafkaError | None = None
        self.intervals: list[Acknowledged] = []
        self._producer = producer
        self._clock = clock
        self._say = say
        self._quiet = silence.Silence()
        self._stopped = False
        self._began_s = clock.monotonic()
        self._reported_s = self._began_s
        self._transaction_ms: float | None = None
        self._heard = 0
        self.all = Latencies(plan.records, self._now_ms())
        #: Figures of the records after the warm-up.
        self.steady: Latencies | None = None

    def run(self) -> None:
        """Returns after all records are acknowledged, or after one was refused. Raises KafkaException if a transaction
        fails."""
        from confluent_kafka import KafkaException

        if self.plan.transactional_id is not None:
            self._producer.init_transactions(REQUEST_TIMEOUT_S)
        handler = signal.signal(signal.SIGINT, lambda *_: self._stop())
        try:
            self._begin()
            self._send_all()
            self._finish()
        except KafkaException:
            self._abort()
            if self.failure is None:
                raise
        finally:
            signal.signal(signal.SIGINT, handler)

    def totals(self) -> tuple[Acknowledged, Acknowledged | None]:
        now_ms = self._now_ms()
        return self.all.total(now_ms), None if self.steady is None else self.steady.total(now_ms)

    def _begin(self) -> None:
        """Starts the clock of the run. The time that the coordinator took before does not count."""
        self._began_s = self._reported_s = self._clock.monotonic()
        self.all = Latencies(self.plan.records, self._now_ms())
        if self.plan.warmup:
            self._say(
                f"Warmup first {self.plan.warmup} records. "
                "Steady state results will print after the complete test summary."
            )

    def _stop(self) -> None:
        self._stopped = True

    def _now_ms(self) -> float:
        return self._clock.monotonic() * 1000

    # --- sending ------------------------------------------------------------------------------------------------------
    def _send_all(self) -> None:
        plan, delivered = self.plan, self._delivered
        for number in range(plan.records):
            if self._stopped or self.failure is not None:
                return
            if number == plan.warmup and plan.warmup:
                self._say("In steady state.")
                self.steady = Latencies(plan.records - plan.warmup, self._now_ms())
                delivered = self._delivered_steady
            if plan.throughput is not None:
                self._wait_until(self._began_s + number / plan.throughput)
            if plan.transaction_ms is not None:
                self._end_transaction(plan.transaction_ms)
            self._send(next(plan.payloads), delivered)
            if number % POLL_EVERY == 0:
                self._producer.poll(0)
                self._report()

    def _send(self, payload: bytes, delivered: Callable[[KafkaError | None, Message], None]) -> None:
        from confluent_kafka import KafkaException

        while self.failure is None:
            try:
                self._producer.produce(self.plan.topic, payload, on_delivery=delivered)
                return
            except BufferError:
                self._wait(POLL_S)
            except KafkaException:
                # After a refusal the transaction accepts no more records. The delivery report has the reason.
                self._producer.poll(POLL_S)
                if self.failure is None:
                    raise

    def _wait_until(self, time_s: float) -> None:
        while (left := time_s - self._clock.monotonic()) >= LEAST_WAIT_S and not self._stopped and self.failure is None:
            self._producer.poll(min(left, POLL_S))
            self._report()

    def _wait(self, seconds: float) -> None:
        """Waits for acknowledgements for up to `seconds`."""
        self._producer.poll(seconds)
        self._report()
        if self.all.records > self._heard:
            self._heard = self.all.records
            self._quiet.heard()
        elif self._quiet.due():
            report_unacknowledged()

    def _finish(self) -> None:
        self._quiet.begin()
        if self.failure is not None:
            self._producer.purge(in_flight=False)
            self._abort()
        elif self._transaction_ms is not None:
            self._producer.commit_transaction()
        while len(self._producer):
            self._wait(POLL_S)

    def _abort(self) -> None:
        """Aborts the open transaction. An open transaction would block readers until its timeout."""
        from confluent_kafka import KafkaException

        if self._transaction_ms is not None:
            self._transaction_ms = None
            with suppress(KafkaException):
                self._producer.abort_transaction(REQUEST_TIMEOUT_S)

    def _end_transaction(self, duration_ms: int) -> None:
        """Commits the current transaction when it is due, and begins the next. The first call only begins a transaction."""
        if self._transaction_ms is not None:
            if self._now_ms() - self._transaction_ms < duration_ms:
                return
            self._producer.commit_transaction()
        self._producer.begin_transaction()
        self._transaction_ms = self._now_ms()

    # --- measuring ----------------------------------------------------------------------------------------------------
    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            if self.failure is None or self.failure.name() in _DROPPED:
                self.failure = error
            return
        self.all.add((message.latency() or 0.0) * 1000, len(message))

    def _delivered_steady(self, error: KafkaError | None, message: Message) -> None:
        self._delivered(error, message)
        if error is None and self.steady is not None:
            self.steady.add((message.latency() or 0.0) * 1000, len(message))

    def _report(self) -> None:
        now_s = self._clock.monotonic()
        if now_s - self._reported_s >= self.plan.interval_s:
            self._reported_s = now_s
            window = self.all.window(now_s * 1000)
            self.intervals.append(window)
            self._say(window.progress())


def _print(run: _ProduceRun, *, as_json: bool) -> None:
    total, steady = run.totals()
    if as_json:
        after = {} if steady is None else {"steady_state": steady.as_json()}
        print_json({**total.as_json(), **after, "intervals": [each.as_json() for each in run.intervals]})
        return
    typer.echo(total.summary())
    if steady is not None:
        typer.echo(steady.summary("steady state"))
