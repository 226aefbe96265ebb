"""Advice to programs and operators that no other module covers, followed."""

from __future__ import annotations

import os
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import boto3
import pytest

from grpc_api.sdk.client import Client
from grpc_api.sdk.cold import ColdBucket
from grpc_api.sdk.values import Acks, ProducerOptions, start_ms
from service.metadata import delta
from service.metadata import records_pb2 as pb
from service.metadata.image import MetadataImage
from service.offline.restore import restore
from service.settings.node_settings import NodeSettings
from storage_tiers.clock import SystemClock
from storage_tiers.cold.manifest import lineage, model, pages, transitions
from storage_tiers.cold.manifest.json import encode
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.cold.stores.open import open_blocking_store, open_store
from storage_tiers.errors import (
    InvalidConfig,
    InvalidRecord,
    InvalidRequest,
    MetadataCorrupt,
    OffsetOutOfRange,
    StoreBehind,
    StoreRefused,
)
from storage_tiers.files import OsFiles
from tests.advice.messages import ROOT, advice
from tests.advice.support import leads
from tests.grpc_api.support import Served, served
from tests.service.broker.support import TIERED, filled, running, until
from tests.storage_tiers.cold.support import IDS, segment_of, stored_manifest, tier_of
from tests.storage_tiers.cold.test_repair import World, world
from tests.support.faulty_store import FaultyStore
from tests.support.s3_proxy import S3Proxy, answer
from tests.support.s3_servers import BUCKET, REGION, S3Server

__all__ = ["world"]  # a fixture


# --- manifests and metadata -------------------------------------------------------------------------------------------
async def test_a_saved_manifest_that_cannot_be_read_is_put_back(world: World, tmp_path: Path) -> None:
    await world.extend(40)
    saved, path = world.manifests[1], tmp_path / "tiered-manifest.json"
    fresh = tier_of(world.store, world.clock, seed=5)
    fresh.expect(lineage.seen_of(saved, str(path)))
    with pytest.raises(StoreBehind, match="repair or replace the disk"):
        await fresh.load()
    path.write_bytes(encode(saved))
    loaded = await fresh.load()
    assert loaded is not None and loaded.manifest == stored_manifest(world.store.blocking())


async def test_a_segment_is_offloaded_again_under_a_new_name(world: World) -> None:
    manifest = await world.extend(2)
    again = replace(manifest.segments[-1], base=20, end=30)
    by = world.author()
    with pytest.raises(InvalidRequest, match="upload under a new uuid"):
        transitions.extend(manifest, again, by, leader_epoch=1, last_record_epoch=1, log_start=0)
    extended = transitions.extend(
        manifest, segment_of(IDS, 20, 30, 77), by, leader_epoch=1, last_record_epoch=1, log_start=0
    )
    assert extended.segments[:2] == manifest.segments and extended.end == 30


async def test_tombstoned_keys_that_are_gone_make_room(world: World) -> None:
    manifest, most = await world.extend(), model.MAX_TOMBSTONED
    names = [IDS.segment_key(100 + number, 1, f"{number:032x}") for number in range(most + 10)]
    full = transitions.tombstone(manifest, names[:most], world.author())
    with pytest.raises(InvalidRequest, match="drop those that are gone"):
        transitions.tombstone(full, names[most:], world.author())
    dropped = pages.drop_gone(full, set(names[:10]), (), world.author())
    assert dropped is not None
    again = transitions.tombstone(dropped.manifest, names[most:], world.author())
    assert [tombstoned.key for tombstoned in again.tombstoned] == names[10:]
    assert again.segments == manifest.segments and transitions.broken(again) is None


async def test_a_node_that_cannot_apply_its_metadata_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as node:
        await filled(node, 10)

        def fails(*_: object) -> None:
            raise RuntimeError("a defect")

        with monkeypatch.context() as broken:
            broken.setattr(node.node.broker.assignment, "apply", fails)
            await node.create("u")
        assert node.node.ground.ending.fatal is not None and "start it again" in str(node.node.ground.ending.fatal)
    async with running(tmp_path, node.store) as node:
        await until(lambda: len(list(node.node.broker.partitions)) == 2)
        assert [record.offset for record in await node.read_all("t")] == list(range(10))
        await leads(node, "t", "u")
        await node.append("u", b"made")


