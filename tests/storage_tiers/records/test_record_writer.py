"""Encoding record by record gives the same bytes as the plain builder gives for all records at once."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_tiers.records import record_writer
from storage_tiers.records.batch import TRANSACTIONAL_MASK, Codec
from storage_tiers.records.builder import NewRecord, build_batch, build_written_batch
from storage_tiers.records.decoder import decode_batch
from storage_tiers.records.record_writer import RecordWriter, encode_headers
from storage_tiers.types import NO_PRODUCER_ID
from tests.storage_tiers.records.strategies import record_lists
from tests.storage_tiers.records.twins import source_of, twins_of

TWINS = twins_of(record_writer)
keyed_records = st.lists(st.tuples(st.binary(max_size=40), st.none() | st.binary(max_size=80)), min_size=1, max_size=9)


def test_this_run_has_a_compiled_writer() -> None:
    if (record_writer.__file__ or "").endswith(".py"):
        pytest.skip("the record writer is not compiled here: run hatch_build.py")
    assert [module.__file__ == source_of(record_writer) for module in TWINS.values()] == [False, True, True]


def written(records: list[NewRecord], module: ModuleType = record_writer) -> Any:
    writer = module.RecordWriter()
    for record in records:
        writer.append(record.key, record.value, module.encode_headers(record.headers), record.timestamp)
    return writer


@settings(deadline=None, max_examples=150)
@given(record_lists)
def test_the_bytes_are_the_builders(records: list[NewRecord]) -> None:
    expected = build_batch(records)
    for module in TWINS.values():
        writer = written(records, module)
        assert build_written_batch(writer) == expected
        assert (writer.count, writer.size) == (len(records), len(expected) - 61)
        assert writer.base_timestamp == records[0].timestamp
        assert writer.max_timestamp == max(record.timestamp for record in records)


@settings(deadline=None, max_examples=150)
@given(keyed_records, st.integers(0, (1 << 62) - 1), st.sampled_from([(NO_PRODUCER_ID, -1), (0, 0), (1 << 62, 32_767)]))
def test_plain_batches_are_the_builders(
    records: list[tuple[bytes, bytes | None]], time: int, producer: tuple[int, int]
) -> None:
    producer_id, epoch = producer
    transactional = producer_id >= 0
    expected = build_batch(
        [NewRecord(key, value, (), time) for key, value in records],
        producer_id=producer_id,
        producer_epoch=epoch,
        transactional=transactional,
    )
    attributes = TRANSACTIONAL_MASK if transactional else 0
    for module in TWINS.values():
        assert module.encode_plain_batch(records, time, attributes, producer_id, epoch) == expected


@pytest.mark.parametrize("module", TWINS.values(), ids=TWINS)
def test_plain_batches_have_varints_of_every_size(module: ModuleType) -> None:
    records = [(b"k" * (at % 300), None if at % 7 == 0 else b"v" * (at * 31 % 20_000)) for at in range(9_000)]
    expected = build_batch([NewRecord(key, value, (), 5) for key, value in records])
    assert module.encode_plain_batch(records, 5, 0, NO_PRODUCER_ID, -1) == expected


@pytest.mark.parametrize("module", TWINS.values(), ids=TWINS)
def test_a_record_larger_than_the_free_buffer_waits_for_room(module: ModuleType) -> None:
    sizes = [0, 1, 4000, 5000, 70_000, 3, 1 << 20, 63, 64, 8191, 8192]
    records = [NewRecord(b"k" * (size % 300), bytes([size % 251]) * size, (), 1_700_000_000_000) for size in sizes]
    assert build_written_batch(written(records, module)) == build_batch(records)


@pytest.mark.parametrize("module", TWINS.values(), ids=TWINS)
def test_times_far_apart_fit(module: ModuleType) -> None:
    times = [0, (1 << 63) - 1, 0, 5, (1 << 62), 1]
    records = [NewRecord(None, b"x", (), time) for time in times]
    assert build_written_batch(written(records, module)) == build_batch(records)


@pytest.mark.parametrize("codec", Codec)
def test_a_compressed_batch_reads_as_it_was_written(codec: Codec) -> None:
    records = [NewRecord(b"%d" % at, b"v" * 40, [("h", None)], 1_000 + at) for at in range(500)]
    batch = build_written_batch(written(records), codec=codec, producer_id=7, producer_epoch=3, base_sequence=9)
    assert batch == build_batch(records, codec=codec, producer_id=7, producer_epoch=3, base_sequence=9)
    assert [(read.key, read.value, read.headers) for read in decode_batch(batch)] == [
        (record.key, record.value, tuple(record.headers)) for record in records
    ]


@pytest.mark.parametrize("wrong", ["text", 5, bytearray(b"x"), memoryview(b"x")])
def test_a_refused_record_leaves_nothing(wrong: Any) -> None:
    """The writer takes only bytes: callers copy other buffers first."""
    writer = RecordWriter()
    with pytest.raises(TypeError):
        writer.append(wrong, b"x", encode_headers(()), 0)
    assert (writer.count, writer.size, writer.payload()) == (0, 0, b"")


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        build_written_batch(RecordWriter())
