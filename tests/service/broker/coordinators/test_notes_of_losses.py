"""The note of a loss stays until every coordinator has lowered its offsets, claims no more than the checkpoint covers, and is
not raised by a later loss."""

from __future__ import annotations

import asyncio
import errno
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpc_api.contract.groups import OffsetFetch
from service.broker.coordinators.recovered_offsets import RecoveredOffsets
from service.broker.partition import recovered_end
from service.broker.partition.recovered_end import FILE_NAME, read_recovered_end
from service.coordination.coordinator_runtime import partition_of
from storage_tiers.errors import LogError
from storage_tiers.hot.checkpoints import CLEAN_SHUTDOWN, RECOVERY_POINTS
from storage_tiers.types import TopicPartition
from tests.service.broker.coordinators.test_groups import CALLER, SETTINGS, commit, coordinated, offsets
from tests.service.broker.coordinators.test_groups_restored import has_lowered
from tests.service.broker.support import TIERED, Running, running, until

MINE = partition_of("g", 2)
T0 = TopicPartition("t", 0)


def noted(node: Running) -> tuple[int, frozenset[int], frozenset[int]] | None:
    found = read_recovered_end(node.node.broker.partitions.get(T0))
    return None if found is None else (found.offset, found.lowered_in, found.settled_in)


async def lost_from_two(tmp_path: Path) -> Path:
    """The directory of a stopped node: its group has committed 15, and a note says that records were lost from 2 on."""
    data = tmp_path / "data"
    async with running(data, broker=SETTINGS, store_url="none") as node:
        await node.create("t")
        await node.append("t", *(b"%d" % number for number in range(20)))
        await commit(await coordinated(node, "g"), 15)
    (data / "t-0" / FILE_NAME).write_text("2\n\n")
    return data


async def test_a_note_stays_while_a_coordinators_partition_cannot_be_opened(tmp_path: Path) -> None:
    """Without the note this coordinator's groups would keep offsets beyond the loss, and skip the records written there."""
    data = await lost_from_two(tmp_path)
    metadata = data / f"__consumer_offsets-{MINE}" / "partition.metadata"
    topic_id = metadata.read_bytes()
    metadata.write_bytes(b"damaged")
    async with running(data, broker=SETTINGS, store_url="none") as node:
        await until(lambda: noted(node) == (2, frozenset({1 - MINE}), frozenset()))
        await node.node.broker.coordinators.recovered_offsets.tick()
        assert noted(node) == (2, frozenset({1 - MINE}), frozenset())
        metadata.write_bytes(topic_id)
        await node.node.broker.assignment.retry()
        groups = await coordinated(node, "g")
        await has_lowered(node.node.broker.partitions.get(T0))
        assert noted(node) is None
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [2]}


@pytest.mark.parametrize("change", ["lowered", "settled"])
async def test_a_note_states_only_what_was_done_when_the_checkpoint_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """The thread that writes the note begins late, when more is done. After a crash, the older checkpoint would show a settled
    loss again."""
    visit_all = RecoveredOffsets._visit_all
    monkeypatch.setattr(RecoveredOffsets, "_visit_all", _nothing)
    data = tmp_path / "data"
    async with running(data, broker=SETTINGS, store_url="none") as node:
        await node.create("t")
        await node.append("t", b"0", b"1", b"2")
    (data / "t-0" / FILE_NAME).write_text("2\n\n")
    async with running(data, broker=SETTINGS, store_url="none") as node:
        end = node.node.broker.partitions.get(T0).recovered_end
        assert end is not None
        end.note_lowered(frozenset({0}))
        end.note_settled(frozenset({1}))
        lowering = node.node.broker.coordinators.recovered_offsets
        monkeypatch.setattr(lowering, "_lacks_coordinators", lambda: True)
        to_thread = asyncio.to_thread

        async def late(function: Callable[..., object], *words: Any) -> object:
            if words and words[1:2] == (end,):
                more = end.note_lowered if change == "lowered" else end.note_settled
                more(frozenset({0, 1}))
            return await to_thread(function, *words)

        monkeypatch.setattr(asyncio, "to_thread", late)
        await visit_all(lowering)
        assert noted(node) == (2, frozenset({0}), frozenset({1}))
        assert not end.is_noted


