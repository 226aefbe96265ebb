"""The offsets of a consumer group: their lag, and moves to other positions.

As in Kafka's own tool, a new offset below the log start becomes the log start, and a new offset above the end becomes the end.
Such partitions are named on standard error.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from service.cli.client.positions import EARLIEST, LATEST, PartitionKey, Position, Unit, find_offsets, parse_position
from service.cli.client.positions import topic_partitions as partitions_of
from service.cli.client.requests import ask, from_coordinator, tiered_ends
from service.cli.errors import CommandError, report
from service.cli.kafka import REQUEST_TIMEOUT_S, client_config, outcome

if TYPE_CHECKING:
    from confluent_kafka import Consumer
    from confluent_kafka.admin import AdminClient

_COLUMNS = ("GROUP", "TOPIC", "PARTITION", "OFFSET")
#: Advice about members. A killed or static member stays in the group until its session times out, as in Kafka.
STOP_MEMBERS = "stop the members first; those that were killed, and static ones, leave only session.timeout.ms later"
#: The errors of OffsetDelete that need an explanation, by code.
_REFUSALS = {3: "no such partition", 86: f"a member of the group is subscribed to the topic; {STOP_MEMBERS}"}


class Lag(NamedTuple):
    """`offset` is None if nothing is committed, and `end` is None if the topic was deleted. In both cases `lag` is None.
    `in_bucket` is the part of the lag that is in the bucket. It is None if `lag` is None, if the store is behind, or if the
    leader does not answer."""

    topic: str
    partition: int
    offset: int | None
    end: int | None
    lag: int | None
    in_bucket: int | None

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.partition


class Move(NamedTuple):
    """`now` is None if nothing is committed."""

    topic: str
    partition: int
    now: int | None
    offset: int


def committed(bootstrap: str, admin: AdminClient, group: str) -> dict[PartitionKey, int]:
    """All committed offsets of the group, in order. The request goes directly to the coordinator, because
    `list_consumer_group_offsets` of confluent-kafka 2.16 crashes with a segmentation fault if the response is an error for the
    whole group, for example while a coordinator loads."""
    from kio.schema.offset_fetch.v7.request import OffsetFetchRequest
    from kio.schema.offset_fetch.v7.response import OffsetFetchResponse
    from kio.schema.types import GroupId

    request = OffsetFetchRequest(group_id=GroupId(group), topics=None)
    answer = from_coordinator(
        lambda: ask(_coordinator(bootstrap, admin, group), request, OffsetFetchResponse),
        lambda fetched: int(fetched.error_code),
    )
    if answer.error_code != 0:
        raise CommandError(f"cannot read the offsets of group {group}: {answer.error_code.name}")
    found = {
        (str(topic.name), int(each.partition_index)): int(each.committed_offset)
        for topic in answer.topics
        for each in topic.partitions
        if each.committed_offset >= 0
    }
    return dict(sorted(found.items()))


def lags(bootstrap: str, admin: AdminClient, group: str, assigned: Iterable[PartitionKey] = ()) -> list[Lag]:
    """The lag of all partitions with a committed offset or an assigned member, in order."""
    offsets = committed(bootstrap, admin, group)
    keys = sorted({*offsets, *assigned})
    if not keys:
        return []
    with _Lookup(bootstrap) as consumer:
        there = _leaders(consumer, keys)
        ends = find_offsets(bootstrap, consumer, list(there), Position(Unit.TIME, LATEST)) if there else {}
    tiered = _tiered_ends(there)
    return [_lag(key, offsets.get(key), ends.get(key), tiered.get(key)) for key in keys]


def _leaders(consumer: Consumer, keys: Sequence[PartitionKey]) -> dict[PartitionKey, str | None]:
    """The address of each partition's leader, None if there is no leader. Partitions of deleted topics are omitted, which
    members keep until the next rebalance."""
    found: dict[PartitionKey, str | None] = {}
    for topic in dict.fromkeys(topic for topic, _ in keys):
        metadata = consumer.list_topics(topic, timeout=REQUEST_TIMEOUT_S)
        for number, partition in metadata.topics[topic].partitions.items():
            leader = metadata.brokers.get(partition.leader)
            found[topic, number] = None if leader is None else f"{leader.host}:{leader.port}"
    return {key: found[key] for key in keys if key in found}


def _tiered_ends(leaders: Mapping[PartitionKey, str | None]) -> dict[PartitionKey, int | None]:
    """The offset after each partition's last record in the bucket, 0 if there is none. None if the store is behind, or if the
    partition's leader does not answer."""
    asked: dict[tuple[str, str], list[int]] = {}
    for (topic, number), address in leaders.items():
        if address is not None:
            asked.setdefault((address, topic), []).append(number)
    found: dict[PartitionKey, int | None] = dict.fromkeys(leaders)
    for (address, topic), numbers in asked.items():
        with suppress(CommandError):
            ends = tiered_ends(address, topic, numbers)
            found |= {(topic, number): ends.get(number, 0) for number in numbers}
    return found


