"""Reads records through librdkafka and prints them. Either the command assigns the partitions, or a group does.

Without an end condition, a follower waits for the node if it becomes unreachable. With one, an unreachable node is an error. A
follower that ends at the partitions' ends does not wait for new records; all others do.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from service.cli.client import silence
from service.cli.client.held_back import HeldBack
from service.cli.client.positions import (
    LATEST,
    PartitionKey,
    Position,
    Unit,
    find_offsets,
    open_transaction_starts,
    topic_partitions,
)
from service.cli.client.record_format import Format, ShownRecord
from service.cli.client.waiting import held_at, why_nothing_comes
from service.cli.errors import CommandError, report
from service.cli.kafka import REQUEST_TIMEOUT_S, as_command_error, client_config, explain
from service.cli.listener import require_reachable

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

#: librdkafka's consumer requires a group id, even if it joins no group.
GROUP = "tidelog-cli"
BATCH = 1000
POLL_S = 0.05
#: How long the node may delay an empty Fetch response, in ms. librdkafka reports the end of a partition only after that
#: response.
FOLLOWING_WAIT_MS = 500
ENDING_WAIT_MS = 50
#: Silences before a member reports that it has not joined, because a new group waits `group.initial.rebalance.delay.ms` for
#: members.
SILENT_JOINS = 2
_TIMESTAMP_TYPES = {1: "create_time", 2: "log_append_time"}


class Follower:
    """One consumer and its end conditions. Not thread-safe."""

    def __init__(
        self, bootstrap: str, show: Format, max_messages: int | None, exit_at_end: bool, *, config: dict[str, Any]
    ) -> None:
        from confluent_kafka import Consumer

        self._bootstrap = bootstrap
        self._show = show
        self._left = max_messages
        self._stopped = False
        self._exit_at_end = exit_at_end
        #: Partitions whose end was never reached, and partitions with records still to print.
        self._unfinished: set[PartitionKey] = set()
        self._behind: set[PartitionKey] = set()
        #: The offset at which a partition's committed records ended.
        self._ends: dict[PartitionKey, int] = {}
        self._lost = False
        self._quiet = silence.Silence()
        self._held = HeldBack(silence.monotonic)
        self._consumer: Consumer = Consumer(
            {
                **client_config(bootstrap),
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": ENDING_WAIT_MS if exit_at_end else FOLLOWING_WAIT_MS,
                "error_cb": self._on_error,
                **config,
            }
        )

    def begin(self) -> None:
        """Assigns or subscribes to the partitions. Raises KafkaException or CommandError if they do not exist."""
        raise NotImplementedError

    def run(self) -> None:
        self._quiet.heard()
        self._follow()
        if self._exit_at_end and not self._stopped:
            self._report_open_transactions()

    def _follow(self) -> None:
        while not self._done():
            batch = self._consumer.consume(min(BATCH, self._left or BATCH), POLL_S)
            for message in batch:
                self._take(message)
            if batch:
                self._quiet.heard()
                sys.stdout.flush()
                self._printed(batch)
            elif self._is_waiting() and self._quiet.due():
                self._say_silence()
            if not self._exit_at_end and self._held.due():
                self._say_held_back()
            if self._lost and not batch:
                self._on_lost()

    def stop(self) -> None:
        """Ends `run` within POLL_S. Signal handlers call this method, because their exceptions could be lost."""
        self._stopped = True
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second signal ends a blocked write
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def close(self) -> None:
        self._consumer.close()

    def _done(self) -> bool:
        return self._stopped or self._left == 0 or (self._exit_at_end and not self._unfinished)

    def _is_waiting(self) -> bool:
        return bool(self._behind)

    def _say_silence(self) -> None:
        topic, number = min(self._behind)
        more = f" and {len(self._behind) - 1} more" if len(self._behind) > 1 else ""
        why = why_nothing_comes(self._bootstrap, sorted(self._behind))
        report(f"no records for {silence.SILENCE_S:g} s before the end of {topic}-{number}{more}: {why}")

    def _say_held_back(self) -> None:
        at_end = {key: end for key, end in self._ends.items() if key not in self._behind}
        held = self._held.look(at_end, self._high_watermarks(at_end))
        if not held:
            return
        why = held_at(self._bootstrap, held)
        if why is None:
            self._held.forget(held)  # the node did not answer; the next `look` finds them again
            return
        for (topic, number), reason in why.items():
            report(f"{topic}-{number} is read up to offset {held[topic, number]}: {reason}")

    def _high_watermarks(self, keys: Iterable[PartitionKey]) -> Mapping[PartitionKey, int]:
        """The high watermarks of the last Fetch responses; no request is sent."""
        from confluent_kafka import KafkaException, TopicPartition

        found = {}
        for key in keys:
            with suppress(KafkaException):  # the partition is no longer assigned
                _, found[key] = self._consumer.get_watermark_offsets(TopicPartition(*key), cached=True)
        return found

    def _report_open_transactions(self) -> None:
        """Without this report, a topic whose first record is in an open transaction would look empty."""
        opened = open_transaction_starts(self._bootstrap, list(self._ends))
        held = sorted(key for key, offset in opened.items() if self._ends[key] == offset)
        if held:
            topic, number = held[0]
            more = f" and {len(held) - 1} more" if len(held) > 1 else ""
            report(
                f"stopped in {topic}-{number}{more} before an open transaction at offset {opened[held[0]]}; "
                f"`tidelog topic describe {topic}` names its producer"
            )

    def _take(self, message: Message) -> None:
        error = message.error()
        key: PartitionKey = (message.topic() or "", message.partition() or 0)
        if error is None:
            self._lost = False
            self._take_record(key, message)
        elif error.name() == "_PARTITION_EOF":
            self._ends[key] = message.offset() or 0
            self._unfinished.discard(key)
            self._behind.discard(key)
        elif error.name() == "_AUTO_OFFSET_RESET":
            raise self._out_of_range(key)
        else:
            what = f"cannot read {key[0]}-{key[1]}" if message.topic() else "cannot read"
            raise explain(self._bootstrap, error, what)

    def _take_record(self, key: PartitionKey, message: Message) -> None:
        self._behind.add(key)
        sys.stdout.buffer.write(self._show(_record(message)))
        if self._left is not None:
            self._left -= 1

    def _printed(self, messages: Sequence[Message]) -> None:
        """Called after `messages` were flushed to the output."""

    def _out_of_range(self, key: PartitionKey) -> CommandError:
        from confluent_kafka import KafkaException, TopicPartition

        try:
            start, end = self._consumer.get_watermark_offsets(TopicPartition(*key), REQUEST_TIMEOUT_S)
        except KafkaException as error:
            return as_command_error(self._bootstrap, error, f"cannot find the offsets of {key[0]}-{key[1]}")
        return CommandError(
            f"{key[0]}-{key[1]} does not have that offset: its log starts at offset {start} and ends at {end}; "
            "give --from an offset between them, beginning or end"
        )

    def _on_error(self, error: KafkaError) -> None:
        if error.name() == "_ALL_BROKERS_DOWN":
            self._lost = True

    def _on_lost(self) -> None:
        self._lost = False
        if self._exit_at_end or self._left is not None:
            require_reachable(self._bootstrap)
        else:
            report(f"lost the node at {self._bootstrap}; waiting for it")


# --- partitions that the command assigns ------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ConsumedRange:
    """`start` is an offset or one of librdkafka's special offsets. `stop` is the first offset that is not printed, None if
    there is no end."""

    start: int
    stop: int | None


class Ranges(NamedTuple):
    """The ranges of the command line. `partitions` is None for all partitions; `bound` is None if there is no end."""

    topics: Sequence[str]
    partitions: Sequence[int] | None
    begin: Position
    bound: Position | None


class RangeFollower(Follower):
    """Reads the ranges that the command line gives. It joins no group and commits no offset."""

    def __init__(
        self, bootstrap: str, show: Format, max_messages: int | None, exit_at_end: bool, *, ranges: Ranges
    ) -> None:
        config = {"group.id": GROUP, "enable.auto.commit": False, "auto.offset.reset": "error"}
        super().__init__(bootstrap, show, max_messages, exit_at_end, config=config)
        self._ranges = ranges
        self._spans: dict[PartitionKey, ConsumedRange] = {}

    def begin(self) -> None:
        from confluent_kafka import TopicPartition

        topics, partitions, begin, bound = self._ranges
        keys = topic_partitions(self._bootstrap, self._consumer, topics, partitions)
        self._spans = _spans(self._bootstrap, self._consumer, keys, begin, bound)
        self._unfinished = set(self._spans)
        self._behind = set(self._spans)
        self._consumer.assign([TopicPartition(*key, span.start) for key, span in self._spans.items()])

    def _take_record(self, key: PartitionKey, message: Message) -> None:
        stop, offset = self._spans[key].stop, message.offset() or 0
        if stop is not None and offset >= stop:
            self._finish(key)
            return
        super()._take_record(key, message)
        if stop is not None and offset + 1 >= stop:
            self._finish(key)

    def _finish(self, key: PartitionKey) -> None:
        """Stops reading the partition."""
        from confluent_kafka import TopicPartition

        self._behind.discard(key)
        if key in self._unfinished:
            self._unfinished.discard(key)
            self._consumer.pause([TopicPartition(*key)])


def _spans(
    bootstrap: str, consumer: Consumer, keys: Sequence[PartitionKey], begin: Position, bound: Position | None
) -> dict[PartitionKey, ConsumedRange]:
    """The range to read in each partition. Partitions with an empty range are omitted."""
    if bound is None and begin.is_an_end:
        return {key: ConsumedRange(begin.value, None) for key in keys}  # librdkafka uses the same numbers
    starts = find_offsets(bootstrap, consumer, keys, begin)
    if bound is None:
        return {key: ConsumedRange(start, None) for key, start in starts.items()}
    ends = find_offsets(bootstrap, consumer, keys, Position(Unit.TIME, LATEST))
    stops = find_offsets(bootstrap, consumer, keys, bound)
    stops = {key: min(stop, ends[key]) for key, stop in stops.items()}
    return {key: ConsumedRange(starts[key], stops[key]) for key in keys if starts[key] < stops[key]}


# --- partitions that a group assigns ----------------------------------------------------------------------------------
class GroupSubscription(NamedTuple):
    """`begin` applies to partitions without a committed offset: the beginning or the end."""

    group: str
    topics: Sequence[str]
    begin: Position


class GroupFollower(Follower):
    """A member of a group. It commits printed records every 5 s, before partitions are revoked, and when it ends."""

    def __init__(
        self, bootstrap: str, show: Format, max_messages: int | None, exit_at_end: bool, *, member: GroupSubscription
    ) -> None:
        reset = "latest" if member.begin.value == LATEST else "earliest"
        config = {"group.id": member.group, "enable.auto.commit": True, "auto.offset.reset": reset}
        super().__init__(bootstrap, show, max_messages, exit_at_end, config=config)
        self._member = member
        self._group = member.group
        self._has_joined = False
        self._silent_joins = 0

    def begin(self) -> None:
        topics = self._member.topics
        topic_partitions(self._bootstrap, self._consumer, topics, None)  # refuses a topic that does not exist
        self._consumer.subscribe(list(topics), on_assign=self._on_assign)

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._has_joined = True
        self._quiet.heard()  # until now the member waited for the group, not for records
        self._unfinished = {(each.topic, each.partition) for each in partitions}
        self._behind = set(self._unfinished)
        self._ends = {}

    def _done(self) -> bool:
        if not self._has_joined:
            return self._stopped
        return super()._done()

    def _is_waiting(self) -> bool:
        return not self._has_joined or not self._consumer.assignment() or super()._is_waiting()

    def _say_silence(self) -> None:
        if self._behind:
            super()._say_silence()
        elif self._has_joined:
            report(f"group {self._group} has assigned no partition to this member: it has more members than partitions")
        else:
            self._silent_joins += 1
            if self._silent_joins < SILENT_JOINS:
                self._quiet.heard()
            else:
                report(f"waiting to join group {self._group}: {why_nothing_comes(self._bootstrap, ())}")

    def _printed(self, messages: Sequence[Message]) -> None:
        from confluent_kafka import KafkaException

        for message in messages:
            if message.error() is None:
                with suppress(KafkaException):  # its partition was revoked meanwhile
                    self._consumer.store_offsets(message)


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
