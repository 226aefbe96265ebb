"""`tidelog cold repair` as an operator runs it, on a real S3 server that lost a manifest, a segment or `cluster.json`.

Segments are small, so that many of them fill a manifest page. The bucket alone holds the records: the bucket, the node's
saved manifest and the command's arguments decide what comes back.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from storage_tiers.cold.manifest.lookup import live_segments
from storage_tiers.cold.manifest.model import Manifest, RemoteSegment
from storage_tiers.cold.offline.bucket import Bucket
from tests.faults import bucket
from tests.faults.clients import create_topic, local_bytes, seal, until
from tests.service.cli.support import Ran, tidelog
from tests.support.node import Node
from tests.support.s3_servers import BUCKET, S3Server

TOPIC = "lost"
#: 80 segments: a manifest keeps at most 64 of them, and a page the others.
RECORDS = 240
#: Three records of about 1 KiB fill a segment.
CONFIGS = {
    "internal.segment.bytes": "4096",
    "local.retention.ms": "1",
    "retention.ms": "-1",
    "tidelog.tier.max.lag.ms": "300",
}


class Life:
    """A node with a prefix of its own, and the objects of its partition."""

    def __init__(self, node: Node, server: S3Server) -> None:
        self.node = node
        self.server = server
        self.sent = 0

    # --- records --------------------------------------------------------------------------------------------------------
    def write(self, records: int) -> None:
        """Returns once the bucket holds the records and the local disk none."""
        failed: list[object] = []
        producer = Producer({"bootstrap.servers": self.node.kafka, "batch.num.messages": 1, "log_level": 2})
        for number in range(self.sent, self.sent + records):
            producer.produce(TOPIC, value(number), on_delivery=lambda error, _: failed.append(error) if error else None)
        assert producer.flush(60) == 0 and not failed
        self.sent += records
        seal(self.node, TOPIC)
        until(lambda: local_bytes(self.node, TOPIC) == 0, "local segments are evicted")

    def holds(self, *, but: range = range(0)) -> None:
        """Asserts that a consumer finds every record, in order, except the offsets given up, and that the bucket is sound."""
        left = [offset for offset in range(self.sent) if offset not in but]
        assert consumed(self.node) == [(offset, value(offset)) for offset in left]
        ran = tidelog("fsck", *self.place)
        assert ran.code == 0 and ran.out.startswith("sound: "), ran.out

    # --- commands -------------------------------------------------------------------------------------------------------
    @property
    def place(self) -> tuple[str, ...]:
        return ("--store", self.node.store, "--s3-endpoint", self.server.endpoint)

    def repair(self, *words: str) -> Ran:
        return tidelog("cold", "repair", *words, "--bootstrap-server", self.node.kafka)

    # --- objects --------------------------------------------------------------------------------------------------------
    @property
    def prefix(self) -> str:
        return self.node.store.removeprefix(f"s3://{BUCKET}/") + "/"

    def stored(self) -> list[str]:
        """The stored keys without the prefix, as the manifests name them."""
        pages = self.server.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=self.prefix)
        return [item["Key"].removeprefix(self.prefix) for page in pages for item in page.get("Contents", ())]

    def take(self, key: str) -> bytes:
        """Deletes the object, and returns what it held."""
        data = self.server.client.get_object(Bucket=BUCKET, Key=self.prefix + key)["Body"].read()
        self.server.client.delete_object(Bucket=BUCKET, Key=self.prefix + key)
        return data

    def put_back(self, key: str, data: bytes) -> None:
        self.server.client.put_object(Bucket=BUCKET, Key=self.prefix + key, Body=data)

    def manifest(self) -> Manifest:
        with bucket.opened(self.node.store, self.server.endpoint) as store:
            (manifest,) = bucket.manifests(store, TOPIC)
        return manifest

    def segments(self) -> list[RemoteSegment]:
        with bucket.opened(self.node.store, self.server.endpoint) as store:
            (manifest,) = bucket.manifests(store, TOPIC)
            return list(live_segments(manifest, Bucket(store).pages(manifest.ids)))


def value(number: int) -> bytes:
    return b"%d " % number + b"x" * 1000


def consumed(node: Node, seconds: float = 60) -> list[tuple[int, bytes]]:
    """(offset, value) of every record from the beginning to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": node.kafka,
            "group.id": "reads once",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 2,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[tuple[int, bytes]] = []
    deadline = time.monotonic() + seconds
    try:
        while True:
            assert time.monotonic() < deadline, f"the end did not come after {len(found)} records"
            for message in consumer.consume(1000, timeout=1):
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    return found
                offset, data = message.offset(), message.value()
                assert offset is not None and isinstance(data, bytes)
                found.append((offset, data))
    finally:
        consumer.close()


