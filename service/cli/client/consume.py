"""`tidelog consume`: records of topics to standard output, by assignment: no group, nothing is committed.

Reads under `read_committed`. Follows the log unless it is told where to end; a node that goes away meanwhile is waited
for when following, and an error when an end was asked for. An end (`--to`, `--exit-at-end`) is never waited for beyond what
the log holds when the command begins.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, cast

import typer

from service.cli.client import silence
from service.cli.client.json_records import to_json
from service.cli.client.positions import (
    LATEST,
    SYNTAX,
    Place,
    Position,
    Unit,
    find_offsets,
    parse_position,
    topic_partitions,
)
from service.cli.client.record_format import TOKENS, Format, ShownRecord, parse_format
from service.cli.client.waiting import why_nothing_comes
from service.cli.completion import complete_topic
from service.cli.errors import report
from service.cli.kafka import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Profile,
    as_command_error,
    client_config,
    explain,
)
from service.cli.listener import require_reachable

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

#: librdkafka's consumer insists on a group's name, although none is joined.
GROUP = "tidelog-cli"
BATCH = 1000
POLL_S = 0.05
#: How long a node may hold a read that found nothing: the end of a partition shows only after it.
FOLLOWING_WAIT_MS = 500
ENDING_WAIT_MS = 50
_TIMESTAMP_TYPES = {1: "create_time", 2: "log_append_time"}


def consume(
    topics: Annotated[
        list[str], typer.Argument(metavar="TOPIC...", help="One or more.", autocompletion=complete_topic)
    ],
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="Of each topic; repeatable. (default: all)"),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            "-o",
            metavar=SYNTAX,
            help="-10: ten records before the end of each partition. TIME as 2013-01-01T05:15:00Z, or @ and ms since 1970; "
            "DURATION as 1h or 2d12h, before now.",
        ),
    ] = "beginning",
    stop: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar=SYNTAX,
            help="End before this place of each partition, or at its end. Written as --from is.",
            show_default=False,
        ),
    ] = None,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", "-n", min=1, help="End after so many records in all.")
    ] = None,
    exit_at_end: Annotated[bool, typer.Option("--exit-at-end", "-e", help="End at the end of each partition.")] = False,
    format_: Annotated[
        str | None, typer.Option("--format", "-f", metavar="FORMAT", help=f"As kcat's: {TOKENS}; \\n \\t \\xHH.")
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-k", help="Print keys too, and this between key and value.")
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="A JSON object a line, as `produce --json` takes it; what is not UTF-8 stands as base64 in `..._base64`.",
        ),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """Print the records of topics. Goes on until Ctrl-C, --max-messages, --exit-at-end or --to."""
    from confluent_kafka import KafkaException

    from storage_tiers.clock import SystemClock

    now_ms = SystemClock().unix_ms()
    begin = parse_position(start, now_ms, "--from")
    bound = None if stop is None else parse_position(stop, now_ms, "--to")
    show = _format(format_, key_separator, as_json=as_json)
    require_reachable(bootstrap)
    follower = Follower(bootstrap, show, max_messages, exit_at_end=exit_at_end or bound is not None)
    try:
        follower.assign(topics, partition, begin, bound)
        signal.signal(signal.SIGINT, lambda *_: follower.stop())
        follower.run()
    except KafkaException as error:
        raise as_command_error(bootstrap, error, f"cannot read {', '.join(topics)}") from None
    except KeyboardInterrupt:
        pass
    finally:
        follower.close()


@dataclass(frozen=True, slots=True)
class ConsumedRange:
    """Where a partition is read from, as librdkafka takes it, and the first offset that is not; None: no end."""

    start: int
    stop: int | None


class Follower:
    """One consumer and what ends it. Not thread-safe."""

    def __init__(self, bootstrap: str, show: Format, max_messages: int | None, *, exit_at_end: bool) -> None:
        from confluent_kafka import Consumer

        self._bootstrap = bootstrap
        self._show = show
        self._left = max_messages
        self._stopped = False
        self._exit_at_end = exit_at_end
        self._spans: dict[Place, ConsumedRange] = {}
        #: Where the command has not ended yet, and of these where records are still to come.
        self._unfinished: set[Place] = set()
        self._behind: set[Place] = set()
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

    def assign(
        self, topics: Sequence[str], wanted: Sequence[int] | None, begin: Position, bound: Position | None
    ) -> None:
        from confluent_kafka import TopicPartition

        places = topic_partitions(self._bootstrap, self._consumer, topics, wanted)
        self._spans = _spans(self._bootstrap, self._consumer, places, begin, bound)
        self._unfinished = set(self._spans)
        self._behind = set(self._spans)
        self._consumer.assign([TopicPartition(*place, span.start) for place, span in self._spans.items()])

    def run(self) -> None:
        quiet = silence.Silence()
        while not self._done():
            batch = self._consumer.consume(min(BATCH, self._left or BATCH), POLL_S)
            for message in batch:
                self._take(message)
            if batch:
                quiet.heard()
                sys.stdout.flush()
            elif self._behind and quiet.due():
                self._say_silence()
            if self._lost and not batch:
                self._on_lost()

    def _say_silence(self) -> None:
        topic, number = min(self._behind)
        more = f" and {len(self._behind) - 1} more" if len(self._behind) > 1 else ""
        why = why_nothing_comes(self._bootstrap, sorted(self._behind))
        report(f"nothing has come for {silence.SILENCE_S:g} s, with {topic}-{number}{more} not read to the end: {why}")

    def stop(self) -> None:
        """Ends `run` after at most POLL_S. For a signal's handler: an exception, raised anywhere, could be lost."""
        self._stopped = True
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second Ctrl-C ends a write that blocks

    def close(self) -> None:
        self._consumer.close()

    def _done(self) -> bool:
        return self._stopped or self._left == 0 or (self._exit_at_end and not self._unfinished)

    def _take(self, message: Message) -> None:
        error = message.error()
        place: Place = (message.topic() or "", message.partition() or 0)
        if error is None:
            self._lost = False
            self._take_record(place, message)
        elif error.name() == "_PARTITION_EOF":
            self._unfinished.discard(place)
            self._behind.discard(place)
        else:
            raise explain(self._bootstrap, error, f"cannot read {place[0]}-{place[1]}")

    def _take_record(self, place: Place, message: Message) -> None:
        stop, offset = self._spans[place].stop, message.offset() or 0
        if stop is not None and offset >= stop:
            self._finish(place)
            return
        self._behind.add(place)
        sys.stdout.buffer.write(self._show(_record(message)))
        if self._left is not None:
            self._left -= 1
        if stop is not None and offset + 1 >= stop:
            self._finish(place)

    def _finish(self, place: Place) -> None:
        """Nothing more is read there."""
        from confluent_kafka import TopicPartition

        self._behind.discard(place)
        if place in self._unfinished:
            self._unfinished.discard(place)
            self._consumer.pause([TopicPartition(*place)])

    def _on_error(self, error: KafkaError) -> None:
        if error.name() == "_ALL_BROKERS_DOWN":
            self._lost = True

    def _on_lost(self) -> None:
        self._lost = False
        if self._exit_at_end or self._left is not None:
            require_reachable(self._bootstrap)
        else:
            report(f"lost the node at {self._bootstrap}; waiting for it")


