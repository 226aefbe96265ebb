"""A disk that has no room for a swap of cleaned segments: the swap's files are removed at once, and local retention, which
makes room, does not wait for the cleaner's next attempt."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from service.broker.background.cleaner.cleaning import Cleaning
from service.broker.background.evicting import evict
from service.broker.partition.partition import Partition
from storage_tiers.files import OsFiles
from storage_tiers.hot import layout
from tests.service.broker.background.cleaner.test_cleaning import EAGER, LOCAL, cleaned_files, closed, led, put, store
from tests.service.broker.support import running, until


async def test_a_swap_without_room_leaves_nothing_behind_and_delays_no_eviction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, fails, failed = OsFiles.open, Cleaning._retry_later, list[Exception]()

    def full(self: OsFiles, path: str, **how: bool) -> int:
        if layout.SWAP in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(self, path, **how)

    def noted(self: Cleaning, partition: Partition, *, is_remote: bool, error: Exception) -> None:
        failed.append(error)
        fails(self, partition, is_remote=is_remote, error=error)

    monkeypatch.setattr(OsFiles, "open", full)
    monkeypatch.setattr(Cleaning, "_retry_later", noted)
    async with running(tmp_path / "data", store(), broker=EAGER) as node:
        await node.create("t", configs={**LOCAL, "cleanup.policy": "compact,delete"})
        for number in range(100):
            await put(node, ("often", "x" * 40), (f"k{number}", "x" * 40))
        await closed(node)
        await until(lambda: bool(failed))
        hot = led(node).log.hot
        assert cleaned_files(hot) == []
        await node.node.broker.partitions.raise_log_starts({led(node): 200})
        await evict(led(node), [200] * hot.segment_count)
        assert hot.segment_count == 1
