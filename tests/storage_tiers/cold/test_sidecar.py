"""Sidecars: they parse to what was built, and every kind of damage is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_tiers.cold.segments import sidecar, sidecar_builder
from storage_tiers.cold.segments.sidecar import CHECK_BYTES, INTERVAL_BYTES, Sidecar
from storage_tiers.cold.segments.sidecar_builder import SidecarBytes
from storage_tiers.errors import CorruptRecord, InvalidRequest, StorageError, StoreRefused, TierCorrupt
from storage_tiers.hot.producer_state import ProducerStateManager
from storage_tiers.records.batch import read_header
from storage_tiers.records.builder import NewRecord, assemble, build_batch
from storage_tiers.records.checksum import crc32c
from storage_tiers.types import AbortedTransaction, EpochEntry

EPOCHS = (EpochEntry(0, 0), EpochEntry(3, 77))
ABORTED = (AbortedTransaction(9, 100, 120, 90), AbortedTransaction(9, 150, 260, 140))


def segment(shapes: list[tuple[int, int, int]], base: int = 100, epoch: int = 3) -> tuple[bytes, list[tuple[int, int]]]:
    """Batches of (records, value bytes, timestamp); returns the bytes and each batch's (base offset, position)."""
    parts, places, at = [], [], 0
    for count, size, timestamp in shapes:
        records = [NewRecord(None, bytes(size), timestamp=timestamp) for _ in range(count)]
        parts.append(build_batch(records, base_offset=base, leader_epoch=epoch))
        places.append((base, at))
        base += count
        at += len(parts[-1])
    return b"".join(parts), places


def build(data: bytes, *, base: int = 100, end: int | None = None, **fields: object) -> SidecarBytes:
    known: dict[str, object] = {"aborted": ABORTED, "epochs": EPOCHS, "producer_state": b"producers"}
    return sidecar_builder.build(data, 0, len(data), base=base, end=end or base + 10_000, **(known | fields))  # type: ignore[arg-type]


def read(built: SidecarBytes) -> Sidecar:
    return sidecar.parse(built.data)


SHAPES = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from([0, 10, 5_000, 40_000, 90_000]), st.integers(0, 1000)),
    min_size=1,
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(SHAPES)
def test_every_offset_and_time_is_found(shapes: list[tuple[int, int, int]]) -> None:
    data, places = segment(shapes)
    built = build(data)
    side = read(built)
    assert (side.length, side.crc32c) == (len(data), crc32c(data)) == (len(data), built.crc32c)
    assert built.records == sum(count for count, _, _ in shapes)
    for base, position in places:
        floor_base, floor_position = side.floor_position(base)
        assert floor_base <= base and floor_position <= position
        assert position - floor_position < INTERVAL_BYTES
        assert (floor_base, floor_position) in places
        assert position < side.end_position(base)
    for wanted in (0, 250, 999, 1000, 1001):
        first = next((p for (_, p), (_, _, t) in zip(places, shapes, strict=True) if t >= wanted), None)
        interval = side.interval_for_timestamp(wanted)
        if first is None:
            assert interval is None
        else:
            assert interval is not None and interval[0] <= first < interval[1]
    newest = max(t for _, _, t in shapes)
    assert built.max_timestamp == newest
    assert built.max_timestamp_offset == next(
        b for (b, _), (_, _, t) in zip(places, shapes, strict=True) if t == newest
    )
    assert built.min_timestamp == min(t for _, _, t in shapes)


def test_the_timestamps_of_emptied_batches_do_not_count() -> None:
    data, places = segment([(1, 10, 900), (1, 10, 200), (1, 10, 300)])
    head = read_header(data)
    emptied = assemble(head._replace(base_timestamp=-1, count=0), b"")  # as compaction leaves a producer's last batch
    left = emptied + data[places[1][1] :]
    built = build(left)
    assert (built.records, built.min_timestamp, built.max_timestamp, built.max_timestamp_offset) == (2, 200, 300, 102)
    assert [row.max_timestamp for row in read(built).index] == [300]
    nothing = build(emptied, end=101)
    assert (nothing.records, nothing.min_timestamp, nothing.max_timestamp, nothing.max_timestamp_offset) == (
        0,
        -1,
        -1,
        100,
    )


def test_checks_cover_each_mebibyte() -> None:
    data, _ = segment([(1, 700_000, 1)] * 4)
    side = read(build(data))
    assert list(side.mib_crcs) == [crc32c(data[at : at + CHECK_BYTES]) for at in range(0, len(data), CHECK_BYTES)]


