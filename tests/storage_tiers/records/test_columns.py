"""The column decoder matches the plain decoder, with its compiled kernel and with the same source as plain Python."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_tiers.errors import CorruptRecord, LogError, RecordTooLarge, UnsupportedCompression
from storage_tiers.records import batch as layout
from storage_tiers.records import codecs, column_walk, walker
from storage_tiers.records.batch import Codec, read_header
from storage_tiers.records.builder import ControlKind, NewRecord, build_batch, build_control_batch
from storage_tiers.records.checksum import crc32c
from storage_tiers.records.columns import WANTED, ColumnDecoder
from storage_tiers.records.decoder import decode
from storage_tiers.types import AbortedTransaction
from tests.storage_tiers.records import vectors
from tests.storage_tiers.records.column_rows import EVERYTHING, KERNELS, Row, as_row, decoded, kernel, rows_of, source
from tests.storage_tiers.records.strategies import NOW_MS, batches, record_lists
from tests.storage_tiers.records.strategies import codecs as any_codec
from tests.storage_tiers.records.test_fuzz import mutated

Rows = list[Row] | tuple[type[Exception], str]


@pytest.fixture(params=KERNELS)
def twin(request: pytest.FixtureRequest) -> Any:
    with kernel(request.param):
        yield request.param


def all_agree(log: bytes, *arguments: Any, **limits: Any) -> Rows:
    """Decodes with every form of the kernel; asserts that all results are equal, and returns one: rows or an error."""
    answers: list[Rows] = []
    for name in KERNELS:
        with kernel(name):
            try:
                answers.append(decoded([log], *arguments, **limits))
            except LogError as error:
                answers.append((type(error), str(error)))
    assert all(answer == answers[0] for answer in answers), answers
    return answers[0]


def plainly(
    log: bytes, start: int = 0, stop: int | None = None, aborted: Sequence[AbortedTransaction] = ()
) -> list[Row]:
    return [as_row(record) for record in decode(log, start_offset=start, end_offset=stop, aborted=aborted)]


def test_this_run_has_compiled_kernels() -> None:
    if (column_walk.__file__ or "").endswith(".py"):
        pytest.skip("the kernels are not compiled here: run hatch_build.py")
    assert [[module.__file__ == source(module) for module in pair] for pair in KERNELS.values()] == [
        [False, False],
        [True, True],
        [True, True],
    ]


def test_faults_are_the_walkers() -> None:
    named = {name: code for name, code in vars(KERNELS["plain"][1]).items() if name.startswith("_BAD_")}
    assert {code: getattr(walker, name[1:]) for name, code in named.items() if hasattr(walker, name[1:])} == {
        code: code for name, code in named.items() if hasattr(walker, name[1:])
    }
    assert column_walk.BAD_TIMESTAMP not in walker.RECORD_FAULTS


# --- valid batches ----------------------------------------------------------------------------------------------------
@st.composite
def logs(draw: Any) -> tuple[bytes, list[AbortedTransaction]]:
    """A log's batches: every codec, gaps from compaction, log append time, transactions of a few producers."""
    parts: list[bytes] = []
    aborted: list[AbortedTransaction] = []
    begun: dict[int, int] = {}
    offset = draw(st.integers(0, 3) | st.just((1 << 62) - 1))
    for _ in range(draw(st.integers(0, 7))):
        producer = draw(st.integers(-1, 2))
        if producer in begun and draw(st.booleans()):
            kind = draw(st.sampled_from(ControlKind))
            parts.append(
                build_control_batch(
                    kind, producer_id=producer, producer_epoch=0, coordinator_epoch=1, timestamp=1, base_offset=offset
                )
            )
            if kind is ControlKind.ABORT:
                aborted.append(AbortedTransaction(producer, begun[producer], offset, 0))
            del begun[producer]
            offset += 1
            continue
        records = draw(record_lists)
        deltas = sorted(draw(st.sets(st.integers(0, 60), min_size=len(records), max_size=len(records))))
        last = deltas[-1] + draw(st.integers(0, 3))
        transactional = producer >= 0 and draw(st.booleans())
        parts.append(
            build_batch(
                records,
                base_offset=offset,
                codec=draw(any_codec),
                producer_id=producer,
                producer_epoch=0,
                base_sequence=0,
                transactional=transactional,
                log_append_time=draw(st.none() | st.just(NOW_MS)),
                offset_deltas=deltas,
                last_offset_delta=last,
            )
        )
        if transactional:
            begun.setdefault(producer, offset)
        offset += last + 1 + draw(st.sampled_from([0, 0, 5]))
    return b"".join(parts), aborted


@settings(deadline=None, max_examples=60)
@given(logs(), st.data())
def test_every_record_is_the_plain_decoders(log: tuple[bytes, list[AbortedTransaction]], data: st.DataObject) -> None:
    raw, aborted = log
    everything = plainly(raw)
    assert all_agree(raw) == everything
    assert all_agree(raw, 0, (1 << 63) - 1, aborted) == plainly(raw, aborted=aborted)
    offsets = st.sampled_from([row.offset for row in everything] or [0]) | st.integers(0, 200)
    start, stop = data.draw(offsets), data.draw(offsets)
    limits = {"max_rows": data.draw(st.integers(1, 40)), "max_bytes": data.draw(st.integers(1, 500))}
    assert all_agree(raw, start, stop, aborted, **limits) == plainly(raw, start, stop, aborted)


