"""`tidelog produce`: lines of text as records.

Stops at the first record that the node refuses; what was acknowledged until then stays. Under `--acks all` the producer
is idempotent, so a retry writes nothing twice.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from service.cli.client import silence
from service.cli.errors import CommandError, report
from service.cli.kafka import (
    DEFAULT_BOOTSTRAP,
    HIGHEST_PARTITION,
    Bootstrap,
    Profile,
    client_config,
    explain,
    pairs,
)
from service.cli.listener import require_reachable
from service.cli.output import AsJson, counted, print_json

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

#: How long a record may take to be acknowledged, retries included.
DELIVERY_TIMEOUT_MS = 120_000
#: How long a topic that was just created on demand may stay unknown.
TOPIC_TIMEOUT_MS = 10_000
#: Lines between two looks at what was delivered.
POLL_EVERY = 256


class Compression(StrEnum):
    none = "none"
    gzip = "gzip"
    snappy = "snappy"
    lz4 = "lz4"
    zstd = "zstd"


class RequiredAcks(StrEnum):
    all = "all"
    leader = "1"
    none = "0"


@dataclass
class Deliveries:
    """What became of the records so far. `first` and `last` are offsets by partition, as far as acks tell them."""

    records: int = 0
    quiet: silence.Silence = field(default_factory=silence.Silence)
    failure: KafkaError | None = None
    first: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)

    def say_silence(self) -> None:
        """Once for each silence: the client tries again by itself, and says nothing meanwhile."""
        if self.quiet.due():
            report(
                f"the node has acknowledged nothing for {silence.SILENCE_S:g} s; it is asked for up to "
                f"{DELIVERY_TIMEOUT_MS // 1000} s. Its log and /readyz say what it waits for; it may be out of disk space, "
                "or recovering"
            )

    def note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failure = self.failure or error
            return
        self.records += 1
        self.quiet.heard()
        partition, offset = message.partition(), message.offset()
        if partition is not None and offset is not None and offset >= 0:
            self.first[partition] = min(offset, self.first.get(partition, offset))
            self.last[partition] = max(offset, self.last.get(partition, offset))


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    file: Annotated[
        Path | None, typer.Option("--file", "-f", exists=True, dir_okay=False, help="Read lines from here, not stdin.")
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-k", help="What parts a line's key from its value.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, max=HIGHEST_PARTITION, help="Instead of one by key.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="KEY=VALUE", help="On every record; repeatable.")
    ] = None,
    compression: Annotated[Compression, typer.Option("--compression", "-z")] = Compression.none,
    acks: Annotated[RequiredAcks, typer.Option("--acks")] = RequiredAcks.all,
    progress: Annotated[bool, typer.Option(help="Show progress on a terminal.")] = True,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """Write each line as a record."""
    from confluent_kafka import Producer

    if key_separator == "":
        raise typer.BadParameter("at least one character", param_hint="--key-separator")
    headers = [(key, value.encode()) for key, value in pairs(header, "--header").items()]
    require_reachable(bootstrap)
    producer = Producer(_config(bootstrap, compression, acks))
    deliveries = Deliveries()
    fixed: dict[str, Any] = {"headers": headers} if headers else {}
    if partition is not None:
        fixed["partition"] = partition
    try:
        with _opened(file) as stream, _shown(file, progress) as advance:
            for number, line in enumerate(_lines(stream, advance), 1):
                if number % POLL_EVERY == 0:
                    producer.poll(0)
                if deliveries.failure is not None:
                    break
                key, value = _split(line, key_separator, number)
                _send(producer, topic, key, value, deliveries, fixed)
    finally:
        _finish(producer, deliveries)
    if deliveries.failure is not None:
        raise explain(
            bootstrap,
            deliveries.failure,
            f"{counted(deliveries.records, 'record')} written to {topic}, then one was refused",
        )
    _summarise(topic, deliveries, as_json)


def _config(bootstrap: str, compression: Compression, acks: RequiredAcks) -> dict[str, Any]:
    return {
        **client_config(bootstrap),
        "compression.type": compression.value,
        "acks": acks.value,
        "enable.idempotence": acks is RequiredAcks.all,
        # As Java's producer and the SDK: librdkafka's own choice, CRC-32, sends a key elsewhere.
        "partitioner": "murmur2_random",
        "message.timeout.ms": DELIVERY_TIMEOUT_MS,
        "topic.metadata.propagation.max.ms": TOPIC_TIMEOUT_MS,
    }


def _send(
    producer: Producer, topic: str, key: bytes | None, value: bytes, deliveries: Deliveries, fixed: dict[str, Any]
) -> None:
    from confluent_kafka import KafkaException

    while deliveries.failure is None:
        try:
            producer.produce(topic, value, key, on_delivery=deliveries.note, **fixed)
            return
        except BufferError:
            producer.poll(0.1)
            deliveries.say_silence()
        except KafkaException as error:
            deliveries.failure = error.args[0]


def _finish(producer: Producer, deliveries: Deliveries) -> None:
    """Waits for what is under way; after a failure what waits in the queue is given up."""
    if deliveries.failure is not None:
        producer.purge(in_queue=True, in_flight=False)
    deliveries.quiet.begin()  # what came before was the wait for lines
    while producer.flush(0.5):
        deliveries.say_silence()


def _split(line: bytes, separator: str | None, number: int) -> tuple[bytes | None, bytes]:
    if separator is None:
        return None, line
    key, found, value = line.partition(separator.encode())
    if not found:
        raise CommandError(
            f"line {number} has no {separator!r} between key and value; all lines before it were written"
        )
    return key, value


def _lines(stream: BinaryIO, advance: Any) -> Iterator[bytes]:
    for line in stream:
        advance(len(line))
        yield line.removesuffix(b"\n")


@contextmanager
def _opened(file: Path | None) -> Iterator[BinaryIO]:
    if file is None:
        yield sys.stdin.buffer
        return
    with file.open("rb") as stream:
        yield stream


@contextmanager
def _shown(file: Path | None, wanted: bool) -> Iterator[Any]:
    """A function to tell bytes to; they are shown where somebody watches and nobody types."""
    watched = sys.stderr.isatty() and not (file is None and sys.stdin.isatty())
    if not (wanted and watched):
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("producing"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("producing", total=None if file is None else file.stat().st_size)
        yield lambda count: shown.advance(task, count)


def _summarise(topic: str, deliveries: Deliveries, as_json: bool) -> None:
    if as_json:
        offsets = {str(p): [deliveries.first[p], deliveries.last[p]] for p in sorted(deliveries.first)}
        print_json({"topic": topic, "records": deliveries.records, "offsets": offsets})
        return
    typer.echo(f"{counted(deliveries.records, 'record')} written to {topic}", err=True)
