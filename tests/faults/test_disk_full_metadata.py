"""The metadata log on a file system that is really full."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.metadata.log import MetadataLog
from storage_tiers.clock import SystemRng
from storage_tiers.errors import StorageError
from storage_tiers.files import OsFiles
from tests.faults.disks import fill, small_disk
from tests.service.metadata.records import configured, new_topic


@pytest.fixture(name="small_disk")
def _small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path) as path:
        yield path


@pytest.mark.parametrize("during_snapshots", [False, True])
async def test_a_full_disk_refuses_changes_and_allows_reads_until_space_returns(
    small_disk: Path, during_snapshots: bool
) -> None:
    bound = 2000 if during_snapshots else 1 << 30
    log = MetadataLog.open(str(small_disk), OsFiles(), SystemRng(), log_bytes_per_snapshot=bound)
    await log.propose(new_topic("flights", 1, partitions=6))
    filler = small_disk / "filler"
    accepted = 0
    for _ in range(3):
        fill(filler)
        with pytest.raises(StorageError, match="No space left on device"):
            for _ in range(10_000):
                await log.propose([configured("flights", f"key-{accepted}", "value" * 20)])
                accepted += 1
        assert len(log.image.topic_config("flights")) == accepted
        assert log.proposed is log.image
        os.unlink(filler)
        await log.propose([configured("flights", f"key-{accepted}", "after")])
        accepted += 1
    written = log.image
    await log.close()

    again = MetadataLog.open(str(small_disk), OsFiles(), SystemRng())
    assert again.image == written
    assert len(again.image.topic_config("flights")) == accepted
    await again.close()


async def test_a_node_starts_on_a_full_disk(small_disk: Path) -> None:
    log = MetadataLog.open(str(small_disk), OsFiles(), SystemRng())
    await log.propose(new_topic("flights", 1))
    written = log.image
    await log.close()
    fill(small_disk / "filler")
    log = MetadataLog.open(str(small_disk), OsFiles(), SystemRng())
    assert log.image == written
    await log.close()
