# cython: annotation_typing=False
"""Parses Produce and Fetch requests, the hot path of a busy node. `produce_answer` writes the answers of Produce.

This module is plain Python; `hot_parse.pxd` beside it gives the types with which `hatch_build.py` compiles it. Both forms give
the same values; the tests compare them with kio's parsers. Records are never copied: a produced batch is a slice of the receive
buffer, valid until the next receive. Every read is checked against the frame's end, so a wrong length raises `Malformed` and
reads nothing outside the frame.

Layouts: https://kafka.apache.org/protocol.html#The_Messages_Produce, #The_Messages_Fetch
"""

from __future__ import annotations

from collections.abc import Callable

from grpc_api.contract.log import Append, FetchPartition
from kafka_gateway.produce_refusals import NO_BATCH, no_zstd, second_batch, unknown_id
from storage_tiers.errors import LogError
from storage_tiers.types import TopicId, TopicPartition

#: Most cached partition names: clients may name topics that do not exist. The names of the oldest topic are evicted first.
REMEMBERED_PARTITIONS = 100_000
#: Most topics, and most partitions, in one request. A frame of 100 MB could name millions. All their objects are freed at once,
#: which takes 20 ms for 100,000.
PARTITIONS_A_REQUEST = 50_000
#: Most partitions that one request may remove from a session. A session has no more (`fetch_sessions.py`).
FORGOTTEN_A_REQUEST = 20_000
#: Most topics, and most partitions, of a Produce that `HotParser.produce` reads.
AT_ONCE = 500

#: Most tagged fields in one structure. Kafka defines at most five. A frame has room for millions, and each must be read.
TAGS = 100
#: Bytes of the longest string. The compact form could hold more, which Kafka refuses too.
LONGEST_STRING = 32_767

_new_tuple = tuple.__new__


class Malformed(Exception):
    """The frame is not a valid request of its version. The connection is closed, as in Kafka."""


class PartitionNames:
    """Caches TopicPartitions by the encoded name of the topic and the index."""

    def __init__(self) -> None:
        self.topics: dict[bytes, dict[int, TopicPartition]] = {}
        self.count = 0

    def find(self, name: bytes, index: int) -> TopicPartition:
        partitions = self.topics.get(name)
        if partitions is not None:
            known = partitions.get(index)
            if known is not None:
                return known
        return self.remember(name, index)

    def remember(self, name: bytes, index: int) -> TopicPartition:
        while self.count >= REMEMBERED_PARTITIONS:
            # This evicts one topic at a time, because evicting all at once takes 20 ms.
            self.count -= len(self.topics.pop(next(iter(self.topics))))
        partition = TopicPartition(name.decode("utf-8", "replace"), index)
        self.topics.setdefault(name, {})[index] = partition
        self.count += 1
        return partition