def test_a_metadata_record_of_a_newer_version_is_applied_by_that_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """The older version refuses the whole record. (Then the test makes this version accept the record, as a newer version
    does.)"""
    record = pb.MetadataRecord()
    image = MetadataImage(cluster_id="c")
    with pytest.raises(MetadataCorrupt, match="start the version that wrote it, or newer"):
        image.apply_batch([record])
    assert image == MetadataImage(cluster_id="c")
    monkeypatch.setattr(delta.Delta, "apply", lambda *_: None)
    assert image.apply_batch([record]).cluster_id == "c"


# --- stores -----------------------------------------------------------------------------------------------------------
async def test_a_bucket_that_is_missing_is_created(versitygw: S3Server) -> None:
    location = StoreLocation.parse("s3://not-there-yet/live", endpoint=versitygw.endpoint, region=REGION)
    store = await open_store(location, OsFiles(), SystemClock())
    with pytest.raises(StoreRefused, match="create it, or correct the store's URL"):
        await store.put("key", b"x")
    boto3.client("s3", endpoint_url=versitygw.endpoint, region_name=REGION).create_bucket(Bucket="not-there-yet")
    await store.put("key", b"x")
    assert (await store.get("key")).data == b"x"


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (403, "RequestTimeTooSkewed", "this machine's clock is wrong; set it"),
        (403, "AccessDenied", "allow s3:ListBucket"),
        (403, "InvalidAccessKeyId", "check AWS_ACCESS_KEY_ID or the profile"),
        (403, "SignatureDoesNotMatch", "check AWS_SECRET_ACCESS_KEY"),
        (400, "AuthorizationHeaderMalformed", "the bucket is in another region; set that region"),
        (400, "SomethingElse", "correct the store's settings"),
    ],
)
async def test_a_request_refused_by_s3_succeeds_after_the_correction(
    versitygw: S3Server, status: int, code: str, said: str
) -> None:
    """The open store works again; nothing has to be reopened."""
    with S3Proxy(versitygw.endpoint) as proxy:
        location = StoreLocation.parse(f"s3://{BUCKET}/{code}", endpoint=proxy.endpoint, region=REGION)
        store = await open_store(location, OsFiles(), SystemClock())
        await store.put("key", b"x")
        proxy.always(answer(status, code))
        with pytest.raises(StoreRefused, match=said):
            await store.get("key")
        proxy.clear()
        assert (await store.get("key")).data == b"x"
        await store.close()


