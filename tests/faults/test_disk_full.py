"""A node whose data is on a file system of 16 MiB that is really full.

Whatever the node was writing when space ran out (a batch, an index, a segment's name, metadata, a checkpoint, a cold chunk),
the partition refuses with KAFKA_STORAGE_ERROR, reads continue, nothing is damaged, and the node resumes when space returns. The
watermark, which would refuse earlier, is off.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from storage_tiers.records.decoder import decode
from tests.faults import bucket, single_requests
from tests.faults.clients import create_topic, delete_records, local_bytes, read_everything, seal, until
from tests.faults.disks import fill, small_disk
from tests.support.node import Node

TOPIC = "full"
SEED = int(os.environ.get("TIDELOG_FAULT_SEED", "20240601"))
NO_WATERMARK = {"tidelog.disk.watermark.slow": "1", "tidelog.disk.watermark.refuse": "1"}
#: Many segments, large indexes. Offloaded segments are evicted at once, since the records are years old; with LOCAL, never.
EVICTING = {"internal.segment.bytes": str(64 << 10), "index.interval.bytes": "0", "retention.ms": "-1"}
LOCAL = {**EVICTING, "local.retention.ms": "-1", "local.retention.bytes": "-1"}


class Full:
    """A node, the file that fills its disk, and the acknowledged value at each offset."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.filler = node.data_dir / "filler"
        self.kept: list[bytes] = []

    def fill(self, *, but: int = 0) -> None:
        fill(self.filler, but=but)

    def free(self) -> None:
        self.filler.unlink()

    def produce(self, size: int) -> int:
        """Produces one value; returns the error code. Asserts that each acknowledged value gets the next offset: refused
        ones take none."""
        value = b"%08d" % len(self.kept) + os.urandom(size)
        code, offset = single_requests.produce(self.node.kafka, TOPIC, value)
        if code == single_requests.NONE:
            assert offset == len(self.kept)
            self.kept.append(value)
        return code

    def produce_until_refused(self, size: int) -> None:
        before = len(self.kept)
        while (code := self.produce(size)) == single_requests.NONE:
            assert (len(self.kept) - before) * size < 16 << 20, "the disk never fills"
        assert code == single_requests.KAFKA_STORAGE_ERROR

    def disk(self) -> str:
        status, body = self.node.get("/readyz")
        assert status == 200, "fetches are served"
        return str(json.loads(body)["disk"])

    def deletes(self, before: int) -> bool:
        """Whether the records below this offset could be deleted. The node must have had answers from the store since its
        start."""
        try:
            delete_records(self.node, TOPIC, before)
            return True
        except KafkaException as error:
            if error.args[0].code() != single_requests.KAFKA_STORAGE_ERROR:
                raise
            return False

    def sound(self) -> None:
        """Asserts that exactly the acknowledged values are read back."""
        found = read_everything(self.node.kafka, TOPIC, 1).partitions[0]
        assert [seen.content.value for seen in found] == self.kept
        assert [seen.offset for seen in found] == list(range(len(self.kept)))


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Full]:
    with small_disk(tmp_path / "data"), Node(tmp_path, settings=NO_WATERMARK) as node:
        yield Full(node)


@pytest.mark.parametrize("rounds", [3, pytest.param(20, marks=pytest.mark.faults)])
def test_appends_are_refused_and_reads_continue_until_space_returns(full: Full, rounds: int) -> None:
    """Each round leaves a different number of bytes free, so that a batch, an index or a new segment fails."""
    rng = random.Random(SEED + rounds)
    print(f"TIDELOG_FAULT_SEED={SEED}")
    create_topic(full.node, TOPIC, configs=LOCAL)
    for _ in range(rounds):
        full.fill(but=rng.choice((0, 1, 5000, 70_000, 200_000)))
        full.produce_until_refused(rng.choice((10, 1000, 10_000)))
        # Rewriting a checkpoint frees the pages of its older file.
        full.produce_until_refused(10_000)
        full.sound()
        full.fill()  # a batch may be refused while pages are left
        until(lambda: "full" in full.disk() or "no space left" in full.disk(), "/readyz names the disk")
        full.free()
        until(lambda: full.produce(5000) == single_requests.NONE, "produce continues")
        for _ in range(5):
            assert full.produce(5000) == single_requests.NONE
    full.node.kill()
    full.node.start()
    full.sound()
    full.node.restart()
    full.sound()


