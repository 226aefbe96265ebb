"""The bytes of decoded records on the wire equal protobuf's encoding of the same records."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpc_api.messages import record_rows
from grpc_api.proto import records_pb2 as pb
from storage_tiers.records.builder import NewRecord, build_batch
from storage_tiers.records.column_buffers import HEADERS, KEY, OFFSET, TIMESTAMP, VALUE
from storage_tiers.records.columns import ColumnBatch, ColumnDecoder
from tests.storage_tiers.records.strategies import record_lists
from tests.storage_tiers.records.twins import source_of, twins_of

TWINS = twins_of(record_rows)


def test_this_run_has_a_compiled_encoder() -> None:
    if (record_rows.__file__ or "").endswith(".py"):
        pytest.skip("the encoder of rows is not compiled here: run hatch_build.py")
    assert [module.__file__ == source_of(record_rows) for module in TWINS.values()] == [False, True, True]


def columns_of(records: list[NewRecord], base: int) -> ColumnBatch:
    decoder = ColumnDecoder(OFFSET | TIMESTAMP | KEY | VALUE | HEADERS)
    assert list(decoder.add(build_batch(records, base_offset=base))) == []
    (columns,) = decoder.finish()
    return columns


def expected(records: list[NewRecord], base: int, partition: int) -> pb.ReadResponse:
    return pb.ReadResponse(
        records=[
            pb.ReadRecord(
                partition=partition,
                offset=base + at,
                timestamp_ms=record.timestamp,
                key=record.key,
                value=record.value,
                headers=[pb.RecordHeader(name=name, value=value) for name, value in record.headers],
            )
            for at, record in enumerate(records)
        ]
    )


@settings(deadline=None, max_examples=150)
@given(record_lists, st.sampled_from([0, 1, 127, 128, 1 << 40]), st.sampled_from([0, 1, 200, 70_000]))
def test_the_bytes_are_those_of_protobuf(records: list[NewRecord], base: int, partition: int) -> None:
    columns = columns_of(records, base)
    if columns.timestamp_nulls:
        return
    wanted = expected(records, base, partition)
    for module in TWINS.values():
        encoded = module.RowEncoder(partition).encode(columns)
        assert pb.ReadResponse.FromString(encoded) == wanted
        assert encoded == wanted.SerializeToString()


@pytest.mark.parametrize("module", TWINS.values(), ids=TWINS)
def test_large_records_and_times_before_1970_have_room(module: ModuleType) -> None:
    records = [
        NewRecord(b"k" * size, b"v" * (3 * size), [("h" * 200, b"c" * size)], -5) for size in (0, 5_000, 1 << 20)
    ]
    encoded = module.RowEncoder(3).encode(columns_of(records, 9))
    assert encoded == expected(records, 9, 3).SerializeToString()