async def test_a_later_loss_does_not_raise_the_end_to_which_no_group_was_lowered_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node lost records, wrote others over them, and lost some of these before a coordinator was loaded."""
    data = tmp_path / "data"
    async with running(data, broker=SETTINGS, store_url="none") as node:
        await node.create("t")
        await node.append("t", b"0", b"1", b"2", b"3")
    shutil.copytree(data / "t-0", tmp_path / "copy")
    async with running(data, broker=SETTINGS, store_url="none") as node:
        await node.append("t", b"4", b"5")
    shutil.rmtree(data / "t-0")
    shutil.copytree(tmp_path / "copy", data / "t-0")
    (data / "t-0" / FILE_NAME).write_text("2\n\n")
    (data / CLEAN_SHUTDOWN).unlink()
    monkeypatch.setattr(RecoveredOffsets, "_visit_all", _nothing)
    async with running(data, broker=SETTINGS, store_url="none") as node:
        assert await node.end("t") == 4
        assert noted(node) == (2, frozenset(), frozenset())


async def test_a_log_that_the_bucket_replaces_keeps_the_end_of_an_earlier_loss(tmp_path: Path) -> None:
    """The node lost records, offloaded others in their place, and lost its log before a coordinator was loaded."""
    data = tmp_path / "data"
    async with running(data, broker=SETTINGS) as node:
        await node.create("t", configs=TIERED)
        await node.append("t", *(b"%d" % number for number in range(5)))
    shutil.copytree(data / "t-0", tmp_path / "older")
    async with running(data, node.store, broker=SETTINGS) as node:
        await node.append("t", *(b"%d" % number for number in range(5, 10)))
        await node.seal("t")
        await commit(await coordinated(node, "g"), 8)
    shutil.rmtree(data / "t-0")
    shutil.copytree(tmp_path / "older", data / "t-0")
    (data / "t-0" / FILE_NAME).write_text("2\n\n")
    (data / CLEAN_SHUTDOWN).unlink()
    async with running(data, node.store, broker=SETTINGS) as node:
        groups = await coordinated(node, "g")
        await has_lowered(node.node.broker.partitions.get(T0))
        assert await node.end("t") == 10
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [2]}


@pytest.mark.parametrize("restarts", [1, 2])
async def test_a_loss_outlasts_restarts_without_the_store_that_is_to_be_compared(tmp_path: Path, restarts: int) -> None:
    """A machine's snapshot that lacks unflushed records is started while its store is away. Checkpoints are written meanwhile;
    the note is not, since the store may hold the records."""
    data, copy = tmp_path / "data", tmp_path / "copied"
    async with running(data, broker=SETTINGS) as node:
        await node.create("t", configs={"remote.storage.enable": "false"})
        await node.append("t", *(b"%d" % number for number in range(4)))
    shutil.copytree(data / "t-0", tmp_path / "older")
    async with running(data, node.store, broker=SETTINGS) as node:
        await node.append("t", b"4", b"5")
        await commit(await coordinated(node, "g"), 6)
    shutil.copytree(data, copy)
    shutil.rmtree(copy / "t-0")
    shutil.copytree(tmp_path / "older", copy / "t-0")
    flushed = copy / RECOVERY_POINTS
    flushed.write_text(re.sub(r"^t 0 6$", "t 0 4", flushed.read_text(), flags=re.MULTILINE))
    (copy / CLEAN_SHUTDOWN).unlink()
    node.store.down = True
    for _ in range(restarts):
        async with running(copy, node.store, broker=SETTINGS) as node:
            led = node.node.broker.partitions.get(T0)
            assert led.is_recovering and led.recovered_end is not None
            await node.node.broker.partitions.checkpoint()
    node.store.down = False
    async with running(copy, node.store, broker=SETTINGS) as node:
        groups = await coordinated(node, "g")
        await has_lowered(node.node.broker.partitions.get(T0))
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [4]}


@pytest.mark.parametrize("refusal", [errno.EMFILE, errno.EIO])
async def test_a_partition_whose_note_cannot_be_read_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    """Without the note the loss would be forgotten, and groups would skip records."""
    data = await lost_from_two(tmp_path)

    def refuse(path: object, *words: Any, **more: Any) -> Any:
        if str(path).endswith(FILE_NAME):
            raise OSError(refusal, "refused")
        return open(path, *words, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(recovered_end, "open", refuse, raising=False)
    async with running(data, broker=SETTINGS, store_url="none") as node:
        with pytest.raises(LogError):
            await node.append("t", b"new")
        monkeypatch.undo()
        await node.node.broker.assignment.retry()
        groups = await coordinated(node, "g")
        await has_lowered(node.node.broker.partitions.get(T0))
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [2]}


async def test_a_damaged_note_still_lowers_offsets_beyond_the_end(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with running(data, broker=SETTINGS, store_url="none") as node:
        await node.create("t")
        await node.append("t", b"0", b"1")
        await commit(await coordinated(node, "g"), 15)
    (data / "t-0" / FILE_NAME).write_bytes(b"\0\0")
    async with running(data, broker=SETTINGS, store_url="none") as node:
        groups = await coordinated(node, "g")
        await has_lowered(node.node.broker.partitions.get(T0))
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [2]}


async def _nothing(_: RecoveredOffsets) -> None:
    """Stands for `_visit_all`, and visits no coordinator."""
