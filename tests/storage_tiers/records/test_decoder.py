"""Decoding record batches: what the builder writes is read back, and damage is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_tiers.errors import CorruptRecord, RecordTooLarge, UnsupportedMessageFormat
from storage_tiers.records import batch as layout
from storage_tiers.records.batch import Codec, read_header
from storage_tiers.records.builder import (
    ControlKind,
    NewRecord,
    assemble,
    build_batch,
    build_control_batch,
    encode_record,
)
from storage_tiers.records.decoder import Record, decode, decode_batch, decode_control
from storage_tiers.types import AbortedTransaction
from tests.storage_tiers.records import vectors
from tests.storage_tiers.records.strategies import NOW_MS, codecs, record_lists


@settings(deadline=None, max_examples=100)
@given(record_lists, codecs, st.integers(0, 2**62), st.none() | st.integers(0, 2**62))
def test_built_batches_are_decoded(
    records: list[NewRecord], codec: Codec, base_offset: int, log_append_time: int | None
) -> None:
    batch = build_batch(records, base_offset=base_offset, leader_epoch=4, codec=codec, log_append_time=log_append_time)
    assert decode_batch(batch) == [
        Record(
            base_offset + at,
            record.timestamp if log_append_time is None else log_append_time,
            0 if log_append_time is None else 1,
            record.key,
            record.value,
            tuple(record.headers),
            4,
        )
        for at, record in enumerate(records)
    ]


def test_compacted_batches_keep_their_offsets() -> None:
    batch = build_batch(
        [NewRecord(b"a", b"1"), NewRecord(b"b", b"2")], base_offset=10, offset_deltas=[1, 4], last_offset_delta=6
    )
    assert [record.offset for record in decode_batch(batch)] == [11, 14]
    assert read_header(batch).next_offset == 17


def test_an_invalid_utf8_header_name_is_read_as_in_java() -> None:
    raw = encode_record(NewRecord(None, None, [("??", b"x")]), 0, 0).replace(b"??", b"\xff\xfe")
    batch = bytearray(build_batch([NewRecord(None, None)])[: layout.HEADER_BYTES] + raw)
    struct.pack_into(">i", batch, layout.BATCH_LENGTH, len(batch) - layout.LENGTH_OVERHEAD)
    assert decode_batch(batch, verify=False)[0].headers == (("\ufffd\ufffd", b"x"),)


def test_an_empty_batch_holds_nothing() -> None:
    """Compaction leaves an empty batch to keep its producer's sequence."""
    header = bytearray(build_batch([NewRecord(None, None)])[: layout.HEADER_BYTES])
    struct.pack_into(">i", header, layout.BATCH_LENGTH, layout.HEADER_BYTES - layout.LENGTH_OVERHEAD)
    struct.pack_into(">i", header, layout.RECORDS_COUNT, 0)
    assert decode_batch(header, verify=False) == []
    struct.pack_into(">i", header, layout.RECORDS_COUNT, -1)
    with pytest.raises(CorruptRecord, match="-1 records"):
        decode_batch(header, verify=False)


def test_damage_is_refused() -> None:
    batch = build_batch([NewRecord(b"key", b"value")])
    with pytest.raises(CorruptRecord, match="CRC"):
        decode_batch(batch[:-2] + b"x" + batch[-1:])
    with pytest.raises(CorruptRecord, match="says it has"):
        decode_batch(batch + b"x")
    with pytest.raises(UnsupportedMessageFormat):
        decode_batch(batch[: layout.MAGIC] + b"\x01" + batch[layout.MAGIC + 1 :])
    with pytest.raises(RecordTooLarge):
        decode_batch(build_batch([NewRecord(None, bytes(5000))], codec=Codec.LZ4), max_bytes=5000)


def test_a_timestamp_beyond_64_bits_is_refused() -> None:
    batch = bytearray(build_batch([NewRecord(None, None, timestamp=0), NewRecord(None, None, timestamp=1)]))
    struct.pack_into(">q", batch, layout.BASE_TIMESTAMP, 2**63 - 1)
    with pytest.raises(CorruptRecord, match="64 bits"):
        decode_batch(batch, verify=False)


