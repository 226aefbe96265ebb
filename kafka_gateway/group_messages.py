# cython: annotation_typing=False
"""Reads the most frequent group requests (Heartbeat, OffsetCommit, JoinGroup, SyncGroup) if they are small, and writes their
answers.

This module is plain Python; `group_messages.pxd` beside it gives the types with which `hatch_build.py` compiles it. Both forms
give the same values; the tests compare them with the schema-driven readers and writers. The readers return None for a request
that is malformed, large or unusual. The schema-driven reader then reads or refuses it.

Layouts: https://kafka.apache.org/protocol.html#The_Messages_Heartbeat, #The_Messages_OffsetCommit,
#The_Messages_JoinGroup, #The_Messages_SyncGroup
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from grpc_api.contract.groups import (
    NO_GENERATION,
    Heartbeat,
    HeartbeatAnswer,
    Joined,
    JoinedMember,
    JoinGroup,
    MemberProtocol,
    OffsetCommit,
    OffsetsCommitted,
    PartitionCommit,
    Synced,
    SyncGroup,
    TopicCommit,
)
from kafka_gateway.errors import code_of
from kafka_gateway.hot_parse import FrameCursor, Malformed
from kafka_gateway.produce_answer import AnswerWriter
from storage_tiers.errors import LogError
from storage_tiers.types import NO_EPOCH, TopicId

#: Largest request that is read here.
SMALL_BYTES = 64 << 10
#: Most topics and partitions of an OffsetCommit, and most protocols of a JoinGroup, that are read here in one turn.
AT_ONCE = 100
#: Most assignments of a SyncGroup that is read here, and its largest size. A leader sends the assignments of all members. For
#: thousands of them, the schema-driven reader needs several turns of the event loop.
ASSIGNMENTS_AT_ONCE, SYNC_BYTES = 4_000, 1 << 20
#: Most members of a JoinGroup's answer that is written at once, and most bytes of it; a larger one is written in slices.
MEMBERS_AT_ONCE, ANSWER_BYTES = 200, 1 << 20
#: Longest retention that is read here; a much longer one does not fit a `timedelta`.
LONGEST_RETENTION_MS = 1 << 50

NO_TOPIC_ID = TopicId(bytes(16))

_new_tuple = tuple.__new__


def read_heartbeat(data: bytearray, start: int, end: int, version: int) -> Heartbeat | None:
    """Reads a Heartbeat, versions 0 to 4. `start` is the position after the correlation id."""
    if end - start > SMALL_BYTES:
        return None
    try:
        return heartbeat(FrameCursor(data, start, end, version >= 4), version)
    except (Malformed, UnicodeDecodeError):
        return None


def heartbeat(cursor: FrameCursor, version: int) -> Heartbeat:
    cursor.header()
    group = text(cursor)
    generation = cursor.int32()
    member_id = text(cursor)
    instance_id = nullable_text(cursor) if version >= 3 else None
    cursor.tags()
    return _new_tuple(Heartbeat, (group, generation, member_id, instance_id))


def read_offset_commit(data: bytearray, start: int, end: int, version: int) -> OffsetCommit | None:
    """Reads an OffsetCommit, versions 2 to 10, as `read_heartbeat` does."""
    if end - start > SMALL_BYTES:
        return None
    try:
        return offset_commit(FrameCursor(data, start, end, version >= 8), version)
    except (Malformed, UnicodeDecodeError):
        return None


def offset_commit(cursor: FrameCursor, version: int) -> OffsetCommit | None:
    cursor.header()
    group = text(cursor)
    generation = cursor.int32()
    member_id = text(cursor)
    instance_id = nullable_text(cursor) if version >= 7 else None
    retention_ms = cursor.int64() if version <= 4 else -1
    if retention_ms < -1 or retention_ms > LONGEST_RETENTION_MS:
        return None
    topics = cursor.count()
    left = AT_ONCE
    if topics > left:
        return None
    commits = []
    for _ in range(topics):
        topic_id = TopicId(cursor.raw(16)) if version >= 10 else None
        name = "" if version >= 10 else text(cursor)
        count = cursor.count()
        left -= count
        if left < 0:
            return None
        partitions = []
        for _ in range(count):
            index = cursor.int32()
            offset = cursor.int64()
            epoch = cursor.int32() if version >= 6 else NO_EPOCH
            metadata = nullable_text(cursor)
            cursor.tags()
            partitions.append(_new_tuple(PartitionCommit, (index, offset, epoch, metadata)))
        cursor.tags()
        commits.append(_new_tuple(TopicCommit, (name, partitions, topic_id)))
    cursor.tags()
    return _new_tuple(OffsetCommit, (group, generation, member_id, instance_id, commits, retention_ms, version >= 9))


def read_join_group(data: bytearray, start: int, end: int, version: int) -> JoinGroup | None:
    """Reads a JoinGroup, versions 0 to 9, as `read_heartbeat` does."""
    if end - start > SMALL_BYTES:
        return None
    try:
        return join_group(FrameCursor(data, start, end, version >= 6), version)
    except (Malformed, UnicodeDecodeError):
        return None


def join_group(cursor: FrameCursor, version: int) -> JoinGroup | None:
    cursor.header()
    group = text(cursor)
    session_ms = cursor.int32()
    rebalance_ms = cursor.int32() if version >= 1 else session_ms
    member_id = text(cursor)
    instance_id = nullable_text(cursor) if version >= 5 else None
    protocol_type = text(cursor)
    count = cursor.count()
    if count > AT_ONCE:
        return None
    protocols = []
    for _ in range(count):
        name = text(cursor)
        protocols.append(_new_tuple(MemberProtocol, (name, cursor.raw(cursor.bytes_size()))))
        cursor.tags()
    reason = nullable_text(cursor) if version >= 8 else None
    cursor.tags()
    return JoinGroup(
        group,
        member_id,
        instance_id,
        protocol_type,
        protocols,
        session_ms,
        rebalance_ms,
        version >= 4,
        version >= 9,
        reason,
    )


def read_sync_group(data: bytearray, start: int, end: int, version: int) -> SyncGroup | None:
    """Reads a SyncGroup, versions 0 to 5, as `read_heartbeat` does. Returns None for a version 5 request without a
    protocol: the schema-driven reader reads it."""
    if end - start > SYNC_BYTES:
        return None
    try:
        return sync_group(FrameCursor(data, start, end, version >= 4), version)
    except (Malformed, UnicodeDecodeError):
        return None


def sync_group(cursor: FrameCursor, version: int) -> SyncGroup | None:
    cursor.header()
    group = text(cursor)
    generation = cursor.int32()
    member_id = text(cursor)
    instance_id = nullable_text(cursor) if version >= 3 else None
    protocol_type = nullable_text(cursor) if version >= 5 else None
    protocol = nullable_text(cursor) if version >= 5 else None
    if version >= 5 and (protocol_type is None or protocol is None):
        return None
    count = cursor.count()
    if count > ASSIGNMENTS_AT_ONCE:
        return None
    assignments = []
    for _ in range(count):
        name = text(cursor)
        assignments.append((name, cursor.raw(cursor.bytes_size())))
        cursor.tags()
    cursor.tags()
    return SyncGroup(group, generation, member_id, instance_id, assignments, protocol_type, protocol)


def text(cursor: FrameCursor) -> str:
    size = cursor.text_size()
    if size < 0:
        raise Malformed("a null where none is allowed")
    at = cursor.skip(size)
    return cursor.data[at : at + size].decode()


def nullable_text(cursor: FrameCursor) -> str | None:
    size = cursor.text_size()
    if size < 0:
        return None
    if not size:
        return ""
    at = cursor.skip(size)
    return cursor.data[at : at + size].decode()


def heartbeat_answer(answer: HeartbeatAnswer, version: int, correlation: int, codes: Counter[int]) -> bytes:
    """The framed answer. Adds its error code to `codes`."""
    writer = AnswerWriter(16)
    write_head(writer, correlation, version >= 4, version >= 1)
    write_code(writer, answer.error, codes)
    return framed(writer, version >= 4)


def offset_commit_answer(done: OffsetsCommitted, version: int, correlation: int, codes: Counter[int]) -> bytes:
    """The framed answer. Adds its error codes to `codes`."""
    flexible = version >= 8
    by_id = version >= 10
    keys = [bytes(topic.topic_id or NO_TOPIC_ID) if by_id else topic.topic.encode() for topic in done.topics]
    size = 24
    for nth, topic in enumerate(done.topics):
        # A length or a count takes at most five bytes, a partition seven.
        size += 11 + len(keys[nth]) + 7 * len(topic.partitions)
    writer = AnswerWriter(size)
    write_head(writer, correlation, flexible, version >= 3)
    writer.count(len(keys), flexible)
    for nth, topic in enumerate(done.topics):
        key = keys[nth]
        if flexible and not by_id:
            writer.varint(len(key) + 1)
        elif not by_id:
            writer.int16(len(key))
        writer.raw(key)
        writer.count(len(topic.partitions), flexible)
        for outcome in topic.partitions:
            writer.int32(outcome.partition)
            write_code(writer, outcome.error, codes)
            if flexible:
                writer.int8(0)
        if flexible:
            writer.int8(0)
    return framed(writer, flexible)


def join_group_answer(joined: Joined, version: int, correlation: int, codes: Counter[int]) -> bytes | None:
    """The framed answer, which ends with the rows of the members; None if it is large. Adds its error code to `codes`."""
    flexible = version >= 6
    refused = joined.error is not None
    if len(joined.members) > MEMBERS_AT_ONCE:
        return None
    size = 0
    for member in joined.members:
        size += len(member.member_id) + len(member.group_instance_id or "") + len(member.metadata)
    if size > ANSWER_BYTES:
        return None
    rows = join_group_rows(joined.members, version)
    protocol_type = encoded(joined.protocol_type)
    protocol = encoded(joined.protocol)
    leader = b"" if refused else joined.leader.encode()
    member_id = joined.member_id.encode()
    size = 60 + len(protocol_type or b"") + len(protocol or b"") + len(leader) + len(member_id) + len(rows)
    writer = AnswerWriter(size)
    write_head(writer, correlation, flexible, version >= 2)
    write_code(writer, joined.error, codes)
    writer.int32(NO_GENERATION if refused else joined.generation)
    if version >= 7:
        write_compact(writer, protocol_type)
    write_text(writer, b"" if protocol is None and version < 7 else protocol, flexible)
    write_text(writer, leader, flexible)
    if version >= 9:
        writer.int8(1 if joined.skip_assignment else 0)
    write_text(writer, member_id, flexible)
    writer.count(len(joined.members), flexible)
    writer.raw(rows)
    return framed(writer, flexible)


def join_group_rows(members: Sequence[JoinedMember], version: int) -> bytes:
    """The rows of these members in a JoinGroup's answer."""
    flexible = version >= 6
    size = 0
    rows = []
    for member in members:
        name = member.member_id.encode()
        instance = encoded(member.group_instance_id)
        size += 16 + len(name) + len(instance or b"") + len(member.metadata)
        rows.append((name, instance, member.metadata))
    if not rows:
        return b""
    writer = AnswerWriter(size)
    for name, instance, metadata in rows:
        write_text(writer, name, flexible)
        if version >= 5:
            write_text(writer, instance, flexible)
        writer.count(len(metadata), flexible)
        writer.raw(metadata)
        if flexible:
            writer.int8(0)
    return bytes(writer.out[: writer.at])


