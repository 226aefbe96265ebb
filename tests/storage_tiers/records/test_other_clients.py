"""Two independent implementations of the format: we read what they write, and they read what we write."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy, _DefaultRecordBatchPy
from hypothesis import given, settings
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from storage_tiers.records.batch import Codec, read_header, validate
from storage_tiers.records.builder import NewRecord, build_batch
from storage_tiers.records.decoder import decode_batch
from tests.storage_tiers.records.strategies import record_lists

READERS = {"aiokafka": _DefaultRecordBatchPy, "kafka-python": DefaultRecordBatch}
BUILDERS = {"aiokafka": _DefaultRecordBatchBuilderPy, "kafka-python": DefaultRecordBatchBuilder}
#: kafka-python has gzip built in; its other codecs need packages that are not installed here.
PAIRS = [("aiokafka", codec) for codec in Codec] + [("kafka-python", Codec.NONE), ("kafka-python", Codec.GZIP)]


def as_new(records: Any) -> list[NewRecord]:
    return [
        NewRecord(item.key, item.value, [tuple(header) for header in item.headers], item.timestamp) for item in records
    ]


@pytest.mark.parametrize(("client", "codec"), PAIRS)
@settings(deadline=None, max_examples=25)
@given(record_lists)
def test_clients_read_batches_built_here(client: str, codec: Codec, records: list[NewRecord]) -> None:
    batch = build_batch(
        records, base_offset=70, codec=codec, producer_id=8, producer_epoch=1, base_sequence=5, transactional=True
    )
    theirs = READERS[client](batch)
    assert theirs.validate_crc()
    assert (theirs.base_offset, theirs.next_offset, theirs.producer_id) == (70, 70 + len(records), 8)
    assert (theirs.first_timestamp, theirs.max_timestamp) == (
        records[0].timestamp,
        max(record.timestamp for record in records),
    )
    read = list(theirs)
    assert [item.offset for item in read] == list(range(70, 70 + len(records)))
    assert as_new(read) == [record._replace(headers=list(record.headers)) for record in records]


@pytest.mark.parametrize(("client", "codec"), PAIRS)
@settings(deadline=None, max_examples=25)
@given(record_lists)
def test_batches_built_by_clients_are_read(client: str, codec: Codec, records: list[NewRecord]) -> None:
    builder = BUILDERS[client](2, int(codec), True, 8, 1, 5, 1 << 20)
    for offset, record in enumerate(records):
        builder.append(offset, record.timestamp, record.key, record.value, list(record.headers))
    batch = bytes(builder.build())
    header = validate(batch, max_bytes=1 << 20)
    assert not header.wrong_max_timestamp
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.transactional) == (8, 1, 5, True)
    assert as_new(decode_batch(batch)) == [record._replace(headers=list(record.headers)) for record in records]
    if codec is Codec.NONE:
        ours = build_batch(records, producer_id=8, producer_epoch=1, base_sequence=5, transactional=True)
        assert read_header(batch)._replace(leader_epoch=-1)[:13] == read_header(ours)[:13]
