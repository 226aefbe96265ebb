"""`log dump` on files made by the packages that write them, intact and damaged."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.cli.offline.dump_line import Line
from service.cli.offline.log_files import dump_offset_index, dump_time_index
from storage_tiers.cold.manifest.json import encode
from storage_tiers.cold.manifest.model import Author, Ids, ManifestWriter, RemoteSegment
from storage_tiers.cold.manifest.transitions import extend, first_manifest
from storage_tiers.cold.segments import sidecar_builder
from storage_tiers.hot.indexes import OffsetIndex, TimeIndex, encode_transactions
from storage_tiers.hot.leader_epochs import encode as encode_epochs
from storage_tiers.hot.producer_state import ProducerStateManager
from storage_tiers.records.batch import Codec, read_header
from storage_tiers.records.builder import ControlKind, NewRecord, build_batch, build_control_batch
from storage_tiers.types import AbortedTransaction, EpochEntry, TopicId
from tests.service.cli.support import tidelog

START = 1_700_000_000_000
TOPIC_ID = TopicId(bytes(range(16)))
BASE = f"{0:020d}"


def record(offset: int) -> NewRecord:
    return NewRecord(b"k%d" % offset, b"value %d" % offset, (("h", b"1"),), START + offset)


def plain_batches() -> list[bytes]:
    """Offsets 0..9 in five batches of two, from producer 7, under epochs 1 and 2."""
    return [
        build_batch(
            [record(base), record(base + 1)],
            base_offset=base,
            leader_epoch=1 if base < 6 else 2,
            codec=list(Codec)[base // 2],
            producer_id=7,
            producer_epoch=0,
            base_sequence=base,
        )
        for base in range(0, 10, 2)
    ]


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """A partition directory with one segment and the files that belong to it."""
    directory = tmp_path / "flights-0"
    directory.mkdir()
    offsets, times, producers = OffsetIndex(0), TimeIndex(0), ProducerStateManager()
    content = b""
    for batch in plain_batches():
        header = read_header(batch)
        if content:
            offsets.append(header.last_offset, len(content))
        times.maybe_append(header.max_timestamp, header.last_offset)
        producers.update(header, header.base_offset, now_ms=START)
        content += batch
    (directory / f"{BASE}.log").write_bytes(content)
    (directory / f"{BASE}.index").write_bytes(offsets.encode())
    (directory / f"{BASE}.timeindex").write_bytes(times.encode())
    (directory / f"{BASE}.txnindex").write_bytes(encode_transactions([AbortedTransaction(7, 2, 5, 6)]))
    (directory / f"{10:020d}.snapshot").write_bytes(producers.snapshot())
    (directory / "leader-epoch-checkpoint").write_bytes(encode_epochs([EpochEntry(1, 0), EpochEntry(2, 6)]))
    (directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}")
    return directory


def change(path: Path, position: int, new: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[position : position + len(new)] = new
    path.write_bytes(content)


# --- segments ----------------------------------------------------------------------------------------------------------
def test_each_batch_is_a_line_in_kafkas_words(partition: Path) -> None:
    ran = tidelog("log", "dump", partition / f"{BASE}.log")

    assert ran.code == 0
    title, starting, first, *others = ran.out.splitlines()
    assert title == f"Dumping {partition / BASE}.log"
    assert starting == "Log starting offset: 0"
    crc, size = read_header(plain_batches()[0]).crc, len(plain_batches()[0])
    assert first == (
        "baseOffset: 0 lastOffset: 1 count: 2 baseSequence: 0 lastSequence: 1 producerId: 7 producerEpoch: 0 "
        "partitionLeaderEpoch: 1 isTransactional: false isControl: false deleteHorizonMs: none position: 0 "
        f"CreateTime: {START + 1} size: {size} magic: 2 compresscodec: none crc: {crc} isvalid: true"
    )
    assert len(others) == 4


def test_deep_shows_the_records_of_every_codec(partition: Path) -> None:
    ran = tidelog("log", "dump", "--deep", "--json", partition / f"{BASE}.log")

    lines = ran.json_lines
    assert [line["codec"] for line in lines if line["kind"] == "batch"] == ["none", "gzip", "snappy", "lz4", "zstd"]
    records = [line for line in lines if line["kind"] == "record"]
    assert [r["offset"] for r in records] == list(range(10))
    assert [r["sequence"] for r in records] == list(range(10))
    assert [(r["key"], r["value"], r["header_keys"]) for r in records] == [
        (f"k{n}", f"value {n}", ["h"]) for n in range(10)
    ]
    assert records[3]["CreateTime"] == START + 3


def test_deep_text_is_kafkas(tmp_path: Path) -> None:
    path = tmp_path / f"{BASE}.log"
    path.write_bytes(build_batch([NewRecord(b"k", b"v", (("a", None), ("b", b"")), START), NewRecord(None, None)]))

    ran = tidelog("log", "dump", "--deep", path)

    assert ran.out.splitlines()[-2:] == [
        f"| offset: 0 CreateTime: {START} keySize: 1 valueSize: 1 sequence: -1 headerKeys: [a,b] key: k payload: v",
        "| offset: 1 CreateTime: -1 keySize: -1 valueSize: -1 sequence: -1 headerKeys: []",
    ]


def test_binary_is_base64_in_json(tmp_path: Path) -> None:
    path = tmp_path / f"{BASE}.log"
    path.write_bytes(build_batch([NewRecord(b"\xff\xfe", b"text")]))

    line = tidelog("log", "dump", "--deep", "--json", path).json_lines[1]

    assert base64.b64decode(line["key_base64"]) == b"\xff\xfe"
    assert line["value"] == "text"
    assert "key" not in line


def test_markers_show_the_outcome_of_their_transaction(tmp_path: Path) -> None:
    path = tmp_path / f"{BASE}.log"
    path.write_bytes(
        build_control_batch(
            ControlKind.ABORT, producer_id=7, producer_epoch=3, coordinator_epoch=9, timestamp=START, leader_epoch=0
        )
    )

    ran = tidelog("log", "dump", "--deep", path)

    assert ran.code == 0
    assert "isControl: true" in ran.out
    assert ran.out.splitlines()[-1] == f"| offset: 0 CreateTime: {START} endTxnMarker: ABORT coordinatorEpoch: 9"


def test_a_flipped_byte_is_damage_and_later_batches_are_shown(partition: Path) -> None:
    change(partition / f"{BASE}.log", len(plain_batches()[0]) - 1, b"\x7f")

    ran = tidelog("log", "dump", "--deep", "--json", partition / f"{BASE}.log")

    assert ran.code == 1
    assert "1 damaged line" in ran.err
    batches = [line for line in ran.json_lines if line["kind"] == "batch"]
    assert [batch["is_valid"] for batch in batches] == [False, True, True, True, True]
    assert "CRC-32C" in batches[0]["damage"]
    assert [line["offset"] for line in ran.json_lines if line["kind"] == "record"] == list(range(2, 10))


def test_offsets_and_epochs_that_step_back_are_damage(tmp_path: Path) -> None:
    later = build_batch([NewRecord(b"k", b"v")], base_offset=5, leader_epoch=3)
    repeated = build_batch([NewRecord(b"k", b"v")], base_offset=5, leader_epoch=3)
    older = build_batch([NewRecord(b"k", b"v")], base_offset=9, leader_epoch=2)
    path = tmp_path / f"{5:020d}.log"
    path.write_bytes(later + repeated + older)

    ran = tidelog("log", "dump", path)

    assert ran.code == 1
    _, _, first, second, third = ran.out.splitlines()
    assert "DAMAGED" not in first
    assert second.endswith("DAMAGED: offset 6 or later belongs here")
    assert third.endswith("DAMAGED: the batch before it is of the later leader epoch 3")


def test_a_batch_in_the_middle_of_a_write_is_not_damage(partition: Path) -> None:
    log = partition / f"{BASE}.log"
    log.write_bytes(log.read_bytes() + plain_batches()[0][:70])

    ran = tidelog("log", "dump", log)

    assert ran.code == 0
    assert "70 bytes at position" in ran.out.splitlines()[-1]


def test_in_a_closed_segment_a_torn_batch_is_damage(partition: Path) -> None:
    log = partition / f"{BASE}.log"
    log.write_bytes(log.read_bytes() + plain_batches()[0][:70])
    (partition / f"{10:020d}.log").write_bytes(b"")

    ran = tidelog("log", "dump", log)

    assert ran.code == 1
    assert ran.out.splitlines()[-1].endswith("DAMAGED: the batch there is incomplete")


def test_bytes_that_are_not_a_batch_are_damage(partition: Path) -> None:
    log = partition / f"{BASE}.log"
    log.write_bytes(log.read_bytes() + b"\0" * 100)

    ran = tidelog("log", "dump", "--json", log)

    assert ran.code == 1
    assert ran.json_lines[-1]["bytes_left"] == 100
    assert ran.json_lines[-1]["position"] == sum(map(len, plain_batches()))


def test_a_large_batch_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / f"{BASE}.log"
    path.write_bytes(build_batch([NewRecord(b"k", bytes(3 << 20))]) + build_batch([record(1)], base_offset=1))

    ran = tidelog("log", "dump", "--json", path)

    assert ran.code == 0
    assert [line["base_offset"] for line in ran.json_lines] == [0, 1]


# --- indexes -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_a_sound_index_is_shown_entry_by_entry(partition: Path, suffix: str) -> None:
    ran = tidelog("log", "dump", "--json", partition / f"{BASE}.{suffix}")

    assert ran.code == 0
    expected = [3, 5, 7, 9] if suffix == "index" else [1, 3, 5, 7, 9]
    assert [line["offset"] for line in ran.json_lines] == expected


@pytest.mark.parametrize(("suffix", "dump"), [("index", dump_offset_index), ("timeindex", dump_time_index)])
def test_every_wrong_entry_is_found(partition: Path, suffix: str, dump: Callable[[Path], Iterator[Line]]) -> None:
    path = partition / f"{BASE}.{suffix}"
    sound = path.read_bytes()
    for position in range(len(sound)):
        path.write_bytes(sound)
        change(path, position, bytes([sound[position] ^ 0x40]))

        assert any(line.damage for line in dump(path)), f"byte {position}"


def test_an_index_entry_names_the_batch_it_points_to(partition: Path) -> None:
    change(partition / f"{BASE}.index", 3, b"\x07")

    ran = tidelog("log", "dump", partition / f"{BASE}.index")

    assert "DAMAGED: the batch at that position holds offsets 2 to 3" in ran.out.splitlines()[1]


def test_a_torn_index_is_damage(partition: Path) -> None:
    path = partition / f"{BASE}.timeindex"
    path.write_bytes(path.read_bytes()[:-5])

    ran = tidelog("log", "dump", path)

    assert ran.code == 1
    assert "DAMAGED: 7 bytes follow the last whole entry" in ran.out


def test_preallocated_zeros_of_kafka_are_not_shown(partition: Path) -> None:
    for suffix in ("index", "timeindex"):
        path = partition / f"{BASE}.{suffix}"
        path.write_bytes(path.read_bytes() + bytes(8 * 12 * 100))

    ran = tidelog("log", "dump", "--json", partition / f"{BASE}.index", partition / f"{BASE}.timeindex")

    assert ran.code == 0
    assert len(ran.json_lines) == 4 + 5


def test_an_index_without_its_log_is_shown_unverified(partition: Path) -> None:
    (partition / f"{BASE}.log").unlink()

    ran = tidelog("log", "dump", "--json", partition / f"{BASE}.index")

    assert ran.code == 0
    assert [line["kind"] for line in ran.json_lines] == ["note"] + ["offset_entry"] * 4


# --- the other files ---------------------------------------------------------------------------------------------------
def test_a_directory_is_shown_file_by_file(partition: Path) -> None:
    ran = tidelog("log", "dump", "--json", partition)

    assert ran.code == 0
    files = list(dict.fromkeys(Path(line["file"]).name for line in ran.json_lines))
    assert files == [
        "leader-epoch-checkpoint",
        "partition.metadata",
        f"{BASE}.log",
        f"{BASE}.index",
        f"{BASE}.timeindex",
        f"{BASE}.txnindex",
        f"{10:020d}.snapshot",
    ]
    by_kind = {line["kind"]: line for line in ran.json_lines}
    assert by_kind["partition_metadata"]["topic_id"] == str(TOPIC_ID)
    assert (by_kind["leader_epoch"]["epoch"], by_kind["leader_epoch"]["start_offset"]) == (2, 6)
    assert by_kind["aborted_transaction"]["last_stable_offset"] == 6
    producer = by_kind["producer"]
    assert (producer["producer_id"], producer["first_sequence"], producer["last_sequence"]) == (7, 8, 9)
    assert (producer["last_offset"], producer["current_txn_first_offset"]) == (9, None)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("leader-epoch-checkpoint", b"0\n5\n1 0\n"),
        ("partition.metadata", b"version: 0\n"),
        (f"{10:020d}.snapshot", b"\0\1damaged"),
        (f"{BASE}.txnindex", b"short"),
        ("recovery-point-offset-checkpoint", b"0\n1\n"),
        (f"{BASE}-1-{'a' * 32}.idx", b"TIDELIDX"),
        ("00000.json", b"{}"),
        (f"0-9-{'a' * 32}.json.gz", b"plain"),
    ],
)
def test_a_damaged_file_is_named_and_does_not_end_the_dump(partition: Path, name: str, content: bytes) -> None:
    (partition / name).write_bytes(content)

    ran = tidelog("log", "dump", "--json", partition)

    assert ran.code == 1
    assert {Path(line["file"]).name for line in ran.json_lines if "damage" in line} == {name}
    assert sum(line["kind"] == "batch" for line in ran.json_lines) == 5


def test_offset_checkpoints_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "replication-offset-checkpoint"
    path.write_text("0\n1\nflights 3 42\n")

    (line,) = tidelog("log", "dump", "--json", path).json_lines

    assert (line["topic"], line["partition"], line["offset"]) == ("flights", 3, 42)


def test_a_path_that_is_not_there_or_of_no_kind_is_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")

    assert tidelog("log", "dump", tmp_path / "gone.log").code == 2
    assert tidelog("log", "dump", tmp_path / "notes.txt").code == 2
    assert "name a partition's directory" in tidelog("log", "dump", tmp_path).err


def test_a_sidecar_is_shown_section_by_section(partition: Path, tmp_path: Path) -> None:
    log = partition / f"{BASE}.log"
    built = sidecar_builder.build(
        str(log),
        0,
        log.stat().st_size,
        base=0,
        end=10,
        aborted=[AbortedTransaction(7, 2, 5, 6)],
        epochs=[EpochEntry(1, 0), EpochEntry(2, 6)],
        producer_state=(partition / f"{10:020d}.snapshot").read_bytes(),
    )
    path = tmp_path / f"{BASE}-2-{'a' * 32}.idx"
    path.write_bytes(built.data)

    shallow = tidelog("log", "dump", "--json", path)
    deep = tidelog("log", "dump", "--json", "--deep", path)

    assert shallow.code == deep.code == 0
    assert [line["name"] for line in shallow.json_lines if line["kind"] == "section"] == [
        "index",
        "checks",
        "aborted",
        "epochs",
        "producer",
    ]
    assert [line["start_offset"] for line in shallow.json_lines if line["kind"] == "leader_epoch"] == [0, 6]
    assert {"index_row", "check", "producer"} <= {line["kind"] for line in deep.json_lines}

    change(path, len(built.data) - 1, b"\xaa")
    assert tidelog("log", "dump", path).code == 1


def test_a_manifest_is_shown_segment_by_segment(tmp_path: Path) -> None:
    ids = Ids("cluster", "flights", TOPIC_ID, 0)
    segment = RemoteSegment(
        0, 10, ids.segment_key(0, 1, "a" * 32), 0, 500, ids.sidecar_key(0, 1, "a" * 32), (), START, START, 0, 10, 500, 1
    )
    author = Author(ManifestWriter(1, 1), "b" * 32, START, lambda: "c" * 32)
    manifest = extend(first_manifest(ids), segment, author, leader_epoch=1, last_record_epoch=1, log_start=0)
    path = tmp_path / "00000.json"
    path.write_bytes(encode(manifest))

    lines = tidelog("log", "dump", "--json", path).json_lines

    assert [line["kind"] for line in lines] == ["manifest", "segment"]
    assert (lines[0]["topic"], lines[0]["commit"], lines[0]["end"]) == ("flights", 1, 10)
    assert lines[1]["key"] == segment.key


def test_other_documents_and_pages_are_shown_as_they_are(tmp_path: Path) -> None:
    topic, page = tmp_path / "topic.json", tmp_path / f"0-9-{'a' * 32}.json.gz"
    topic.write_text('{"format": 1, "topic": "flights", "earlier": ["x"]}')
    page.write_bytes(gzip.compress(b'{"format": 1, "segments": [{"base": 0}, {"base": 5}]}'))

    ran = tidelog("log", "dump", "--json", topic, page)

    assert ran.code == 0
    assert [(line["kind"], line.get("base")) for line in ran.json_lines] == [
        ("document", None),
        ("earlier", None),
        ("page", None),
        ("segments", 0),
        ("segments", 5),
    ]
