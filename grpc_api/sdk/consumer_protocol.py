"""Kafka's ConsumerProtocol: the bytes of subscriptions and assignments that members of a consumer group exchange. Pure.

Format: ConsumerProtocolSubscription and ConsumerProtocolAssignment of Apache Kafka 4.2.1, versions 0 to 3, which members of all
Kafka clients read. A version above 3 is read as 3, because new versions only add fields at the end.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from storage_tiers.errors import InvalidRequest
from storage_tiers.types import TopicPartition

#: The protocol type of consumers.
CONSUMER = "consumer"
_SUBSCRIPTION_VERSION = 3
_ASSIGNMENT_VERSION = 0
_NULL = -1
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")


class MemberSubscription(NamedTuple):
    """A member's topics, and the partitions that it owned in `generation` (-1: unknown) when it sent this."""

    topics: Sequence[str]
    owned: Sequence[TopicPartition] = ()
    generation: int = -1


def encode_subscription(subscription: MemberSubscription) -> bytes:
    parts = [_INT16.pack(_SUBSCRIPTION_VERSION), _INT32.pack(len(subscription.topics))]
    parts += map(_string, subscription.topics)
    parts += [_INT32.pack(_NULL), *_partitions(subscription.owned), _INT32.pack(subscription.generation)]
    parts.append(_INT16.pack(_NULL))  # no rack
    return b"".join(parts)


def decode_subscription(data: bytes) -> MemberSubscription:
    """Raises InvalidRequest for invalid bytes."""
    fields = _Fields(data, "subscription")
    version = fields.int16()
    topics = [fields.string() for _ in range(fields.count())]
    fields.skip_bytes()
    owned = fields.partitions() if version >= 1 else []
    generation = fields.int32() if version >= 2 else -1
    return MemberSubscription(topics, owned, generation)


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    return b"".join([_INT16.pack(_ASSIGNMENT_VERSION), *_partitions(partitions), _INT32.pack(_NULL)])


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Empty bytes mean no partitions: a leader may send them to a member without partitions. Raises InvalidRequest for
    invalid bytes."""
    if not data:
        return []
    fields = _Fields(data, "assignment")
    fields.int16()
    return fields.partitions()


def _string(text: str) -> bytes:
    data = text.encode()
    return _INT16.pack(len(data)) + data


def _partitions(partitions: Iterable[TopicPartition]) -> list[bytes]:
    by_topic: Mapping[str, list[int]] = {
        topic: [each.partition for each in of_topic]
        for topic, of_topic in groupby(sorted(partitions), key=lambda each: each.topic)
    }
    parts = [_INT32.pack(len(by_topic))]
    for topic, numbers in by_topic.items():
        parts += [_string(topic), _INT32.pack(len(numbers)), struct.pack(f">{len(numbers)}i", *numbers)]
    return parts


class _Fields:
    """Reads one value after the other."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._what = what
        self._at = 0

    def _take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self._at:
            raise InvalidRequest(
                f"a member of the group sent a {self._what} that is not in the format of "
                f"Kafka's consumers ({len(self._data)} bytes)"
            )
        self._at += size
        return self._data[self._at - size : self._at]

    def int16(self) -> int:
        return int(_INT16.unpack(self._take(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self._take(4))[0])

    def count(self) -> int:
        """An array's length. Raises InvalidRequest if the rest is too short for it: each element has at least two bytes."""
        count = self.int32()
        if count * 2 > len(self._data) - self._at:
            self._take(-1)
        return max(count, 0)

    def string(self) -> str:
        try:
            return self._take(self.int16()).decode()
        except UnicodeDecodeError:
            self._take(-1)
            raise

    def skip_bytes(self) -> None:
        size = self.int32()
        if size != _NULL:
            self._take(size)

    def partitions(self) -> list[TopicPartition]:
        found = []
        for _ in range(self.count()):
            topic = self.string()
            found += [TopicPartition(topic, self.int32()) for _ in range(self.count())]
        return found
