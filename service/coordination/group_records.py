"""The records of `__consumer_offsets`: committed offsets and classic groups.

Format: Kafka 4.2.1's message definitions OffsetCommitKey and -Value, GroupMetadataKey and -Value, so that Kafka's
DumpLogSegments reads these partitions with `--offsets-decoder`, and this node reads a directory or bucket taken from Kafka. A
record without a value is a tombstone: it removes its key.

This module writes the versions that Kafka 4.2.1 writes, and reads all versions that Kafka 4.2.1 reads. It does not read records
of the newer group protocols (types 3 and up): their keys are `UnknownKey`, which a reader skips.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from typing import NamedTuple

from service.coordination.commit_fields import encode_offset_key, encode_short_offset
from service.coordination.record_fields import MAX_STRING_BYTES, FieldReader, FieldWriter, too_long
from storage_tiers.types import TopicId

#: Types of keys. The first two both mean a committed offset; Kafka wrote type 0 before 0.9.
_LEGACY_OFFSET, _OFFSET, _GROUP = 0, 1, 2
#: Versions written, and the first flexible one.
_OFFSET_VERSION, _GROUP_VERSION, _FLEXIBLE_FROM = 4, 3, 4
_TOPIC_ID_TAG = 0
NO_TOPIC_ID = TopicId(bytes(16))
#: Beginnings of an offset's key (type, length of the group) and value (version, offset, leader epoch).
_OFFSET_KEY, _OFFSET_VALUE = struct.Struct(">hH"), struct.Struct(">hqi")
_LENGTH, _PARTITION, _TIMESTAMP = struct.Struct(">H"), struct.Struct(">i"), struct.Struct(">q")
#: Longest metadata whose compact length has one byte.
_SHORT = 0x7E
_NO_TAGS_BYTES = 1
_LATEST_MS = (1 << 63) - 1
#: Structs of one member: its timeouts and the size of its subscription; the size of its assignment; a null instance id.
_MEMBER, _SIZE, _NULL = struct.Struct(">iii"), struct.Struct(">i"), b"\xff\xff"
#: Positions in a short value (of the metadata's length, and of the timestamp from the end), and the value's size without
#: metadata.
_METADATA_AT = _OFFSET_VALUE.size
_TIMESTAMP_AT = -_TIMESTAMP.size - _NO_TAGS_BYTES
_SHORTEST = _METADATA_AT + 1 - _TIMESTAMP_AT


def later(unix_ms: int, by_ms: int) -> int:
    """The time `by_ms` later, or the latest time that a record can hold."""
    return min(unix_ms + by_ms, _LATEST_MS)


class OffsetKey(NamedTuple):
    """The key of a group's committed offset."""

    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """The key of a group's members and assignment."""

    group: str


class UnknownKey(NamedTuple):
    """A key of a type that classic groups do not have."""

    kind: int


GroupRecordKey = OffsetKey | GroupKey | UnknownKey


class CommittedOffset(NamedTuple):
    """`offset` is the next offset to read, `leader_epoch` the epoch of the last record read, -1 if unknown. Times are in ms
    since 1970. `expire_timestamp` is -1 unless the commit had its own retention (OffsetCommit below version 5)."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int = -1
    topic_id: TopicId = NO_TOPIC_ID

    def not_before(self, unix_ms: int) -> CommittedOffset:
        """The offset with its commit time raised to at least that time."""
        late = unix_ms - self.commit_timestamp
        if late <= 0:
            return self
        expires = self.expire_timestamp
        return self._replace(
            commit_timestamp=unix_ms, expire_timestamp=expires if expires < 0 else later(expires, late)
        )


class MemberMetadata(NamedTuple):
    """One member. Timeouts are in ms. `subscription` and `assignment` are its protocol's bytes, opaque to the broker;
    `group_instance_id` is set for a static member (KIP-345)."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout: int
    session_timeout: int
    subscription: bytes
    assignment: bytes