class FrameCursor:
    """A position in a frame. Reads past `end` raise Malformed."""

    def __init__(self, data: bytearray, at: int, end: int, flexible: bool) -> None:
        self.data = data
        self.at = at
        self.end = end
        self.flexible = flexible

    def skip(self, size: int) -> int:
        """Returns the position of the skipped bytes."""
        at = self.at
        if size < 0 or size > self.end - at:
            raise Malformed(f"{size} bytes wanted at {at}, {self.end - at} left")
        self.at = at + size
        return at

    def int8(self) -> int:
        at = self.skip(1)
        return (self.data[at] ^ 0x80) - 0x80

    def int16(self) -> int:
        at = self.skip(2)
        return ((self.data[at] ^ 0x80) << 8 | self.data[at + 1]) - 0x8000

    def int32(self) -> int:
        at = self.skip(4)
        data = self.data
        return ((data[at] ^ 0x80) - 0x80) * 0x1000000 + (data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3])

    def int64(self) -> int:
        value = self.int32()
        at = self.skip(4)
        data = self.data
        # Computed in two halves, because Cython would use Python integers with a literal beyond 32 bits.
        value = value * 0x10000 + (data[at] << 8 | data[at + 1])
        return value * 0x10000 + (data[at + 2] << 8 | data[at + 3])

    def varint(self) -> int:
        """An unsigned varint of at most five bytes."""
        value = shift = 0
        while shift < 35:
            at = self.skip(1)
            # Without this variable, C would shift an int, which has fewer than 35 bits.
            byte = self.data[at] & 0x7F
            value |= byte << shift
            if self.data[at] < 0x80:
                return value
            shift += 7
        raise Malformed(f"a varint of more than five bytes ends at {self.at}")

    def count(self) -> int:
        """The number of an array's elements; none of these arrays may be null."""
        value = self.varint() - 1 if self.flexible else self.int32()
        if value < 0:
            raise Malformed(f"a null array before {self.at} where none is allowed")
        return value

    def text_size(self) -> int:
        """The length of a string in bytes; -1 for null."""
        if not self.flexible:
            return self.int16()
        size = self.varint() - 1
        if size > 0x7FFF:  # LONGEST_STRING; a global would be looked up each time
            raise Malformed(f"a string of {size} bytes before {self.at}; at most {LONGEST_STRING} are allowed")
        return size

    def bytes_size(self) -> int:
        return self.varint() - 1 if self.flexible else self.int32()

    def text(self) -> str | None:
        size = self.text_size()
        if size < 0:
            return None
        at = self.skip(size)
        return str(self.data[at : at + size], "utf-8", "replace")

    def raw(self, size: int) -> bytes:
        at = self.skip(size)
        return bytes(self.data[at : at + size])

    def topic(self, by_id: bool) -> bytes:
        """A topic's name as sent, or its id."""
        return self.raw(16 if by_id else self.text_size())

    def tags(self) -> None:
        """Skips tagged fields."""
        if not self.flexible:
            return
        for _ in range(self.tag_count()):
            self.varint()
            self.skip(self.varint())

    def tag_count(self) -> int:
        """The number of a structure's tagged fields."""
        count = self.varint()
        # Nearly all structures have none; testing for 0 first saves a lookup of the global TAGS.
        if count and count > TAGS:
            raise too_many_tags(count)
        return count

    def header(self) -> None:
        """Skips the fields after a request's correlation id: the client id (never compact) and tagged fields."""
        size = self.int16()
        if size > 0:
            self.skip(size)
        self.tags()


class ProduceRequest:
    """`topics` are (name or id as sent, number of partitions); `indexes` are their partitions' indexes, in order.

    `appends` are the batches that may be appended, in order. `refused` has the errors of all other partitions, by their
    positions in `indexes`. `is_transactional`: whether any batch has the transactional attribute.
    """

    def __init__(self) -> None:
        self.transactional_id: str | None = None
        self.is_transactional = False
        self.acks = 0
        self.timeout_ms = 0
        self.topics: list[tuple[bytes, int]] = []
        self.indexes: list[int] = []
        self.appends: list[Append] = []
        self.refused: dict[int, LogError] = {}
        self.taken: set[TopicPartition] | None = None

    def is_taken(self, partition: TopicPartition) -> bool:
        """Whether the request already has a batch of this partition. Not called for the request's first partition."""
        if self.taken is None:
            self.taken = {append.partition for append in self.appends}
        known = len(self.taken)
        self.taken.add(partition)
        return len(self.taken) == known


class FetchRequest:
    """`topics` and `indexes` are as in ProduceRequest. `partitions` has one entry per index. `forgotten` are (name or id,
    index).

    The topic name of an unknown topic id is empty; a fetch session may learn it later.
    """

    def __init__(self) -> None:
        self.replica_id = -1
        self.max_wait_ms = 0
        self.min_bytes = 0
        self.max_bytes = 0x7FFFFFFF
        self.isolation = 0
        self.session_id = 0
        self.session_epoch = -1
        self.topics: list[tuple[bytes, int]] = []
        self.indexes: list[int] = []
        self.partitions: list[FetchPartition] = []
        self.forgotten: list[tuple[bytes, int]] = []


