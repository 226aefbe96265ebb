"""`tidelog consume`: records of a topic to standard output, by assignment: no group, nothing is committed.

Reads under `read_committed`. Follows the log unless it is told where to end; a node that goes away meanwhile is waited
for when following, and an error when an end was asked for.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from service.cli.client import silence
from service.cli.errors import CommandError, report
from service.cli.kafka import (
    DEFAULT_BOOTSTRAP,
    HIGHEST_OFFSET,
    REQUEST_TIMEOUT_S,
    Bootstrap,
    Profile,
    as_command_error,
    client_config,
    explain,
)
from service.cli.listener import require_reachable
from service.cli.output import json_bytes, print_json_line

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

#: librdkafka's consumer insists on a group's name, although none is joined.
GROUP = "tidelog-cli"
BATCH = 1000
POLL_S = 0.05
#: How long a node may hold a read that found nothing: the end of a partition shows only after it.
FOLLOWING_WAIT_MS = 500
ENDING_WAIT_MS = 50
_TIMESTAMP_TYPES = {1: "create_time", 2: "log_append_time"}


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Repeatable. (default: all)")
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            "-o",
            metavar="beginning|end|OFFSET|TIME",
            help="TIME as 2013-01-01T05:15:00Z, or @ and ms since 1970.",
        ),
    ] = "beginning",
    max_messages: Annotated[int | None, typer.Option("--max-messages", "-n", min=1, help="End after so many.")] = None,
    exit_at_end: Annotated[bool, typer.Option("--exit-at-end", "-e", help="End at the end of each partition.")] = False,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-k", help="Print keys too, and this between key and value.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON object a line; what is not UTF-8 stands as base64 in `..._base64`.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """Print records. Follows the topic until Ctrl-C, --max-messages or --exit-at-end."""
    from confluent_kafka import KafkaException

    position = _parse_start(start)
    require_reachable(bootstrap)
    show = _json_printer() if as_json else _text_printer(key_separator)
    follower = Follower(bootstrap, topic, show, max_messages, exit_at_end)
    try:
        follower.assign(partition, position)
        signal.signal(signal.SIGINT, lambda *_: follower.stop())
        follower.run()
    except KafkaException as error:
        raise as_command_error(bootstrap, error, f"cannot read {topic}") from None
    except KeyboardInterrupt:
        pass
    finally:
        follower.close()


class Follower:
    """One consumer and what ends it. Not thread-safe."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        show: Callable[[Message], None],
        max_messages: int | None,
        exit_at_end: bool,
    ) -> None:
        from confluent_kafka import Consumer

        self._bootstrap = bootstrap
        self._topic = topic
        self._show = show
        self._left = max_messages
        self._stopped = False
        self._exit_at_end = exit_at_end
        self._open_partitions: set[int] = set()
        self._lost = False
        self._consumer: Consumer = Consumer(
            {
                **client_config(bootstrap),
                "group.id": GROUP,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": ENDING_WAIT_MS if exit_at_end else FOLLOWING_WAIT_MS,
                "auto.offset.reset": "error",
                "error_cb": self._on_error,
            }
        )

    def assign(self, wanted: Sequence[int] | None, start: Start) -> None:
        from confluent_kafka import TopicPartition

        found = self._consumer.list_topics(self._topic, timeout=REQUEST_TIMEOUT_S).topics[self._topic]
        if found.error is not None:
            raise explain(self._bootstrap, found.error, f"cannot read {self._topic}")
        unknown = sorted(set(wanted or ()) - set(found.partitions))
        if unknown:
            raise CommandError(f"{self._topic} has no partition {unknown[0]}, only 0 to {len(found.partitions) - 1}")
        numbers = sorted(set(wanted or found.partitions))
        assigned = start(self._consumer, [TopicPartition(self._topic, number) for number in numbers])
        self._open_partitions = set(numbers)
        self._consumer.assign(assigned)

    def run(self) -> None:
        quiet = silence.Silence()
        while not self._done():
            batch = self._consumer.consume(min(BATCH, self._left or BATCH), POLL_S)
            for message in batch:
                self._take(message)
            if batch:
                quiet.heard()
                sys.stdout.flush()
            elif self._exit_at_end and quiet.due():
                self._say_silence()
            if self._lost and not batch:
                self._on_lost()

    def _say_silence(self) -> None:
        more = f" and {len(self._open_partitions) - 1} more" if len(self._open_partitions) > 1 else ""
        report(
            f"nothing has come for {silence.SILENCE_S:g} s, with {self._topic}-{min(self._open_partitions)}{more} not read "
            "to the end; the node is asked on. Its log and /readyz say what it waits for: the object store may be away, or "
            "lack records"
        )

    def stop(self) -> None:
        """Ends `run` after at most POLL_S. For a signal's handler: an exception, raised anywhere, could be lost."""
        self._stopped = True
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second Ctrl-C ends a write that blocks

    def close(self) -> None:
        self._consumer.close()

    def _done(self) -> bool:
        return self._stopped or self._left == 0 or (self._exit_at_end and not self._open_partitions)

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is None:
            self._lost = False
            self._show(message)
            if self._left is not None:
                self._left -= 1
        elif error.name() == "_PARTITION_EOF":
            self._open_partitions.discard(message.partition() or 0)
        else:
            raise explain(self._bootstrap, error, f"cannot read {self._topic}-{message.partition()}")

    def _on_error(self, error: KafkaError) -> None:
        if error.name() == "_ALL_BROKERS_DOWN":
            self._lost = True

    def _on_lost(self) -> None:
        self._lost = False
        if self._exit_at_end or self._left is not None:
            require_reachable(self._bootstrap)
        else:
            report(f"lost the node at {self._bootstrap}; waiting for it")


