"""The kernel's calls for whole chunks of batches beside its calls for one batch: the same map, and the same bytes stay."""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_tiers.compaction import offset_map as kernel
from storage_tiers.compaction.batches import CleaningRules, LastRecord, clean_batch, map_keys
from storage_tiers.compaction.transactions import CleanedTransactions
from storage_tiers.errors import CorruptRecord
from storage_tiers.hot.scan import ScannedBatch
from storage_tiers.records.batch import assign, read_header, set_crc
from storage_tiers.records.batch_walk import WHOLE, recover_scan
from storage_tiers.records.builder import NewRecord, build_batch, build_empty_batch
from storage_tiers.records.codecs import Codec
from tests.storage_tiers.compaction.test_offset_map import KEY, TWINS, words

keys = st.sampled_from([None, b"a", b"b", b"c" * 20, b"d"])
records = st.lists(
    st.tuples(keys, st.sampled_from([None, b"v", b"w" * 90]), st.integers(-9, 9)), min_size=1, max_size=6
)
kinds = st.sampled_from(["plain", "plain", "plain", "producer", "gzip", "transaction", "append time", "empty"])


def made(kind: str, rows: list[tuple[bytes | None, bytes | None, int]]) -> bytearray:
    content = [NewRecord(key, value, timestamp=1000 + stamp) for key, value, stamp in rows]
    if kind == "empty":
        return bytearray(build_empty_batch(0, 3, leader_epoch=0))
    is_producers = kind in ("producer", "transaction")
    return bytearray(
        build_batch(
            content,
            codec=Codec.GZIP if kind == "gzip" else Codec.NONE,
            producer_id=7 if is_producers else -1,
            producer_epoch=0 if is_producers else -1,
            base_sequence=0 if is_producers else -1,
            transactional=kind == "transaction",
            log_append_time=5000 if kind == "append time" else None,
        )
    )


def chunk_of(batches: list[bytearray]) -> tuple[bytes, list[ScannedBatch]]:
    """The batches in one chunk, with their offsets assigned, and the scan of the chunk, as a cleaner reads them."""
    data, base = b"", 0
    for each in batches:
        assign(each, base_offset=base, leader_epoch=0)
        base = read_header(each).next_offset
        data += each
    found, _, stop = recover_scan(data, 0, 0, -1)
    assert stop == WHOLE
    return data, found


def single(data: bytes, row: ScannedBatch) -> memoryview:
    return memoryview(data)[row[0] : row[0] + row[1]]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(kinds, records), min_size=1, max_size=8), st.integers(0, 20), st.integers(0, 30), st.booleans()
)
def test_a_chunk_is_cleaned_as_its_batches_are(
    content: list[tuple[str, list[tuple[bytes | None, bytes | None, int]]]], start: int, latest: int, is_last: bool
) -> None:
    data, scanned = chunk_of([made(kind, rows) for kind, rows in content])
    lasts = {7: LastRecord(max((row[3] for row in scanned), default=0) - 1, 0)} if is_last else {}
    rules = CleaningRules(10_000, 100, latest, 0, lasts)
    one_by_one = kernel.OffsetMap(words(16), 0.9, KEY)
    for row in scanned:
        batch = single(data, row)
        assert map_keys(batch, read_header(batch), one_by_one, CleanedTransactions(()), start)
    expected = [
        clean_batch(batch, read_header(batch), one_by_one, CleanedTransactions(()), rules, is_last=False)
        for batch in (single(data, row) for row in scanned)
    ]
    for twin in TWINS.values():
        known = twin.OffsetMap(words(16), 0.9, KEY)
        noted(known, data, scanned, start)
        assert known.count == one_by_one.count
        assert kept(known, data, scanned, rules) == [None if stays is None else bytes(stays) for stays in expected]


def noted(known: Any, data: bytes, scanned: list[ScannedBatch], start: int) -> None:
    at = 0
    while (at := known.add_batches(data, scanned, at, start)) < len(scanned):
        batch = single(data, scanned[at])
        assert is_special(batch)
        assert map_keys(batch, read_header(batch), known, CleanedTransactions(()), start)
        at += 1


