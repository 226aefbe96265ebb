"""The end offset of each leader epoch (KIP-101), once the local disk holds no record of that epoch."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_tiers.errors import LeaderNotAvailable
from storage_tiers.hot.layout import EPOCHS as EPOCHS_FILE
from storage_tiers.hot.leader_epochs import read_checkpoint
from storage_tiers.types import TopicPartition
from tests.service.broker.support import TIERED, Running, manifest_of, running, until

T0 = TopicPartition("t", 0)
EPOCHS = 4
RECORDS = 30


async def write_epochs(directory: Path) -> Running:
    """Starts the node once per epoch, moves every record to the bucket and off the disk, and returns the last node."""
    store = None
    for number in range(EPOCHS):
        async with running(directory, store) as node:
            if number == 0:
                await node.create("t", configs=TIERED)
            await until(lambda: node.node.broker.partitions.get(T0).write_error is None)
            for i in range(RECORDS):
                await node.append("t", b"%d-%03d" % (number, i) * 20)
            await node.seal("t")
            await node.evicted("t")
            store = node.store
    return node


async def ends_of(node: Running) -> list[tuple[int, int]]:
    latest = node.node.broker.partitions.get(T0).state.leader_epoch
    return [await node.log.epoch_end_offset(T0, epoch) for epoch in range(latest + 2)]


async def expected(node: Running) -> list[tuple[int, int]]:
    first = node.node.broker.partitions.get(T0).state.leader_epoch - EPOCHS
    before = [(-1, -1)] * first
    written = [(first + number, RECORDS * (number + 1)) for number in range(EPOCHS)]
    now = (first + EPOCHS, RECORDS * EPOCHS)
    return [*before, *written, now, (-1, -1)]


async def test_epochs_are_known_after_their_records_have_left_the_disk(tmp_path: Path) -> None:
    store = (await write_epochs(tmp_path / "data")).store
    async with running(tmp_path / "data", store) as node:
        assert node.node.broker.partitions.get(T0).log.hot.local_start_offset == RECORDS * EPOCHS
        assert await ends_of(node) == await expected(node)
        epochs = [record.value[:1] for record in await node.read_all("t") if record.value is not None]
        assert epochs == [b"%d" % number for number in range(EPOCHS) for _ in range(RECORDS)]


async def test_epochs_are_known_when_the_bucket_is_all_there_is(tmp_path: Path) -> None:
    """The partition's directory is lost; the newest sidecar holds its history."""
    store = (await write_epochs(tmp_path / "data")).store
    shutil.rmtree(tmp_path / "data" / "t-0")
    async with running(tmp_path / "data", store) as node:
        await until(lambda: node.node.broker.partitions.get(T0).read_error is None)
        assert node.node.broker.partitions.get(T0).log.hot.local_start_offset == RECORDS * EPOCHS
        assert await ends_of(node) == await expected(node)


# --- a missing or truncated history is no divergence ------------------------------------------------------------------
KEPT = {**TIERED, "local.retention.bytes": "-1", "local.retention.ms": "-1"}


async def thirty_of_which_twenty_are_in_the_bucket(directory: Path, evicting: bool) -> Running:
    """Starts the node twice, once per leader epoch; only the local disk holds the last ten records."""
    async with running(directory) as node:
        await node.create("t", configs=TIERED if evicting else KEPT)
        for i in range(10):
            await node.append("t", b"%03d" % i * 50)
        await node.seal("t")
    async with running(directory, node.store) as node:
        await until(lambda: node.node.work.tiering.has_compared(node.node.broker.partitions.get(T0)))
        for i in range(10, 20):
            await node.append("t", b"%03d" % i * 50)
        await node.seal("t")
        if evicting:
            await node.evicted("t")
        for i in range(20, 30):
            await node.append("t", b"%03d" % i * 10)
    return node


def damaged(path: Path) -> None:
    path.write_bytes(b"0\n3\n0 0\n")


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def older(path: Path) -> None:
    """Restores an older version of the file, which ends before the newest epochs."""
    lines = path.read_text().splitlines()
    path.write_text(f"0\n1\n{lines[2]}\n")


@pytest.mark.parametrize("what_happens", [Path.unlink, damaged, emptied, older])
@pytest.mark.parametrize("evicting", [True, False])
async def test_records_stay_where_the_epoch_history_is_lost(
    tmp_path: Path, what_happens: Callable[[Path], None], evicting: bool
) -> None:
    """The history is rebuilt from the newest sidecar and the local batches; the local log is kept."""
    node = await thirty_of_which_twenty_are_in_the_bucket(tmp_path / "data", evicting)
    before = (tmp_path / "data" / "t-0" / EPOCHS_FILE).read_bytes()
    what_happens(tmp_path / "data" / "t-0" / EPOCHS_FILE)
    async with running(tmp_path / "data", node.store) as node:
        led = node.node.broker.partitions.get(T0)
        await until(lambda: led.write_error is None and node.node.work.tiering.has_compared(led))
        assert [record.value for record in await node.read_all("t")] == [
            b"%03d" % i * (50 if i < 20 else 10) for i in range(30)
        ]
        written = [(entry.epoch, entry.start_offset) for entry in led.log.hot.end.epochs.below(30)]
        assert written == [(0, 0), (1, 10)]
        await node.append("t", b"after")
        await node.seal("t")
        newest = await manifest_of(led)
        assert led.log.cold is not None
        assert [entry.start_offset for entry in (await led.log.cold.newest_state(newest)).epochs] == [0, 10, 30]
    assert (tmp_path / "data" / "t-0" / EPOCHS_FILE).read_bytes() != before


@pytest.mark.parametrize("store_answers", [True, False])
async def test_a_cut_epoch_history_waits_for_the_sidecar(tmp_path: Path, store_answers: bool) -> None:
    """An unknown epoch is no divergence: before the sidecar answers, the node discards nothing and does not lead."""
    node = await thirty_of_which_twenty_are_in_the_bucket(tmp_path / "data", True)
    damaged(tmp_path / "data" / "t-0" / EPOCHS_FILE)
    if store_answers:
        node.store.fail(1, "get", ".idx")
    else:
        node.store.down = True
    async with running(tmp_path / "data", node.store) as node:
        led = node.node.broker.partitions.get(T0)
        if not store_answers:
            with pytest.raises(LeaderNotAvailable):
                await node.append("t", b"too early")
            assert led.log.hot.end_offset == 30
            node.store.down = False
        await until(lambda: led.write_error is None)
        assert len(await node.read_all("t")) == 30


async def test_a_damaged_history_of_a_log_without_a_bucket_is_read_from_its_batches(tmp_path: Path) -> None:
    local = {**KEPT, "remote.storage.enable": "false"}
    async with running(tmp_path / "data") as node:
        await node.create("t", configs=local)
        for i in range(20):
            await node.append("t", b"%03d" % i * 50)
    damaged(tmp_path / "data" / "t-0" / EPOCHS_FILE)
    async with running(tmp_path / "data", node.store) as node:
        led = node.node.broker.partitions.get(T0)
        assert len(await node.read_all("t")) == 20
        assert [entry.start_offset for entry in led.log.hot.end.epochs.entries()] == [0, 20]
    assert read_checkpoint(str(tmp_path / "data" / "t-0" / EPOCHS_FILE)).entries()[0].start_offset == 0
