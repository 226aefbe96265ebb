"""One partition: what it refuses, and what each refusal costs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from service.broker.appending.disk import DiskGuard, Watermarks
from storage_tiers.errors import LogError, StorageError, UnknownTopicOrPartition
from storage_tiers.types import TopicPartition
from tests.service.broker.support import Running, batch, running

T0 = TopicPartition("t", 0)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path / "data") as started:
        yield started


def frames(error: BaseException) -> int:
    count, at = 0, error.__traceback__
    while at is not None:
        count, at = count + 1, at.tb_next
    return count


async def test_an_error_that_is_raised_for_ever_gathers_no_frames(node: Running) -> None:
    """Each frame of the error's traceback would keep the refused batch in memory."""
    await node.create("t")
    led = node.node.broker.partitions.get(T0)
    led.fail(StorageError("the disk failed"))
    data = memoryview(batch(b"a"))
    for _ in range(50):
        with pytest.raises(StorageError):
            led.append(data)
    assert led.write_error is not None
    assert frames(led.write_error) < 5


async def test_a_repeated_batch_is_acknowledged_once_the_first_one_is_committed(node: Running) -> None:
    """This happens when a producer's connection breaks while a follower is slow."""
    await node.create("t", configs={"remote.storage.enable": "false"})
    led = node.node.broker.partitions.get(T0)
    assert led.append(memoryview(batch(b"committed"))).committed is None
    led.set_in_sync((2,))
    data = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    first, again = (led.append(memoryview(bytearray(data))) for _ in range(2))
    assert (first.base_offset, again.base_offset, led.log.end_offset) == (1, 1, 2)
    assert first.committed is not None and again.committed is not None
    assert not again.committed.done()
    led.set_in_sync(())
    await again.committed
    assert led.append(memoryview(bytearray(data))).committed is None


async def test_a_failure_after_the_deletion_leaves_the_partition_deleted(node: Running) -> None:
    """A flush under way fails because the files are gone: callers still learn that the topic was deleted."""
    await node.create("t")
    led = node.node.broker.partitions.get(T0)
    led.delete()
    led.fail(StorageError("the disk failed"))
    assert led.deleted
    with pytest.raises(UnknownTopicOrPartition, match="was deleted"):
        led.append(memoryview(batch(b"a")))


async def test_a_full_disk_gathers_no_frames(tmp_path: Path) -> None:
    guard = DiskGuard(str(tmp_path), Watermarks())
    guard.judge(1.0)
    seen: list[LogError] = []
    for _ in range(50):
        try:
            guard.admit()
        except LogError as error:
            seen.append(error)
    assert frames(seen[-1]) < 5
