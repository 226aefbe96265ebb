"""Decoded messages equal those of the plain decoder, whatever the records are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpc_api.sdk.decoding import ROWS_A_TURN, messages
from grpc_api.sdk.values import Message
from storage_tiers.errors import CorruptRecord
from storage_tiers.records.batch import Codec
from storage_tiers.records.builder import ControlKind, NewRecord, build_batch, build_control_batch
from storage_tiers.records.decoder import decode
from storage_tiers.types import AbortedTransaction

FIELD = st.none() | st.binary(max_size=20)
RECORD = st.builds(
    NewRecord,
    FIELD,
    FIELD,
    st.lists(st.tuples(st.text(max_size=5), FIELD), max_size=3),
    st.integers(0, 1 << 42) | st.just((1 << 63) - 1 >> 1),
)
BATCH = st.tuples(st.lists(RECORD, min_size=1, max_size=8), st.sampled_from(list(Codec)))


def plain(data: bytes, start: int, aborted: list[AbortedTransaction]) -> list[Message]:
    found = decode(data, start_offset=start, aborted=aborted)
    return [Message("t", 3, each.offset, each.timestamp, each.key, each.value, each.headers) for each in found]


@given(st.lists(BATCH, max_size=4), st.integers(0, 40))
def test_any_records_are_those_of_the_plain_decoder(batches: list[tuple[list[NewRecord], Codec]], start: int) -> None:
    data, offset = b"", 0
    for records, codec in batches:
        data += build_batch(records, base_offset=offset, codec=codec)
        offset += len(records)

    assert list(messages("t", 3, data, start, ())) == plain(data, start, [])


def test_a_batch_of_more_records_than_one_turn_decodes_is_decoded_whole() -> None:
    records = [NewRecord(b"%d" % number, None, (), number) for number in range(3 * ROWS_A_TURN + 5)]
    data = build_batch(records, codec=Codec.LZ4)

    found = list(messages("t", 0, data, 10, ()))

    assert [message.offset for message in found] == list(range(10, len(records)))
    assert found[-1].key == b"%d" % (len(records) - 1)


def test_aborted_transactions_and_markers_are_left_out() -> None:
    producer: Any = {"producer_id": 7, "producer_epoch": 0}
    data = build_batch([NewRecord(None, b"aborted")], base_sequence=0, transactional=True, **producer)
    data += build_control_batch(ControlKind.ABORT, coordinator_epoch=0, timestamp=0, base_offset=1, **producer)
    data += build_batch([NewRecord(None, b"kept")], base_offset=2, base_sequence=1, transactional=True, **producer)

    found = list(messages("t", 0, data, 0, [AbortedTransaction(7, 0, 1, 0)]))

    assert [(message.offset, message.value) for message in found] == [(2, b"kept")]


def test_damage_is_an_error() -> None:
    data = bytearray(build_batch([NewRecord(None, b"value")]))
    data[-1] ^= 1
    with pytest.raises(CorruptRecord):
        list(messages("t", 0, bytes(data), 0, ()))
