"""Positions in a partition, as users write them, and their offsets.

A position is `beginning`, `end`, an offset, `-N` (N offsets before the end), a time, or `-1h` (that long before now). A time
means the first record with that timestamp or a later one, or the end if there is no such record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import typer

from service.cli.errors import CommandError
from service.cli.kafka import HIGHEST_OFFSET, REQUEST_TIMEOUT_S, as_command_error, client_config, explain
from storage_tiers.times import first_ms, parse_time

if TYPE_CHECKING:
    from confluent_kafka import Consumer, IsolationLevel, TopicPartition
    from confluent_kafka.admin import AdminClient

#: ListOffsets' special timestamps.
EARLIEST, LATEST = -2, -1
SYNTAX = "beginning|end|OFFSET|-N|TIME|-DURATION"
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_STEP = r"(\d+)(ms|[smhdw])"
_DURATION = re.compile(rf"(?:{_STEP})+")

#: (topic, partition).
PartitionKey = tuple[str, int]


class Unit(Enum):
    """The unit of a position's value."""

    OFFSET = "offset"
    FROM_END = "records before the end"
    TIME = "ms since 1970"


@dataclass(frozen=True, slots=True)
class Position:
    """`value` is in the given unit; for a time, EARLIEST and LATEST are the beginning and the end."""

    unit: Unit
    value: int

    @property
    def is_an_end(self) -> bool:
        return self.unit is Unit.TIME and self.value in (EARLIEST, LATEST)


def parse_position(text: str, now_ms: int, option: str) -> Position:
    """Parses a position. Raises BadParameter for `option` if the text does not match `SYNTAX`."""
    if text in ("beginning", "end"):
        return Position(Unit.TIME, EARLIEST if text == "beginning" else LATEST)
    if text.isascii() and text.isdecimal():
        return Position(Unit.OFFSET, _within_64_bits(int(text), option))
    if text[:1] == "-" and text[1:].isascii() and text[1:].isdecimal():
        return Position(Unit.FROM_END, _within_64_bits(int(text[1:]), option))
    if text[:1] == "-" and _DURATION.fullmatch(text[1:]):
        return Position(Unit.TIME, max(0, now_ms - _duration_ms(text[1:])))
    return Position(Unit.TIME, _parse_time(text, option))


def parse_duration(text: str, option: str) -> int:
    """A duration such as `90s` or `1h30m`, in ms. Raises BadParameter for `option` if the text is not a duration."""
    if not _DURATION.fullmatch(text):
        raise typer.BadParameter(f"{text!r}: write 90s or 1h30m (ms, s, m, h, d, w)", param_hint=option)
    return _within_64_bits(_duration_ms(text), option)


def _duration_ms(text: str) -> int:
    return sum(int(count) * _UNITS_MS[unit] for count, unit in re.findall(_STEP, text))


def _parse_time(text: str, option: str) -> int:
    if text[:1] == "@" and text[1:].isascii() and text[1:].isdecimal():
        return _within_64_bits(int(text[1:]), option)
    try:
        parsed = parse_time(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r}: write beginning, end, an offset, -10 for ten before the end, a time such as 2013-01-01T05:15:00Z, "
            "-1h for an hour ago (ms, s, m, h, d, w), or @ and ms since 1970",
            param_hint=option,
        ) from None
    return max(0, first_ms(parsed))  # negative numbers mean the beginning and the end


def _within_64_bits(number: int, option: str) -> int:
    if number > HIGHEST_OFFSET:
        raise typer.BadParameter(f"{number} is above {HIGHEST_OFFSET}, the highest offset", param_hint=option)
    return number


def find_offsets(
    bootstrap: str, consumer: Consumer, keys: Sequence[PartitionKey], position: Position
) -> Mapping[PartitionKey, int]:
    """The offset of `position` in each partition. Raises CommandError if the node does not return it."""
    if position.unit is Unit.OFFSET:
        return dict.fromkeys(keys, position.value)
    if position.unit is Unit.FROM_END:
        ends = _ask(bootstrap, consumer, keys, LATEST)
        starts = _ask(bootstrap, consumer, keys, EARLIEST)
        return {key: max(starts[key], ends[key] - position.value) for key in keys}
    found = _ask(bootstrap, consumer, keys, position.value)
    if position.is_an_end or all(offset >= 0 for offset in found.values()):
        return found
    ends = _ask(bootstrap, consumer, keys, LATEST)
    return {key: offset if offset >= 0 else ends[key] for key, offset in found.items()}


def _ask(
    bootstrap: str, consumer: Consumer, keys: Sequence[PartitionKey], timestamp: int
) -> Mapping[PartitionKey, int]:
    """Looks up offsets by timestamp. A negative offset means that no record has that timestamp or a later one."""
    from confluent_kafka import KafkaException, TopicPartition

    asked = [TopicPartition(topic, number, timestamp) for topic, number in keys]
    try:
        answers: list[TopicPartition] = consumer.offsets_for_times(asked, timeout=REQUEST_TIMEOUT_S)
    except KafkaException as error:
        raise as_command_error(bootstrap, error, "cannot find the offsets") from None
    for answer in answers:
        if answer.error is not None:
            raise explain(bootstrap, answer.error, f"cannot find the offset in {answer.topic}-{answer.partition}")
    return {(answer.topic, answer.partition): answer.offset for answer in answers}


def open_transaction_starts(bootstrap: str, keys: Sequence[PartitionKey]) -> Mapping[PartitionKey, int]:
    """The first offset of each partition's oldest open transaction. Partitions without an open transaction or without an answer
    are omitted."""
    from confluent_kafka import IsolationLevel
    from confluent_kafka.admin import AdminClient

    if not keys:
        return {}
    admin = AdminClient(client_config(bootstrap))
    # The order matters. If the last stable offset is below an end that was read earlier, a transaction holds it back,
    # regardless of later writes.
    ends = _latest(admin, keys, IsolationLevel.READ_UNCOMMITTED)
    stable = _latest(admin, keys, IsolationLevel.READ_COMMITTED)
    return {key: offset for key, offset in stable.items() if offset < ends.get(key, 0)}


def _latest(admin: AdminClient, keys: Sequence[PartitionKey], isolation: IsolationLevel) -> Mapping[PartitionKey, int]:
    from confluent_kafka import KafkaException, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    asked = {TopicPartition(*key): OffsetSpec.latest() for key in keys}
    answers = admin.list_offsets(asked, isolation_level=isolation, request_timeout=REQUEST_TIMEOUT_S)
    found = {}
    for partition, future in answers.items():
        with suppress(KafkaException):
            found[partition.topic, partition.partition] = int(future.result(REQUEST_TIMEOUT_S * 2).offset)
    return found


def topic_partitions(
    bootstrap: str, consumer: Consumer, topics: Sequence[str], wanted: Sequence[int] | None
) -> list[PartitionKey]:
    """All partitions of the topics, or the `wanted` ones of each. Raises CommandError if a topic or partition does not
    exist."""
    keys: list[PartitionKey] = []
    for topic in dict.fromkeys(topics):
        found = consumer.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic]
        if found.error is not None:
            raise explain(bootstrap, found.error, f"cannot read {topic}", topic)
        unknown = sorted(set(wanted or ()) - set(found.partitions))
        if unknown:
            raise CommandError(f"{topic} has no partition {unknown[0]}, only 0 to {len(found.partitions) - 1}")
        keys += [(topic, number) for number in sorted(set(wanted or found.partitions))]
    return keys