class HotParser:
    """Caches names between requests. `topic_name` returns the name of an existing topic by its id."""

    def __init__(self, topic_name: Callable[[TopicId], str | None]) -> None:
        self.names = PartitionNames()
        self.topic_name = topic_name
        self.at_once = AT_ONCE

    def name_of(self, key: bytes, by_id: bool) -> bytes | None:
        if not by_id:
            return key
        name = self.topic_name(TopicId(key))
        return None if name is None else name.encode()

    def produce(self, data: bytearray, view: memoryview, start: int, end: int, version: int) -> ProduceRequest | None:
        """Reads a Produce, versions 3 to 13. `start` is the position after the correlation id; `view` is a view of `data`.
        Returns None if there are more than AT_ONCE topics or partitions; `reading` reads such requests. Raises Malformed."""
        by_id = version >= 13
        cursor = FrameCursor(data, start, end, version >= 9)
        cursor.header()
        request = ProduceRequest()
        topics = produce_head(cursor, request)
        if topics > self.at_once:
            return None
        left = self.at_once
        for _ in range(topics):
            key = cursor.topic(by_id)
            name = self.name_of(key, by_id)
            partitions = cursor.count()
            left -= partitions
            if left < 0:
                return None
            request.topics.append((key, partitions))
            for _ in range(partitions):
                self.produce_partition(cursor, view, version, request, name, key)
            cursor.tags()
        cursor.tags()
        return request

    def reading(self, data: bytearray, view: memoryview, start: int, end: int, version: int) -> ProduceReading:
        """Begins to read a Produce of any size, as `produce` does. Raises Malformed."""
        reading = ProduceReading()
        reading.begin(self, data, view, start, end, version)
        return reading

    def produce_partition(
        self,
        cursor: FrameCursor,
        view: memoryview,
        version: int,
        request: ProduceRequest,
        name: bytes | None,
        key: bytes,
    ) -> None:
        index = cursor.int32()
        size = cursor.bytes_size()
        at = cursor.skip(size if size > 0 else 0)
        cursor.tags()
        request.indexes.append(index)
        nth = len(request.indexes) - 1
        if name is None:
            request.refused[nth] = unknown_id(key)
        elif size <= 0:
            request.refused[nth] = NO_BATCH
        elif version < 7 and size > 22 and cursor.data[at + 22] & 7 == 4:
            request.refused[nth] = no_zstd(version)
        else:
            if size > 22 and cursor.data[at + 22] & 16:
                request.is_transactional = True
            partition = self.names.find(name, index)
            if nth and request.is_taken(partition):
                request.refused[nth] = second_batch(partition)
            else:
                request.appends.append(_new_tuple(Append, (partition, view[at : at + size])))

    def fetch(self, data: bytearray, start: int, end: int, version: int) -> FetchRequest:
        """Reads a Fetch, versions 4 to 18. `start` is the position after the correlation id. Raises Malformed."""
        reading = FetchReading()
        reading.begin(self, data, start, end, version)
        reading.step(2 * PARTITIONS_A_REQUEST + 2)
        return reading.request

    def fetch_partition(
        self, cursor: FrameCursor, version: int, request: FetchRequest, name: bytes, topic_id: TopicId | None
    ) -> None:
        index = cursor.int32()
        current_epoch = cursor.int32() if version >= 9 else -1
        offset = cursor.int64()
        last_epoch = cursor.int32() if version >= 12 else -1
        if version >= 5:
            cursor.skip(8)
        max_bytes = cursor.int32()
        cursor.tags()
        if len(request.indexes) >= PARTITIONS_A_REQUEST:
            raise too_many(PARTITIONS_A_REQUEST)
        request.indexes.append(index)
        partition = self.names.find(name, index)
        request.partitions.append(
            _new_tuple(FetchPartition, (partition, offset, max_bytes, current_epoch, last_epoch, topic_id))
        )

    def fetch_rest(self, cursor: FrameCursor, version: int, request: FetchRequest) -> None:
        """Reads the fields after the topics: forgotten topics (sessions only), the rack, and the replica's state."""
        if version >= 7:
            self.fetch_forgotten(cursor, version, request)
        if version >= 11:
            cursor.skip(cursor.text_size())
        if version < 12:
            return
        for _ in range(cursor.tag_count()):
            tag = cursor.varint()
            size = cursor.varint()
            at = cursor.skip(size)
            if tag == 1 and size >= 4:
                request.replica_id = FrameCursor(cursor.data, at, at + size, True).int32()

    def fetch_forgotten(self, cursor: FrameCursor, version: int, request: FetchRequest) -> None:
        topics = cursor.count()
        if topics > FORGOTTEN_A_REQUEST:
            raise too_many(FORGOTTEN_A_REQUEST)
        for _ in range(topics):
            key = cursor.topic(version >= 13)
            for _ in range(cursor.count()):
                if len(request.forgotten) >= FORGOTTEN_A_REQUEST:
                    raise too_many(FORGOTTEN_A_REQUEST)
                request.forgotten.append((key, cursor.int32()))
            cursor.tags()


def produce_head(cursor: FrameCursor, request: ProduceRequest) -> int:
    """Reads the fields before the topics. Returns the number of topics."""
    request.transactional_id = cursor.text()
    request.acks = cursor.int16()
    request.timeout_ms = cursor.int32()
    return cursor.count()


