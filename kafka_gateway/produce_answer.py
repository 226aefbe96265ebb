# cython: annotation_typing=False
"""Writes answers of Produce into one buffer of their exact size. This module and `hot_parse` are the hot path of a busy node.

This module is plain Python; `produce_answer.pxd` beside it gives the types with which `hatch_build.py` compiles it. Both forms
give the same bytes; the tests compare them with kio's. If any partition failed, `produce_answer` writes nothing, and the
handler's slower path answers.

Layouts: https://kafka.apache.org/protocol.html#The_Messages_Produce
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grpc_api.contract.log import Appended

if TYPE_CHECKING:
    from kafka_gateway.hot_parse import ProduceRequest


class AnswerWriter:
    """Fills a buffer of a size that the caller computes; a larger answer raises ValueError."""

    def __init__(self, size: int) -> None:
        self.out = bytearray(size)
        self.at = 0
        self.size = size

    def room(self, size: int) -> int:
        """Reserves `size` bytes and returns their position."""
        at = self.at
        if size > self.size - at:
            raise ValueError(f"an answer outgrows its {self.size} bytes")
        self.at = at + size
        return at

    def int8(self, value: int) -> None:
        at = self.room(1)
        self.out[at] = value & 0xFF

    def int16(self, value: int) -> None:
        at = self.room(2)
        out = self.out
        out[at] = value >> 8 & 0xFF
        out[at + 1] = value & 0xFF

    def int32(self, value: int) -> None:
        at = self.room(4)
        out = self.out
        out[at] = value >> 24 & 0xFF
        out[at + 1] = value >> 16 & 0xFF
        out[at + 2] = value >> 8 & 0xFF
        out[at + 3] = value & 0xFF

    def int64(self, value: int) -> None:
        self.int32(value >> 32)
        self.int32(value)

    def varint(self, value: int) -> None:
        while value >= 0x80:
            self.int8(value & 0x7F | 0x80)
            value >>= 7
        self.int8(value)

    def count(self, value: int, flexible: bool) -> None:
        if flexible:
            self.varint(value + 1)
        else:
            self.int32(value)

    def raw(self, value: bytes) -> None:
        at = self.room(len(value))
        self.out[at : at + len(value)] = value


def varint_size(value: int) -> int:
    size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


def produce_answer(
    request: ProduceRequest, results: Sequence[Any], version: int, correlation: int, committed: bool
) -> bytes | None:
    """The framed answer if every partition was appended (with `committed`: also committed); otherwise None."""
    if len(results) != len(request.indexes):
        return None
    for result in results:
        if type(result) is not Appended or (committed and result.committed is not None):
            return None
    flexible = version >= 9
    width = 22 + 8 * (version >= 5) + (3 if flexible else 6 * (version >= 8))
    size = 13 + (1 + varint_size(len(request.topics) + 1) if flexible else 4)
    for key, partitions in request.topics:
        size += len(key) + width * partitions
        if flexible:
            size += (0 if version >= 13 else varint_size(len(key) + 1)) + varint_size(partitions + 1) + 1
        else:
            size += 6
    # Versions that are not flexible need one byte less, because they have no tags after the header.
    writer = AnswerWriter(size if flexible else size - 1)
    writer.int32(len(writer.out) - 4)
    writer.int32(correlation)
    if flexible:
        writer.int8(0)
    writer.count(len(request.topics), flexible)
    nth = 0
    for key, partitions in request.topics:
        if version < 13:
            if flexible:
                writer.varint(len(key) + 1)
            else:
                writer.int16(len(key))
        writer.raw(key)
        writer.count(partitions, flexible)
        for _ in range(partitions):
            write_appended(writer, request.indexes[nth], results[nth], version)
            nth += 1
        if flexible:
            writer.int8(0)
    writer.int32(0)
    if flexible:
        writer.int8(0)
    return bytes(writer.out)


def write_appended(writer: AnswerWriter, index: int, appended: Appended, version: int) -> None:
    writer.int32(index)
    writer.int16(0)
    writer.int64(appended.base_offset)
    writer.int64(appended.log_append_time_ms)
    if version >= 5:
        writer.int64(appended.log_start_offset)
    if version >= 9:
        writer.int8(1)
        writer.int16(0)
    elif version >= 8:
        writer.int32(0)
        writer.int16(-1)
