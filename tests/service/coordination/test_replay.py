"""The replay of a coordinator's log, compared with the plain decoder."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.coordination.replay import RECORDS_AT_ONCE, Marker, Replayed, replay
from storage_tiers.errors import CorruptRecord
from storage_tiers.records.batch import headers, read_header
from storage_tiers.records.builder import (
    ControlKind,
    NewRecord,
    assemble,
    build_batch,
    build_control_batch,
    build_empty_batch,
)
from storage_tiers.records.codecs import Codec
from storage_tiers.records.decoder import decode_batch, decode_control


class One(NamedTuple):
    """A record as a shard loads it."""

    offset: int
    producer_id: int
    key: bytes
    value: bytes | None
    time: int


def plainly(piece: bytes) -> list[Marker | One]:
    found: list[Marker | One] = []
    for position, header in headers(piece):
        batch = piece[position : position + header.size]
        control = decode_control(batch) if header.control else None
        if control is not None:
            found.append(Marker(header.base_offset, header.producer_id, control.kind is ControlKind.COMMIT))
        for each in decode_batch(batch):
            assert each.key is not None
            producer = header.producer_id if header.transactional else -1
            found.append(One(each.offset, producer, each.key, each.value, each.timestamp))
    return found


def replayed(piece: bytes) -> list[Marker | One]:
    found: list[Marker | One] = []
    for step in replay(piece):
        if isinstance(step, Marker):
            found.append(step)
        else:
            assert 0 < len(step.keys) <= RECORDS_AT_ONCE
            rows = zip(step.offsets, step.keys, step.values, step.times, strict=True)
            found += [One(offset, step.producer_id, key, value, time) for offset, key, value, time in rows]
    return found


def records(count: int) -> list[NewRecord]:
    return [NewRecord(b"k%d" % each, None if each % 3 == 1 else b"v" * each, timestamp=each) for each in range(count)]


plain_batches = st.builds(
    lambda count, codec, producer: build_batch(
        records(count), codec=codec, producer_id=producer, producer_epoch=0, transactional=producer >= 0
    ),
    st.sampled_from((1, 2, 300)),
    st.sampled_from((Codec.NONE, Codec.LZ4)),
    st.sampled_from((-1, 1, 2)),
)
idempotent = st.just(build_batch(records(2), producer_id=3, producer_epoch=0, base_sequence=0))
stamped = st.just(build_batch(records(3), log_append_time=77))
emptied = st.just(build_empty_batch(0, 5, leader_epoch=1))
markers = st.builds(
    lambda kind, producer: build_control_batch(
        kind, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=5
    ),
    st.sampled_from(ControlKind),
    st.sampled_from((1, 2)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(plain_batches, idempotent, stamped, emptied, markers), max_size=8))
def test_a_replay_agrees_with_the_plain_decoder(batches: list[bytes]) -> None:
    piece = b"".join(batches)
    assert replayed(piece) == plainly(piece)


def test_a_marker_that_compaction_has_emptied_is_not_replayed() -> None:
    marker = build_control_batch(
        ControlKind.COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=5, base_offset=1
    )
    emptied = assemble(read_header(marker)._replace(base_timestamp=-1, count=0), b"")
    before, after = build_batch(records(1)), build_batch(records(1), base_offset=2)
    assert replayed(before + emptied + after) == replayed(before) + replayed(after)


def test_a_record_without_a_key_is_named() -> None:
    batch = build_batch([NewRecord(b"k", b"v", timestamp=1), NewRecord(None, b"v", timestamp=1)], base_offset=40)
    with pytest.raises(CorruptRecord, match="the record at offset 41 has no key"):
        list(replay(batch))


def test_nothing_of_a_damaged_batch_is_replayed() -> None:
    good, damaged = build_batch(records(2)), bytearray(build_batch(records(2), base_offset=2))
    damaged[-1] ^= 1
    said: list[Marker | Replayed] = []
    with pytest.raises(CorruptRecord):
        said.extend(replay(good + bytes(damaged)))
    assert not said
