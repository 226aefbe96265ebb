"""The files that a data directory keeps for all its partitions, and the directory itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from storage_tiers.errors import DirectoryLocked, StorageError
from storage_tiers.files import OsFiles
from storage_tiers.hot import checkpoints
from storage_tiers.hot.data_dir import DataDirectory
from storage_tiers.hot.layout import parse_partition, removal_name
from storage_tiers.types import TopicPartition
from tests.storage_tiers.hot.support import PARTITION, TOPIC_ID, open_log
from tests.support.clock import SeededRng

FILES = OsFiles()


def directory(path: Path, seed: int = 1) -> DataDirectory:
    return DataDirectory.open(str(path), files=FILES, rng=SeededRng(seed))


def test_offset_checkpoints_are_kafkas_text(tmp_path: Path) -> None:
    path = str(tmp_path / checkpoints.RECOVERY_POINTS)
    assert checkpoints.read_offsets(path) == {}
    offsets = {TopicPartition("flights", 0): 12, TopicPartition("a.b-c", 11): 1 << 40}
    checkpoints.write_offsets(FILES, path, offsets)
    assert Path(path).read_text() == "0\n2\nflights 0 12\na.b-c 11 1099511627776\n"
    assert checkpoints.read_offsets(path) == offsets
    checkpoints.write_offsets(FILES, path, {})
    assert checkpoints.read_offsets(path) == {}
    assert os.listdir(tmp_path) == [checkpoints.RECOVERY_POINTS]


@pytest.mark.parametrize("content", ["", "0\n", "1\n0\n", "0\n2\na 0 1\n", "0\n1\na 0\n", "0\n1\na b c\n"])
def test_a_damaged_checkpoint_is_an_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / checkpoints.LOG_STARTS
    path.write_text(content)
    with pytest.raises(StorageError, match="damaged"):
        checkpoints.read_offsets(str(path))


def test_a_checkpoint_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot write"):
        checkpoints.write_offsets(FILES, str(tmp_path / "missing" / "checkpoint"), {})


def test_the_clean_shutdown_marker_holds_for_one_start(tmp_path: Path) -> None:
    assert not checkpoints.take_clean_shutdown_marker(FILES, str(tmp_path))
    checkpoints.write_clean_shutdown_marker(FILES, str(tmp_path), broker_epoch=4)
    assert (tmp_path / ".kafka_cleanshutdown").read_text() == '{"version": 0, "brokerEpoch": 4}'
    assert checkpoints.take_clean_shutdown_marker(FILES, str(tmp_path))
    assert not checkpoints.take_clean_shutdown_marker(FILES, str(tmp_path))


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    first = directory(tmp_path / "data")
    program = (
        "import sys\n"
        "from tests.support.clock import SeededRng\nfrom storage_tiers.files import OsFiles\n"
        "from storage_tiers.errors import DirectoryLocked\nfrom storage_tiers.hot.data_dir import DataDirectory\n"
        "try:\n    DataDirectory.open(sys.argv[1], files=OsFiles(), rng=SeededRng(1))\n"
        "except DirectoryLocked as error:\n    sys.exit(str(error))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "data")]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1 and "another process uses" in refused.stderr
    with pytest.raises(DirectoryLocked):
        directory(tmp_path / "data")
    first.close()
    assert subprocess.run(command, check=False).returncode == 0


def test_the_identity_stays(tmp_path: Path) -> None:
    opened = directory(tmp_path)
    assert opened.identity() is None
    identity = opened.establish("c1", 3)
    text = (tmp_path / "meta.properties").read_text()
    assert text == f"version=1\ncluster.id=c1\nnode.id=3\ndirectory.id={identity.directory_id}\n"
    assert len(identity.directory_id) == 22
    opened.close()
    again = directory(tmp_path, seed=2)
    assert again.establish("c1", 3) == identity
    for cluster, node in (("c2", 3), ("c1", 4)):
        with pytest.raises(StorageError, match="belongs to node 3 of cluster c1"):
            again.establish(cluster, node)
    (tmp_path / "meta.properties").write_text("version=1\n")
    with pytest.raises(StorageError, match="damaged"):
        again.identity()
    again.close()


def test_partitions_are_listed_and_strays_and_deleted_ones_are_set_aside(tmp_path: Path) -> None:
    opened = directory(tmp_path)
    kept = open_log(tmp_path)
    kept.close(clean=True)
    (tmp_path / "other-0").mkdir()
    (tmp_path / "not a partition").mkdir()
    (tmp_path / "file-1").write_text("")
    found = opened.partitions()
    assert [(each.partition, each.topic_id) for each in found] == [(PARTITION, TOPIC_ID), (("other", 0), None)]
    stray = opened.mark_stray(found[1])
    assert stray.endswith("-stray") and os.path.isdir(stray)
    assert [each.partition for each in opened.partitions()] == [PARTITION]

    doomed = open_log(tmp_path)
    path = doomed.rename_away("-delete")
    assert os.path.isdir(path) and not os.path.exists(doomed.directory)
    assert opened.partitions() == []
    assert opened.remove_deleted() == [os.path.basename(path)]
    assert not os.path.exists(path) and os.path.isdir(stray)
    opened.close()


def test_names_of_partition_directories_are_parsed() -> None:
    assert parse_partition("a-b-12") == ("a-b", 12)
    assert parse_partition("a-b") is None
    name = removal_name(TopicPartition("t" * 249, 10), bytes(16), "-delete")
    assert len(name) == 255 and parse_partition(name) is None