def _lag(key: PartitionKey, offset: int | None, end: int | None, tiered_end: int | None) -> Lag:
    if offset is None or end is None:
        return Lag(*key, offset, end, None, None)
    in_bucket = None if tiered_end is None else max(0, tiered_end - offset)
    return Lag(*key, offset, end, max(0, end - offset), in_bucket)


# --- moving -----------------------------------------------------------------------------------------------------------
def scope(bootstrap: str, admin: AdminClient, group: str, topics: Sequence[str] | None) -> list[PartitionKey]:
    """The partitions that `--topic` names, or all partitions with a committed offset."""
    if not topics:
        keys = list(committed(bootstrap, admin, group))
        if not keys:
            raise CommandError(f"group {group} has committed no offsets; name the partitions with --topic")
        return keys
    with _Lookup(bootstrap) as consumer:
        found: dict[PartitionKey, None] = {}
        for word in topics:
            topic, numbers = parse_scope(word)
            found |= dict.fromkeys(partitions_of(bootstrap, consumer, [topic], numbers))
    return list(found)


def parse_scope(word: str) -> tuple[str, list[int] | None]:
    """Parses `orders` or `orders:0,2`. Raises CommandError for anything else."""
    topic, colon, numbers = word.partition(":")
    words = numbers.split(",") if colon else []
    if not topic or not all(each.isascii() and each.isdecimal() for each in words):
        raise CommandError(f"{word!r}: write TOPIC, or TOPIC:0,2 for two of its partitions")
    return topic, [int(each) for each in words] or None


def moves(
    bootstrap: str,
    admin: AdminClient,
    group: str,
    keys: Sequence[PartitionKey],
    *,
    to: str | None,
    shift_by: int | None,
) -> list[Move]:
    """The moves to a position, by a number of records from the committed offset, or to the committed offset itself."""
    from storage_tiers.clock import SystemClock

    with _Lookup(bootstrap) as consumer:
        if to is not None:
            position = parse_position(to, SystemClock().unix_ms(), "--to")
            return moves_to(bootstrap, admin, group, keys, find_offsets(bootstrap, consumer, keys, position))
        now = committed(bootstrap, admin, group)
        if shift_by is not None:
            missing = [f"{topic}-{number}" for topic, number in keys if (topic, number) not in now]
            if missing:
                raise CommandError(f"group {group} has committed no offset of {', '.join(missing)}; use --to")
            return moves_to(bootstrap, admin, group, keys, {key: now[key] + shift_by for key in keys})
        ends = find_offsets(bootstrap, consumer, keys, Position(Unit.TIME, LATEST))
        return moves_to(bootstrap, admin, group, keys, {key: now.get(key, ends[key]) for key in keys})


def moves_to(
    bootstrap: str, admin: AdminClient, group: str, keys: Sequence[PartitionKey], wanted: Mapping[PartitionKey, int]
) -> list[Move]:
    """The moves to the wanted offsets, each limited to its partition's log. Limited offsets are named on standard error."""
    with _Lookup(bootstrap) as consumer:
        for topic in dict.fromkeys(topic for topic, _ in keys):
            partitions_of(bootstrap, consumer, [topic], [number for name, number in keys if name == topic])
        starts = find_offsets(bootstrap, consumer, keys, Position(Unit.TIME, EARLIEST))
        ends = find_offsets(bootstrap, consumer, keys, Position(Unit.TIME, LATEST))
    now = committed(bootstrap, admin, group)
    ordered = sorted(keys)
    _say_kept("below the log start", "the log start", [key for key in ordered if wanted[key] < starts[key]])
    _say_kept("beyond the end", "the end", [key for key in ordered if wanted[key] > ends[key]])
    return [Move(*key, now.get(key), min(max(wanted[key], starts[key]), ends[key])) for key in ordered]


def _say_kept(where: str, taken: str, keys: Sequence[PartitionKey]) -> None:
    if keys:
        names = _several([f"{topic}-{number}" for topic, number in keys])
        report(f"the new offset would be {where} of {names}; {taken} is used instead")