def test_control_batches_that_end_no_transaction_are_no_markers() -> None:
    marker = bytearray(vectors.COMMIT)
    key_type = marker.index(b"\x00\x00\x00\x01\x0c") + 2
    struct.pack_into(">h", marker, key_type, 2)  # LEADER_CHANGE
    assert decode_control(marker, verify=False) is None
    with pytest.raises(CorruptRecord, match="not a control batch"):
        decode_control(build_batch([NewRecord(None, None)]))


def test_a_marker_that_compaction_has_emptied_ends_no_transaction() -> None:
    emptied = assemble(read_header(vectors.COMMIT)._replace(base_timestamp=-1, count=0), b"")
    assert decode_control(emptied) is None


def test_offsets_mask_records_outside_the_request() -> None:
    log = b"".join(
        build_batch([NewRecord(None, b"%d" % (base + at)) for at in range(3)], base_offset=base, codec=Codec.SNAPPY)
        for base in (0, 3, 10)
    )

    def offsets(start: int, end: int | None) -> list[int]:
        return [record.offset for record in decode(log, start_offset=start, end_offset=end)]

    assert offsets(0, None) == [0, 1, 2, 3, 4, 5, 10, 11, 12]
    assert offsets(2, 11) == [2, 3, 4, 5, 10]
    assert offsets(6, 10) == []
    assert offsets(13, None) == []
    assert [record.offset for record in decode(log[:-1])] == [0, 1, 2, 3, 4, 5]


class World:
    """A partition whose producers write, commit and abort, with the offsets that a read-committed reader must see."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, bytes]] = []
        self.next_offset = 0
        self.open: dict[int, list[int]] = {}
        self.committed: list[int] = []
        self.aborted: list[AbortedTransaction] = []

    def write(self, producer_id: int, count: int, transactional: bool) -> None:
        records = [NewRecord(None, b"v", timestamp=NOW_MS)] * count
        self.batches.append(
            (
                self.next_offset,
                build_batch(
                    records,
                    base_offset=self.next_offset,
                    producer_id=producer_id,
                    producer_epoch=0,
                    base_sequence=0,
                    transactional=transactional,
                ),
            )
        )
        offsets = list(range(self.next_offset, self.next_offset + count))
        if transactional:
            self.open.setdefault(producer_id, []).extend(offsets)
        else:
            self.committed += offsets
        self.next_offset += count

    def end(self, producer_id: int, kind: ControlKind) -> None:
        """As in Kafka, a marker may also end a transaction that wrote nothing here."""
        marker = build_control_batch(
            kind,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=NOW_MS,
            base_offset=self.next_offset,
        )
        self.batches.append((self.next_offset, marker))
        written = self.open.pop(producer_id, [])
        if kind is ControlKind.COMMIT:
            self.committed += written
        elif written:
            self.aborted.append(AbortedTransaction(producer_id, written[0], self.next_offset, 0))
        self.next_offset += 1

    def read(self, start: int) -> list[int]:
        first = max((at for at, (base, _) in enumerate(self.batches) if base <= start), default=0)
        overlapping = [transaction for transaction in self.aborted if transaction.last_offset >= start]
        log = b"".join(batch for _, batch in self.batches[first:])
        return [record.offset for record in decode(log, start_offset=start, aborted=overlapping)]


steps = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 3), st.integers(1, 3), st.booleans()),
    st.tuples(st.just("end"), st.integers(1, 3), st.sampled_from(ControlKind), st.none()),
)


@settings(deadline=None, max_examples=200)
@given(st.lists(steps, max_size=25), st.data())
def test_read_committed_sees_committed_records_only(steps: list[tuple[object, ...]], data: st.DataObject) -> None:
    world = World()
    for step in steps:
        match step:
            case ("write", int(producer_id), int(count), bool(transactional)):
                # A producer with an open transaction writes only transactional batches.
                world.write(producer_id, count, transactional or producer_id in world.open)
            case ("end", int(producer_id), ControlKind() as kind, None):
                world.end(producer_id, kind)
    for producer_id in list(world.open):
        world.end(producer_id, ControlKind.ABORT)
    start = data.draw(st.integers(0, world.next_offset))
    assert world.read(start) == sorted(offset for offset in world.committed if offset >= start)


def test_read_uncommitted_sees_aborted_records_but_no_marker() -> None:
    world = World()
    world.write(1, 2, True)
    world.end(1, ControlKind.ABORT)
    world.write(2, 1, False)
    assert [record.offset for record in decode(b"".join(batch for _, batch in world.batches))] == [0, 1, 3]