def test_metadata_and_checkpoints_are_refused_whole(full: Full) -> None:
    create_topic(full.node, TOPIC, configs=LOCAL)
    for _ in range(50):
        assert full.produce(5000) == single_requests.NONE
    full.fill()
    with pytest.raises(KafkaException):
        for number in range(1000):  # the metadata log may find a page that a partition does not
            try:
                create_topic(full.node, f"more-{number}", configs={"segment.ms": str(1000 + number)})
            except KafkaException as error:
                if "exists now" not in str(error):
                    raise
    full.sound()
    assert full.node.readyz() == 200

    assert full.node.stop() == 0
    full.fill()  # the stop may have used the ballast
    full.node.spawn()
    assert full.node.wait() == 1, "a node that cannot record its start does not run"
    assert "No space left on device" in full.node.output_tail(5)

    full.free()
    full.node.start()
    full.sound()
    create_topic(full.node, "after", configs=LOCAL)
    until(lambda: full.deletes(10), "the store has answered this start")
    assert single_requests.fetch(full.node.kafka, TOPIC, 9).code == single_requests.OFFSET_OUT_OF_RANGE
    found = next(iter(decode(single_requests.fetch(full.node.kafka, TOPIC, 10).data)))
    assert found.value == full.kept[10]


def test_offloading_and_cold_reads_wait_for_space(full: Full) -> None:
    create_topic(full.node, TOPIC, configs=EVICTING)
    for _ in range(100):
        assert full.produce(5000) == single_requests.NONE
    seal(full.node, TOPIC)
    until(lambda: local_bytes(full.node, TOPIC) == 0, "local segments are evicted")
    full.fill()
    found = single_requests.fetch(full.node.kafka, TOPIC, 0, wait_ms=30_000)
    assert (found.code, found.data) == (single_requests.KAFKA_STORAGE_ERROR, b"")
    full.free()
    full.sound()

    until(lambda: full.produce(5000) == single_requests.NONE, "produce continues")
    for _ in range(100):
        assert full.produce(5000) == single_requests.NONE
    full.fill()
    seal(full.node, TOPIC, wait=False)
    full.produce_until_refused(50_000)  # the chunk cache may have freed space
    assert full.node.running
    full.free()
    seal(full.node, TOPIC)
    until(lambda: local_bytes(full.node, TOPIC) == 0, "local segments are evicted")
    full.sound()
    with bucket.opened(full.node.store) as store:
        # The consumers have created `__consumer_offsets`, whose `topic.json` may be written at this moment.
        until(lambda: bucket.findings(store) == [], "the bucket is sound, and no object too many is in it")


def test_a_full_disk_still_allows_removals(full: Full) -> None:
    """Everything is in the bucket. Eviction must first save the manifest to the disk, and deletion of records the log start."""
    create_topic(full.node, TOPIC, configs=EVICTING | {"local.retention.bytes": "-1", "local.retention.ms": "-1"})
    for _ in range(100):
        assert full.produce(5000) == single_requests.NONE
    full.fill()
    seal(full.node, TOPIC)
    assert local_bytes(full.node, TOPIC) > 0
    delete_records(full.node, TOPIC, 50)
    until(lambda: local_bytes(full.node, TOPIC) <= 300_000, "the deleted records leave the disk")
    full.free()
    until(lambda: full.produce(5000) == single_requests.NONE, "produce continues")
    assert (full.node.data_dir / "ballast").stat().st_blocks > 0
