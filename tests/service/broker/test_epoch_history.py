"""Where each leader epoch ended (KIP-101), when nothing of those epochs is on the local disk any more."""

from __future__ import annotations

import shutil
from pathlib import Path

from storage_tiers.types import TopicPartition
from tests.service.broker.support import TIERED, Running, running, until

T0 = TopicPartition("t", 0)
EPOCHS = 4
RECORDS = 30


async def write_epochs(directory: Path) -> Running:
    """One start after another, each with its own epoch, everything in the bucket and nothing left here; the last node."""
    store = None
    for number in range(EPOCHS):
        async with running(directory, store) as node:
            if number == 0:
                await node.create("t", configs=TIERED)
            await until(lambda: node.node.partitions.get(T0).unavailable is None)
            for i in range(RECORDS):
                await node.append("t", b"%d-%03d" % (number, i) * 20)
            await node.seal("t")
            await node.evicted("t")
            store = node.store
    return node


async def ends_of(node: Running) -> list[tuple[int, int]]:
    latest = node.node.partitions.get(T0).state.leader_epoch
    return [await node.log.epoch_end_offset(T0, epoch) for epoch in range(latest + 2)]


async def expected(node: Running) -> list[tuple[int, int]]:
    first = node.node.partitions.get(T0).state.leader_epoch - EPOCHS
    before = [(-1, -1)] * first
    written = [(first + number, RECORDS * (number + 1)) for number in range(EPOCHS)]
    now = (first + EPOCHS, RECORDS * EPOCHS)
    return [*before, *written, now, (-1, -1)]


async def test_epochs_are_known_after_their_records_have_left_the_disk(tmp_path: Path) -> None:
    store = (await write_epochs(tmp_path / "data")).store
    async with running(tmp_path / "data", store) as node:
        assert node.node.partitions.get(T0).log.hot.local_start_offset == RECORDS * EPOCHS
        assert await ends_of(node) == await expected(node)
        epochs = [record.value[:1] for record in await node.read_all("t") if record.value is not None]
        assert epochs == [b"%d" % number for number in range(EPOCHS) for _ in range(RECORDS)]


async def test_epochs_are_known_when_the_bucket_is_all_there_is(tmp_path: Path) -> None:
    """The partition's directory is lost; the newest sidecar holds its history."""
    store = (await write_epochs(tmp_path / "data")).store
    shutil.rmtree(tmp_path / "data" / "t-0")
    async with running(tmp_path / "data", store) as node:
        await until(lambda: node.node.partitions.get(T0).reads_blocked is None)
        assert node.node.partitions.get(T0).log.hot.local_start_offset == RECORDS * EPOCHS
        assert await ends_of(node) == await expected(node)
