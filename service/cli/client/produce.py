"""`tidelog produce`: writes each line of text, or of `consume --json` output, as a record.

Stops at the first record that the node refuses. Acknowledged records stay. With `--acks all` the producer is idempotent, so
retries write no duplicates.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from service.cli.client import silence
from service.cli.client.json_records import JsonRecord, from_json
from service.cli.client.positions import PartitionKey
from service.cli.completion import complete_topic
from service.cli.errors import CommandError, report
from service.cli.kafka import (
    DEFAULT_BOOTSTRAP,
    HIGHEST_PARTITION,
    REQUEST_TIMEOUT_S,
    Bootstrap,
    Profile,
    client_config,
    explain,
    pairs,
)
from service.cli.listener import require_reachable
from service.cli.output import counted, print_json

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

#: The longest time until a record is acknowledged, including retries.
DELIVERY_TIMEOUT_MS = 120_000
#: The longest wait for an auto-created topic.
TOPIC_TIMEOUT_MS = 10_000
#: Lines between two polls for delivery reports.
POLL_EVERY = 256


_Topic = Annotated[
    str | None,
    typer.Argument(
        metavar="[TOPIC]",
        show_default=False,
        help="The topic. Optional with --json, if each line names its topic.",
        autocompletion=complete_topic,
    ),
]
_JsonLines = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Read lines as `consume --json` prints them, with key, value, headers, timestamp and partition.",
    ),
]
_Summary = Annotated[bool, typer.Option("--summary", help="Print the first and last offsets written, as JSON.")]


class Compression(StrEnum):
    """The codecs of `--compression`."""

    none = "none"
    gzip = "gzip"
    snappy = "snappy"
    lz4 = "lz4"
    zstd = "zstd"


class RequiredAcks(StrEnum):
    """The values of `--acks`."""

    all = "all"
    leader = "1"
    none = "0"


CodecOfBatches = Annotated[
    Compression, typer.Option("--compression", "-z", help="The codec of the record batches that are sent.")
]
Acks = Annotated[
    RequiredAcks,
    typer.Option(
        "--acks", help="The acknowledgement to wait for: of all in-sync replicas, of the leader (1), or none (0)."
    ),
]


@dataclass
class Deliveries:
    """Delivery results so far. `first` and `last` are offsets by topic and partition; with acks=0 there are none."""

    records: int = 0
    quiet: silence.Silence = field(default_factory=silence.Silence)
    failure: KafkaError | None = None
    failed_at: PartitionKey = ("", 0)
    first: dict[PartitionKey, int] = field(default_factory=dict)
    last: dict[PartitionKey, int] = field(default_factory=dict)

    def say_silence(self) -> None:
        """Prints one line per silence, because librdkafka retries silently."""
        if self.quiet.due():
            report_unacknowledged()

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            if self.failure is None:
                self.failure, self.failed_at = error, (message.topic() or "", message.partition() or 0)
            return
        self.records += 1
        self.quiet.heard()
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if topic is not None and partition is not None and offset is not None and offset >= 0:
            written = topic, partition
            self.first[written] = min(offset, self.first.get(written, offset))
            self.last[written] = max(offset, self.last.get(written, offset))


def report_unacknowledged() -> None:
    report(
        f"the node has acknowledged nothing for {silence.SILENCE_S:g} s; retrying for up to "
        f"{DELIVERY_TIMEOUT_MS // 1000} s. The node's log and /readyz give the reason. The node may be out of disk space, "
        "or recovering; `tidelog cluster status` names partitions without a leader"
    )


def produce(
    topic: _Topic = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", exists=True, dir_okay=False, help="Read lines from this file instead of stdin."),
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-k", help="The text between key and value on a line. (default: no keys)"),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition",
            "-p",
            min=0,
            max=HIGHEST_PARTITION,
            help="Write to this partition. (default: chosen by the key)",
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="KEY=VALUE", help="A header for every record; repeatable."),
    ] = None,
    as_json: _JsonLines = False,
    compression: CodecOfBatches = Compression.none,
    acks: Acks = RequiredAcks.all,
    progress: Annotated[bool, typer.Option(help="Show progress on a terminal.")] = True,
    summary: _Summary = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """Write each line as a record."""
    from confluent_kafka import Producer

    _check(topic, key_separator, as_json=as_json)
    headers = [(key, value.encode()) for key, value in pairs(header, "--header").items()]
    read = _reader(topic, partition, headers, key_separator, as_json=as_json)
    require_reachable(bootstrap)
    producer = Producer(producer_config(bootstrap, compression, acks))
    deliveries = Deliveries()
    try:
        with _opened(file) as stream, _shown(file, progress) as advance:
            _send_lines(producer, _lines(stream, advance), read, deliveries)
    finally:
        _finish(producer, deliveries)
    if deliveries.failure is not None:
        raise _refusal(
            bootstrap,
            producer,
            deliveries,
            f"{counted(deliveries.records, 'record')} written to {topic or 'their topics'}, then one was refused",
        )
    _summarise(topic, deliveries, as_json=summary)


def _refusal(bootstrap: str, producer: Producer, deliveries: Deliveries, what: str) -> CommandError:
    from confluent_kafka import KafkaException

    error, (topic, partition) = deliveries.failure, deliveries.failed_at
    assert error is not None
    if error.name() == "_UNKNOWN_PARTITION":
        with suppress(KafkaException):
            count = len(producer.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic].partitions)
            return CommandError(f"{what}: {topic} has no partition {partition}, only 0 to {count - 1}")
    if error.name() == "INVALID_RECORD" and _is_compacted(bootstrap, topic):
        return CommandError(
            f"{what}: {topic} is a compacted topic, and accepts only records with keys; use --key-separator, or lines of "
            "JSON with a key (INVALID_RECORD)"
        )
    return explain(bootstrap, error, what)


def _is_compacted(bootstrap: str, topic: str) -> bool:
    """Whether the topic is compacted. False if the node does not answer."""
    from service.cli.client.config_requests import TOPIC, describe_configs

    with suppress(CommandError):
        entries = describe_configs(require_reachable(bootstrap), TOPIC, topic, ["cleanup.policy"])
        return any("compact" in (entry.value or "") for entry in entries)
    return False


def _check(topic: str | None, key_separator: str | None, *, as_json: bool) -> None:
    if key_separator == "":
        raise typer.BadParameter("it needs at least one character", param_hint="--key-separator")
    if as_json and key_separator is not None:
        raise typer.BadParameter("JSON lines contain their keys: omit --key-separator", param_hint="--json")
    if topic is None and not as_json:
        raise typer.BadParameter("name the topic, or give --json with lines that name it", param_hint="TOPIC")


def producer_config(bootstrap: str, compression: Compression, acks: RequiredAcks) -> dict[str, Any]:
    return {
        **client_config(bootstrap),
        "compression.type": compression.value,
        "acks": acks.value,
        "enable.idempotence": acks is RequiredAcks.all,
        # The partitioner of the Java producer and the SDK. librdkafka's default partitioner, CRC-32, chooses other partitions.
        "partitioner": "murmur2_random",
        "message.timeout.ms": DELIVERY_TIMEOUT_MS,
        "topic.metadata.propagation.max.ms": TOPIC_TIMEOUT_MS,
    }


def _send_lines(
    producer: Producer, lines: Iterable[bytes], read: Callable[[bytes], JsonRecord], deliveries: Deliveries
) -> None:
    """Sends the lines as records, up to the first failure."""
    for number, line in enumerate(lines, 1):
        if number % POLL_EVERY == 0:
            producer.poll(0)
        if deliveries.failure is not None:
            return
        _send(producer, _parsed(read, line, number), deliveries)


def _send(producer: Producer, record: JsonRecord, deliveries: Deliveries) -> None:
    from confluent_kafka import KafkaException

    given: dict[str, Any] = {"headers": list(record.headers)} if record.headers else {}
    if record.partition is not None:
        given["partition"] = record.partition
    if record.timestamp is not None:
        given["timestamp"] = record.timestamp
    while deliveries.failure is None:
        try:
            producer.produce(record.topic or "", record.value, record.key, on_delivery=deliveries.delivered, **given)
            return
        except BufferError:
            producer.poll(0.1)
            deliveries.say_silence()
        except KafkaException as error:
            deliveries.failure = error.args[0]


def _finish(producer: Producer, deliveries: Deliveries) -> None:
    """Waits for records in flight. After a failure, drops the queued records."""
    if deliveries.failure is not None:
        producer.purge(in_queue=True, in_flight=False)
    deliveries.quiet.begin()  # until now the command waited for lines, not for the node
    while producer.flush(0.5):
        deliveries.say_silence()


def _reader(
    topic: str | None,
    partition: int | None,
    headers: Sequence[tuple[str, bytes | None]],
    separator: str | None,
    *,
    as_json: bool,
) -> Callable[[bytes], JsonRecord]:
    """Returns a function that makes a record from an input line, or raises ValueError. The topic and partition given to the
    command override those of the input line; the command's headers are added to the line's."""

    def read_text(line: bytes) -> JsonRecord:
        key, value = (None, line) if separator is None else _split(line, separator)
        return JsonRecord(topic, partition, None, key, value, headers)

    def read_json(line: bytes) -> JsonRecord:
        found = from_json(line)
        if topic is None and found.topic is None:
            raise ValueError("neither the line nor the command names a topic")
        return found._replace(
            topic=topic or found.topic,
            partition=found.partition if partition is None else partition,
            headers=[*found.headers, *headers],
        )

    return read_json if as_json else read_text


def _parsed(read: Callable[[bytes], JsonRecord], line: bytes, number: int) -> JsonRecord:
    try:
        return read(line)
    except ValueError as error:
        raise CommandError(f"line {number}: {error}; all lines before it were written") from None


def _split(line: bytes, separator: str) -> tuple[bytes, bytes]:
    key, found, value = line.partition(separator.encode())
    if not found:
        raise ValueError(f"there is no {separator!r} between key and value")
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
    """Yields a function that counts bytes. It shows progress if `wanted`, if stderr is a terminal, and if the lines do not come
    from a terminal."""
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


def _summarise(topic: str | None, deliveries: Deliveries, *, as_json: bool) -> None:
    if not as_json:
        names = topic or ", ".join(sorted({name for name, _ in deliveries.first})) or "no topic"
        typer.echo(f"{counted(deliveries.records, 'record')} written to {names}", err=True)
        return
    offsets: dict[str, dict[str, list[int]]] = {}
    for written in sorted(deliveries.first):
        name, number = written
        offsets.setdefault(name, {})[str(number)] = [deliveries.first[written], deliveries.last[written]]
    print_json({"records": deliveries.records, "offsets": offsets})
