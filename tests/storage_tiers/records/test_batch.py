"""Headers of record batches: layout, checks and refusals."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings

from storage_tiers.errors import (
    CorruptRecord,
    InvalidRecord,
    InvalidTimestamp,
    LogError,
    RecordTooLarge,
    UnsupportedCompression,
)
from storage_tiers.records import batch as layout
from storage_tiers.records.batch import (
    Codec,
    assign,
    check_timestamps,
    headers,
    read_header,
    stamp_log_append_time,
    stamp_max_timestamp,
    validate,
)
from storage_tiers.records.builder import ControlKind, NewRecord, build_batch, build_control_batch
from storage_tiers.records.checksum import crc32c
from storage_tiers.records.codecs import compress
from storage_tiers.records.decoder import decode_batch
from tests.storage_tiers.records import vectors
from tests.storage_tiers.records.strategies import NOW_MS, batches

LIMIT = 1 << 20
TWO = build_batch([NewRecord(b"k", b"v", timestamp=NOW_MS), NewRecord(b"k", b"w", timestamp=NOW_MS + 7)])


def changed(batch: bytes, position: int, form: str, value: int) -> bytes:
    """`batch` with one field overwritten and the CRC recomputed."""
    copy = bytearray(batch)
    struct.pack_into(form, copy, position, value)
    struct.pack_into(">I", copy, layout.CRC, crc32c(memoryview(copy)[layout.ATTRIBUTES :]))
    return bytes(copy)


def with_payload(payload: bytes, count: int, codec: Codec = Codec.NONE) -> bytes:
    """A batch whose header claims `count` records, with an arbitrary payload."""
    template = bytearray(build_batch([NewRecord(b"", b"", timestamp=NOW_MS)])[: layout.HEADER_BYTES] + payload)
    struct.pack_into(">i", template, layout.BATCH_LENGTH, len(template) - layout.LENGTH_OVERHEAD)
    struct.pack_into(">i", template, layout.LAST_OFFSET_DELTA, count - 1)
    struct.pack_into(">i", template, layout.RECORDS_COUNT, count)
    return changed(bytes(template), layout.ATTRIBUTES, ">h", codec)


# --- the header -------------------------------------------------------------------------------------------------------
def test_every_field_of_the_header_is_read() -> None:
    batch = build_batch(
        [NewRecord(None, b"a", timestamp=10), NewRecord(None, b"b", timestamp=30), NewRecord(None, b"c", timestamp=20)],
        base_offset=1 << 40,
        leader_epoch=5,
        codec=Codec.ZSTD,
        producer_id=1 << 33,
        producer_epoch=9,
        base_sequence=77,
        transactional=True,
    )
    header = read_header(b"xx" + batch, 2)
    assert header[:4] == (1 << 40, len(batch), 5, 2)
    assert header[5:13] == (Codec.ZSTD | 0x10, 2, 10, 30, 1 << 33, 9, 77, 3)
    assert (header.codec, header.transactional, header.control, header.log_append_time) == (
        Codec.ZSTD,
        True,
        False,
        False,
    )
    assert (header.last_offset, header.next_offset, header.last_sequence) == ((1 << 40) + 2, (1 << 40) + 3, 79)


@pytest.mark.parametrize(
    ("base", "count", "last"), [(-1, 3, -1), (0, 1, 0), (2**31 - 2, 2, 2**31 - 1), (2**31 - 1, 2, 0), (2**31 - 1, 5, 3)]
)
def test_sequences_wrap_to_zero(base: int, count: int, last: int) -> None:
    batch = build_batch([NewRecord(None, b"")] * count, producer_id=1, producer_epoch=0, base_sequence=base)
    assert read_header(batch).last_sequence == last


@pytest.mark.parametrize("length", [0, 48, -1, -(2**31)])
def test_a_length_that_no_batch_has_is_corrupt(length: int) -> None:
    with pytest.raises(CorruptRecord, match="length field"):
        read_header(changed(TWO, layout.BATCH_LENGTH, ">i", length))


@pytest.mark.parametrize(("size", "position"), [(0, 0), (60, 0), (61, 1), (100, -1)])
def test_a_header_needs_61_bytes(size: int, position: int) -> None:
    with pytest.raises(CorruptRecord, match="61 bytes of header"):
        read_header(bytes(size), position)


def test_headers_lists_whole_batches_only() -> None:
    log = TWO + vectors.COMMIT + TWO[:-1]
    assert [position for position, _ in headers(log)] == [0, len(TWO)]
    assert [position for position, _ in headers(log, len(TWO))] == [len(TWO)]
    assert [position for position, _ in headers(log, 0, len(TWO) + 60)] == [0]
    assert list(headers(b"")) == []


# --- validation of produced batches -----------------------------------------------------------------------------------
@settings(deadline=None, max_examples=60)
@given(batches())
def test_valid_batches_pass_untouched_from_any_buffer(batch: bytes) -> None:
    expected = read_header(batch)
    for buffer in (batch, bytearray(batch), memoryview(batch), memoryview(bytearray(b"__" + batch))[2:]):
        header = validate(buffer, max_bytes=len(batch))
        assert header[:13] == expected[:13]
        assert bytes(buffer) == batch
    times = [record.timestamp for record in decode_batch(batch)]
    assert (header.lowest_timestamp, header.highest_timestamp) == (min(times), max(times))
    assert not header.wrong_max_timestamp


REFUSED: list[tuple[str, Callable[[], bytes], type[LogError]]] = [
    ("no byte", lambda: b"", CorruptRecord),
    ("a cut batch", lambda: TWO[:-1], CorruptRecord),
    ("two batches", lambda: TWO + TWO, InvalidRecord),
    ("a wrong CRC", lambda: TWO[:-1] + bytes([TWO[-1] ^ 1]), CorruptRecord),
    ("magic 0", lambda: changed(TWO, layout.MAGIC, ">b", 0), InvalidRecord),
    ("magic 1", lambda: changed(TWO, layout.MAGIC, ">b", 1), InvalidRecord),
    (
        "a short message of magic 1",
        lambda: bytes(8) + b"\0\0\0\x10" + bytes(4) + b"\x01" + bytes(11),
        InvalidRecord,
    ),
    ("magic 3", lambda: changed(TWO, layout.MAGIC, ">b", 3), CorruptRecord),
    ("magic 254", lambda: changed(TWO, layout.MAGIC, ">b", -2), CorruptRecord),
    ("a base offset", lambda: changed(TWO, layout.BASE_OFFSET, ">q", 1), InvalidRecord),
    ("no record", lambda: with_payload(b"", 0), InvalidRecord),
    ("a negative count", lambda: changed(TWO, layout.RECORDS_COUNT, ">i", -1), InvalidRecord),
    ("fewer records than offsets", lambda: changed(TWO, layout.RECORDS_COUNT, ">i", 1), InvalidRecord),
    ("more offsets than records", lambda: changed(TWO, layout.LAST_OFFSET_DELTA, ">i", 2), InvalidRecord),
    ("a control batch", lambda: changed(vectors.COMMIT, layout.BASE_OFFSET, ">q", 0), InvalidRecord),
    ("a delete horizon", lambda: changed(TWO, layout.ATTRIBUTES, ">h", 0x40), InvalidRecord),
    ("an unknown attribute", lambda: changed(TWO, layout.ATTRIBUTES, ">h", -(2**15)), InvalidRecord),
    ("log append time", lambda: changed(TWO, layout.ATTRIBUTES, ">h", 0x08), InvalidTimestamp),
    ("codec 5", lambda: changed(TWO, layout.ATTRIBUTES, ">h", 5), UnsupportedCompression),
    ("codec 7", lambda: changed(TWO, layout.ATTRIBUTES, ">h", 7), UnsupportedCompression),
    ("a transaction without producer", lambda: changed(TWO, layout.ATTRIBUTES, ">h", 0x10), InvalidRecord),
    ("a producer without epoch", lambda: changed(TWO, layout.PRODUCER_ID, ">q", 3), InvalidRecord),
    ("a producer id of -2", lambda: changed(TWO, layout.PRODUCER_ID, ">q", -2), InvalidRecord),
    ("a producer without sequence", lambda: changed(vectors.IDEMPOTENT, layout.BASE_SEQUENCE, ">i", -1), InvalidRecord),
    ("a negative epoch", lambda: changed(vectors.IDEMPOTENT, layout.PRODUCER_EPOCH, ">h", -1), InvalidRecord),
    ("damaged compression", lambda: with_payload(b"nonsense", 1, Codec.ZSTD), InvalidRecord),
    ("a timestamp beyond 64 bits", lambda: changed(TWO, layout.BASE_TIMESTAMP, ">q", 2**63 - 1), InvalidTimestamp),
]


@pytest.mark.parametrize(("batch", "error"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_invalid_client_batches_are_refused(batch: Callable[[], bytes], error: type[LogError]) -> None:
    with pytest.raises(error) as caught:
        validate(batch(), max_bytes=LIMIT)
    assert type(caught.value) is error
    assert len(str(caught.value)) > 20


def record(*, length: int | None = None, body: str) -> bytes:
    raw = bytes.fromhex(body)
    return bytes([(len(raw) if length is None else length) << 1]) + raw


#: attributes, timestamp delta, offset delta, key, value, headers
BROKEN_RECORDS = {
    "its length does not fit the batch": record(length=50, body="00 00 00 01 01 00"),
    "its timestamp delta is cut short": record(body="00 80"),
    "its offset delta is not the next": record(body="00 00 02 01 01 00"),
    "its key does not fit": record(body="00 00 00 08 01 00"),
    "its value does not fit": record(body="00 00 00 01 08 00"),
    "its headers do not fit": record(body="00 00 00 01 01 02"),
    "its fields end before": record(body="00 00 00 01 01 00 00"),
    "bytes follow the last record": record(body="00 00 00 01 01 00") + b"\0",
    "the batch ends before it": b"",
}


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("fault", BROKEN_RECORDS)
def test_each_record_is_looked_at_under_every_codec(fault: str, codec: Codec) -> None:
    batch = with_payload(compress(codec, BROKEN_RECORDS[fault]), 1, codec)
    with pytest.raises(InvalidRecord, match=fault):
        validate(batch, max_bytes=LIMIT)
    assert validate(batch, max_bytes=LIMIT, deep=False).highest_timestamp is None


@pytest.mark.parametrize(
    "tail",
    ["02 01 01", "01", "04 00 01", "02 04 61 01", "02 02 61", "02 02 61 03", "02 02 61 04 78", "feffffff0f", "80"],
    ids=[
        "null name",
        "negative count",
        "one too few",
        "long name",
        "no value",
        "value of -2",
        "long value",
        "many",
        "cut",
    ],
)
def test_invalid_headers_are_refused(tail: str) -> None:
    with pytest.raises(InvalidRecord, match="headers"):
        validate(with_payload(record(body="00 00 00 01 01 " + tail), 1), max_bytes=LIMIT)


@pytest.mark.parametrize("body", ["00 00 00 01 01 00", "00 00 00 8100 01 00"])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_compacted_topics_need_keys_however_null_is_written(body: str, codec: Codec) -> None:
    batch = with_payload(compress(codec, record(body=body)), 1, codec)
    validate(batch, max_bytes=LIMIT)
    with pytest.raises(InvalidRecord, match="no key"):
        validate(batch, max_bytes=LIMIT, compacted=True)


def test_an_empty_key_is_a_key() -> None:
    validate(build_batch([NewRecord(b"", None)]), max_bytes=LIMIT, compacted=True)


def test_the_size_bound_is_exact() -> None:
    validate(TWO, max_bytes=len(TWO))
    with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes"):
        validate(TWO, max_bytes=len(TWO) - 1)


def test_a_batch_that_inflates_too_far_is_too_large() -> None:
    batch = build_batch([NewRecord(b"k", bytes(1 << 20))], codec=Codec.ZSTD)
    validate(batch, max_bytes=LIMIT)
    with pytest.raises(RecordTooLarge, match="inflates"):
        validate(batch, max_bytes=LIMIT, max_decompressed=1 << 20)


def test_codecs_may_be_restricted() -> None:
    batch = build_batch([NewRecord(b"k", b"v")], codec=Codec.ZSTD)
    with pytest.raises(UnsupportedCompression, match="zstd"):
        validate(batch, max_bytes=LIMIT, codecs={Codec.NONE, Codec.GZIP})


def test_lz4_with_linked_blocks_is_refused_since_java_cannot_read_it() -> None:
    import cramjam

    payload = record(body="00 00 00 01 01 00")
    with pytest.raises(InvalidRecord, match="independent"):
        validate(with_payload(bytes(cramjam.lz4.compress(payload)), 1, Codec.LZ4), max_bytes=LIMIT)


# --- timestamps -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("timestamp", "fits"), [(900, True), (899, False), (1050, True), (1051, False), (-1, True), (-2, False)]
)
def test_timestamps_within_the_bounds_pass_and_others_are_refused(timestamp: int, fits: bool) -> None:
    # The offending record is in the middle, where neither the first nor the last record shows it.
    stamps = (1000, timestamp, 1000)
    header = validate(build_batch([NewRecord(b"k", b"v", timestamp=at) for at in stamps]), max_bytes=LIMIT)
    if fits:
        check_timestamps(header, now_ms=1000, before_max_ms=100, after_max_ms=50)
        return
    with pytest.raises(InvalidTimestamp, match=r"allowed is \[900, 1050\]"):
        check_timestamps(header, now_ms=1000, before_max_ms=100, after_max_ms=50)


def test_without_a_walk_the_headers_bounds_count() -> None:
    header = validate(build_batch([NewRecord(b"k", b"v", timestamp=2000)]), max_bytes=LIMIT, deep=False)
    with pytest.raises(InvalidTimestamp):
        check_timestamps(header, now_ms=1000, before_max_ms=2**63 - 1, after_max_ms=999)
    check_timestamps(header, now_ms=1000, before_max_ms=2**63 - 1, after_max_ms=1000)


def test_a_wrong_max_timestamp_is_seen_and_corrected() -> None:
    batch = bytearray(changed(TWO, layout.MAX_TIMESTAMP, ">q", -1))
    header = validate(batch, max_bytes=LIMIT)
    assert (header.max_timestamp, header.highest_timestamp) == (-1, NOW_MS + 7)
    assert header.wrong_max_timestamp
    stamp_max_timestamp(batch, NOW_MS + 7)
    assert bytes(batch) == TWO


def test_timestamps_before_none_leave_the_maximum_at_none() -> None:
    header = validate(build_batch([NewRecord(b"k", b"v", timestamp=-5)]), max_bytes=LIMIT)
    assert (header.lowest_timestamp, header.highest_timestamp) == (-5, -1)


# --- writes in place --------------------------------------------------------------------------------------------------
@settings(deadline=None, max_examples=30)
@given(batches())
def test_assigning_offset_and_epoch_keeps_crc_and_records(batch: bytes) -> None:
    log = bytearray(b"before" + batch)
    assign(log, 6, base_offset=2**62, leader_epoch=2**31 - 1)
    assigned = bytes(log[6:])
    assert assigned[layout.MAGIC :] == batch[layout.MAGIC :]
    assert log[:6] == b"before"
    shifted = [item._replace(offset=item.offset + 2**62, leader_epoch=2**31 - 1) for item in decode_batch(batch)]
    assert decode_batch(assigned) == shifted


@pytest.mark.parametrize("codec", list(Codec))
def test_log_append_time_is_stamped_on_every_record(codec: Codec) -> None:
    batch = bytearray(vectors.BY_CODEC[codec])
    stamp_log_append_time(batch, 123)
    assert {(item.timestamp, item.timestamp_type) for item in decode_batch(batch)} == {(123, 1)}
    assert read_header(batch).base_timestamp == 1_700_000_000_000
    stamp_max_timestamp(batch, 1_700_000_000_100)
    assert bytes(batch) == vectors.BY_CODEC[codec]


def test_only_a_whole_batch_is_stamped() -> None:
    with pytest.raises(CorruptRecord, match="says it has"):
        stamp_log_append_time(bytearray(TWO + b"x"), 1)


def test_a_control_batch_from_a_client_is_refused() -> None:
    marker = build_control_batch(
        ControlKind.ABORT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=NOW_MS
    )
    with pytest.raises(InvalidRecord, match="control"):
        validate(marker, max_bytes=LIMIT)
