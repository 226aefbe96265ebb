"""A node that dies after it has swapped cleaned segments and before it has saved the clean point: `tidelog fsck` knows that
records are missing on purpose, and the next start cleans again."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.broker.background.cleaner.cleaning import Cleaning
from service.broker.background.cleaner.cold_cleaning import ColdCleaning
from service.broker.partition.partition import Partition
from service.fsck.findings import Report
from service.fsck.local import check_local
from storage_tiers.clock import SystemClock
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.compaction.clean_point import BUCKET_FILE_NAME
from storage_tiers.errors import StorageError
from tests.service.broker.background.cleaner.test_cleaning import COMPACTED, EAGER, cleaned_to, led, put, table
from tests.service.broker.background.cleaner.test_cleaning_bucket import bucket_cleaned_to
from tests.service.broker.support import running, until
from tests.support.faulty_store import FaultyStore

STAYS = {**COMPACTED, "retention.ms": "-1", "local.retention.ms": "-1"}


async def refuse(*_: object) -> None:
    raise StorageError("the node dies here")


async def nothing_due(*_: object) -> None:
    return None


def only(tier: str, patch: pytest.MonkeyPatch) -> None:
    """Lets the cleaner clean `tier` alone, without saving its clean point."""
    if tier == "local":
        patch.setattr(Cleaning, "_remote", nothing_due)
        patch.setattr(Cleaning, "_save_clean_point", refuse)
    else:
        patch.setattr(Cleaning, "_local", lambda *_: None)
        patch.setattr(ColdCleaning, "save_clean_point", refuse)


@pytest.mark.parametrize("tier", ["local", "bucket"])
async def test_a_swap_without_a_clean_point_is_no_disagreement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tier: str
) -> None:
    memory, died, failed = MemoryStore(SystemClock()), list[Partition](), Cleaning._retry_later

    def noted(self: Cleaning, partition: Partition, *, is_remote: bool, error: Exception) -> None:
        died.append(partition)
        failed(self, partition, is_remote=is_remote, error=error)

    async with running(tmp_path, FaultyStore(memory), broker={"log.cleaner.enable": "false"}) as node:
        await node.create("t", configs=STAYS)
        for number in range(6):
            await put(node, ("a", f"{number}"))
            await put(node, (f"b{number}", "1"))
            await node.seal("t")
    with monkeypatch.context() as patch:
        only(tier, patch)
        patch.setattr(Cleaning, "_retry_later", noted)
        async with running(tmp_path, FaultyStore(memory), broker=EAGER) as node:
            await until(lambda: bool(died))
    report = Report()
    check_local(memory.blocking(), str(tmp_path), report)
    assert report.findings == []
    assert report.bytes_read
    notes = list(tmp_path.rglob(BUCKET_FILE_NAME))
    assert len(notes) == (tier == "bucket"), "it is there before the first record goes from the bucket"
    for lost in notes:
        lost.unlink()
    check_local(memory.blocking(), str(tmp_path), report)
    assert report.findings == [], "the manifest tells it as well"
    async with running(tmp_path, FaultyStore(memory), broker=EAGER) as node:
        await until(lambda: cleaned_to(node) >= 10 and bucket_cleaned_to(node) >= 10)
        assert table(await node.read_all("t")) == {"a": "5"} | {f"b{number}": "1" for number in range(6)}
        assert led(node).log.hot.local_start_offset == 0
