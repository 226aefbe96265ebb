"""Two mistakes of an operator with a real S3 server: a bucket restored to yesterday, and a prefix copied in the wrong order.

The node has then seen more than the bucket shows. It reports that, deletes nothing, evicts nothing, and accepts records on
its disk. It resumes once the bucket is restored to its newest state, and loses no acknowledged record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import single_requests
from tests.faults.clients import create_topic, delete_records, seal, until
from tests.faults.world import SWEEPING, World, a_world
from tests.support.s3_servers import BUCKET, S3Server

TOPIC = "restored"
WITNESS = "witness"


@pytest.fixture
def world(tmp_path: Path, versitygw: S3Server) -> Iterator[World]:
    with a_world(tmp_path, versitygw, TOPIC, settings=SWEEPING) as made:
        made.create()
        yield made


class Copy:
    """The present objects under a world's prefix, except the witness topic's objects, and `cluster.json`, which has a guard and
    tests of its own."""

    def __init__(self, world: World) -> None:
        self._client = world.server.client
        self._prefix = world.node.store.removeprefix(f"s3://{BUCKET}/") + "/"
        self.objects = {key: self._client.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in self.keys()}

    def keys(self) -> list[str]:
        return [key for key in self._all() if not key.endswith("/cluster.json") and f"/{WITNESS}/" not in key]

    def of_witness(self) -> list[str]:
        return [key for key in self._all() if f"/{WITNESS}/" in key and key.endswith(".log")]

    def _all(self) -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=self._prefix)
        return [item["Key"] for page in pages for item in page.get("Contents", ())]

    def put_back(self, part: str = "", *, and_nothing_else: bool = True) -> None:
        """Restores every object whose key contains `part`, and deletes newer ones unless `and_nothing_else` is false."""
        for key in self.keys():
            if and_nothing_else and part in key and key not in self.objects:
                self._client.delete_object(Bucket=BUCKET, Key=key)
        for key, data in self.objects.items():
            if part in key:
                self._client.put_object(Bucket=BUCKET, Key=key, Body=data)


def behind(world: World) -> dict[str, str]:
    found: dict[str, str] = json.loads(world.node.get("/readyz")[1])["store_behind"]
    return found


def rounds_of_everything_that_deletes(world: World, copy: Copy) -> None:
    """Evicts, expires and sweeps a sound partition twice. By then, wrong deletions from other partitions would have
    happened."""
    create_topic(world.node, WITNESS)
    for _ in range(2):
        base = single_requests.produce(world.node.kafka, WITNESS, b"a", b"b")[1]
        seal(world.node, WITNESS)
        until(copy.of_witness, "the witness is offloaded")
        delete_records(world.node, WITNESS, base + 2)
        until(lambda: not copy.of_witness(), "the witness is swept")


def days(world: World) -> tuple[Copy, Copy]:
    """The bucket's objects of two days; after each day the bucket alone held all records."""
    world.write(300)
    world.offload()
    yesterday = Copy(world)
    world.write(300)
    world.offload()
    return yesterday, Copy(world)


@pytest.mark.parametrize("part", ["", "/manifests/"], ids=["a bucket of yesterday", "manifests older than segments"])
@pytest.mark.parametrize("restarted", [False, True], ids=["while it runs", "while it is down"])
def test_nothing_is_deleted_while_the_bucket_shows_an_earlier_state(world: World, part: str, restarted: bool) -> None:
    yesterday, today = days(world)
    if restarted:
        world.node.stop()
    yesterday.put_back(part)
    if restarted:
        world.node.start()
    world.write(300)
    until(lambda: f"{TOPIC}-0" in behind(world), "the node reports that the store is behind")
    assert "/manifests/00000.json" in behind(world)[f"{TOPIC}-0"]
    stored, local = set(yesterday.keys()), world.local_bytes()
    rounds_of_everything_that_deletes(world, today)
    assert set(yesterday.keys()) >= stored, "nothing was swept"
    assert world.local_bytes() >= local > 0, "nothing was evicted"
    assert world.fetch(600).data, "records appended since are served"
    assert world.node.running and world.node.readyz() == 200

    today.put_back(and_nothing_else=False)
    until(lambda: behind(world) == {}, "the partition continues")
    world.swept()


def test_manifests_newer_than_their_segments_cause_refused_reads_only(world: World) -> None:
    """The reverse mistake looks like lost objects, so its only effect must be refused reads."""
    yesterday, today = days(world)
    yesterday.put_back("/segments/")
    assert not world.fetch(450, wait_ms=2000).data
    world.write(300)
    rounds_of_everything_that_deletes(world, today)
    today.put_back("/segments/", and_nothing_else=False)
    world.sound()
