"""A copy of a data directory runs beside the node that keeps the original. The original's later commits discard nothing that
the copy acknowledged, and the copy reuses nothing that the original handed out without its knowledge."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from grpc_api.contract.topics import AlterOp, ConfigAlteration, Resource, ResourceKind
from service.broker.partition import leading
from service.broker.partition.partition import Partition
from service.broker.partition.record_loss import RecoveredEnd
from service.directory.home import FILE_NAME
from service.serve.rounds import rounds
from storage_tiers.errors import FencedWriter, LeaderNotAvailable, StorageError
from storage_tiers.types import TopicPartition
from tests.service.broker.support import TIERED, Running, running, until

KEPT = {**TIERED, "local.retention.bytes": "-1", "local.retention.ms": "-1"}


def led(node: Running, topic: str) -> Partition:
    return node.node.broker.partitions.get(TopicPartition(topic, 0))


async def begun(node: Running) -> None:
    """Puts one record of `t` in the bucket."""
    await node.create("t", configs=KEPT)
    await node.append("t", b"before")
    await node.seal("t")


async def set_tiered(node: Running, value: str) -> None:
    change = ConfigAlteration("remote.storage.enable", AlterOp.SET, value)
    await node.core.configs.alter_configs(Resource(ResourceKind.TOPIC, "t"), [change])


async def looks_home(node: Running) -> None:
    """Runs the next check of the directory's home now."""
    (home,) = [worker for worker in rounds(node.node) if worker.name == "home"]
    await home.tick()


async def offloads(node: Running) -> None:
    """Makes the node offload now; the commit is fenced, because another node has claimed the manifest."""
    await node.log.seal("t", wait=False, timeout_ms=0)
    await until(lambda: isinstance(node.node.ground.ending.fatal, FencedWriter))
    node.node.ground.ending.fatal = None


async def in_the_bucket(copy: Running, *values: bytes) -> None:
    """Offloads all of the copy's records of `t`; the copy then serves exactly these values."""
    await copy.seal("t")
    assert [record.value for record in await copy.read_all("t")] == list(values)


