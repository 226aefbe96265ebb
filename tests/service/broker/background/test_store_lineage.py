"""A store that shows less of a partition than the node has seen: the node reports it, and deletes and evicts nothing (I10)."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from grpc_api.contract.log import OffsetQuery, OffsetSpec
from grpc_api.contract.topics import AlterOp, ConfigAlteration, Resource, ResourceKind
from service.broker.partition.partition import Partition
from service.serve.rounds import rounds
from storage_tiers.cold.manifest.json import decode, encode
from storage_tiers.cold.manifest.model import Manifest
from storage_tiers.cold.manifest.saved_manifest import read_manifest
from storage_tiers.cold.process.operations import DeletePartition
from storage_tiers.errors import LeaderNotAvailable, RequestTimedOut, StoreBehind
from storage_tiers.types import TimestampOffset, TopicPartition
from tests.service.broker.support import Running, filled, running, until

T0 = TopicPartition("t", 0)
#: A grace so short that one round can delete everything that may go.
AT_ONCE = {"tidelog.tier.delete.grace.ms": "1000"}


def led(node: Running) -> Partition:
    return node.node.broker.partitions.get(T0)


async def manifest_bytes(node: Running) -> bytes:
    return (await node.store.get(led(node).ids.manifest_key)).data


async def put_back(node: Running, key: str, manifest: bytes | None) -> None:
    if manifest is None:
        await node.store.delete([key])
    else:
        await node.store.put(key, manifest)


async def segments(node: Running) -> set[str]:
    return {info.key async for info in node.store.list(led(node).ids.prefix) if "/manifests/" not in info.key}


async def sweep_past_the_grace(node: Running) -> None:
    """Runs every deleting round once, after the objects have outlived the grace."""
    clock = node.node.ground.host.clock
    began = clock.unix_ms()
    await until(lambda: clock.unix_ms() > began + 1100)
    for worker in rounds(node.node):
        if worker.name in ("tiering", "retention", "sweeping", "topic files", "sweeping of deleted topics"):
            await worker.tick()


@asynccontextmanager
async def grown(directory: Path) -> AsyncIterator[tuple[Running, list[bytes]]]:
    """A node whose topic was sealed three times, and the manifest's bytes after each seal."""
    async with running(directory, broker=AT_ONCE) as node:
        await filled(node, 20, {"local.retention.bytes": "-1", "local.retention.ms": "-1"})
        versions: list[bytes] = []
        for _ in range(3):
            await node.append("t", b"z" * 1500)
            await node.seal("t")
            versions.append(await manifest_bytes(node))
        yield node, versions


async def is_blocked(node: Running, key: str) -> None:
    """Asserts that nothing is deleted, evicted or committed, that the node reports this, and that records are still accepted
    and served."""
    lineage = node.node.work.tiering.lineage
    await until(lambda: led(node) in lineage)
    assert "t-0" in json.loads(node.node.ground.readiness.body())["store_behind"]
    stored, local = await segments(node), led(node).log.hot.local_start_offset
    shown = await node.store.get(key) if await exists(node, key) else None
    saved = read_manifest(led(node).log.hot.directory, led(node).ids)
    start = led(node).log.log_start_offset
    await node.append("t", b"n" * 1500)
    await node.append("t", b"n" * 1500)
    assert (await node.read_all("t", start=start))[-1].value == b"n" * 1500
    await configure(node, {"local.retention.bytes": "1", "retention.bytes": "1500"})
    await sweep_past_the_grace(node)
    with pytest.raises(StoreBehind):
        await node.log.delete_records(T0, start + 5)
    tiered, end = await node.log.list_offsets(
        [OffsetQuery(T0, OffsetSpec.LATEST_TIERED), OffsetQuery(T0, OffsetSpec.LATEST)]
    )
    assert isinstance(tiered, StoreBehind) and isinstance(end, TimestampOffset)
    assert led(node).log.log_start_offset == start
    assert led(node).log.hot.local_start_offset == local
    assert await segments(node) == stored
    now = await node.store.get(key) if await exists(node, key) else None
    assert (None if now is None else now.data) == (None if shown is None else shown.data)
    assert read_manifest(led(node).log.hot.directory, led(node).ids) == saved