class GroupMetadata(NamedTuple):
    """One generation of a group. `protocol` and `leader` are None in an empty group; `state_timestamp` is the time in ms of its
    last change of state, -1 if unknown."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp: int
    members: tuple[MemberMetadata, ...]


#: A member for `encode_members`: its `encode_names`, the timeouts of its rebalances and of its session, its subscription
#: and its assignment.
MemberFields = tuple[bytes, int, int, bytes, bytes]


def encode_key(key: OffsetKey | GroupKey) -> bytes:
    """Raises ValueError if a name is longer than 32,767 bytes."""
    if isinstance(key, OffsetKey):
        return encode_offset_key(key.group, key.topic, key.partition)
    writer = FieldWriter(_GROUP)
    writer.string(key.group)
    return bytes(writer.data)


def decode_key(data: bytes) -> GroupRecordKey:
    """Raises CorruptRecord if the bytes are not a key."""
    key = _offset_key(data)
    if key is not None:
        return key
    reader = FieldReader(data, "the key of a group's record")
    kind = reader.int16()
    if kind in (_LEGACY_OFFSET, _OFFSET):
        found: GroupRecordKey = OffsetKey(reader.string(), reader.string(), reader.int32())
    elif kind == _GROUP:
        found = GroupKey(reader.string())
    else:
        return UnknownKey(kind)
    reader.end()
    return found


def _offset_key(data: bytes) -> OffsetKey | None:
    """Decodes a committed offset's key. Returns None if the bytes are another key or not readable. It uses no `FieldReader`,
    which would be too slow for the millions of keys that a coordinator loads."""
    try:
        kind, size = _OFFSET_KEY.unpack_from(data)
        at = _OFFSET_KEY.size + size
        name_at = at + _LENGTH.size
        end = len(data) - _PARTITION.size
        if kind != _OFFSET or size > MAX_STRING_BYTES or name_at + _LENGTH.unpack_from(data, at)[0] != end:
            return None
        return OffsetKey(
            data[_OFFSET_KEY.size : at].decode(), data[name_at:end].decode(), _PARTITION.unpack_from(data, end)[0]
        )
    except (struct.error, UnicodeDecodeError):
        return None


def encode_offset(value: CommittedOffset) -> bytes:
    """Encodes version 4, or version 1 if the commit has its own expiry, as Kafka does. Raises ValueError if the metadata does
    not fit."""
    if value.expire_timestamp == -1 and value.topic_id == NO_TOPIC_ID and len(value.metadata) <= _SHORT:
        short = encode_short_offset(value.offset, value.leader_epoch, value.metadata, value.commit_timestamp)
        if short is not None:  # the common case, without a `FieldWriter`
            return short
    version = 1 if value.expire_timestamp != -1 else _OFFSET_VERSION
    writer = FieldWriter(version, flexible=version >= _FLEXIBLE_FROM)
    writer.int64(value.offset)
    if version >= 3:
        writer.int32(value.leader_epoch)
    writer.string(value.metadata)
    writer.int64(value.commit_timestamp)
    if version == 1:
        writer.int64(value.expire_timestamp)
    writer.tagged({} if value.topic_id == NO_TOPIC_ID else {_TOPIC_ID_TAG: bytes(value.topic_id)})
    return bytes(writer.data)


def decode_offset(data: bytes) -> CommittedOffset:
    """Raises CorruptRecord if the bytes are not a committed offset of versions 0 to 4."""
    value = _short_offset(data)
    if value is not None:
        return value
    reader = FieldReader(data, "a committed offset")
    version = reader.int16()
    if not 0 <= version <= _OFFSET_VERSION:
        raise reader.unknown("version", version)
    reader.flexible = version >= _FLEXIBLE_FROM
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata = reader.string()
    commit_timestamp = reader.int64()
    expire_timestamp = reader.int64() if version == 1 else -1
    topic_id = reader.tagged().get(_TOPIC_ID_TAG, NO_TOPIC_ID)
    reader.end()
    if len(topic_id) != len(NO_TOPIC_ID):
        raise reader.unknown("length of a topic id", len(topic_id))
    return CommittedOffset(offset, leader_epoch, metadata, commit_timestamp, expire_timestamp, TopicId(topic_id))


def _short_offset(data: bytes) -> CommittedOffset | None:
    """Decodes the common case: a committed offset of version 4 with short metadata and no topic id. Returns None for other
    values."""
    size = len(data)
    if size < _SHORTEST or data[_METADATA_AT] != size - _SHORTEST + 1 or data[_METADATA_AT] > _SHORT + 1 or data[-1]:
        return None
    version, offset, leader_epoch = _OFFSET_VALUE.unpack_from(data)
    if version != _OFFSET_VERSION:
        return None
    try:
        metadata = data[_METADATA_AT + 1 : _TIMESTAMP_AT].decode()
    except UnicodeDecodeError:
        return None
    return CommittedOffset(offset, leader_epoch, metadata, _TIMESTAMP.unpack_from(data, size + _TIMESTAMP_AT)[0])


def encode_names(member_id: str, instance: str | None, client_id: str, host: str) -> bytes:
    """Encodes the first fields of a member in a group's record. Raises ValueError if a name does not fit."""
    return b"".join(
        (_string(member_id), _NULL if instance is None else _string(instance), _string(client_id), _string(host))
    )


