"""Advice about a data directory, followed: it loses no acknowledged record."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from service.node import Node as ServiceNode
from storage_tiers.clock import SystemClock
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.errors import InvalidConfig, LogError, MetadataCorrupt, StorageError, StoreRefused
from storage_tiers.hot.data_dir import META_PROPERTIES
from tests.advice.support import configure, leads
from tests.service.broker.support import TIERED, Running, filled, running, until
from tests.service.takeover.support import SNAPSHOTS
from tests.support.faulty_store import FaultyStore

METADATA = "__cluster_metadata-0"
#: The bucket alone holds records 0 to 39 of `t`; the disk alone holds records 40 to 44 of `t` and the only record of `u`.
OFFLOADED, WRITTEN = 40, 45


async def two_topics(directory: Path) -> Running:
    async with running(directory, broker=SNAPSHOTS) as node:
        await filled(node, OFFLOADED)
        await node.create("u", configs={"remote.storage.enable": "false"})
        await node.append("u", b"other")
        await node.seal("t")
        await node.evicted("t")
        for number in range(OFFLOADED, WRITTEN):
            await node.append("t", b"%03d" % number)
        await node.node.work.topic_files.tick()
        await snapshot_is_written(node.node)
    return node


async def snapshot_is_written(node: ServiceNode) -> None:
    assert node.tier is not None
    snapshots, metadata = node.tier.snapshots, node.ground.metadata
    await until(lambda: snapshots._written is metadata.image)


async def has_everything(node: Running, end: int = WRITTEN) -> None:
    await leads(node, "t", "u")
    assert [record.offset for record in await node.read_all("t")] == list(range(end))
    assert [record.value for record in await node.read_all("u")] == [b"other"]
    assert (await node.append("t", b"more")).base_offset == end


async def test_a_damaged_identity_is_restored_from_a_copy(tmp_path: Path) -> None:
    node = await two_topics(tmp_path / "data")
    path = tmp_path / "data" / META_PROPERTIES
    copy = path.read_bytes()
    path.write_bytes(b"version=1\n")
    with pytest.raises(StorageError, match="restore it from a copy"):
        async with running(tmp_path / "data", node.store):
            pass
    path.write_bytes(copy)
    async with running(tmp_path / "data", node.store) as node:
        await has_everything(node)


async def test_another_nodes_directory_is_left_alone_and_the_right_one_serves(tmp_path: Path) -> None:
    node = await two_topics(tmp_path / "data")
    before = {path: path.stat().st_size for path in (tmp_path / "data").rglob("*.log")}
    with pytest.raises(StorageError, match="use the right --data-dir"):
        async with running(tmp_path / "data", node.store, node_id=2):
            pass
    assert {path: path.stat().st_size for path in (tmp_path / "data").rglob("*.log")} == before
    async with running(tmp_path / "data", node.store) as node:
        await has_everything(node)


def damage_metadata(directory: Path) -> None:
    (log,) = (directory / METADATA).glob("*.log")
    data = bytearray(log.read_bytes())
    data[len(data) // 3] ^= 0x55
    log.write_bytes(data)


async def test_a_damaged_metadata_log_is_restored_from_a_copy(tmp_path: Path) -> None:
    node = await two_topics(tmp_path / "data")
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    damage_metadata(tmp_path / "data")
    with pytest.raises(MetadataCorrupt, match="Restore the file from a copy") as said:
        async with running(tmp_path / "data", node.store):
            pass
    named = Path(re.split(": ", str(said.value))[0])
    assert named.is_relative_to(tmp_path / "data")
    shutil.copy(tmp_path / "copy" / named.relative_to(tmp_path / "data"), named)
    async with running(tmp_path / "data", node.store) as node:
        await has_everything(node)


async def test_damaged_metadata_are_set_aside_and_rebuilt_from_the_store(tmp_path: Path) -> None:
    """As the error says, partitions stay, including records that were not offloaded."""
    node = await two_topics(tmp_path / "data")
    damage_metadata(tmp_path / "data")
    with pytest.raises(MetadataCorrupt, match="--take-over CLUSTER_ID") as said:
        async with running(tmp_path / "data", node.store):
            pass
    assert "move the metadata folder out of the data directory" in str(said.value)
    shutil.move(Path(str(said.value).split(": ")[0]).parent, tmp_path / "kept")
    with pytest.raises(StoreRefused, match=f"1 cluster: {node.node.cluster_id}"):
        async with running(tmp_path / "data", node.store):
            pass
    async with running(tmp_path / "data", node.store, take_over=node.node.cluster_id) as node:
        await has_everything(node)
    assert any((tmp_path / "kept").iterdir())


@pytest.mark.parametrize("what", ["gone", "emptied"])
async def test_a_lost_metadata_log_is_rebuilt_from_the_store_and_partitions_stay(tmp_path: Path, what: str) -> None:
    """As the error says, records that were not offloaded are still there."""
    node = await two_topics(tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / METADATA)
    if what == "emptied":
        (tmp_path / "data" / METADATA).mkdir()
    with pytest.raises((MetadataCorrupt, StoreRefused), match=f"--take-over (CLUSTER_ID|{node.node.cluster_id})"):
        async with running(tmp_path / "data", node.store):
            pass
    async with running(tmp_path / "data", node.store, take_over=node.node.cluster_id) as node:
        await has_everything(node)


async def test_the_error_of_a_lost_metadata_log_says_how_to_keep_partitions(tmp_path: Path) -> None:
    node = await two_topics(tmp_path / "data")
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "data" / METADATA, copy)
    shutil.rmtree(tmp_path / "data" / METADATA)
    cluster = node.node.cluster_id
    with pytest.raises(MetadataCorrupt, match=f"--take-over {cluster}, which keeps these partitions"):
        async with running(tmp_path / "data", store_url="none"):
            pass
    assert (tmp_path / "data" / "t-0").is_dir() and (tmp_path / "data" / "u-0").is_dir()
    shutil.rmtree(tmp_path / "data" / METADATA, ignore_errors=True)
    shutil.copytree(copy, tmp_path / "data" / METADATA)
    async with running(tmp_path / "data", node.store) as node:
        await has_everything(node)


async def test_a_take_over_that_began_is_finished_with_its_store(tmp_path: Path) -> None:
    node = await two_topics(tmp_path / "data")
    shutil.rmtree(tmp_path / "data")
    cluster = node.node.cluster_id
    node.store.fail(1, "put", "cluster.json", LogError("cut"))
    with pytest.raises(LogError, match="cut"):
        async with running(tmp_path / "data", node.store, take_over=cluster):
            pass
    with pytest.raises(InvalidConfig, match="start it with the --store of that take-over"):
        async with running(tmp_path / "data", store_url="none"):
            pass
    async with running(tmp_path / "data", node.store) as node:
        assert node.node.cluster_id == cluster
        await leads(node, "t")
        assert [record.offset for record in await node.read_all("t")] == list(range(OFFLOADED))


async def test_a_deleted_topics_directory_that_cannot_be_removed_is_removed_by_hand(tmp_path: Path) -> None:
    node = await two_topics(tmp_path / "data")
    doomed = tmp_path / "data" / f"gone-0.{'a' * 32}-delete"
    (doomed / "not ours").mkdir(parents=True)
    with pytest.raises(StorageError, match="remove it by hand") as said:
        async with running(tmp_path / "data", node.store):
            pass
    named = re.search(r"cannot remove (\S+) ", str(said.value))
    assert named is not None and Path(named[1]) == doomed
    shutil.rmtree(named[1])
    async with running(tmp_path / "data", node.store) as node:
        await has_everything(node)


async def test_another_topics_directory_in_the_way_is_moved_and_stays_whole(tmp_path: Path) -> None:
    """The directory appeared while the node ran; a start would have set it aside."""
    await two_topics(tmp_path / "other")
    async with running(tmp_path / "data") as node:
        shutil.copytree(tmp_path / "other" / "u-0", tmp_path / "data" / "u-0")
        with pytest.raises(LogError, match="move it away"):
            await node.create("u")
            await node.append("u", b"refused")
        shutil.move(tmp_path / "data" / "u-0", tmp_path / "moved")
        await node.node.broker.assignment.retry()
        assert (await node.append("u", b"taken")).base_offset == 0
        assert [record.value for record in await node.read_all("u")] == [b"taken"]
    (log,) = (tmp_path / "moved").glob("*.log")
    assert b"other" in log.read_bytes()


async def test_a_damaged_batch_is_put_back_from_a_copy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The batch is damaged before it is offloaded. (test_tiering follows the other advice, to delete the records.)"""
    store = FaultyStore(MemoryStore(SystemClock()))
    async with running(tmp_path / "data", store) as node:
        await filled(node, 40, {**TIERED, "remote.log.copy.disable": "true"})
        segment = sorted((tmp_path / "data" / "t-0").glob("*.log"))[2]
        copy = segment.read_bytes()
        segment.write_bytes(copy[:100] + bytes([copy[100] ^ 1]) + copy[101:])
        await configure(node, "t", {"remote.log.copy.disable": "false"})
        await until(lambda: "put the file back from a copy" in caplog.text)
        named = re.search(r"of (\S+\.log), the first from", caplog.text)
        assert named is not None and Path(named[1]) == segment
        Path(named[1]).write_bytes(copy)
        await node.seal("t")
        await node.evicted("t")
        assert [record.offset for record in await node.read_all("t")] == list(range(40))


@pytest.mark.parametrize("lost", ["the newest segment", "all"])
async def test_lost_records_of_a_log_return_when_its_directory_is_restored(
    tmp_path: Path, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The steps for `log.shrunk` in docs/operations.md: keep newer records, stop the node, put the directory back."""
    node = await two_topics(tmp_path / "data")
    path, kept = tmp_path / "data" / "t-0", tmp_path / "kept"
    shutil.copytree(path, kept)
    if lost == "all":
        shutil.rmtree(path)
    else:
        for file in path.glob(f"{max(int(log.stem) for log in path.glob('*.log')):020d}.*"):
            file.unlink()
    async with running(tmp_path / "data", node.store) as node:
        await leads(node, "t")
        assert "log.shrunk" in caplog.text
        assert (await node.append("t", b"since")).base_offset == OFFLOADED
        since = [record.value or b"" for record in await node.read_all("t", start=OFFLOADED)]
    shutil.rmtree(path)
    shutil.copytree(kept, path)
    async with running(tmp_path / "data", node.store) as node:
        await has_everything(node)
        await node.append("t", *since)
        assert [record.value for record in await node.read("t", WRITTEN + 1)] == [b"since"]