def test_runs_are_one_stream(twin: str) -> None:
    runs = [build_batch([NewRecord(b"k", b"v" * at)] * 30, base_offset=30 * at) for at in range(10)]
    assert decoded(runs, 5, 290, max_rows=64) == plainly(b"".join(runs), 5, 290)
    assert decoded([]) == decoded([b""]) == []


def test_column_batches_are_bounded(twin: str) -> None:
    large = NewRecord(b"k", b"v" * 5000)
    small = NewRecord(b"k", b"v" * 90)
    log = build_batch([small] * 70 + [large] * 2 + [small] * 3, codec=Codec.ZSTD)
    decoder = ColumnDecoder(EVERYTHING, max_rows=32, max_bytes=2000)
    found = [batch.rows for batch in (*decoder.add(log), *decoder.finish())]
    assert found == [20, 20, 20, 10, 1, 1, 3]  # small records take 100 bytes each; each large one fills a batch
    decoder = ColumnDecoder(EVERYTHING, max_rows=32)
    assert [batch.rows for batch in (*decoder.add(log), *decoder.finish())] == [32, 32, 11]


def test_few_rows_hold_little_memory(twin: str) -> None:
    decoder = ColumnDecoder(EVERYTHING)
    assert list(decoder.add(build_batch([NewRecord(b"k", b"v", [("n", b"c")])]))) == []
    (batch,) = decoder.finish()
    columns = (batch.keys, batch.values, batch.headers, batch.names, batch.contents)
    held = [
        batch.offsets,
        batch.timestamps,
        batch.timestamp_types,
        *(buffer for each in columns for buffer in each[2:]),
    ]
    assert sum(map(len, held)) < 100
    assert list(decoder.finish()) == []


@pytest.mark.parametrize("name", WANTED)
def test_columns_that_are_not_wanted_are_not_built(twin: str, name: str) -> None:
    log = build_batch([NewRecord(b"key", b"value", [("name", b"content")])] * 5)
    decoder = ColumnDecoder(WANTED[name])
    list(decoder.add(log))
    (batch,) = decoder.finish()
    built = {"key": batch.keys, "value": batch.values, "headers": batch.names}
    assert batch.rows == 5
    assert {column: bool(buffers.data) for column, buffers in built.items()} == {
        column: column == name for column in built
    }


def test_timestamps_beyond_microseconds_are_null(twin: str) -> None:
    most = ((1 << 63) - 1) // 1000
    times = [most, most + 1, -most, -most - 1, -1]
    rows = decoded([build_batch([NewRecord(None, None, (), time) for time in times])])
    assert [row.microseconds for row in rows] == [most * 1000, None, -most * 1000, None, -1000]


def test_many_headers_and_names_of_any_bytes(twin: str) -> None:
    headers = [("n" * (at % 7), None if at % 3 else b"c") for at in range(3000)]
    log = bytearray(
        build_batch([NewRecord(None, None, headers), NewRecord(b"k", None, [("ümlaut", b""), ("XY", b"")])])
    )
    at = log.index(b"XY")
    log[at : at + 2] = b"\xff\xc3"
    struct.pack_into(">I", log, layout.CRC, crc32c(memoryview(log)[layout.ATTRIBUTES :]))
    first, second = decoded([bytes(log)])
    assert first.headers == tuple(headers)
    assert second.headers == (("ümlaut", b""), ("��", b""))


# --- invalid batches --------------------------------------------------------------------------------------------------
@settings(deadline=None, max_examples=120)
@given(batches(), st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), max_size=3), st.integers(0, 4))
def test_damaged_records_are_refused_as_the_plain_decoder_refuses_them(
    batch: bytes, writes: list[tuple[int, int]], cut: int
) -> None:
    header = read_header(batch)
    payload = bytearray(layout.records_payload(batch, header))
    for position, value in writes:
        payload[position % len(payload)] = value
    whole = bytearray(batch[: layout.HEADER_BYTES] + payload[: len(payload) - cut])
    struct.pack_into(">i", whole, layout.BATCH_LENGTH, len(whole) - layout.LENGTH_OVERHEAD)
    struct.pack_into(">h", whole, layout.ATTRIBUTES, 0)
    struct.pack_into(">I", whole, layout.CRC, crc32c(memoryview(whole)[layout.ATTRIBUTES :]))
    fault, index, *_ = walker.check_records(whole[layout.HEADER_BYTES :], header.count, True, header.last_offset_delta)
    answer = all_agree(bytes(whole))
    try:
        assert answer == plainly(bytes(whole))
    except CorruptRecord:
        assert answer[0] is CorruptRecord
    if fault and "timestamp does not fit" not in str(answer[1]):
        named = f"record {index} of {header.count} in the batch at offset 0: {walker.RECORD_FAULTS[fault]}"
        assert answer == (CorruptRecord, named)