def parse_csv(lines: Iterable[str], group: str) -> dict[PartitionKey, int]:
    """Reads lines of TOPIC,PARTITION,OFFSET or GROUP,TOPIC,PARTITION,OFFSET, and ignores the lines of other groups. These are
    the two formats of `kafka-consumer-groups --export`, for one group and for several. As in that tool, the first line decides
    the format. Raises CommandError with the number of the first wrong line."""
    found: dict[PartitionKey, int] = {}
    columns = 0
    for number, row in enumerate(csv.reader(lines), 1):
        if not row:
            continue
        columns = columns or (4 if len(row) == 4 else 3)
        try:
            *named, topic, partition, offset = row
            if len(row) != columns:
                raise ValueError(row)
        except ValueError:
            form = ",".join(_COLUMNS[-columns:])
            raise CommandError(f"line {number}: {','.join(row)!r} is not {form}") from None
        try:
            key, wanted = (topic, int(partition)), int(offset)
        except ValueError:
            why = "partition and offset must be numbers; leave the header line out"
            raise CommandError(f"line {number}: {','.join(row)!r}: {why}") from None
        if not named or named[0] == group:
            found[key] = wanted
    if columns == 4 and not found:
        raise CommandError(f"the file has no line of group {group}")
    if not found:
        raise CommandError("the file names no partition; write lines of TOPIC,PARTITION,OFFSET")
    return found


def commit(bootstrap: str, admin: AdminClient, group: str, moves: Sequence[Move]) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    asked = [TopicPartition(move.topic, move.partition, move.offset) for move in moves]
    request = [ConsumerGroupTopicPartitions(group, asked)]
    future = admin.alter_consumer_group_offsets(request, request_timeout=REQUEST_TIMEOUT_S)[group]
    answer = outcome(bootstrap, future, f"cannot move the offsets of group {group}")
    for each in answer.topic_partitions:
        if each.error is not None and each.error.name() == "UNKNOWN_MEMBER_ID":
            raise CommandError(f"group {group} has members, which commit offsets of their own; {STOP_MEMBERS}")
        if each.error is not None:
            raise CommandError(f"cannot move {each.topic}-{each.partition}: {each.error.str()}")


def delete(bootstrap: str, admin: AdminClient, group: str, topics: Sequence[str]) -> list[PartitionKey]:
    """Deletes the offsets of these partitions. Returns the partitions that had a committed offset. The request goes directly to
    the coordinator, because librdkafka's Python client lacks OffsetDelete."""
    from kio.schema.errors import ErrorCode
    from kio.schema.offset_delete.v0.request import (
        OffsetDeleteRequest,
        OffsetDeleteRequestPartition,
        OffsetDeleteRequestTopic,
    )
    from kio.schema.offset_delete.v0.response import OffsetDeleteResponse
    from kio.schema.types import GroupId, TopicName
    from kio.static.primitive import i32

    keys = scope(bootstrap, admin, group, topics)
    known = committed(bootstrap, admin, group)
    rows = tuple(
        OffsetDeleteRequestTopic(
            name=TopicName(topic),
            partitions=tuple(
                OffsetDeleteRequestPartition(partition_index=i32(number)) for name, number in keys if name == topic
            ),
        )
        for topic in dict.fromkeys(topic for topic, _ in keys)
    )
    request = OffsetDeleteRequest(group_id=GroupId(group), topics=rows)
    answer = ask(_coordinator(bootstrap, admin, group), request, OffsetDeleteResponse)
    if answer.error_code == ErrorCode.group_id_not_found:
        raise unknown(group)
    if answer.error_code != 0:
        raise CommandError(f"cannot delete offsets of group {group}: {answer.error_code.name}")
    refused: dict[int, list[str]] = {}
    for topic in answer.topics:
        for each in topic.partitions:
            if each.error_code != 0:
                refused.setdefault(each.error_code, []).append(f"{topic.name}-{each.partition_index}")
    if refused:
        reasons = [f"{_several(names)}: {_REFUSALS.get(code, ErrorCode(code).name)}" for code, names in refused.items()]
        raise CommandError("cannot delete the offsets of " + "; of ".join(reasons))
    return [key for key in keys if key in known]


def unknown(group: str) -> CommandError:
    return CommandError(f"there is no group {group}; `tidelog group list` shows all")


def _several(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def described(bootstrap: str, admin: AdminClient, group: str) -> Any:
    """The admin client's answer about the group. The request is retried while the coordinator is created or loaded."""
    from confluent_kafka import KafkaException

    def step() -> Future[Any]:
        future: Future[Any] = admin.describe_consumer_groups([group], request_timeout=REQUEST_TIMEOUT_S)[group]
        future.exception()  # waits
        return future

    def code_of(future: Future[Any]) -> int:
        failure = future.exception()
        return int(failure.args[0].code()) if isinstance(failure, KafkaException) else 0

    return outcome(bootstrap, from_coordinator(step, code_of), f"cannot describe group {group}")


def _coordinator(bootstrap: str, admin: AdminClient, group: str) -> str:
    node = described(bootstrap, admin, group).coordinator
    return f"{node.host}:{node.port}"


class _Lookup:
    """A client that looks up offsets, under the group id of the command line tool."""

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka import Consumer

        self._consumer: Consumer = Consumer(
            {**client_config(bootstrap), "group.id": "tidelog-cli", "enable.auto.commit": False}
        )

    def __enter__(self) -> Consumer:
        return self._consumer

    def __exit__(self, *_: Any) -> None:
        self._consumer.close()
