"""Bytes that other implementations wrote: our builder must produce them and our readers must understand them."""

from __future__ import annotations

import pytest

from storage_tiers.records.batch import HEADER_BYTES, Codec, read_header, validate
from storage_tiers.records.builder import ControlKind, NewRecord, build_batch, build_control_batch, encode_record
from storage_tiers.records.decoder import ControlRecord, decode_batch, decode_control
from tests.storage_tiers.records import vectors


@pytest.mark.parametrize(
    ("number", "timestamp", "crc"),
    [
        (1, 1502417400743, 2602149835),
        (2, 1502417406693, 4201639679),
        (3, 1502417410162, 1859000275),
        (4, 1502417414698, 366766691),
    ],
)
def test_the_crc_of_a_dumped_batch_is_reproduced(number: int, timestamp: int, crc: int) -> None:
    batch = build_batch([NewRecord(None, f"message{number} for t1".encode(), timestamp=timestamp)])
    header = validate(batch, max_bytes=83)
    assert (len(batch), header.crc) == (83, crc)


@pytest.mark.parametrize(
    ("record", "offset_delta", "timestamp_delta", "size"),
    [
        (NewRecord(b"key", b"hello"), 0, 0, 15),
        (NewRecord(b"key", b"hello", [("key", b"hello")]), 100, 100, 27),
        (NewRecord(None, b"hello", [("key", b"hello")]), 100, 100, 24),
    ],
)
def test_single_records_have_known_sizes(record: NewRecord, offset_delta: int, timestamp_delta: int, size: int) -> None:
    assert len(encode_record(record, offset_delta, timestamp_delta)) == size


def test_one_small_record_makes_a_file_of_76_bytes() -> None:
    batch = build_batch([NewRecord(b"key", b"hello", timestamp=0)])
    assert len(batch) == HEADER_BYTES + 15 == 76
    assert batch[HEADER_BYTES] == 14 << 1  # the stored length does not count itself


def test_uncompressed_batches_are_javas_byte_for_byte() -> None:
    assert build_batch(vectors.RECORDS) == vectors.BY_CODEC[Codec.NONE]
    pair = [NewRecord(b"a", b"b", timestamp=5), NewRecord(b"a", b"b", timestamp=6)]
    built = build_batch(pair, producer_id=4000, producer_epoch=2, base_sequence=2**31 - 2)
    assert built == vectors.IDEMPOTENT


@pytest.mark.parametrize("codec", list(Codec))
def test_java_batches_of_every_codec_are_read(codec: Codec) -> None:
    batch = vectors.BY_CODEC[codec]
    header = validate(batch, max_bytes=len(batch))
    assert header.codec is codec
    assert (header.lowest_timestamp, header.highest_timestamp) == (1_699_999_999_999, 1_700_000_000_100)
    decoded = [NewRecord(record.key, record.value, record.headers, record.timestamp) for record in decode_batch(batch)]
    assert decoded == list(vectors.RECORDS)


@pytest.mark.parametrize(
    ("kind", "offset", "timestamp", "expected"),
    [
        (ControlKind.COMMIT, 42, 1_700_000_000_000, vectors.COMMIT),
        (ControlKind.ABORT, 43, 1_700_000_000_001, vectors.ABORT),
    ],
)
def test_markers_are_javas_byte_for_byte(kind: ControlKind, offset: int, timestamp: int, expected: bytes) -> None:
    built = build_control_batch(
        kind,
        producer_id=4000,
        producer_epoch=2,
        coordinator_epoch=9,
        timestamp=timestamp,
        base_offset=offset,
        leader_epoch=7,
    )
    assert built == expected
    assert decode_control(expected) == ControlRecord(kind, 9)
    assert decode_batch(expected) == []
    assert read_header(expected).control
    assert read_header(expected).transactional