async def test_a_copy_also_claims_partitions_without_tiered_data(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await begun(node)
        await set_tiered(node, "false")
        await node.node.work.topic_files.publish_now("t")
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        async with running(tmp_path / "copy", node.store) as copy:
            await until(lambda: copy.node.home.away is None)
            await copy.append("t", b"of the copy")
            await copy.append("t", b"of the copy, too")
            # The original's write of the topic's configs is held up; its offloads do not depend on that write.
            gate = node.store.hold(1, "get", "topic.json")
            await node.append("t", b"of the original")
            await set_tiered(node, "true")
            await gate.reached.wait()
            await offloads(node)
            await set_tiered(copy, "true")
            await in_the_bucket(copy, b"before", b"of the copy", b"of the copy, too")


async def test_a_copy_is_at_home_after_claiming_partitions_that_failed_to_open(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await begun(node)
        await node.create("other", configs=KEPT)
        await node.node.work.topic_files.publish_now("other")
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        names = tmp_path / "copy" / "t-0" / "partition.metadata"
        topic_id = names.read_bytes()
        names.write_bytes(b"damaged")
        (tmp_path / "copy" / "t-0" / "tiered-manifest.json").write_bytes(b"damaged")
        async with running(tmp_path / "copy", node.store) as copy:
            await until(lambda: copy.node.work.tiering.has_compared(led(copy, "other")))
            await until(lambda: copy.node.ground.readiness.reports.holding() == "")
            await copy.append("other", b"one partition holds no other one up")
            assert copy.node.home.away is not None
            names.write_bytes(topic_id)
            await copy.node.broker.assignment.retry()
            await until(lambda: copy.node.home.away is None)
            await copy.append("t", b"of the copy")
            await copy.append("t", b"of the copy, too")
            await node.append("t", b"of the original")
            await offloads(node)
            await in_the_bucket(copy, b"before", b"of the copy", b"of the copy, too")


async def test_a_copy_served_unclaimed_claims_its_led_partitions(tmp_path: Path) -> None:
    serves = {"tidelog.store.claim.wait.ms": "0", "tidelog.store.unclaimed": "serve"}
    async with running(tmp_path / "data") as node:
        await begun(node)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    node.store.down = True
    async with running(tmp_path / "copy", node.store, serves) as copy:
        await until(lambda: copy.node.ground.readiness.reports.holding() == "")
        await copy.append("t", b"of the copy")
        gate = node.store.hold(1, "get", "manifests/")
        node.store.down = False
        await gate.reached.wait()
        await looks_home(copy)
        gate.open()
        await until(lambda: copy.node.home.away is None and copy.node.work.tiering.has_compared(led(copy, "t")))
        tier, writer = led(copy, "t").log.tier, copy.tier.access and copy.tier.access.writer
        assert tier is not None and writer
        assert tier.incarnation == writer.incarnation


async def test_a_copy_served_unclaimed_notes_its_losses_before_it_takes_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the disk refuses the note, the node repeats the write and the partition waits."""
    serves = {"tidelog.store.claim.wait.ms": "0", "tidelog.store.unclaimed": "serve"}
    async with running(tmp_path / "data") as node:
        await node.create("t", configs={"remote.storage.enable": "false"})
        await node.append("t", b"kept")
    shutil.copytree(tmp_path / "data" / "t-0", tmp_path / "older")
    async with running(tmp_path / "data", node.store) as node:
        await node.append("t", b"lost")
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "t-0")
    shutil.copytree(tmp_path / "older", tmp_path / "copy" / "t-0")
    node.store.down = True
    noted, is_full = list[int](), True

    def write(partition: Partition, end: RecoveredEnd) -> None:
        noted.append(end.offset)
        if is_full:
            raise StorageError("the disk is full")

    monkeypatch.setattr(leading, "write_recovered_end", write)
    async with running(tmp_path / "copy", node.store, serves) as copy:
        await until(lambda: noted == [1, 1])
        with pytest.raises(LeaderNotAvailable):
            await copy.append("t", b"of the copy")
        is_full = False
        await looks_home(copy)
        await until(lambda: not led(copy, "t").is_recovering)
        await copy.append("t", b"of the copy")


async def test_a_copy_that_ran_without_its_store_is_a_copy_still(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as node:
        await begun(node)
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        async with running(tmp_path / "copy", store_url="none") as copy:
            await copy.append("t", b"of the copy")
        async with running(tmp_path / "copy", node.store) as copy:
            assert copy.node.home.away is not None
            await until(lambda: copy.node.home.away is None)
            await copy.append("t", b"of the copy, too")
            await node.append("t", b"of the original")
            await offloads(node)
            await in_the_bucket(copy, b"before", b"of the copy", b"of the copy, too")


async def test_an_older_partition_that_could_not_be_opened_at_first_is_compared(tmp_path: Path) -> None:
    """The operator restores the directory with damaged files, and repairs them while the node runs."""
    directory, older = tmp_path / "data" / "t-0", tmp_path / "older"
    async with running(tmp_path / "data") as node:
        await begun(node)
        await node.append("t", b"not in the bucket yet")
        shutil.copytree(directory, older)
        await node.append("t", b"acknowledged since")
        await node.seal("t")
    checkpoint = tmp_path / "data" / "recovery-point-offset-checkpoint"
    checkpoint.write_text(checkpoint.read_text().replace("t 0 3", "t 0 2"))
    shutil.rmtree(directory)
    older.rename(directory)
    names, topic_id = directory / "partition.metadata", (directory / "partition.metadata").read_bytes()
    names.write_bytes(b"damaged")
    (directory / "tiered-manifest.json").write_bytes(b"damaged")
    async with running(tmp_path / "data", node.store) as node:
        assert node.node.broker.assignment.unopened == 1
        await node.node.broker.partitions.checkpoint()
        (directory / "tiered-manifest.json").unlink()
        names.write_bytes(topic_id)
        node.store.down = True
        await node.node.broker.assignment.retry()
        with pytest.raises(LeaderNotAvailable):
            await node.append("t", b"given a second time")
        node.store.down = False
        await until(lambda: node.node.work.tiering.has_compared(led(node, "t")))
        assert (await node.append("t", b"later")).base_offset == 3


async def test_no_producer_of_a_copy_gets_the_id_of_one_of_the_original(tmp_path: Path) -> None:
    """With the same id, the first batch would pass for a duplicate: acknowledged, but not in the log."""
    async with running(tmp_path / "data") as node:
        await begun(node)
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        await produced(node, b"of the original")
    async with running(tmp_path / "copy", node.store) as copy:
        await until(lambda: copy.node.home.away is None)
        await produced(copy, b"of the copy")
        assert [record.value for record in await copy.read_all("t")] == [b"before", b"of the original", b"of the copy"]


async def produced(node: Running, value: bytes) -> None:
    producer_id, epoch = await node.log.init_producer_id()
    await node.append("t", value, producer_id=producer_id, producer_epoch=epoch, base_sequence=0)
    await node.seal("t")


async def made_a_topic(node: Running) -> None:
    await node.create("later", configs=KEPT)
    await node.append("later", b"of the original")
    await node.seal("later")


async def added_partitions(node: Running) -> None:
    await node.core.topics.create_partitions("t", 2, None)
    await node.append("t", b"of the original", partition=1)
    await node.seal("t")


async def deleted_a_topic(node: Running) -> None:
    await node.core.topics.delete(["t"])
    await node.node.work.topic_files.tick()


async def made_a_topic_anew(node: Running) -> None:
    await deleted_a_topic(node)
    await begun(node)


@pytest.mark.parametrize(
    ("did", "said"),
    [
        (made_a_topic, "topic later was created, with topic id "),
        (added_partitions, "topic t was given 2 partitions, and has 1 here"),
        (deleted_a_topic, "topic t was deleted"),
        (made_a_topic_anew, "topic t was deleted and created again"),
    ],
)
async def test_a_copy_that_missed_changes_claims_nothing_and_the_original_continues(
    tmp_path: Path, did: Callable[[Running], Awaitable[None]], said: str
) -> None:
    """Otherwise the copy would repeat the change: it would create the topic under another id, and the topic in the
    bucket would count as deleted."""
    async with running(tmp_path / "data") as node:
        await begun(node)
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        await did(node)
        held = {key: (await node.store.get(key)).data async for key in keys_of(node)}
        async with running(tmp_path / "copy", node.store) as copy:
            access = copy.tier.access
            assert access is not None
            with pytest.raises(FencedWriter, match=f"is older than its cluster .*: since then {said}"):
                await access.run()
            with pytest.raises(LeaderNotAvailable):
                await copy.append("t", b"given a second time")
        assert held == {key: (await node.store.get(key)).data async for key in keys_of(node)}
    async with running(tmp_path / "data", node.store) as node:
        await until(lambda: node.tier.access is not None and node.tier.access.is_open)
        await node.create("later-on", configs=KEPT)
        await node.append("later-on", b"of the original")
        await node.seal("later-on")


async def keys_of(node: Running) -> AsyncIterator[str]:
    """The keys of the cluster's file and topics; the keys of probes come and go."""
    async for info in node.store.list(""):
        if "/topics/" in info.key or info.key.endswith("/cluster.json"):
            yield info.key


@pytest.mark.parametrize("ended", ["stopped", "killed"])
async def test_a_restored_older_metadata_log_is_recognised(
    tmp_path: Path, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is restored in place, as the damage report says and as `cp` does: its inode stays the same."""
    monkeypatch.setattr("service.directory.home.NOTE_S", 0.0)
    async with running(tmp_path / "data") as node:
        await begun(node)
        path = Path(node.node.ground.metadata.path)
        older = path.read_bytes()
        await made_a_topic(node)
        await looks_home(node)
        home = (tmp_path / "data" / FILE_NAME).read_bytes()
    if ended == "killed":
        (tmp_path / "data" / FILE_NAME).write_bytes(home)
    path.write_bytes(older)
    node.store.down = True
    async with running(tmp_path / "data", node.store) as again:
        with pytest.raises(LeaderNotAvailable, match="an older metadata log"):
            await again.append("t", b"by a node that knows less")
        node.store.down = False
        assert again.node.tier is not None
        with pytest.raises(FencedWriter, match="since then topic later was created"):
            await again.node.tier.access.run()


async def test_an_older_partition_that_was_led_without_the_store_is_compared_with_it(tmp_path: Path) -> None:
    directory, older = tmp_path / "data" / "t-0", tmp_path / "older"
    async with running(tmp_path / "data") as node:
        await begun(node)
        await node.append("t", b"not in the bucket yet")
        shutil.copytree(directory, older)
        await node.append("t", b"acknowledged since")
        await node.seal("t")
    shutil.rmtree(directory)
    older.rename(directory)
    async with running(tmp_path / "data", store_url="none"):
        pass
    node.store.down = True
    async with running(tmp_path / "data", node.store) as node:
        with pytest.raises(LeaderNotAvailable):
            await node.append("t", b"given a second time")
        node.store.down = False
        await until(lambda: node.node.work.tiering.has_compared(led(node, "t")))
        assert (await node.append("t", b"later")).base_offset == 3


async def test_objects_unknown_to_an_older_metadata_log_stay_for_a_take_over(
    tmp_path: Path,
) -> None:
    """The node's damage report names two remedies: an attempt at the first must not leave less for the second."""
    async with running(tmp_path / "data") as node:
        await begun(node)
        path, cluster_id = Path(node.node.ground.metadata.path), node.node.cluster_id
        older = path.read_bytes()
        await made_a_topic(node)
        await node.append("later", b"not in the bucket yet")
    path.write_bytes(older)
    async with running(tmp_path / "data", node.store) as again:
        assert again.node.tier is not None
        with pytest.raises(FencedWriter, match="since then topic later was created"):
            await again.node.tier.access.run()
    path.parent.rename(tmp_path / "kept")
    async with running(tmp_path / "data", node.store, take_over=cluster_id) as taken:
        await until(lambda: taken.node.work.tiering.has_compared(led(taken, "later")))
        found = [record.value for record in await taken.read_all("later")]
        assert found == [b"of the original", b"not in the bucket yet"]