# --- where to begin ----------------------------------------------------------------------------------------------------
Start = Callable[[Any, "list[TopicPartition]"], "list[TopicPartition]"]


def _parse_start(text: str) -> Start:
    if text == "beginning":
        return lambda consumer, partitions: _at(partitions, -2)
    if text == "end":
        return lambda consumer, partitions: _at(partitions, -1)
    if text.isdecimal():
        offset = _within_64_bits(int(text))
        return lambda consumer, partitions: _at(partitions, offset)
    unix_ms = _parse_time(text)
    return lambda consumer, partitions: consumer.offsets_for_times(_at(partitions, unix_ms), timeout=REQUEST_TIMEOUT_S)


def _at(partitions: list[TopicPartition], offset: int) -> list[TopicPartition]:
    for partition in partitions:
        partition.offset = offset
    return partitions


def _parse_time(text: str) -> int:
    if text.startswith("@") and text[1:].isdecimal():
        return _within_64_bits(int(text[1:]))
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r}: write beginning, end, an offset, a time as 2013-01-01T05:15:00Z, or @ and ms since 1970",
            param_hint="--from",
        ) from None
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    return max(0, round(parsed.timestamp() * 1000))  # below it lie the numbers that mean the beginning and the end


def _within_64_bits(number: int) -> int:
    if number > HIGHEST_OFFSET:
        raise typer.BadParameter(f"{number} is beyond {HIGHEST_OFFSET}, the highest there can be", param_hint="--from")
    return number


# --- printing ----------------------------------------------------------------------------------------------------------
def _text_printer(separator: str | None) -> Callable[[Message], None]:
    """Bytes as they are, a line each; null prints as nothing."""
    between = None if separator is None else separator.encode()

    def show(message: Message) -> None:
        value = message.value() or b""
        line = value if between is None else (message.key() or b"") + between + value
        sys.stdout.buffer.write(line + b"\n")

    return show


def _json_printer() -> Callable[[Message], None]:
    def show(message: Message) -> None:
        kind, timestamp = message.timestamp()
        line = {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "timestamp": timestamp,
            "timestamp_type": _TIMESTAMP_TYPES.get(kind),
            **json_bytes("key", message.key()),
            **json_bytes("value", message.value()),
            "headers": [{"key": key, **json_bytes("value", value)} for key, value in _headers(message)],
        }
        print_json_line(line)

    return show


def _headers(message: Message) -> Sequence[tuple[str, bytes | None]]:
    return cast("Sequence[tuple[str, bytes | None]]", message.headers() or ())
