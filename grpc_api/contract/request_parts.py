"""Divides long requests for a group into parts. The coordinator decides them one by one, each in one turn of the event loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

#: The most partitions, or members, in one part. A coordinator decides this number in about two milliseconds.
AT_ONCE = 200


class TopicPart(NamedTuple):
    """Some partitions of one topic of a request; `at` is the topic's index in the request."""

    at: int
    topic: Any
    partitions: Sequence[Any]


def parts_of(topics: Iterable[tuple[Any, Sequence[Any]]], most: int = AT_ONCE) -> Iterator[list[TopicPart]]:
    """Divides topics with their partitions into parts, in order. A part has at most `most` partitions; a topic without
    partitions counts as one."""
    part: list[TopicPart] = []
    room = most
    for at, (topic, partitions) in enumerate(topics):
        first = 0
        while first < len(partitions) or not first:
            some = partitions[first : first + room]
            part.append(TopicPart(at, topic, some))
            first += max(1, len(some))
            room -= max(1, len(some))
            if not room:
                yield part
                part, room = [], most
    if part:
        yield part


def is_long(topics: Sequence[Any], counts: Iterable[int]) -> bool:
    """Whether a request for these topics, with these numbers of partitions, has more than one part."""
    return len(topics) > AT_ONCE or sum(counts) > AT_ONCE