def test_a_batch_larger_than_a_piece_is_indexed() -> None:
    data, places = segment([(1, 10, 1), (1, 3_000_000, 2), (1, 10, 3)])
    side = read(build(data))
    assert [row.position for row in side.index] == [places[0][1], places[2][1]]
    assert side.floor_position(places[1][0]) == places[0]
    assert list(side.mib_crcs) == [crc32c(data[at : at + CHECK_BYTES]) for at in range(0, len(data), CHECK_BYTES)]


def test_sections_come_back() -> None:
    side = read(build(segment([(2, 10, 5)])[0]))
    assert side.epochs == EPOCHS
    assert side.aborted == ABORTED
    assert side.producer_state == b"producers"
    assert side.aborted_between(121, 150) == ()
    assert side.aborted_between(110, 151) == ABORTED


def test_the_earlier_batches_of_producers_have_a_section_of_their_own() -> None:
    """The test reads the section by docs/formats.md alone, without the project's reader."""
    state = ProducerStateManager()
    for number in range(7):
        for producer in (9, 8):
            batch = build_batch([NewRecord(None, b"")], producer_id=producer, producer_epoch=0, base_sequence=number)
            state.update(read_header(batch), 2 * number + producer, now_ms=0)
    built = build(segment([(2, 10, 5)])[0], producer_state=state.state())
    at = {name: built.data[position : position + length] for name, position, length, _ in built.sections}
    assert list(at) == ["index", "checks", "aborted", "epochs", "producer", "batches"]
    assert at["producer"] == state.snapshot()
    crc, count = struct.unpack_from(">Ii", at["batches"])
    assert crc == crc32c(at["producer"][6:] + at["batches"][4:])
    rows = list(struct.iter_unpack(">qiqiq", at["batches"][8:]))
    assert len(rows) == count
    assert [row[:4] for row in rows] == [(p, number, 2 * number + p, 0) for p in (8, 9) for number in range(2, 6)]
    assert read(built).producer_state == state.state()


def test_a_sidecar_is_the_same_from_a_file_a_descriptor_and_a_buffer(tmp_path: Path) -> None:
    data, _ = segment([(1, 50_000, 1)] * 30)
    path = tmp_path / "0.log"
    path.write_bytes(b"before" + data + b"after")
    known = {"base": 100, "end": 200, "aborted": (), "epochs": (), "producer_state": b""}
    with path.open("rb") as file:
        made = [
            sidecar_builder.build(source, 6, len(data), **known)  # type: ignore[arg-type]
            for source in (str(path), file.fileno(), path.read_bytes(), memoryview(path.read_bytes()))
        ]
    assert all(built == made[0] for built in made)


def test_one_range_serves_a_first_read_and_another_a_rebuild() -> None:
    built = build(segment([(2, 100_000, 5)] * 20)[0])
    whole = read(built)
    for names in (("index", "checks", "aborted"), sidecar.STATE):
        start, length = sidecar.span(built.sections, names)
        assert names != ("index", "checks", "aborted") or (start, length) == sidecar.front(built.sections)
        part = sidecar.parse_part(
            built.data[start : start + length],
            start,
            built.sections,
            base=whole.base,
            end=whole.end,
            length=whole.length,
            crc=whole.crc32c,
        )
        assert (part.index, part.mib_crcs, part.aborted) == (
            (whole.index, whole.mib_crcs, whole.aborted) if "index" in names else ((), (), ())
        )
        assert (part.epochs, part.producer_state) == (
            (whole.epochs, whole.producer_state) if "epochs" in names else ((), b"")
        )
    assert sidecar.read_table(built.data) == built.sections


def test_every_flipped_byte_is_noticed() -> None:
    built = build(segment([(1, 100_000, 5)] * 3)[0])
    for at in range(len(built.data)):
        damaged = bytearray(built.data)
        damaged[at] ^= 0x40
        with pytest.raises((TierCorrupt, StoreRefused)):
            sidecar.parse(bytes(damaged))


def test_every_cut_is_noticed() -> None:
    built = build(segment([(1, 100, 5)])[0])
    for size in range(len(built.data)):
        with pytest.raises(TierCorrupt):
            sidecar.parse(built.data[:size])


