"""The compiled walker behaves like the same source as plain Python, with and without Cython installed."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_tiers.errors import CorruptRecord, LogError
from storage_tiers.records import batch as layout
from storage_tiers.records import batch_walk, walker
from storage_tiers.records.batch import read_header, records_payload
from storage_tiers.records.builder import NewRecord, assemble, build_batch
from storage_tiers.records.checksum import crc32c
from storage_tiers.records.decoder import decode_batch
from tests.storage_tiers.records import vectors
from tests.storage_tiers.records.strategies import NOW_MS, batches, record_lists
from tests.storage_tiers.records.twins import source_of, twins_of

TWINS = twins_of(walker)
TWINS_OVER_BATCHES = twins_of(batch_walk)


@pytest.fixture(params=TWINS)
def twin(request: pytest.FixtureRequest) -> Any:
    return TWINS[request.param]


def all_agree(name: str, *arguments: Any, **named: Any) -> Any:
    """Calls every form of the walker; asserts that all results are equal, and returns one: a value or an error."""
    answers = []
    for module in (TWINS if hasattr(walker, name) else TWINS_OVER_BATCHES).values():
        try:
            answers.append(getattr(module, name)(*arguments, **named))
        except (CorruptRecord, ValueError) as error:
            answers.append((type(error), str(error)))
    assert all(answer == answers[0] for answer in answers), answers
    return answers[0]


def test_this_run_has_a_compiled_walker() -> None:
    if (walker.__file__ or "").endswith(".py") or (batch_walk.__file__ or "").endswith(".py"):
        pytest.skip("walker is not compiled here: run hatch_build.py")
    assert [module.__file__ == source_of(walker) for module in TWINS.values()] == [False, True, True]
    assert [module.__file__ == source_of(batch_walk) for module in TWINS_OVER_BATCHES.values()] == [False, True, True]


# --- records ----------------------------------------------------------------------------------------------------------
@settings(deadline=None, max_examples=100)
@given(record_lists)
def test_sound_records_pass_and_their_timestamps_are_found(records: list[NewRecord]) -> None:
    batch = build_batch(records)
    deltas = [record.timestamp - records[0].timestamp for record in records]
    highest = max(deltas)
    expected = (walker.SOUND, len(records), min(deltas), highest, deltas.index(highest))
    assert all_agree("check_records", batch[layout.HEADER_BYTES :], len(records)) == expected
    keyed = all(record.key is not None for record in records)
    assert (all_agree("check_records", batch[layout.HEADER_BYTES :], len(records), False)[0] == walker.SOUND) == keyed


@settings(deadline=None, max_examples=150)
@given(batches(), st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), max_size=4), st.integers(0, 8))
def test_the_walker_accepts_the_batches_of_the_plain_decoder(
    batch: bytes, writes: list[tuple[int, int]], cut: int
) -> None:
    header = read_header(batch)
    payload = bytearray(records_payload(batch, header))
    for position, value in writes:
        payload[position % len(payload)] = value
    payload = payload[: len(payload) - cut]
    fault, *_ = all_agree("check_records", payload, header.count, True, header.last_offset_delta)
    whole = bytearray(batch[: layout.HEADER_BYTES] + payload)
    struct.pack_into(">i", whole, layout.BATCH_LENGTH, len(whole) - layout.LENGTH_OVERHEAD)
    struct.pack_into(">h", whole, layout.ATTRIBUTES, 0)
    struct.pack_into(">q", whole, layout.BASE_TIMESTAMP, 0)  # so that no timestamp leaves 64 bits
    try:
        decode_batch(whole, verify=False)
        read = True
    except CorruptRecord:
        read = False
    assert read == (fault == walker.SOUND)


@settings(deadline=None, max_examples=300)
@given(
    record_lists,
    st.lists(st.tuples(st.integers(0, 2**20), st.sampled_from((0, 1, 2, 0x7F, 0x80, 0xFF))), max_size=3),
    st.booleans(),
    st.booleans(),
    st.sampled_from((0, 1000, (1 << 63) - 1)),
    st.sampled_from(((-1, -1, -1), (7, 0, 0), (7, 3, (1 << 31) - 1), (7, -1, 0), (7, 0, -1), (-2, 0, 0))),
    st.booleans(),
)
def test_a_plain_batch_is_one_that_passes_all_checks_unchanged(
    records: list[NewRecord],
    writes: list[tuple[int, int]],
    fitting_crc: bool,
    compacted: bool,
    before: int,
    producer: tuple[int, int, int],
    transactional: bool,
) -> None:
    batch = bytearray(build_batch(records))
    struct.pack_into(">qhi", batch, layout.PRODUCER_ID, *producer)
    batch[layout.ATTRIBUTES + 1] = layout.TRANSACTIONAL_MASK if transactional else 0
    struct.pack_into(">I", batch, layout.CRC, crc32c(memoryview(batch)[layout.ATTRIBUTES :]))
    for position, value in writes:
        batch[position % len(batch)] = value
    if fitting_crc:
        struct.pack_into(">I", batch, layout.CRC, crc32c(memoryview(batch)[layout.ATTRIBUTES :]))
    view = memoryview(batch)
    found = all_agree("plain_batch", view, view, not compacted, NOW_MS, before, 3_600_000)
    try:
        checked = layout.validate(batch, max_bytes=len(batch), compacted=compacted)
        layout.check_timestamps(checked, now_ms=NOW_MS, before_max_ms=before, after_max_ms=3_600_000)
    except LogError:
        assert found is None
        return
    lowest, highest = checked.lowest_timestamp, checked.highest_timestamp
    assert lowest is not None and highest is not None
    needs_no_codec = not checked.attributes & ~layout.TRANSACTIONAL_MASK
    plain = needs_no_codec and not checked.wrong_max_timestamp and min(lowest, checked.base_timestamp) >= 0
    assert (found is not None) == plain
    assert found is None or found == tuple(checked)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=120), st.integers(-1, 10), st.booleans(), st.integers(-1, 300))
def test_any_bytes_are_safe_to_walk(payload: bytes, count: int, null_keys: bool, last: int) -> None:
    fault, index, lowest, highest, highest_at = all_agree("check_records", payload, count, null_keys, last)
    assert fault == walker.SOUND or fault in walker.RECORD_FAULTS
    assert 0 <= index <= max(count, 0)
    assert lowest <= highest
    assert 0 <= highest_at <= max(count, last, 0)


@pytest.mark.parametrize(
    "field",
    ["feffffff0f", "ffffffff0f", "ffffffff1f", "8080808080", "80", "feffffffffffffffff01", "ffffffffffffffffff01"],
)
@pytest.mark.parametrize("place", range(7))
def test_extreme_numbers_in_every_place_are_safe(field: str, place: int) -> None:
    """The widest varints as length, timestamp delta, offset delta, key, value, header count and header name."""
    body = [b"\x00", b"\x00", b"\x02", b"\x02", b"\x02", b"\x00"]
    raw = bytes.fromhex(field)
    if place:
        body[place - 1] = raw
    inner = b"\x00" + body[0] + body[1] + body[2] + b"k" + body[3] + b"v" + body[4] + body[5] + b"\x01"
    payload = (raw if not place else bytes([len(inner) << 1])) + inner
    fault, *_ = all_agree("check_records", payload, 1)
    assert fault == walker.SOUND or place != 1 or len(raw) < 9


def test_timestamp_deltas_use_all_64_bits(twin: Any) -> None:
    batch = build_batch([NewRecord(None, None, timestamp=at) for at in (0, 2**63 - 1, -(2**63))])
    assert twin.check_records(batch[61:], 3) == (0, 3, -(2**63), 2**63 - 1, 1)


def test_compacted_batches_have_rising_offsets_within_their_range(twin: Any) -> None:
    records = [NewRecord(b"k", b"v", timestamp=NOW_MS + at) for at in (0, 5, 3)]
    payload = build_batch(records, offset_deltas=[2, 7, 8], last_offset_delta=9)[61:]
    assert twin.check_records(payload, 3, False, 9) == (twin.SOUND, 3, 0, 5, 7)
    assert twin.check_records(payload, 3, False, 8)[0] == twin.SOUND
    assert twin.check_records(payload, 3, False, 7)[:2] == (twin.BAD_OFFSET_DELTA, 2)
    assert twin.check_records(payload, 3)[:2] == (twin.BAD_OFFSET_DELTA, 0)
    repeated = build_batch(records, offset_deltas=[2, 2, 8])[61:]
    assert twin.check_records(repeated, 3, False, 9)[:2] == (twin.BAD_OFFSET_DELTA, 1)


@pytest.mark.parametrize(
    "wrong", [None, 5, "text", memoryview(b"abcd")[::2], memoryview(struct.pack("2i", 1, 2)).cast("i")]
)
def test_other_than_plain_bytes_is_a_mistake_of_the_caller(wrong: Any) -> None:
    if (walker.__file__ or "").endswith(".py"):
        pytest.skip("plain Python takes any sequence")
    with pytest.raises((TypeError, ValueError, BufferError)):
        walker.check_records(wrong, 1)


# --- timestamps -------------------------------------------------------------------------------------------------------
@settings(deadline=None, max_examples=100)
@given(record_lists, st.data())
def test_find_timestamp_finds_the_first_at_or_after(records: list[NewRecord], data: st.DataObject) -> None:
    known = st.sampled_from([record.timestamp for record in records])
    target = data.draw(known | st.integers(-(2**64), 2**64))
    base = records[0].timestamp
    expected = next(
        ((record.timestamp, 500 + at) for at, record in enumerate(records) if record.timestamp >= target), None
    )
    payload = build_batch(records)[layout.HEADER_BYTES :]
    assert all_agree("find_timestamp", payload, len(records), base, 500, target) == expected


def test_find_timestamp_refuses_damage_before_the_record_it_seeks(twin: Any) -> None:
    payload = bytearray(build_batch([NewRecord(None, b"v", timestamp=at) for at in (10, 20, 30)])[61:])
    payload[payload[0] // 2 + 1] = 0xFF
    assert twin.find_timestamp(payload, 3, 10, 0, 10) == (10, 0)
    with pytest.raises(CorruptRecord, match="record 1"):
        twin.find_timestamp(payload, 3, 10, 0, 20)


# --- batches ----------------------------------------------------------------------------------------------------------
def chain(*counts: int, base: int = 100, epoch: int = 3) -> tuple[bytes, list[tuple[int, int, int, int, int, int]]]:
    """A log of batches with the given record counts, and the expected result of a scan."""
    log = b""
    expected = []
    for count in counts:
        batch = build_batch(
            [NewRecord(None, b"v", timestamp=NOW_MS + base)] * count, base_offset=base, leader_epoch=epoch
        )
        expected.append((len(log), len(batch), base, base + count, epoch, NOW_MS + base))
        log += batch
        base += count
    return log, expected


def test_scan_lists_whole_batches_and_the_reason_of_its_stop() -> None:
    log, expected = chain(1, 5, 2)
    assert all_agree("scan_batches", log, 0, len(log)) == (expected, len(log), batch_walk.WHOLE)
    assert all_agree("scan_batches", log, expected[1][0], len(log)) == (expected[1:], len(log), batch_walk.WHOLE)
    for end in (len(log) - 1, expected[2][0] + 60, expected[2][0] + 1):
        assert all_agree("scan_batches", log, 0, end) == (expected[:2], expected[2][0], batch_walk.PARTIAL)
    assert all_agree("scan_batches", b"", 0, 0) == ([], 0, batch_walk.WHOLE)


def test_the_timestamp_of_an_emptied_batch_counts_as_none() -> None:
    log, expected = chain(1, 1, 1)
    at, size = expected[1][:2]
    header = read_header(log, at)
    emptied = assemble(header._replace(base_timestamp=-1, count=0), b"")
    log = log[:at] + emptied + log[at + size :]
    last = at + len(emptied), *expected[2][1:]
    kept = [expected[0], (at, len(emptied), *expected[1][2:5], -1), last]
    assert all_agree("scan_batches", log, 0, len(log)) == (kept, len(log), batch_walk.WHOLE)
    assert all_agree("recover_scan", log, 0, 100, 3) == (kept, len(log), batch_walk.WHOLE)


@pytest.mark.parametrize(
    ("position", "form", "value", "stop"),
    [
        (layout.BATCH_LENGTH, ">i", 48, batch_walk.BAD_SIZE),
        (layout.BATCH_LENGTH, ">i", -1, batch_walk.BAD_SIZE),
        (layout.BATCH_LENGTH, ">i", 2**31 - 1, batch_walk.PARTIAL),
        (layout.MAGIC, ">b", 1, batch_walk.BAD_MAGIC),
        (layout.BASE_OFFSET, ">q", -1, batch_walk.BAD_OFFSETS),
        (layout.BASE_OFFSET, ">q", 2**63 - 1, batch_walk.BAD_OFFSETS),
        (layout.LAST_OFFSET_DELTA, ">i", -1, batch_walk.BAD_OFFSETS),
    ],
)
def test_walks_over_batches_stop_at_nonsense(position: int, form: str, value: int, stop: int) -> None:
    log, expected = chain(3, 3, 3)
    bad = bytearray(log)
    at = expected[1][0]
    struct.pack_into(form, bad, at + position, value)
    assert all_agree("scan_batches", bad, 0, len(bad)) == (expected[:1], at, stop)
    assert all_agree("recover_scan", bad, 0, 100, 3) == (expected[:1], at, stop)
    found = all_agree("find_batch", bad, 0, len(bad), 105)
    assert found == ((-1, at, 2**31 - 1 + 12) if stop == batch_walk.PARTIAL else (-2, at, stop))


def test_find_batch_finds_the_batch_of_an_offset() -> None:
    log, expected = chain(1, 5, 2)
    log += chain(1, base=200)[0]  # a gap
    for target, found in [(0, 0), (100, 0), (101, 1), (105, 1), (106, 2), (107, 2)]:
        assert all_agree("find_batch", log, 0, len(log), target) == expected[found][:3]
    assert all_agree("find_batch", log, 0, len(log), 108)[2] == 200
    assert all_agree("find_batch", log, 0, len(log), 201) == (-1, len(log), 0)
    assert all_agree("find_batch", log, expected[2][0], len(log), 0) == expected[2][:3]


def test_find_batch_returns_the_bytes_to_read_next() -> None:
    log, expected = chain(1, 5)
    at, size, base = expected[1][:3]
    assert all_agree("find_batch", log, 0, at, 103) == (-1, at, 0)
    assert all_agree("find_batch", log, 0, at + 60, 103) == (-1, at, 61)
    assert all_agree("find_batch", log, 0, at + 61, 103) == (-1, at, size)
    assert all_agree("find_batch", log, 0, at + 61, 103, whole=False) == (at, size, base)
    assert all_agree("find_batch", log, 0, at + 61, 106, whole=False) == (-1, at, size)
    assert all_agree("find_batch", log, 0, len(log) - 1, 103) == (-1, at, size)


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (0, 62), (6, 5)])
def test_a_range_beyond_the_buffer_is_refused(start: int, end: int) -> None:
    for name, more in (("scan_batches", ()), ("find_batch", (0,))):
        assert all_agree(name, bytes(61), start, end, *more)[0] is ValueError


def test_recovery_keeps_gaps_and_stops_at_damage() -> None:
    log, expected = chain(2, 2)
    later, more = chain(3, base=150, epoch=4)
    log += later
    expected += [(expected[1][0] + expected[1][1], *more[0][1:])]
    assert all_agree("recover_scan", log, 0, 100, 3) == (expected, len(log), batch_walk.WHOLE)
    assert all_agree("recover_scan", log, 0, 101, 3) == ([], 0, batch_walk.BAD_OFFSETS)
    assert all_agree("recover_scan", log, 0, 100, 4) == ([], 0, batch_walk.BAD_EPOCH)
    assert all_agree("recover_scan", log, expected[1][0], 0, -1, len(log) - 1) == (
        expected[1:2],
        expected[2][0],
        batch_walk.PARTIAL,
    )
    backwards = later + chain(1, base=153, epoch=3)[0]
    assert all_agree("recover_scan", backwards, 0, 0, -1)[2] == batch_walk.BAD_EPOCH
    overlapping = chain(2)[0] + chain(2, base=101)[0]
    assert all_agree("recover_scan", overlapping, 0, 0, -1)[2] == batch_walk.BAD_OFFSETS


def test_recovery_sees_every_flipped_bit_that_the_crc_covers() -> None:
    log, expected = chain(1, 1)
    at, size = expected[1][:2]
    for position in [*range(at + layout.CRC, at + layout.CRC + 4), *range(at + layout.ATTRIBUTES, at + size)]:
        for bit in range(8):
            bad = bytearray(log)
            bad[position] ^= 1 << bit
            kept, stopped, stop = batch_walk.recover_scan(bad, 0, 100, 3)
            assert (kept, stopped) == (expected[:1], at)
            assert stop in (batch_walk.BAD_CRC, batch_walk.BAD_OFFSETS)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), max_size=4),
    st.integers(-1, 200),
)
def test_any_bytes_are_safe_to_scan(counts: list[int], writes: list[tuple[int, int]], target: int) -> None:
    log = bytearray(chain(*counts)[0])
    for position, value in writes:
        log[position % len(log)] = value
    batches, position, _ = all_agree("scan_batches", log, 0, len(log))
    assert position == sum(batch[1] for batch in batches)
    recovered, until, _ = all_agree("recover_scan", log, 0, 100, 3)
    assert recovered == batches[: len(recovered)]
    assert until <= position
    found, size, base = all_agree("find_batch", log, 0, len(log), target)
    if found >= 0:
        assert (found, size, base) == next(batch[:3] for batch in batches if batch[3] > target)


def test_java_batches_are_sound(twin: Any) -> None:
    for batch in vectors.BY_CODEC.values():
        header = read_header(batch)
        assert twin.check_records(records_payload(batch, header), header.count)[0] == twin.SOUND