def sync_group_answer(synced: Synced, version: int, correlation: int, codes: Counter[int]) -> bytes:
    """The framed answer. Adds its error code to `codes`."""
    flexible = version >= 4
    protocol_type = encoded(synced.protocol_type)
    protocol = encoded(synced.protocol)
    writer = AnswerWriter(40 + len(protocol_type or b"") + len(protocol or b"") + len(synced.assignment))
    write_head(writer, correlation, flexible, version >= 1)
    write_code(writer, synced.error, codes)
    if version >= 5:
        write_compact(writer, protocol_type)
        write_compact(writer, protocol)
    writer.count(len(synced.assignment), flexible)
    writer.raw(synced.assignment)
    return framed(writer, flexible)


def encoded(value: str | None) -> bytes | None:
    return None if value is None else value.encode()


def write_compact(writer: AnswerWriter, value: bytes | None) -> None:
    """Writes a compact string; None stands for null."""
    writer.varint(0 if value is None else len(value) + 1)
    if value is not None:
        writer.raw(value)


def write_text(writer: AnswerWriter, value: bytes | None, flexible: bool) -> None:
    """Writes a string; None stands for null."""
    if flexible:
        write_compact(writer, value)
    elif value is None:
        writer.int16(-1)
    else:
        writer.int16(len(value))
        writer.raw(value)


def write_head(writer: AnswerWriter, correlation: int, flexible: bool, has_throttle_time: bool) -> None:
    writer.int32(0)  # the frame's size, filled in at the end
    writer.int32(correlation)
    if flexible:
        writer.int8(0)
    if has_throttle_time:
        writer.int32(0)


def write_code(writer: AnswerWriter, error: LogError | None, codes: Counter[int]) -> None:
    code = 0 if error is None else code_of(error)
    if code:
        codes[code] += 1
    writer.int16(code)


def framed(writer: AnswerWriter, flexible: bool) -> bytes:
    if flexible:
        writer.int8(0)
    end = writer.at
    writer.at = 0
    writer.int32(end - 4)
    return bytes(writer.out[:end])
