"""One damaged file keeps no node from starting: the node rebuilds the file, or holds back that partition alone."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from grpc_api.contract.topics import NewTopic
from storage_tiers.cold.manifest.saved_manifest import FILE_NAME as MANIFEST_FILE
from storage_tiers.errors import MetadataCorrupt, StorageError, StoreRefused
from storage_tiers.files import OsFiles
from storage_tiers.hot.checkpoints import CLEAN_SHUTDOWN, HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS
from storage_tiers.hot.layout import PARTITION_METADATA
from storage_tiers.types import TopicPartition
from tests.service.broker.support import TIERED, Running, filled, running, until

T0 = TopicPartition("t", 0)
LOCAL = {**TIERED, "remote.storage.enable": "false"}


async def two_topics(directory: Path, configs: dict[str, str]) -> Running:
    async with running(directory) as node:
        await filled(node, configs=configs)
        await node.create("u", configs=LOCAL)
        await node.append("u", b"other")
        if configs is not LOCAL:
            await node.seal("t")
            await node.evicted("t")
        assert await node.log.delete_records(T0, 5) == 5
    return node


@pytest.mark.parametrize("content", [b"", b"version: 0\ntopic_id: nonsense", bytes(40)])
async def test_a_damaged_topic_id_is_known_from_the_saved_manifest(tmp_path: Path, content: bytes) -> None:
    node = await two_topics(tmp_path / "data", {})
    (tmp_path / "data" / "t-0" / PARTITION_METADATA).write_bytes(content)
    async with running(tmp_path / "data", node.store) as node:
        assert [record.offset for record in await node.read_all("t", start=5)] == list(range(5, 40))
        assert (await node.append("t", b"more")).base_offset == 40


@pytest.mark.parametrize("clean", [True, False])
async def test_an_unrecoverable_topic_id_holds_back_only_its_partition(
    tmp_path: Path, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    node = await two_topics(tmp_path / "data", LOCAL)
    metadata = tmp_path / "data" / "t-0" / PARTITION_METADATA
    metadata.write_bytes(b"?")
    if not clean:
        (tmp_path / "data" / CLEAN_SHUTDOWN).unlink()
    async with running(tmp_path / "data", node.store) as node:
        assert [record.value for record in await node.read_all("u")] == [b"other"]
        for _ in range(2):
            with pytest.raises(StorageError, match="topic_id: "):
                await node.append("t", b"refused")
            await node.node.broker.assignment.retry()
            await node.node.broker.partitions.checkpoint()
        assert '"t-0"' in node.node.ground.readiness.body().partition("refusing_partitions")[2]
        # Do as the error says.
        told = re.search(r"the two lines `(version: 0)` and `(topic_id: \S+)`", caplog.text)
        assert told is not None
        metadata.write_text(f"{told[1]}\n{told[2]}\n")
        await node.node.broker.assignment.retry()
        assert [record.offset for record in await node.read_all("t", start=5)] == list(range(5, 40))
        led = node.node.broker.partitions.get(T0)
        assert led.log.log_start_offset == 5
        assert (await node.append("t", b"more")).base_offset == 40
        assert '"t-0"' not in node.node.ground.readiness.body()


async def test_a_partition_that_was_held_back_can_be_deleted(tmp_path: Path) -> None:
    node = await two_topics(tmp_path / "data", LOCAL)
    (tmp_path / "data" / "t-0" / PARTITION_METADATA).write_bytes(b"?")
    async with running(tmp_path / "data", node.store) as node:
        await node.core.topics.delete(["t"])
        await node.create("t", configs=LOCAL)
        assert (await node.append("t", b"new")).base_offset == 0


@pytest.mark.parametrize("tiered", [True, False])
@pytest.mark.parametrize("name", [RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS])
@pytest.mark.parametrize("clean", [True, False])
async def test_a_damaged_checkpoint_is_rebuilt(tmp_path: Path, name: str, tiered: bool, clean: bool) -> None:
    node = await two_topics(tmp_path / "data", {} if tiered else LOCAL)
    (tmp_path / "data" / name).write_bytes(b"0\n7\n")
    if not clean:
        (tmp_path / "data" / CLEAN_SHUTDOWN).unlink()
    async with running(tmp_path / "data", node.store) as node:
        led = node.node.broker.partitions.get(T0)
        await until(lambda: led.write_error is None)
        assert [record.offset for record in await node.read_all("t", start=5)] == list(range(5, 40))
        if tiered or name != LOG_STARTS:
            assert led.log.log_start_offset == 5
        assert (await node.append("t", b"more")).base_offset == 40
    assert (tmp_path / "data" / name).read_bytes() != b"0\n7\n"


async def test_a_lost_log_start_hides_no_record_of_an_earlier_leader_epoch(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await filled(node, configs=LOCAL)
    async with running(tmp_path / "data", node.store) as node:
        await until(lambda: node.node.broker.partitions.get(T0).write_error is None)
        await node.append("t", b"of the next epoch")
    (tmp_path / "data" / LOG_STARTS).write_bytes(b"0\n7\n")
    async with running(tmp_path / "data", node.store) as node:
        await until(lambda: node.node.broker.partitions.get(T0).write_error is None)
        assert [record.offset for record in await node.read_all("t")] == list(range(41))


async def test_a_lost_log_start_hides_no_record_of_the_bucket_if_the_saved_manifest_is_lost_too(tmp_path: Path) -> None:
    node = await two_topics(tmp_path / "data", {})
    (tmp_path / "data" / LOG_STARTS).write_bytes(b"0\n7\n")
    (tmp_path / "data" / "t-0" / MANIFEST_FILE).unlink()
    async with running(tmp_path / "data", node.store) as node:
        await until(lambda: node.node.broker.partitions.get(T0).write_error is None)
        assert [record.offset for record in await node.read_all("t", start=5)] == list(range(5, 40))


@pytest.mark.parametrize("what", ["emptied", "gone"])
async def test_an_emptied_metadata_log_sets_no_partition_aside(tmp_path: Path, what: str) -> None:
    node = await two_topics(tmp_path / "data", {})
    metadata, kept = tmp_path / "data" / "__cluster_metadata-0", tmp_path / "kept"
    shutil.copytree(metadata, kept)
    shutil.rmtree(metadata)
    if what == "emptied":
        metadata.mkdir()
    with pytest.raises((MetadataCorrupt, StoreRefused), match="__cluster_metadata-0"):
        async with running(tmp_path / "data", node.store):
            pass
    assert (tmp_path / "data" / "t-0" / MANIFEST_FILE).exists() and (tmp_path / "data" / "u-0").is_dir()
    # Do as the error says.
    shutil.rmtree(metadata, ignore_errors=True)
    shutil.copytree(kept, metadata)
    async with running(tmp_path / "data", node.store) as node:
        assert [record.value for record in await node.read_all("u")] == [b"other"]


async def test_creating_a_topic_whose_partitions_cannot_open_fails(tmp_path: Path) -> None:
    class Full(OsFiles):
        full = False

        def mkdir(self, path: str) -> None:
            if self.full:
                raise OSError(28, "No space left on device")
            super().mkdir(path)

    files = Full()
    async with running(tmp_path / "data", files=files) as node:
        files.full = True
        (answer,) = await node.core.topics.create([NewTopic("t", 3, 1, {})])
        assert isinstance(answer, StorageError) and "No space left" in str(answer)
        files.full = False
        await node.node.broker.assignment.retry()
        assert (await node.append("t", b"a")).base_offset == 0


async def test_a_topic_that_never_had_a_record_has_not_shrunk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The node died after it recorded the topic and before it made the topic's directory."""
    async with running(tmp_path / "data") as node:
        await node.create("t")
        await node.create("u", configs=LOCAL)
    shutil.rmtree(tmp_path / "data" / "t-0")
    shutil.rmtree(tmp_path / "data" / "u-0")
    for _ in range(2):
        async with running(tmp_path / "data", node.store) as node:
            await until(lambda: node.node.broker.partitions.get(T0).write_error is None)
            assert (await node.append("u", b"a")).base_offset >= 0
        shutil.rmtree(tmp_path / "data" / "t-0")
    assert "log.shrunk" not in caplog.text