@pytest.fixture
def life(tmp_path: Path, versitygw: S3Server) -> Iterator[Life]:
    store, endpoint = f"s3://{BUCKET}/repair/{tmp_path.name}", versitygw.endpoint
    settings = {"log.retention.check.interval.ms": 200}
    with Node(tmp_path, store=store, settings=settings, flags=["--s3-endpoint", endpoint]) as node:
        create_topic(node, TOPIC, configs=CONFIGS)
        yield Life(node, versitygw)


def test_a_manifest_that_is_gone_is_committed_again_over_its_pages(life: Life) -> None:
    life.write(RECORDS)
    before = life.manifest()
    manifest_key, page = before.ids.manifest_key, before.live_pages[0].key
    life.take(manifest_key)
    held = life.take(page)
    for words in ((), ("--apply",)):
        refused = life.repair(TOPIC, *words)
        assert refused.code == 1
        assert f"{page} is missing" in refused.out and "put it back" in refused.out
        assert manifest_key not in life.stored() and page not in life.stored()
    life.put_back(page, held)
    dry = life.repair(TOPIC)
    assert dry.code == 0, dry.out + dry.err
    assert f"up to offset {RECORDS}" in dry.out and "Nothing was changed" in dry.out
    assert manifest_key not in life.stored()
    done = life.repair(TOPIC, "--apply")
    assert done.code == 0 and "done: commit" in done.out, done.out + done.err
    after = life.manifest()
    assert (after.end, after.pages, after.segments) == (RECORDS, before.pages, before.segments)
    assert after.commit > before.commit and after.line != before.line
    life.holds()
    life.write(40)
    life.node.restart()
    life.holds()


def test_a_segment_lost_with_the_manifest_is_accepted_by_name(life: Life) -> None:
    """A manifest page lists the segment, and the repair rewrites the page."""
    life.write(RECORDS)
    before = life.manifest()
    lost = life.segments()[7]
    manifest_key = before.ids.manifest_key
    assert lost not in before.segments
    life.take(manifest_key)
    life.take(lost.key)
    stored = life.stored()
    refused = life.repair(TOPIC, "--apply")
    assert refused.code == 1 and lost.key in refused.out and f"offsets [{lost.base}, {lost.end})" in refused.out
    (named,) = re.findall(r"--accept-loss (\S+)", refused.out)
    assert named == f"0:{lost.base}-{lost.end}"
    for wrong in (f"0:{lost.base}-{lost.end + 1}", f"0:{lost.base + 1}-{lost.end}"):
        assert life.repair(TOPIC, "--apply", "--accept-loss", wrong).code == 1
    dry = life.repair(TOPIC, "--accept-loss", named)
    assert dry.code == 0 and f"offsets [{lost.base}, {lost.end}) are given up" in dry.out
    assert life.stored() == stored
    done = life.repair(TOPIC, "--apply", "--accept-loss", named)
    assert done.code == 0, done.out + done.err
    given_up = range(lost.base, lost.end)
    life.holds(but=given_up)
    life.write(40)
    life.node.restart()
    life.holds(but=given_up)
    again = life.repair("--cluster")
    assert again.code == 0
    assert {line.partition(": ")[2] for line in again.out.splitlines()} == {"nothing to repair"}


def test_a_cluster_file_that_is_gone_is_written_again_while_the_node_is_down(life: Life) -> None:
    life.write(30)
    cluster_file = f"{life.manifest().ids.cluster_id}/cluster.json"
    incarnation = life.manifest().incarnation
    life.node.stop()
    life.take(cluster_file)
    offline = ("--cluster", "--data-dir", str(life.node.data_dir), *life.place)
    dry = tidelog("cold", "repair", *offline)
    assert dry.code == 0 and "cluster.json is gone" in dry.out, dry.out + dry.err
    assert cluster_file not in life.stored()
    done = tidelog("cold", "repair", *offline, "--apply")
    assert done.code == 0 and "done: incarnation" in done.out, done.out + done.err
    assert cluster_file in life.stored()
    life.node.start()
    life.holds()
    life.write(40)
    assert life.manifest().incarnation > incarnation
    life.holds()
