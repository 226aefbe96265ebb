"""`tidelog consume`: prints records of topics. It assigns partitions itself: no group, no committed offsets.

Reads with `read_committed`. Without an end it follows the log, and waits for a node that goes away. With an end (`--to`,
`--exit-at-end`) a node that goes away is an error, and records that arrive after the command's start are not awaited.
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
from service.cli.errors import CommandError, report
from service.cli.kafka import (
    DEFAULT_BOOTSTRAP,
    REQUEST_TIMEOUT_S,
    Bootstrap,
    Profile,
    as_command_error,
    client_config,
    explain,
)
from service.cli.listener import require_reachable

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

#: librdkafka's consumer requires a group id, although it joins no group.
GROUP = "tidelog-cli"
BATCH = 1000
POLL_S = 0.05
#: How long the node may delay an empty Fetch; librdkafka reports the end of a partition only after it.
FOLLOWING_WAIT_MS = 500
ENDING_WAIT_MS = 50
_TIMESTAMP_TYPES = {1: "create_time", 2: "log_append_time"}


def consume(
    topics: Annotated[
        list[str], typer.Argument(metavar="TOPIC...", help="One or more.", autocompletion=complete_topic)
    ],
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="A partition of each topic; repeatable. (default: all)"),
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
            help="Stop before this position of each partition, or at its end. Same syntax as --from.",
            show_default=False,
        ),
    ] = None,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", "-n", min=1, help="Stop after this many records in total.")
    ] = None,
    exit_at_end: Annotated[
        bool, typer.Option("--exit-at-end", "-e", help="Stop at the end of each partition.")
    ] = False,
    format_: Annotated[
        str | None, typer.Option("--format", "-f", metavar="FORMAT", help=f"As kcat's: {TOKENS}; \\n \\t \\xHH.")
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-k", help="Print keys, too, with this text between key and value.")
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="One JSON object per line, as `produce --json` reads it; base64 in `..._base64` if not UTF-8.",
        ),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    profile: Profile = None,
) -> None:
    """Print the records of topics until Ctrl-C, --max-messages, --exit-at-end or --to ends it."""
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
    """Where to start in a partition, as librdkafka takes it, and the first offset not to print; None: no end."""

    start: int
    stop: int | None


class Follower:
    """One consumer and its end conditions. Not thread-safe."""

    def __init__(self, bootstrap: str, show: Format, max_messages: int | None, *, exit_at_end: bool) -> None:
        from confluent_kafka import Consumer

        self._bootstrap = bootstrap
        self._show = show
        self._left = max_messages
        self._stopped = False
        self._exit_at_end = exit_at_end
        self._spans: dict[Place, ConsumedRange] = {}
        #: Partitions not at their end yet, and those among them that still have records to print.
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
        report(f"no records for {silence.SILENCE_S:g} s, and {topic}-{number}{more} not read to the end: {why}")

    def stop(self) -> None:
        """Ends `run` within POLL_S. For signal handlers, whose exceptions could be lost."""
        self._stopped = True
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second Ctrl-C interrupts a blocked write

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
        elif error.name() == "_AUTO_OFFSET_RESET":
            raise self._out_of_range(place)
        else:
            raise explain(self._bootstrap, error, f"cannot read {place[0]}-{place[1]}")

    def _out_of_range(self, place: Place) -> CommandError:
        from confluent_kafka import KafkaException, TopicPartition

        try:
            start, end = self._consumer.get_watermark_offsets(TopicPartition(*place), REQUEST_TIMEOUT_S)
        except KafkaException as error:
            return as_command_error(self._bootstrap, error, f"cannot find the offsets of {place[0]}-{place[1]}")
        return CommandError(
            f"cannot read {place[0]}-{place[1]} there: its log starts at offset {start} and ends at {end}; "
            "give --from an offset between them, beginning or end"
        )

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
        """Stops reading the partition."""
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
    """The range to read of each partition, without empty ranges."""
    if bound is None and begin.is_an_end:
        return {place: ConsumedRange(begin.value, None) for place in places}  # librdkafka uses the same numbers
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
    """Raw bytes, one line per record; null prints as nothing."""
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
