"""The checkpoint that would show a loss of records is damaged: after an unclean stop each partition may have lost some."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from grpc_api.contract.coordinator_errors import ProducerFenced
from grpc_api.contract.groups import OffsetFetch
from storage_tiers.hot.checkpoints import CLEAN_SHUTDOWN, HIGH_WATERMARKS, RECOVERY_POINTS
from tests.service.broker.coordinators.test_groups import CALLER, commit, coordinated, offsets
from tests.service.broker.coordinators.test_groups_restored import has_lowered
from tests.service.broker.coordinators.transactional import SETTINGS, T0, Client, write
from tests.service.broker.support import once_loaded, running
from tests.support.faulty_store import FaultyStore

#: A checkpoint that announces seven lines and has none.
DAMAGED = b"0\n7\n"


async def lost_unflushed(tmp_path: Path) -> tuple[Path, FaultyStore]:
    """A copied directory, as after a loss of power: two records of four were not flushed and are gone, while the group's offset
    remains."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    async with running(data, broker=SETTINGS) as node:
        await node.create("t", configs={"remote.storage.enable": "false"})
        await node.append("t", b"0", b"1")
    shutil.copytree(data / "t-0", tmp_path / "older")
    async with running(data, node.store, broker=SETTINGS) as node:
        await node.append("t", b"lost", b"lost")
        await commit(await coordinated(node, "g"), 4)
    shutil.copytree(data, copy)
    shutil.rmtree(copy / "t-0")
    shutil.copytree(tmp_path / "older", copy / "t-0")
    flushed = copy / RECOVERY_POINTS
    flushed.write_text(re.sub(r"^t 0 4$", "t 0 2", flushed.read_text(), flags=re.MULTILINE))
    (copy / CLEAN_SHUTDOWN).unlink()
    (copy / HIGH_WATERMARKS).write_bytes(DAMAGED)
    return copy, node.store


@pytest.mark.parametrize("recovers_first", [False, True])
async def test_no_group_skips_records_though_nothing_shows_the_loss(
    tmp_path: Path, recovers_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """This also holds after a start without the store with which the directory is compared: such a start writes checkpoints."""
    data, store = await lost_unflushed(tmp_path)
    caplog.clear()
    if recovers_first:
        store.down = True
        async with running(data, store, broker=SETTINGS) as node:
            assert node.node.broker.partitions.get(T0).is_recovering
            await node.node.broker.partitions.checkpoint()
        store.down = False
        (data / CLEAN_SHUTDOWN).unlink()
    async with running(data, store, broker=SETTINGS) as node:
        groups = await coordinated(node, "g")
        for each in node.node.broker.partitions:
            await has_lowered(each)
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [2]}
        await commit(groups, 1)
    assert [each.levelname for each in caplog.records if "losses.unknown" in each.getMessage()] == ["ERROR"]
    async with running(data, store, broker=SETTINGS) as node:
        groups = await coordinated(node, "g")
        assert offsets(await groups.fetch_offsets(OffsetFetch("g", None), CALLER)) == {"t": [1]}


@pytest.mark.parametrize("other", [None, CLEAN_SHUTDOWN, RECOVERY_POINTS])
async def test_only_a_clean_stop_with_recovery_points_shows_that_no_transaction_lost_records(
    tmp_path: Path, other: str | None
) -> None:
    """At a clean stop all records up to the recovery points are flushed. `other` is a second file that is damaged or gone."""
    data = tmp_path / "data"
    async with running(data, broker=SETTINGS, store_url="none") as node:
        await node.create("t")
        client = await Client(node).begin()
        await client.add(T0)
        write(node, T0, client.producer)
    (data / HIGH_WATERMARKS).write_bytes(DAMAGED)
    if other == CLEAN_SHUTDOWN:
        (data / other).unlink()
    elif other is not None:
        (data / other).write_bytes(DAMAGED)
    async with running(data, broker=SETTINGS, store_url="none") as node:
        again = Client(node)
        again.producer = client.producer
        error = await once_loaded(lambda: again.end(commit=True, version=2))
        assert (error is None) if other is None else isinstance(error, ProducerFenced)