@contextmanager
def as_nobody() -> Iterator[None]:
    """Runs the block as the user nobody if the test runs as root, because root may read everything."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_directory_is_readable_after_access_is_granted(tmp_path: Path) -> None:
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    (tmp_path / "store").mkdir()
    store = open_blocking_store(StoreLocation.parse(f"file://{tmp_path}/store"))
    store.put("folder/key", b"x")
    (tmp_path / "store" / "folder").chmod(0o000)
    try:
        with as_nobody(), pytest.raises(StoreRefused, match="give this user the right to"):
            store.get("folder/key")
    finally:
        (tmp_path / "store" / "folder").chmod(0o755)
    with as_nobody():
        assert store.get("folder/key").data == b"x"


async def test_a_restore_goes_to_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    url = f"file://{tmp_path}/store"
    store = FaultyStore(await open_store(StoreLocation.parse(url), OsFiles(), SystemClock()))
    async with running(tmp_path / "data", store, {"tidelog.metadata.snapshot.interval.ms": "100"}) as node:
        await filled(node, 10)
        await node.seal("t")
        cluster = node.node.cluster_id
    with pytest.raises(InvalidConfig, match="give its --store"):
        await restore(NodeSettings(data_dir=tmp_path / "new", store="none"), cluster, dry_run=False)
    with pytest.raises(InvalidConfig, match="give an empty --data-dir"):
        await restore(NodeSettings(data_dir=tmp_path / "data", store=url), cluster, dry_run=False)
    points = await restore(NodeSettings(data_dir=tmp_path / "new", store=url), cluster, dry_run=False)
    assert [(point.topic, point.claimed.end) for point in points] == [("t", 10)]


# --- the SDK ----------------------------------------------------------------------------------------------------------
@asynccontextmanager
async def connected(directory: Path, store: FaultyStore | None = None) -> AsyncIterator[tuple[Served, Client]]:
    async with served(directory, store) as node, Client.connect(node.address) as client:
        yield node, client


async def test_the_arguments_that_the_sdk_advises_are_accepted(tmp_path: Path) -> None:
    async with connected(tmp_path / "data") as (node, client):
        await client.create_topic("t")
        with pytest.raises(InvalidConfig, match=r"choose that, or idempotent=False"):
            ProducerOptions(acks=Acks.LEADER)
        with pytest.raises(InvalidConfig, match=r"say which, as tzinfo=timezone.utc"):
            start_ms(datetime(2024, 1, 1))
        assert start_ms(datetime(2024, 1, 1, tzinfo=UTC)) > 0
        for number, options in enumerate((ProducerOptions(), ProducerOptions(acks=Acks.LEADER, idempotent=False))):
            async with client.producer(options) as producer:
                with pytest.raises(InvalidRecord, match="encode it first"):
                    await (await producer.send("t", "text"))  # type: ignore[arg-type]
                await (await producer.send("t", b"text"))
            with pytest.raises(InvalidRequest, match="the producer is closed; make another"):
                await producer.send("t", b"late")
            assert await node.node.end("t") == number + 1
        assert [record.value for record in await node.node.read_all("t")] == [b"text", b"text"]


async def test_records_outside_the_bucket_are_sealed_first(tmp_path: Path) -> None:
    memory = MemoryStore(SystemClock())
    async with connected(tmp_path / "data", FaultyStore(memory)) as (node, client):
        await client.create_topic("t", configs=TIERED)
        for number in range(10):
            await node.node.append("t", b"%d" % number)
        await client.seal("t")
        await until(lambda: node.published("t"))
        for number in range(10, 20):
            await node.node.append("t", b"%d" % number)
        cluster = node.node.node.cluster_id
        bucket = ColdBucket(memory.blocking(), cluster)
        with pytest.raises(OffsetOutOfRange, match="start within them, or seal the topic first"):
            next(bucket.read("t", start={0: 15}))
        assert [message.offset for message in bucket.read("t", start={0: 9})] == [9]
        await client.seal("t")
        bucket = ColdBucket(memory.blocking(), cluster)
        assert [message.offset for message in bucket.read("t", start={0: 15})] == list(range(15, 20))


async def test_among_several_clusters_the_named_one_is_read(tmp_path: Path) -> None:
    memory, clusters = MemoryStore(SystemClock()), []
    for number in range(2):
        async with running(tmp_path / str(number), FaultyStore(memory), new_cluster=True) as node:
            await filled(node, 5 + number)
            await node.seal("t")
            await node.node.work.topic_files.tick()
            clusters.append(node.node.cluster_id)
    with pytest.raises(InvalidRequest, match="give cluster_id"):
        next(ColdBucket(memory.blocking()).read("t"))
    for number, cluster in enumerate(clusters):
        assert len(list(ColdBucket(memory.blocking(), cluster).read("t"))) == 5 + number


def test_extras_that_messages_name_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {extra for message in advice() for extra in extras(message.text)}
    assert named == {"arrow", "spark"} and named <= set(project["optional-dependencies"])


def extras(text: str) -> list[str]:
    return [part.partition("]")[0] for part in text.split("[")[1:]] if "pip install" in text else []
