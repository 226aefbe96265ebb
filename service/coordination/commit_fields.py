"""Encodes the key and the value of a committed offset's record: busy groups write little else.

Cython in pure-Python mode: `commit_fields.pxd` holds the C types, and uncompiled it produces the same bytes. The formats are
those of `group_records.py`, whose readers are the oracle in the tests. Pure.
"""

from __future__ import annotations

try:
    import cython
except ImportError:  # installed without a compiler and without Cython: the same loops as plain Python
    from storage_tiers.records import plain_cython as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.libc.string import memcpy

from service.coordination.record_fields import MAX_STRING_BYTES, too_long

#: Bytes of a key besides its names, and of a value besides its metadata.
_KEY_BYTES, _VALUE_BYTES = 10, 24
#: Metadata whose compact length has one byte.
_SHORT = 0x7E
#: The key's type and the value's version.
_OFFSET, _VERSION = 1, 4


def encode_offset_key(group: str, topic: str, partition: cython.longlong) -> bytes:
    """ValueError if a name is longer than 32,767 bytes."""
    name: bytes = group.encode()
    topic_name: bytes = topic.encode()
    size: cython.Py_ssize_t = len(name)
    topic_size: cython.Py_ssize_t = len(topic_name)
    if size > MAX_STRING_BYTES or topic_size > MAX_STRING_BYTES:
        raise too_long(max(size, topic_size))
    out = bytearray(_KEY_BYTES + size + topic_size)
    data: cython.p_uchar = (
        cython.cast(cython.p_uchar, PyByteArray_AS_STRING(out)) if cython.compiled else memoryview(out)
    )
    _put_integer(data, 0, _OFFSET, 2)
    _put_integer(data, 2, size, 2)
    _put_bytes(data, 4, name, size)
    _put_integer(data, 4 + size, topic_size, 2)
    _put_bytes(data, 6 + size, topic_name, topic_size)
    _put_integer(data, 6 + size + topic_size, partition, 4)
    return bytes(out)


def encode_short_offset(
    offset: cython.longlong, leader_epoch: cython.longlong, metadata: str, commit_timestamp: cython.longlong
) -> bytes | None:
    """A value of version 4 without a topic id; None if the metadata is not short."""
    content: bytes = metadata.encode()
    size: cython.Py_ssize_t = len(content)
    if size > _SHORT:
        return None
    out = bytearray(_VALUE_BYTES + size)
    data: cython.p_uchar = (
        cython.cast(cython.p_uchar, PyByteArray_AS_STRING(out)) if cython.compiled else memoryview(out)
    )
    _put_integer(data, 0, _VERSION, 2)
    _put_integer(data, 2, offset, 8)
    _put_integer(data, 10, leader_epoch, 4)
    data[14] = size + 1
    _put_bytes(data, 15, content, size)
    _put_integer(data, 15 + size, commit_timestamp, 8)  # behind it no tagged fields: a zero
    return bytes(out)


def _put_integer(data: cython.p_uchar, at: cython.Py_ssize_t, number: cython.longlong, size: cython.int) -> None:
    """Big-endian, two's complement."""
    place: cython.int
    for place in range(size):
        data[at + place] = number >> 8 * (size - 1 - place) & 0xFF


def _put_bytes(data: cython.p_uchar, at: cython.Py_ssize_t, source: bytes, length: cython.Py_ssize_t) -> None:
    if cython.compiled:
        raw: cython.p_const_uchar = source
        memcpy(data + at, raw, length)
    else:
        data[at : at + length] = source
