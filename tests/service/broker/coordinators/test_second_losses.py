"""A partition loses records again before one of its coordinators has lowered offsets for the first loss."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from grpc_api.contract.groups import OffsetFetch
from service.broker.coordinators.recovered_offsets import RecoveredOffsets
from service.broker.partition.record_loss import RecoveredEnd, lost_again
from service.broker.partition.recovered_end import FILE_NAME, read_recovered_end
from service.coordination.coordinator_runtime import partition_of
from storage_tiers.hot.checkpoints import CLEAN_SHUTDOWN
from storage_tiers.types import TopicPartition
from tests.service.broker.coordinators.test_groups import CALLER, SETTINGS, commit, coordinated, offsets
from tests.service.broker.coordinators.test_groups_restored import has_lowered
from tests.service.broker.support import TIERED, Running, running, until

T0 = TopicPartition("t", 0)
#: Groups of the coordinator that has lowered its offsets for the first loss, and of the one that has not.
LOWERED, NOT_LOWERED = "g", "h"
MINE, OTHER = partition_of(LOWERED, 2), partition_of(NOT_LOWERED, 2)


def test_a_second_loss_keeps_the_lowest_end_that_a_coordinator_has_not_lowered_to() -> None:
    first = RecoveredEnd(2, frozenset({0}))
    second = lost_again(first, 10)
    assert [second.end_for(each) for each in range(3)] == [10, 2, 2]
    assert second.lowered_in == second.settled_in == frozenset()
    second.note_lowered(frozenset({1}))
    third = lost_again(second, 7)
    assert [third.end_for(each) for each in range(3)] == [7, 7, 2]
    fourth = lost_again(third, 1)
    assert [fourth.end_for(each) for each in range(3)] == [1, 1, 1]
    assert not fourth.later_ends
    assert lost_again(None, 4).end_for(0) == 4


async def offsets_of(node: Running, group: str) -> dict[str, list[int]]:
    groups = await coordinated(node, group)
    return offsets(await groups.fetch_offsets(OffsetFetch(group, None), CALLER))


async def commit_both(node: Running, offset: int) -> None:
    for group in (LOWERED, NOT_LOWERED):
        await commit(await coordinated(node, group), offset, group=group)


def cut_off(data: Path, older: Path) -> None:
    """Puts the partition's older directory back, with a note that one of two coordinators has lowered its offsets to 2."""
    assert {MINE, OTHER} == {0, 1}
    shutil.rmtree(data / "t-0")
    shutil.copytree(older, data / "t-0")
    (data / "t-0" / FILE_NAME).write_text(f"2 {MINE}\n\n")
    (data / CLEAN_SHUTDOWN).unlink()


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_each_coordinator_goes_down_to_the_first_end_that_it_has_not_lowered_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_restarted: bool
) -> None:
    data = tmp_path / "data"
    async with running(data, broker=SETTINGS, store_url="none") as node:
        await node.create("t")
        await node.append("t", *(b"%d" % number for number in range(10)))
    shutil.copytree(data / "t-0", tmp_path / "older")
    async with running(data, broker=SETTINGS, store_url="none") as node:
        await node.append("t", *(b"%d" % number for number in range(10, 20)))
        await commit_both(node, 15)
    cut_off(data, tmp_path / "older")
    if is_restarted:
        with monkeypatch.context() as patch:
            patch.setattr(RecoveredOffsets, "_visit_all", _nothing)
            async with running(data, broker=SETTINGS, store_url="none") as node:
                await node.append("t", *(b"new" for _ in range(3)))
                noted = read_recovered_end(node.node.broker.partitions.get(T0))
                assert noted is not None
                assert (noted.offset, noted.lowered_in, noted.later_ends) == (2, frozenset(), {MINE: 10})
    async with running(data, broker=SETTINGS, store_url="none") as node:
        await has_lowered(node.node.broker.partitions.get(T0))
        assert await offsets_of(node, LOWERED) == {"t": [10]}
        assert await offsets_of(node, NOT_LOWERED) == {"t": [2]}
        assert read_recovered_end(node.node.broker.partitions.get(T0)) is None


async def test_a_log_that_the_bucket_replaces_keeps_an_earlier_end_for_those_that_have_not_lowered_to_it(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    async with running(data, broker=SETTINGS) as node:
        await node.create("t", configs=TIERED)
        await node.append("t", *(b"%d" % number for number in range(5)))
    shutil.copytree(data / "t-0", tmp_path / "older")
    async with running(data, node.store, broker=SETTINGS) as node:
        await node.append("t", *(b"%d" % number for number in range(5, 10)))
        await node.seal("t")
        await node.append("t", *(b"%d" % number for number in range(10, 20)))
        await commit_both(node, 15)
    cut_off(data, tmp_path / "older")
    async with running(data, node.store, broker=SETTINGS) as node:
        led = node.node.broker.partitions.get(T0)
        await until(lambda: not led.is_recovering)
        await has_lowered(led)
        assert await node.end("t") == 10
        assert await offsets_of(node, LOWERED) == {"t": [10]}
        assert await offsets_of(node, NOT_LOWERED) == {"t": [2]}


async def _nothing(_: RecoveredOffsets) -> None:
    """Stands for `_visit_all`, and visits no coordinator."""