def rewritten(built: SidecarBytes, *, least: int = 1, extra: bytes | None = None) -> bytes:
    """The sidecar as a later version may write it: with another least reader version, and one more section if `extra` is
    given."""
    head = list(struct.unpack_from(">8sHHIqqQI", built.data))
    rows = [*built.sections]
    shift = 28 if extra is not None else 0
    table = b"".join(struct.pack(">8sQQI", s.name.encode(), s.position + shift, s.length, s.crc32c) for s in rows)
    body = built.data[built.sections[0].position :]
    if extra is not None:
        table += struct.pack(">8sQQI", b"bloom", len(built.data) + shift, len(extra), crc32c(extra))
        body += extra
        head[3] += 1
    head[1], head[2] = max(1, least), least
    packed = struct.pack(">8sHHIqqQI", *head)
    return packed + struct.pack(">I", crc32c(packed + table)) + table + body


def test_unknown_sections_are_ignored_and_newer_formats_refused() -> None:
    built = build(segment([(1, 100, 5)])[0])
    assert sidecar.parse(rewritten(built)) == read(built)
    assert sidecar.parse(rewritten(built, extra=b"who knows")) == read(built)
    with pytest.raises(StoreRefused, match="reader of format 3"):
        sidecar.parse(rewritten(built, least=3))


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (segment([(1, 10, 1)])[0][:-1], "no whole batch of format v2 begins"),
        (segment([(1, 10, 1)])[0] + b"\0" * 61, "no whole batch begins"),
        (segment([(1, 10, 1)], base=99)[0], "outside"),
        (segment([(5, 10, 1)])[0] * 2, "outside"),
        (segment([(1, 10, 1)], base=100)[0] + segment([(1, 10, 1)], base=101, epoch=2)[0], "leader epoch 2, after 3"),
    ],
)
def test_partial_batches_are_refused(data: bytes, fault: str) -> None:
    with pytest.raises(CorruptRecord, match=fault):
        build(data)


def test_segments_outside_their_bounds_and_unreadable_files_are_refused(tmp_path: Path) -> None:
    data, _ = segment([(3, 10, 1)])
    with pytest.raises(CorruptRecord, match="outside"):
        build(data, end=102)
    with pytest.raises(InvalidRequest):
        build(b"")
    known = {"base": 100, "end": 200, "aborted": (), "epochs": (), "producer_state": b""}
    with pytest.raises(StorageError, match="No such file"):
        sidecar_builder.build(str(tmp_path / "gone"), 0, 10, **known)  # type: ignore[arg-type]
    (tmp_path / "short").write_bytes(data)
    with pytest.raises(StorageError, match="expected"):
        sidecar_builder.build(str(tmp_path / "short"), 0, len(data) + 1, **known)  # type: ignore[arg-type]


@pytest.mark.parametrize("sizes", [[50, 50, 50], [50, 3_000_000, 50], [600_000, 600_000, 600_000]])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_batch_changed_on_the_disk_is_named(tmp_path: Path, sizes: list[int], which: int) -> None:
    """A flip in any byte that the batch's CRC covers; batches are small, larger than one read, or span two reads."""
    data, places = segment([(2, size, 1) for size in sizes])
    ends = [position for _, position in places[1:]] + [len(data)]
    base, at = places[which]
    path = tmp_path / "0.log"
    for flipped in (at + 21, (at + ends[which]) // 2, ends[which] - 1):
        damaged = bytearray(data)
        damaged[flipped] ^= 0x10
        path.write_bytes(b"before" + damaged)
        with pytest.raises(CorruptRecord) as caught:
            sidecar_builder.build(
                str(path), 6, len(data), base=100, end=200, aborted=(), epochs=EPOCHS, producer_state=b""
            )
        assert f"the batch at byte {6 + at} of {path}, the first from offset {base} on" in str(caught.value)
        assert "CRC-32C" in str(caught.value)


@pytest.mark.parametrize(("flipped", "advised"), [(-1, True), (26, False), (7, False), (11, False)])
def test_the_error_of_a_damaged_header_advises_no_deletion(tmp_path: Path, flipped: int, advised: bool) -> None:
    """With a damaged last offset delta, base offset or length, the damaged batch does not show where it ends."""
    data, places = segment([(2, 50, 1), (2, 50, 1), (2, 50, 1)])
    (_, at), (following, end) = places[1], places[2]
    damaged = bytearray(data)
    damaged[at + flipped if flipped >= 0 else end - 1] ^= 0x40
    path = tmp_path / "0.log"
    path.write_bytes(damaged)
    with pytest.raises(CorruptRecord) as caught:
        sidecar_builder.build(str(path), 0, len(data), base=100, end=200, aborted=(), epochs=EPOCHS, producer_state=b"")
    assert (f"delete the records below offset {following} to continue" in str(caught.value)) == advised
    assert ("delete the records" in str(caught.value)) == advised