@pytest.mark.parametrize("seed", range(4))
def test_mutated_batches_give_sound_rows_or_the_plain_decoders_error(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codecs, "MIN_INFLATION_BOUND", 1 << 20)
    chance = random.Random(seed)
    seeds = [*vectors.BY_CODEC.values(), vectors.IDEMPOTENT, vectors.COMMIT]
    refused = 0
    for _ in range(400):
        log = mutated(chance.choice(seeds), chance) + chance.choice(seeds)
        expected: Rows
        try:
            expected = plainly(log)
        except LogError as error:
            expected = (type(error), "")
        try:
            assert decoded([log]) == expected
        except LogError as error:
            assert (type(error), "") == expected, error
            refused += 1
    assert refused > 60


def repaired(batch: bytes, position: int, form: str, value: int) -> bytes:
    raw = bytearray(batch)
    struct.pack_into(form, raw, position, value)
    struct.pack_into(">I", raw, layout.CRC, crc32c(memoryview(raw)[layout.ATTRIBUTES :]))
    return bytes(raw)


BATCH = build_batch([NewRecord(b"k", b"v", timestamp=5), NewRecord(b"k", b"v", timestamp=9)], base_offset=40)


@pytest.mark.parametrize(
    ("damaged", "says"),
    [
        (BATCH[:-1] + b"\x01", "CRC-32C of the record batch is"),
        (repaired(BATCH, layout.BATCH_LENGTH, ">i", 40), "says that 40 bytes follow its length field"),
        (repaired(BATCH, layout.MAGIC, ">b", 1), "message format 1 is not read here"),
        (repaired(BATCH, layout.BASE_OFFSET, ">q", -3), "a batch from offset -3 to -2 is impossible"),
        (repaired(BATCH, layout.BASE_OFFSET, ">q", (1 << 63) - 2), "is impossible"),
        (repaired(BATCH, layout.RECORDS_COUNT, ">i", -1), "says it has -1 records"),
        (
            repaired(BATCH, layout.RECORDS_COUNT, ">i", 3),
            "record 2 of 3 in the batch at offset 40: the batch ends before",
        ),
        (
            repaired(BATCH, layout.RECORDS_COUNT, ">i", 1),
            "record 1 of 1 in the batch at offset 40: bytes follow the last",
        ),
        (
            repaired(BATCH, layout.LAST_OFFSET_DELTA, ">i", 0),
            "record 1 of 2 in the batch at offset 40: its offset delta",
        ),
        (
            repaired(BATCH, layout.BASE_TIMESTAMP, ">q", (1 << 63) - 2),
            "record 1 of 2 in the batch at offset 40: its timestamp does not fit 64 bits",
        ),
        (repaired(BATCH, layout.ATTRIBUTES, ">h", Codec.GZIP), "the gzip data of the batch cannot be inflated"),
        (repaired(BATCH, layout.ATTRIBUTES, ">h", 7), "codec 7 does not exist"),
    ],
)
def test_each_damage_has_its_own_finding(twin: str, damaged: bytes, says: str) -> None:
    with pytest.raises((CorruptRecord, UnsupportedCompression, LogError), match=says):
        decoded([build_batch([NewRecord(b"k", b"v")]), damaged])


def test_damage_in_a_compressed_batch_names_its_record(twin: str) -> None:
    payload = bytearray(BATCH[layout.HEADER_BYTES :])
    payload[-1] = 0x7F  # a count of headers
    packed = codecs.compress(Codec.LZ4, payload)
    raw = bytearray(BATCH[: layout.HEADER_BYTES]) + packed
    struct.pack_into(">i", raw, layout.BATCH_LENGTH, len(raw) - layout.LENGTH_OVERHEAD)
    damaged = repaired(bytes(raw), layout.ATTRIBUTES, ">h", Codec.LZ4)
    with pytest.raises(CorruptRecord, match="record 1 of 2 in the batch at offset 40: its headers do not fit"):
        decoded([damaged])


def test_bombs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "MIN_INFLATION_BOUND", 1 << 20)
    bomb = build_batch([NewRecord(None, bytes(4 << 20))], codec=Codec.ZSTD)
    with pytest.raises(RecordTooLarge, match="the zstd batch inflates beyond 1048576 bytes"):
        decoded([bomb])


def test_limits_that_columns_cannot_keep_are_a_mistake(twin: str) -> None:
    for limits in ({"max_rows": 0}, {"max_bytes": 0}, {"max_bytes": 1 << 31}):
        with pytest.raises(ValueError, match="cannot be built"):
            ColumnDecoder(EVERYTHING, **limits)


def test_rows_survive_the_decoder_that_made_them(twin: str) -> None:
    decoder = ColumnDecoder(EVERYTHING, max_rows=10)
    log = build_batch([NewRecord(str(at).encode(), b"v", [("h", None)]) for at in range(30)])
    kept = list(decoder.add(log))
    list(decoder.add(build_batch([NewRecord(b"other", b"other")] * 30, base_offset=30)))
    assert [row.key for batch in kept for row in rows_of(batch)] == [str(at).encode() for at in range(20)]