def encode_members(members: Sequence[MemberFields]) -> bytes:
    """Encodes some members of a group's record. A group may have thousands, and encoding all of them would block the event
    loop."""
    parts: list[bytes] = []
    timeouts, length = _MEMBER.pack, _SIZE.pack
    for names, rebalance_timeout, session_timeout, subscription, assignment in members:
        parts += (
            names,
            timeouts(rebalance_timeout, session_timeout, len(subscription)),
            subscription,
            length(len(assignment)),
            assignment,
        )
    return b"".join(parts)


def encode_head(value: GroupMetadata, members: int) -> bytes:
    """Encodes a group's record up to its members. This part ends with the number of members."""
    writer = FieldWriter(_GROUP_VERSION)
    writer.string(value.protocol_type)
    writer.int32(value.generation)
    writer.string(value.protocol)
    writer.string(value.leader)
    writer.int64(value.state_timestamp)
    writer.count(members)
    return bytes(writer.data)


def _string(text: str) -> bytes:
    content = text.encode()
    if len(content) > MAX_STRING_BYTES:
        raise too_long(len(content))
    return _LENGTH.pack(len(content)) + content


def decode_group_in_steps(data: bytes) -> Generator[None, None, GroupMetadata]:
    """Decodes a group in steps, one for each member, because a group may have thousands. Raises CorruptRecord if the bytes are
    not a group of versions 0 to 4."""
    reader = FieldReader(data, "a group's metadata")
    version = reader.int16()
    if not 0 <= version <= _FLEXIBLE_FROM:
        raise reader.unknown("version", version)
    reader.flexible = version >= _FLEXIBLE_FROM

    def member() -> MemberMetadata:
        member_id = reader.string()
        instance = reader.nullable_string() if version >= 3 else None
        client_id, client_host = reader.string(), reader.string()
        rebalance_timeout = reader.int32() if version >= 1 else -1
        session_timeout = reader.int32()
        found = MemberMetadata(
            member_id,
            instance,
            client_id,
            client_host,
            # Before version 1 both timeouts were one setting.
            session_timeout if rebalance_timeout == -1 else rebalance_timeout,
            session_timeout,
            reader.sized_bytes(),
            reader.sized_bytes(),
        )
        reader.tagged()
        return found

    group = GroupMetadata(
        reader.string(),
        reader.int32(),
        reader.nullable_string(),
        reader.nullable_string(),
        reader.int64() if version >= 2 else -1,
        (yield from reader.array_in_steps(member)),
    )
    reader.tagged()
    reader.end()
    return group
