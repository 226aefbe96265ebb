"""A partition directory that Apache Kafka 4.2.1 wrote and closed, byte for byte.

`kafka_4_2_1/golden-0`: three producers (plain, idempotent, transactional with an abort and a commit an hour),
`index.interval.bytes=300`, `segment.ms=3600000`, timestamps out of order within the hour; made with librdkafka.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage_tiers.files import OsFiles
from storage_tiers.hot.data_dir import read_topic_id
from storage_tiers.hot.log import HotLog
from storage_tiers.hot.log_ground import LogGround
from storage_tiers.hot.settings import LogSettings
from storage_tiers.records.batch import headers
from storage_tiers.types import AbortedTransaction, EpochEntry, TopicPartition
from tests.storage_tiers.hot.support import START_MS, read_all
from tests.support.clock import ManualClock, SeededRng

GOLDEN = Path(__file__).parent / "kafka_4_2_1"
NAME = "golden-0"


def open_golden(root: Path, *, clean: bool, recovery_point: int = 0) -> HotLog:
    topic_id = read_topic_id(str(GOLDEN / NAME))
    assert topic_id is not None
    return HotLog.open(
        LogGround(
            str(root / NAME),
            TopicPartition("golden", 0),
            topic_id,
            OsFiles(),
            ManualClock(START_MS),
            SeededRng(1),
        ),
        LogSettings(index_interval_bytes=300, segment_ms=3_600_000),
        recovery_point=recovery_point,
        log_start_offset=0,
        clean=clean,
    )


def contents(root: Path) -> dict[str, bytes]:
    """The files that Kafka knows: all except the `.batches` files, which Kafka ignores."""
    return {path.name: path.read_bytes() for path in (root / NAME).iterdir() if path.suffix != ".batches"}


def golden_batches() -> bytes:
    return b"".join(path.read_bytes() for path in sorted((GOLDEN / NAME).glob("*.log")))


@pytest.mark.parametrize("clean", [True, False])
def test_kafkas_directory_is_read(tmp_path: Path, clean: bool) -> None:
    shutil.copytree(GOLDEN, tmp_path, dirs_exist_ok=True)
    log = open_golden(tmp_path, clean=clean)
    assert log.cuts == ()
    assert [(segment.base, segment.end) for segment in log.segments()] == [(0, 34), (34, 68), (68, 102)]
    assert log.end.epochs.entries() == (EpochEntry(0, 0),)
    assert read_all(log) == golden_batches()
    assert len(log.end.producers.producers) == 2
    aborted = log.reader.aborted_transactions(0, 102)
    assert [type(entry) for entry in aborted] == [AbortedTransaction] * 3
    assert all(entry.first_offset < entry.last_offset < entry.last_stable_offset for entry in aborted)
    log.close(clean=False)


def test_recovery_makes_kafkas_files(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path, dirs_exist_ok=True)
    for path in (tmp_path / NAME).iterdir():
        if "index" in path.suffix or path.suffix == ".snapshot":
            path.unlink()
    open_golden(tmp_path, clean=False).close(clean=True)
    assert contents(tmp_path) == contents(GOLDEN)


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_appending_makes_kafkas_files(tmp_path: Path, role: str) -> None:
    log, batches = open_golden(tmp_path, clean=False), memoryview(golden_batches())
    for position, header in headers(batches):
        batch = batches[position : position + header.size]
        if role == "leader":
            log.appender.append(batch, header, leader_epoch=0, now_ms=START_MS)
        else:
            log.appender.append_as_follower(batch)
    log.close(clean=True)
    assert contents(tmp_path) == contents(GOLDEN)
