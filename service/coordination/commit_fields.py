"""Encodes the records of committed offsets: a key, a value, or a whole OffsetCommit. Busy groups write almost nothing else.

Cython in pure-Python mode: `commit_fields.pxd` holds the C types, and the uncompiled module produces the same bytes. The
formats are those of `group_records.py`, whose readers are the oracle in the tests. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

try:
    import cython
except ImportError:  # installed without a compiler and without Cython: the same loops as plain Python
    from storage_tiers.records import plain_cython as cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcpy

from grpc_api.contract.groups import PartitionOutcome, TopicCommit, TopicOutcome
from service.coordination.outcome import CoordinatorRecord
from service.coordination.record_fields import MAX_STRING_BYTES, too_long
from storage_tiers.types import TopicPartition

#: Bytes of a key without its names, and of a value without its metadata.
_KEY_BYTES, _VALUE_BYTES = 10, 24
#: Longest metadata whose compact length has one byte.
_SHORT = 0x7E
_UINT32, _INT32 = 0xFFFFFFFF, 0x7FFFFFFF
#: The key's type and the value's version.
_OFFSET, _VERSION = 1, 4
#: Bytes of the record number in front of a kept value.
_RECORD_NUMBER_BYTES = 8

#: A group, a partition, the record's value with its number in front, and the record's number.
OffsetChange = tuple[str, TopicPartition, bytes, int]
#: A commit's records, its changes and its answer.
EncodedCommit = tuple[list[CoordinatorRecord], list[OffsetChange], list[TopicOutcome]]

# A NamedTuple's own constructor costs three times as much.
_new_tuple = tuple.__new__


def encode_commit(
    group: str,
    topics: Sequence[TopicCommit],
    record_number: cython.longlong,
    now_ms: cython.longlong,
    most_metadata: cython.longlong,
    shared: Callable[[str, int], TopicPartition],
) -> EncodedCommit | None:
    """Encodes a whole OffsetCommit, whose first record has the number `record_number`. Returns None unless the request is the
    common case: topics by name, and short metadata of at most `most_metadata` bytes. Raises ValueError if a name is longer than
    32,767 bytes."""
    records: list[CoordinatorRecord] = []
    changes: list[OffsetChange] = []
    answered: list[TopicOutcome] = []
    for topic in topics:
        name, commits, topic_id = _as_tuple(topic)
        if topic_id is not None:
            return None
        outcomes: list[PartitionOutcome] = []
        for commit in commits:
            partition, offset, leader_epoch, text = _as_tuple(commit)
            metadata: bytes = b"" if not text else text.encode()
            if len(metadata) > most_metadata or len(metadata) > _SHORT:
                return None
            entry: bytes = _encode_entry(record_number, offset, leader_epoch, metadata, now_ms)
            key: bytes = encode_offset_key(group, name, partition)
            records.append(_new_tuple(CoordinatorRecord, (key, entry[_RECORD_NUMBER_BYTES:])))
            changes.append((group, shared(name, partition), entry, record_number))
            outcomes.append(_new_tuple(PartitionOutcome, (partition, None)))
            record_number += 1
        answered.append(_new_tuple(TopicOutcome, (name, outcomes, None)))
    return records, changes, answered


def _as_tuple(row: Any) -> tuple[Any, ...]:
    """The same NamedTuple, as a type that C unpacks without a call for each field."""
    if not isinstance(row, tuple):
        raise TypeError(f"a row is a tuple, not {type(row).__name__}")
    return cython.cast(tuple, row) if cython.compiled else row


def _encode_entry(
    record_number: cython.longlong,
    offset: cython.longlong,
    leader_epoch: cython.longlong,
    metadata: bytes,
    now_ms: cython.longlong,
) -> bytes:
    """The value that `encode_short_offset` makes, with the record number in front."""
    size: cython.Py_ssize_t = len(metadata)
    out = _unwritten(_RECORD_NUMBER_BYTES + _VALUE_BYTES + size)
    data: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(out)) if cython.compiled else memoryview(out)
    _put_integer(data, 0, record_number, 8)
    _put_value(data, _RECORD_NUMBER_BYTES, offset, leader_epoch, metadata, now_ms)
    return out if cython.compiled else bytes(out)


def _unwritten(size: cython.Py_ssize_t) -> Any:
    """An object that becomes `bytes` of this size, to be filled completely. C writes into the object itself, because a copy
    costs as much as the encoding."""
    return PyBytes_FromStringAndSize(cython.NULL, size) if cython.compiled else bytearray(size)


def encode_offset_key(group: str, topic: str, partition: cython.longlong) -> bytes:
    """Raises ValueError if a name is longer than 32,767 bytes."""
    name: bytes = group.encode()
    topic_name: bytes = topic.encode()
    size: cython.Py_ssize_t = len(name)
    topic_size: cython.Py_ssize_t = len(topic_name)
    if size > MAX_STRING_BYTES or topic_size > MAX_STRING_BYTES:
        raise too_long(max(size, topic_size))
    out = _unwritten(_KEY_BYTES + size + topic_size)
    data: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(out)) if cython.compiled else memoryview(out)
    _put_integer(data, 0, _OFFSET, 2)
    _put_integer(data, 2, size, 2)
    _put_bytes(data, 4, name, size)
    _put_integer(data, 4 + size, topic_size, 2)
    _put_bytes(data, 6 + size, topic_name, topic_size)
    _put_integer(data, 6 + size + topic_size, partition, 4)
    return out if cython.compiled else bytes(out)


def encode_short_offset(
    offset: cython.longlong, leader_epoch: cython.longlong, metadata: str, commit_timestamp: cython.longlong
) -> bytes | None:
    """A value of version 4 without a topic id; None if the metadata is not short."""
    content: bytes = metadata.encode()
    size: cython.Py_ssize_t = len(content)
    if size > _SHORT:
        return None
    out = _unwritten(_VALUE_BYTES + size)
    data: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(out)) if cython.compiled else memoryview(out)
    _put_value(data, 0, offset, leader_epoch, content, commit_timestamp)
    return out if cython.compiled else bytes(out)


def _put_value(
    data: cython.p_uchar,
    at: cython.Py_ssize_t,
    offset: cython.longlong,
    leader_epoch: cython.longlong,
    metadata: bytes,
    commit_timestamp: cython.longlong,
) -> None:
    """Writes a value into zeroed bytes. Its last byte, the number of tagged fields, stays 0."""
    size: cython.Py_ssize_t = len(metadata)
    _put_integer(data, at, _VERSION, 2)
    _put_integer(data, at + 2, offset, 8)
    _put_integer(data, at + 10, leader_epoch, 4)
    data[at + 14] = size + 1
    _put_bytes(data, at + 15, metadata, size)
    _put_integer(data, at + 15 + size, commit_timestamp, 8)
    data[at + 23 + size] = 0


def hash_code(name: str) -> int:
    """The absolute value of Java's `String.hashCode`, or 0 for the lowest integer, as in Kafka's `Utils.abs`. The function is
    compiled because every request of a group or of a transactional id calls it, and names have up to 32,767 characters."""
    units: bytes = name.encode("utf-16-be", "surrogatepass")
    raw: cython.p_const_uchar = units
    size: cython.Py_ssize_t = len(units)
    at: cython.Py_ssize_t = 0
    code: cython.ulonglong = 0
    while at < size:
        code = (31 * code + (raw[at] << 8 | raw[at + 1])) & _UINT32
        at += 2
    if code > _INT32:  # a negative number: the lowest has no absolute value of 32 bits
        code = (_UINT32 + 1 - code) & _INT32
    absolute: int = code
    return absolute


def _put_integer(data: cython.p_uchar, at: cython.Py_ssize_t, number: cython.longlong, size: cython.int) -> None:
    """Writes an integer in two's complement, big-endian."""
    nth: cython.int
    for nth in range(size):
        data[at + nth] = number >> 8 * (size - 1 - nth) & 0xFF


def _put_bytes(data: cython.p_uchar, at: cython.Py_ssize_t, source: bytes, length: cython.Py_ssize_t) -> None:
    if cython.compiled:
        raw: cython.p_const_uchar = source
        memcpy(data + at, raw, length)
    else:
        data[at : at + length] = source