def kept(known: Any, data: bytes, scanned: list[ScannedBatch], rules: CleaningRules) -> list[bytes | None]:
    """The bytes that a cleaning keeps of each batch; None if it removes the batch."""
    found: list[bytes | None] = []
    while len(found) < len(scanned):
        at = len(found)
        stopped, records, written, rows = known.clean_batches(
            data, scanned, at, len(scanned), rules.latest, rules.last_offsets
        )
        assert records == sum(read_header(data, row[0]).count for row in scanned[at:stopped])
        by_end = {}
        for begin, size, count, following, timestamp, is_changed in rows:
            batch = written[begin : begin + size]
            if is_changed:
                set_crc(batch)
            header = read_header(batch)
            assert (header.size, header.count, header.next_offset) == (size, count, following)
            assert header.max_timestamp == timestamp
            by_end[following] = bytes(batch)
        found += [by_end.get(row[3]) for row in scanned[at:stopped]]
        if stopped < len(scanned):
            batch = single(data, scanned[stopped])
            stays = clean_batch(batch, read_header(batch), known, CleanedTransactions(()), rules, is_last=False)
            found.append(None if stays is None else bytes(stays))
    return found


def is_special(batch: memoryview) -> bool:
    header = read_header(batch)
    return header.attributes != 0 or header.count <= 0


@pytest.fixture(params=list(TWINS))
def twin(request: pytest.FixtureRequest) -> ModuleType:
    return TWINS[request.param]


def test_ordinary_batches_take_one_call(twin: ModuleType) -> None:
    """Batches of idempotent producers, the common case, need no other call. The call stops only at a producer's last batch."""
    rows: list[tuple[bytes | None, bytes | None, int]] = [(b"a", b"v", 0), (b"b", b"v", 0)]
    data, scanned = chunk_of([made(kind, rows) for kind in ("plain", "producer", "plain")])
    known = twin.OffsetMap(words(16), 0.9, KEY)
    assert known.add_batches(data, scanned, 0, 0) == 3
    stopped, records, _, kept_rows = known.clean_batches(data, scanned, 0, 3, 5, frozenset())
    assert (stopped, records, [row[3] for row in kept_rows]) == (3, 6, [6])
    stopped, _, _, _ = known.clean_batches(data, scanned, 0, 3, 5, frozenset((3,)))
    assert stopped == 1


def test_a_tombstone_that_stays_is_judged_alone(twin: ModuleType) -> None:
    data, scanned = chunk_of([made("plain", [(b"a", b"v", 0)]), made("plain", [(b"b", None, 0)])])
    known = twin.OffsetMap(words(16), 0.9, KEY)
    known.add_batches(data, scanned, 0, 0)
    assert known.clean_batches(data, scanned, 0, 2, 1, frozenset())[0] == 1


def test_a_chunk_without_room_stops_at_the_batch(twin: ModuleType) -> None:
    data, scanned = chunk_of([made("plain", [(key, b"v", 0)]) for key in (b"a", b"b", b"c")])
    known = twin.OffsetMap(words(3), 1.0, KEY)
    assert (known.limit, known.add_batches(data, scanned, 0, 0)) == (2, 2)


@pytest.mark.parametrize("call", ["add_batches", "clean_batches"])
def test_a_broken_record_is_named(twin: ModuleType, call: str) -> None:
    batch = made("plain", [(b"a", b"v", 0), (b"b", b"v", 0)])
    batch[61 + 9] = 0x7F  # changes the second record's length
    struct.pack_into(">q", batch, 0, 40)
    row = (0, len(batch), 40, 42, 0, 1000)
    known = twin.OffsetMap(words(8), 0.9, KEY)
    arguments: tuple[Any, ...] = (0, 0) if call == "add_batches" else (0, 1, 99, frozenset())
    with pytest.raises(CorruptRecord, match="record 1 of the batch at offset 40"):
        getattr(known, call)(bytes(batch), [row], *arguments)
