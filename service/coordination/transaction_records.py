"""The records of `__transaction_state`: one transactional id, its producer and its current transaction.

Format: Kafka 4.2.1's message definitions TransactionLogKey and TransactionLogValue, read by DumpLogSegments with
`--transaction-log-decoder`. A record without a value is a tombstone: the transactional id expired.

This module writes version 1, as Kafka does if `transaction.version` is 1 or 2, and reads versions 0 and 1.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from enum import IntEnum
from typing import NamedTuple

from service.coordination.record_fields import FieldReader, FieldWriter
from storage_tiers.types import NO_PRODUCER_ID

_KEY = 0
_VERSION = 1
_PREVIOUS_ID_TAG, _NEXT_ID_TAG, _CLIENT_VERSION_TAG, _NEXT_EPOCH_TAG = 0, 1, 2, 3
_INT16, _INT64 = struct.Struct(">h"), struct.Struct(">q")
_NO_EPOCH = -1


class TransactionStatus(IntEnum):
    """States of a transactional id, by Kafka's numbers (TransactionState)."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


class TopicPartitions(NamedTuple):
    """Partitions of one topic in a transaction."""

    topic: str
    partitions: tuple[int, ...]


class TransactionValue(NamedTuple):
    """The state of one transactional id. Times are in ms since 1970, `start_timestamp` -1 before its first transaction.

    `partitions` is None before the first transaction. `previous_producer_id` is the producer id of the previous transaction, if
    the epochs of that id are used up. `next_producer_id` and `next_producer_epoch` are those that the producer gets when this
    transaction completes (KIP-890). All three are -1 if unused. `client_version` is the client's `transaction.version`."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    status: TransactionStatus
    partitions: tuple[TopicPartitions, ...] | None
    update_timestamp: int
    start_timestamp: int
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    next_producer_epoch: int = _NO_EPOCH
    client_version: int = 0


def encode_key(transactional_id: str) -> bytes:
    """Raises ValueError if the id is longer than 32,767 bytes."""
    writer = FieldWriter(_KEY)
    writer.string(transactional_id)
    return bytes(writer.data)


def decode_key(data: bytes) -> str | None:
    """The transactional id; None for a record of another type, which a newer release may have written. Raises CorruptRecord if
    the bytes are not a key."""
    reader = FieldReader(data, "the key of a transaction's record")
    if reader.int16() != _KEY:
        return None
    transactional_id = reader.string()
    reader.end()
    return transactional_id


def encode_value(value: TransactionValue) -> bytes:
    writer = FieldWriter(_VERSION, flexible=True)
    writer.int64(value.producer_id)
    writer.int16(value.producer_epoch)
    writer.int32(value.timeout_ms)
    writer.int8(value.status)
    writer.count(None if value.partitions is None else len(value.partitions))
    for topic in value.partitions or ():
        writer.string(topic.topic)
        writer.count(len(topic.partitions))
        for partition in topic.partitions:
            writer.int32(partition)
        writer.tagged({})
    writer.int64(value.update_timestamp)
    writer.int64(value.start_timestamp)
    writer.tagged(
        {
            tag: kind.pack(number)
            for tag, kind, number, default in (
                (_PREVIOUS_ID_TAG, _INT64, value.previous_producer_id, NO_PRODUCER_ID),
                (_NEXT_ID_TAG, _INT64, value.next_producer_id, NO_PRODUCER_ID),
                (_CLIENT_VERSION_TAG, _INT16, value.client_version, 0),
                (_NEXT_EPOCH_TAG, _INT16, value.next_producer_epoch, _NO_EPOCH),
            )
            if number != default
        }
    )
    return bytes(writer.data)


def decode_value_in_steps(data: bytes) -> Generator[None, None, TransactionValue]:
    """Decodes a transaction in steps, one for each topic, because a transaction may have thousands. Raises CorruptRecord if the
    bytes are not a transaction of version 0 or 1, or its state is not one of Kafka's."""
    reader = FieldReader(data, "a transaction's state")
    version = reader.int16()
    if not 0 <= version <= _VERSION:
        raise reader.unknown("version", version)
    reader.flexible = version >= _VERSION
    producer_id, producer_epoch, timeout_ms = reader.int64(), reader.int16(), reader.int32()
    status = reader.int8()
    if not TransactionStatus.EMPTY <= status <= TransactionStatus.PREPARE_EPOCH_FENCE:
        raise reader.unknown("status", status)

    def topic() -> TopicPartitions:
        found = TopicPartitions(reader.string(), reader.int32_array())
        reader.tagged()
        return found

    partitions = yield from reader.nullable_array_in_steps(topic)
    update_timestamp, start_timestamp = reader.int64(), reader.int64()
    tagged = reader.tagged()
    reader.end()

    def number(tag: int, kind: struct.Struct, default: int) -> int:
        content = tagged.get(tag)
        if content is None:
            return default
        if len(content) != kind.size:
            raise reader.unknown(f"length of tagged field {tag}", len(content))
        found: int = kind.unpack(content)[0]
        return found

    return TransactionValue(
        producer_id,
        producer_epoch,
        timeout_ms,
        TransactionStatus(status),
        partitions,
        update_timestamp,
        start_timestamp,
        number(_PREVIOUS_ID_TAG, _INT64, NO_PRODUCER_ID),
        number(_NEXT_ID_TAG, _INT64, NO_PRODUCER_ID),
        number(_NEXT_EPOCH_TAG, _INT16, _NO_EPOCH),
        number(_CLIENT_VERSION_TAG, _INT16, 0),
    )