async def exists(node: Running, key: str) -> bool:
    return key in {info.key async for info in node.store.list(key)}


async def configure(node: Running, configs: dict[str, str]) -> None:
    changes = [ConfigAlteration(key, AlterOp.SET, value) for key, value in configs.items()]
    await node.core.configs.alter_configs(Resource(ResourceKind.TOPIC, "t"), changes)


async def goes_on(node: Running, end: int) -> None:
    """Asserts that offloads, retention and eviction resume, and that every record is there once."""
    await until(lambda: led(node) not in node.node.work.tiering.lineage)
    assert json.loads(node.node.ground.readiness.body())["store_behind"] == {}
    await configure(node, {"retention.bytes": "-1"})
    await node.seal("t")
    await until(lambda: led(node).log.hot.local_start_offset >= end - 1)
    assert [record.offset for record in await node.read_all("t")] == list(range(end))
    await node.log.delete_records(T0, 5)
    await until(lambda: manifest_of(node).log_start == 5)


def manifest_of(node: Running) -> Manifest:
    manifest = read_manifest(led(node).log.hot.directory, led(node).ids)
    assert manifest is not None
    return manifest


def said(caplog: pytest.LogCaptureFixture, event: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if getattr(record, "event", "") == event]


@pytest.mark.parametrize("version", [None, 0], ids=["gone", "older"])
async def test_a_manifest_that_went_back_between_two_starts_blocks_its_partition(
    tmp_path: Path, version: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The older manifest ends at 21 and the saved one at 23: eviction by the saved manifest would lose [21, 23)."""
    caplog.set_level(logging.INFO)
    async with grown(tmp_path) as (node, versions):
        key, end = led(node).ids.manifest_key, manifest_of(node).end
    await put_back(node, key, None if version is None else versions[version])
    async with running(tmp_path, node.store, AT_ONCE) as node:
        await is_blocked(node, key)
        (line,) = said(caplog, "store.behind")
        assert line.levelno == logging.ERROR and key in line.getMessage()
        await put_back(node, key, versions[-1])
        await goes_on(node, end + 2)
        assert len(said(caplog, "store.behind")) == len(said(caplog, "store.caught_up")) == 1


@pytest.mark.parametrize("version", [None, 0], ids=["gone", "older"])
@pytest.mark.parametrize("by", ["sweeping", "retention", "offloading", "deleting"])
async def test_a_manifest_that_goes_back_while_the_node_runs_is_noticed(
    tmp_path: Path, version: int | None, by: str
) -> None:
    """The first request that reads the manifest notices the change."""
    async with grown(tmp_path) as (node, versions):
        key, end = led(node).ids.manifest_key, manifest_of(node).end
        await put_back(node, key, None if version is None else versions[version])
        if by == "sweeping":
            await sweep_past_the_grace(node)
        elif by == "offloading":
            await node.append("t", b"x" * 1500)
            await node.append("t", b"x" * 1500)
            end += 2
        elif by == "deleting":
            with pytest.raises(StoreBehind):
                await node.log.delete_records(T0, 3)
        else:
            await node.node.broker.partitions.raise_log_starts({led(node): 3})
            await sweep_past_the_grace(node)
        await is_blocked(node, key)
        await put_back(node, key, versions[-1])
        if by in ("deleting", "retention"):
            await until(lambda: led(node) not in node.node.work.tiering.lineage)
        else:
            await goes_on(node, end + 2)


@pytest.mark.parametrize("damage", ["cut", "another partition's"])
@pytest.mark.parametrize("restarted", [True, False], ids=["between two starts", "while it runs"])
async def test_a_manifest_of_another_partition_is_ignored(tmp_path: Path, damage: str, restarted: bool) -> None:
    async with grown(tmp_path) as (node, versions):
        ids, end = led(node).ids, manifest_of(node).end
        key = ids.manifest_key
        foreign = replace(decode(versions[-1], ids), ids=replace(ids, partition=7))
        shown = versions[-1][:-20] if damage == "cut" else encode(foreign)
        await put_back(node, key, shown)
        if not restarted:
            await sweep_past_the_grace(node)
            await is_blocked(node, key)
            await put_back(node, key, versions[-1])
            await goes_on(node, end + 2)
    if restarted:
        async with running(tmp_path, node.store, AT_ONCE) as node:
            await is_blocked(node, key)
            await put_back(node, key, versions[-1])
            await goes_on(node, end + 2)


async def test_a_manifest_that_is_deleted_while_its_topic_lives_is_not_followed(tmp_path: Path) -> None:
    async with grown(tmp_path) as (node, versions):
        ids = led(node).ids
        writer = node.tier.access.writer if node.tier.access is not None else None
        client = node.tier.client
        assert client is not None and writer is not None
        await client.ask(DeletePartition(ids, writer))
        await is_blocked(node, ids.manifest_key)
        assert "before the deletion" in str(node.node.work.tiering.lineage.reason(led(node)))
        assert node.node.ground.ending.fatal is None
        await put_back(node, ids.manifest_key, versions[-1])
        await until(lambda: led(node) not in node.node.work.tiering.lineage)


async def test_nothing_expires_in_a_partition_that_fell_behind_while_its_retention_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another request notices the older manifest first."""
    async with grown(tmp_path) as (node, versions):
        key, retention, end = led(node).ids.manifest_key, node.node.broker.retention, manifest_of(node).end
        plan, planned = retention._plan, list[int]()

        async def and_meanwhile(partition: Partition) -> object:
            found = await plan(partition)
            if not planned:
                planned.append(found.log_start)
                await put_back(node, key, versions[0])
                with pytest.raises(StoreBehind):
                    await node.node.work.tiering.reload(partition)
            return found

        monkeypatch.setattr(retention, "_plan", and_meanwhile)
        await configure(node, {"local.retention.bytes": "1500", "retention.bytes": "1500"})
        await retention.tick()
        assert planned[0] > 0 and led(node) in node.node.work.tiering.lineage
        assert led(node).log.log_start_offset == 0
        await put_back(node, key, versions[-1])
        await until(lambda: led(node) not in node.node.work.tiering.lineage)
        await retention.tick()
        assert led(node).log.log_start_offset == planned[0]
        assert [record.offset for record in await node.read_all("t", start=planned[0])] == list(range(planned[0], end))


async def test_a_seal_of_a_topic_behind_says_why_nothing_is_offloaded(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await filled(node, 20)
        await node.seal("t")
        key, manifest = led(node).ids.manifest_key, await manifest_bytes(node)
        await put_back(node, key, None)
        await node.append("t", b"later")
        with pytest.raises(
            RequestTimedOut, match=r"holds no manifest.*Put the newest version .*`tidelog cold repair t`"
        ):
            await node.log.seal("t", wait=True, timeout_ms=2000)
        await put_back(node, key, manifest)
        await node.seal("t")


async def test_a_deleted_topic_is_no_longer_behind(tmp_path: Path) -> None:
    """Otherwise `/readyz` and the metric would name it until the node restarts."""
    async with grown(tmp_path) as (node, _):
        lineage = node.node.work.tiering.lineage
        await put_back(node, led(node).ids.manifest_key, None)
        await sweep_past_the_grace(node)
        assert led(node) in lineage
        await node.core.topics.delete(["t"])
        await until(lambda: len(lineage) == 0)
        assert json.loads(node.node.ground.readiness.body())["store_behind"] == {}


async def test_a_local_log_that_waits_is_not_discarded_for_less(tmp_path: Path) -> None:
    """The log ends below the saved manifest, and the store shows an older manifest: neither may count as the truth."""
    async with grown(tmp_path) as (node, versions):
        key, end = led(node).ids.manifest_key, manifest_of(node).end
    for file in (tmp_path / "t-0").iterdir():
        if file.name.startswith((f"{end:020}", f"{end - 1:020}")):
            file.unlink()
    await put_back(node, key, versions[0])
    async with running(tmp_path, node.store, AT_ONCE) as node:
        lineage = node.node.work.tiering.lineage
        await until(lambda: led(node) in lineage)
        start = led(node).log.hot.local_start_offset
        with pytest.raises(LeaderNotAvailable, match="gone backwards"):
            await node.append("t", b"x")
        await put_back(node, key, versions[-1])
        await until(lambda: led(node) not in lineage and led(node).read_error is None)
        assert led(node).log.hot.local_start_offset >= start
        assert [record.offset for record in await node.read_all("t")] == list(range(end))


async def test_eviction_checks_the_store_first(tmp_path: Path) -> None:
    """Objects that the bucket showed an hour ago may be gone, and then the local records are the last copy."""
    async with grown(tmp_path / "data") as (node, _):
        key, hot = led(node).ids.manifest_key, led(node).log.hot
        await until(lambda: led(node).log.tiered_end == hot.end_offset)
        kept = await manifest_bytes(node)
        await put_back(node, key, None)
        change = ConfigAlteration("local.retention.ms", AlterOp.SET, "1")
        await node.core.configs.alter_configs(Resource(ResourceKind.TOPIC, "t"), [change])
        node.node.work.tiering.kick(led(node))
        await until(lambda: led(node) in node.node.work.tiering.lineage)
        assert hot.local_start_offset == 0
        await put_back(node, key, kept)
        await node.evicted("t")


@pytest.mark.parametrize("version", [None, 0], ids=["gone", "older"])
@pytest.mark.parametrize("saved", ["gone", "damaged"])
async def test_offsets_that_are_missing_between_bucket_and_log_show_that_the_store_went_back(
    tmp_path: Path, version: int | None, saved: str, caplog: pytest.LogCaptureFixture
) -> None:
    """This disk has lost the newer manifest too: the start of the local log shows the gap."""
    async with grown(tmp_path) as (node, versions):
        await configure(node, {"local.retention.ms": "1"})
        await node.evicted("t")
        key, end, manifest = led(node).ids.manifest_key, manifest_of(node).end, tmp_path / "t-0/tiered-manifest.json"
    manifest.unlink() if saved == "gone" else manifest.write_bytes(manifest.read_bytes()[:-20])
    await put_back(node, key, None if version is None else versions[version])
    async with running(tmp_path, node.store, AT_ONCE) as node:
        lineage = node.node.work.tiering.lineage
        await until(lambda: led(node) in lineage)
        assert f"begins at offset {end}" in json.loads(node.node.ground.readiness.body())["store_behind"]["t-0"]
        assert [line.levelno for line in said(caplog, "store.behind")] == [logging.ERROR]
        (tiered,) = await node.log.list_offsets([OffsetQuery(T0, OffsetSpec.LATEST_TIERED)])
        assert isinstance(tiered, StoreBehind)
        stored = await segments(node)
        await sweep_past_the_grace(node)
        assert await segments(node) == stored
        assert led(node).log.hot.local_start_offset == end
        await put_back(node, key, versions[-1])
        await until(lambda: led(node) not in lineage and led(node).read_error is None)
        assert [record.offset for record in await node.read_all("t")] == list(range(end))


async def test_nothing_is_swept_where_offsets_are_missing_between_bucket_and_log(tmp_path: Path) -> None:
    """The store shows an older manifest and the newer one is lost: the local log shows the gap."""
    async with grown(tmp_path / "data") as (node, versions):
        change = ConfigAlteration("local.retention.ms", AlterOp.SET, "1")
        await node.core.configs.alter_configs(Resource(ResourceKind.TOPIC, "t"), [change])
        await node.evicted("t")
        key, saved, store = led(node).ids.manifest_key, led(node).log.hot.directory, node.store
    (Path(saved) / "tiered-manifest.json").unlink()
    await store.delete([key])
    await store.put(key, versions[0])
    async with running(tmp_path / "data", store, broker=AT_ONCE) as node:
        before = await segments(node)
        await sweep_past_the_grace(node)
        assert await segments(node) == before