class ProduceReading:
    """Reads a Produce in steps: call `begin`, then `step` until it returns True and `request` is complete. It
    refers to the frame's bytes until it is dropped."""

    def begin(self, parser: HotParser, data: bytearray, view: memoryview, start: int, end: int, version: int) -> None:
        cursor = FrameCursor(data, start, end, version >= 9)
        cursor.header()
        self.parser = parser
        self.cursor = cursor
        self.view = view
        self.version = version
        self.request = ProduceRequest()
        self.topics_left = produce_head(cursor, self.request)
        self.partitions_left = 0
        self.key = b""
        self.name: bytes | None = None

    def step(self, most: int) -> bool:
        """Reads up to `most` topics and partitions. True at the end of the request. Raises Malformed."""
        cursor = self.cursor
        request = self.request
        while self.partitions_left or self.topics_left:
            if most <= 0:
                return False
            most -= 1
            if self.partitions_left:
                if len(request.indexes) >= PARTITIONS_A_REQUEST:
                    raise too_many(PARTITIONS_A_REQUEST)
                self.partitions_left -= 1
                self.parser.produce_partition(cursor, self.view, self.version, request, self.name, self.key)
            else:
                self.topics_left -= 1
                self.topic()
            if not self.partitions_left:
                cursor.tags()
        cursor.tags()
        return True

    def topic(self) -> None:
        by_id = self.version >= 13
        if len(self.request.topics) >= PARTITIONS_A_REQUEST:
            raise too_many(PARTITIONS_A_REQUEST)
        self.key = self.cursor.topic(by_id)
        self.name = self.parser.name_of(self.key, by_id)
        self.partitions_left = self.cursor.count()
        self.request.topics.append((self.key, self.partitions_left))


class FetchReading:
    """Reads a Fetch in steps: call `begin`, then `step` until it returns True and `request` is complete."""

    def begin(self, parser: HotParser, data: bytearray, start: int, end: int, version: int) -> None:
        """Takes the same arguments as `HotParser.fetch`, and reads the fields before the topics. Raises Malformed."""
        cursor = FrameCursor(data, start, end, version >= 12)
        cursor.header()
        request = FetchRequest()
        if version < 15:
            request.replica_id = cursor.int32()
        request.max_wait_ms = cursor.int32()
        request.min_bytes = cursor.int32()
        request.max_bytes = cursor.int32()
        request.isolation = cursor.int8()
        if version >= 7:
            request.session_id = cursor.int32()
            request.session_epoch = cursor.int32()
        self.parser = parser
        self.cursor = cursor
        self.version = version
        self.request = request
        self.topics_left = cursor.count()
        self.partitions_left = 0
        self.name = b""
        self.topic_id: TopicId | None = None

    def step(self, most: int) -> bool:
        """Reads up to `most` topics and partitions. True at the end of the request. Raises Malformed."""
        cursor = self.cursor
        request = self.request
        while self.partitions_left or self.topics_left:
            if most <= 0:
                return False
            most -= 1
            if self.partitions_left:
                self.partitions_left -= 1
                self.parser.fetch_partition(cursor, self.version, request, self.name, self.topic_id)
            else:
                self.topics_left -= 1
                self.topic()
            if not self.partitions_left:
                cursor.tags()
        self.parser.fetch_rest(cursor, self.version, request)
        return True

    def topic(self) -> None:
        by_id = self.version >= 13
        if len(self.request.topics) >= PARTITIONS_A_REQUEST:
            raise too_many(PARTITIONS_A_REQUEST)
        key = self.cursor.topic(by_id)
        name = self.parser.name_of(key, by_id)
        self.name = b"" if name is None else name
        self.topic_id = TopicId(key) if by_id else None
        self.partitions_left = self.cursor.count()
        self.request.topics.append((key, self.partitions_left))


def body_start(data: bytearray, start: int, end: int, flexible: bool) -> int:
    """The position of a request's body; `start` is the position after its correlation id. Raises Malformed."""
    cursor = FrameCursor(data, start, end, flexible)
    cursor.header()
    return cursor.at


def too_many(bound: int) -> Malformed:
    return Malformed(f"a request names more than {bound} topics or partitions")


def too_many_tags(count: int) -> Malformed:
    return Malformed(f"{count} tagged fields in one structure, which may have {TAGS}")