def _spans(
    bootstrap: str, consumer: Consumer, places: Sequence[Place], begin: Position, bound: Position | None
) -> dict[Place, ConsumedRange]:
    """What is read of each partition; none of which nothing is."""
    if bound is None and begin.is_an_end:
        return {place: ConsumedRange(begin.value, None) for place in places}  # librdkafka's numbers are the same
    starts = find_offsets(bootstrap, consumer, places, begin)
    if bound is None:
        return {place: ConsumedRange(start, None) for place, start in starts.items()}
    ends = find_offsets(bootstrap, consumer, places, Position(Unit.TIME, LATEST))
    stops = find_offsets(bootstrap, consumer, places, bound)
    stops = {place: min(stop, ends[place]) for place, stop in stops.items()}
    return {place: ConsumedRange(starts[place], stops[place]) for place in places if starts[place] < stops[place]}


# --- printing ----------------------------------------------------------------------------------------------------------
def _format(format_: str | None, key_separator: str | None, *, as_json: bool) -> Format:
    if sum((format_ is not None, key_separator is not None, as_json)) > 1:
        raise typer.BadParameter("give one of --format, --key-separator and --json", param_hint="consume")
    if as_json:
        return to_json
    if format_ is None:
        return _text_format(key_separator)
    try:
        return parse_format(format_)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--format") from None


def _text_format(separator: str | None) -> Format:
    """Bytes as they are, a line each; null prints as nothing."""
    if separator is None:
        return lambda record: (record.value or b"") + b"\n"
    between = separator.encode()
    return lambda record: (record.key or b"") + between + (record.value or b"") + b"\n"


def _record(message: Message) -> ShownRecord:
    kind, timestamp = message.timestamp()
    return ShownRecord(
        message.topic() or "",
        message.partition() or 0,
        message.offset() or 0,
        timestamp,
        _TIMESTAMP_TYPES.get(kind),
        message.key(),
        message.value(),
        cast("Sequence[tuple[str, bytes | None]]", message.headers() or ()),
    )
