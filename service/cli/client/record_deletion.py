"""Deletes the records of a topic before a position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from service.cli.client.positions import (
    EARLIEST,
    LATEST,
    Position,
    Unit,
    find_offsets,
    parse_position,
    topic_partitions,
)
from service.cli.errors import CommandError
from service.cli.kafka import REQUEST_TIMEOUT_S, client_config, connect_admin, outcome


class Deleted(NamedTuple):
    """A partition's log start before and after, and its end."""

    partition: int
    start_before: int
    start: int
    end: int


def delete_before(
    bootstrap: str, topic: str, partitions: Sequence[int] | None, before: str, *, dry_run: bool
) -> list[Deleted]:
    """Resolves the positions in all partitions before it deletes anything. Raises CommandError with the names of the partitions
    if a position is beyond a partition's end, or if deletion fails."""
    from confluent_kafka import Consumer, TopicPartition

    from storage_tiers.clock import SystemClock

    position = parse_position(before, SystemClock().unix_ms(), "--before")
    admin = connect_admin(bootstrap)
    consumer = Consumer({**client_config(bootstrap), "group.id": "tidelog-cli", "enable.auto.commit": False})
    try:
        keys = topic_partitions(bootstrap, consumer, [topic], partitions)
        starts = find_offsets(bootstrap, consumer, keys, Position(Unit.TIME, EARLIEST))
        ends = find_offsets(bootstrap, consumer, keys, Position(Unit.TIME, LATEST))
        wanted = find_offsets(bootstrap, consumer, keys, position)
    finally:
        consumer.close()
    beyond = [f"{topic}-{key[1]} ({ends[key]})" for key in keys if wanted[key] > ends[key]]
    if beyond:
        raise CommandError(f"{before} is beyond the end of {', '.join(beyond)}; nothing was deleted")
    rows = [
        Deleted(key[1], starts[key], max(starts[key], wanted[key]), ends[key]) for key in keys
    ]  # nothing to delete below the log start
    asked = [TopicPartition(topic, row.partition, row.start) for row in rows if row.start > row.start_before]
    if dry_run or not asked:
        return rows
    failures = []
    for deleted, future in admin.delete_records(asked, request_timeout=REQUEST_TIMEOUT_S).items():
        try:
            outcome(bootstrap, future, f"cannot delete records of {topic}-{deleted.partition}")
        except CommandError as error:
            failures.append(error)
    if failures:
        raise type(failures[0])("; ".join(map(str, failures)))
    return rows
