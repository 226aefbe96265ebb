"""Record batches, encoded and decoded without the project's code, because the judge must not trust the code it judges.

Format: https://kafka.apache.org/documentation/#recordbatch
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Sequence
from typing import Any

import cramjam
import crc32c

NOON = 1_700_000_000_000
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_HEAD = struct.Struct(">qiibI")
_TAIL = struct.Struct(">hiqqqhii")
HEAD_BYTES = _HEAD.size + _TAIL.size
_XERIAL = b"\x82SNAPPY\0"


@dataclasses.dataclass(frozen=True)
class Record:
    """`after`: milliseconds from the batch's first timestamp to this record's."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    after: int = 0


@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch to send. `count` and `last_offset_delta`, if given, override the true values; `flip` is the index of a byte to
    damage."""

    records: Sequence[Record]
    codec: str = "none"
    timestamp: int = NOON
    producer: tuple[int, int, int] = (-1, -1, -1)
    attributes: int = 0
    magic: int = 2
    base_offset: int = 0
    leader_epoch: int = 0
    count: int | None = None
    last_offset_delta: int | None = None
    flip: int | None = None

    def encode(self) -> bytes:
        plain = b"".join(_record(place, record) for place, record in enumerate(self.records))
        payload = compressed(self.codec, plain)
        producer_id, epoch, sequence = self.producer
        tail = _TAIL.pack(
            self.attributes | CODECS[self.codec],
            len(self.records) - 1 if self.last_offset_delta is None else self.last_offset_delta,
            self.timestamp,
            self.timestamp + max((record.after for record in self.records), default=0),
            producer_id,
            epoch,
            sequence,
            len(self.records) if self.count is None else self.count,
        )
        body = tail + payload
        head = _HEAD.pack(self.base_offset, len(body) + 9, self.leader_epoch, self.magic, crc32c.crc32c(body))
        whole = bytearray(head + body)
        if self.flip is not None:
            whole[self.flip] ^= 1
        return bytes(whole)


def batch(*values: bytes | None, **fields: Any) -> bytes:
    """A batch of values without keys, encoded."""
    return Batch([Record(value) for value in values], **fields).encode()


def _record(place: int, record: Record) -> bytes:
    out = bytearray(b"\0") + _varint(record.after) + _varint(place) + _sized(record.key) + _sized(record.value)
    out += _varint(len(record.headers))
    for name, value in record.headers:
        out += _sized(name.encode()) + _sized(value)
    return _varint(len(out)) + bytes(out)


def _sized(value: bytes | None) -> bytes:
    return _varint(-1) if value is None else _varint(len(value)) + value


def _varint(number: int) -> bytes:
    number, out = (number << 1) ^ (number >> 63), bytearray()
    while number & ~0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def compressed(codec: str, plain: bytes) -> bytes:
    if codec == "none":
        return plain
    if codec == "snappy":
        return bytes(cramjam.snappy.compress_raw(plain))
    if codec == "lz4":
        compressor = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)  # frames that Java can read
        compressor.compress(plain)
        return bytes(compressor.finish())
    return bytes(getattr(cramjam, codec).compress(plain))


# --- reading ----------------------------------------------------------------------------------------------------------
def read_batches(data: bytes) -> list[dict[str, Any]]:
    """Every batch as a tree; an incomplete last one is only marked as cut off, as consumers drop it."""
    batches: list[dict[str, Any]] = []
    position = 0
    while len(data) - position >= HEAD_BYTES:
        length = _HEAD.unpack_from(data, position)[1]
        if len(data) - position < length + 12:
            break
        batches.append(_read_batch(data[position : position + length + 12]))
        position += length + 12
    if position < len(data):
        batches.append({"cut off": True})
    return batches


def _read_batch(data: bytes) -> dict[str, Any]:
    base_offset, length, epoch, magic, crc = _HEAD.unpack_from(data)
    attributes, last, first_time, max_time, producer_id, producer_epoch, sequence, count = _TAIL.unpack_from(
        data, _HEAD.size
    )
    payload = data[HEAD_BYTES:]
    plain = _decompress(attributes & 7, payload)
    return {
        "base_offset": base_offset,
        "length": length,
        "partition_leader_epoch": epoch,
        "magic": magic,
        "crc_is_right": crc == crc32c.crc32c(data[_HEAD.size :]),
        "attributes": attributes,
        "last_offset_delta": last,
        "base_timestamp": first_time,
        "max_timestamp": max_time,
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
        "base_sequence": sequence,
        "count": count,
        "records": _read_records(plain, count) if not attributes & 0x20 else plain.hex(),
        "payload": payload.hex() if len(payload) <= 256 else f"{len(payload)} bytes, crc {crc32c.crc32c(payload)}",
    }


def _decompress(codec: int, payload: bytes) -> bytes:
    if codec == 0:
        return payload
    if codec == 1:
        return bytes(cramjam.gzip.decompress(payload))
    if codec == 2:
        return _unsnappy(payload)
    if codec == 3:
        return bytes(cramjam.lz4.decompress(payload))
    return bytes(cramjam.zstd.decompress(payload))


def _unsnappy(payload: bytes) -> bytes:
    """Decompresses Snappy data, either raw or in the framing of Java's xerial library."""
    if not payload.startswith(_XERIAL):
        return bytes(cramjam.snappy.decompress_raw(payload))
    out, position = b"", 16
    while position < len(payload):
        (size,) = struct.unpack_from(">i", payload, position)
        out += bytes(cramjam.snappy.decompress_raw(payload[position + 4 : position + 4 + size]))
        position += 4 + size
    return out


def _read_records(plain: bytes, count: int) -> list[dict[str, Any]]:
    records = []
    position = 0
    for _ in range(count):
        size, start = _read_varint(plain, position)
        records.append(_read_record(plain[start : start + size]))
        position = start + size
    if position != len(plain):
        raise ValueError(f"{len(plain) - position} bytes behind {count} records")
    return records


def _read_record(data: bytes) -> dict[str, Any]:
    after, at = _read_varint(data, 1)
    delta, at = _read_varint(data, at)
    key, at = _read_sized(data, at)
    value, at = _read_sized(data, at)
    count, at = _read_varint(data, at)
    headers = []
    for _ in range(count):
        name, at = _read_sized(data, at)
        held, at = _read_sized(data, at)
        headers.append([name, held])
    return {"after": after, "offset_delta": delta, "key": key, "value": value, "headers": headers}


def _read_sized(data: bytes, at: int) -> tuple[str | None, int]:
    size, at = _read_varint(data, at)
    if size < 0:
        return None, at
    value = data[at : at + size]
    return value.hex() if size <= 256 else f"{size} bytes, crc {crc32c.crc32c(value)}", at + size


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return (number >> 1) ^ -(number & 1), at
