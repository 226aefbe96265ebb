"""A node behind a proxy to a real S3 server, one topic of one partition, and everything that its clients ever saw."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from storage_tiers.records.decoder import decode
from tests.faults import bucket, single_requests
from tests.faults.clients import WAIT_S, Load, create_topic, local_bytes, read_everything, seal, until
from tests.history.passes import Content, History, violations
from tests.support.node import Node
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_servers import BUCKET, S3Server

HOUR_MS = 3600 * 1000
#: Deletes objects from the bucket within seconds.
SWEEPING: Mapping[str, str | int | bool] = {
    "tidelog.tier.delete.grace.ms": 300,
    "log.retention.check.interval.ms": 200,
}


class World:
    """`history` is that of the present topic; a test that re-creates the topic begins a new one."""

    def __init__(self, node: Node, proxy: S3Proxy, server: S3Server, topic: str) -> None:
        self.node = node
        self.proxy = proxy
        self.server = server
        self.topic = topic
        self.history = History()
        self.producers: list[str] = []

    # --- writing ------------------------------------------------------------------------------------------------------
    def create(self, configs: Mapping[str, str] | None = None) -> None:
        create_topic(self.node, self.topic, configs=configs)

    def load(self, *, sizes: range = range(20, 600)) -> Load:
        """A new idempotent producer, whose records' names are unique."""
        name = f"{len(self.producers)}-"
        rng = random.Random(name)
        load = Load(
            self.history, self.node.kafka, self.topic, 1, idempotent=1, plain=0, rng=rng, prefix=name, sizes=sizes
        )
        self.producers += load.exactly_once
        return load

    def write(self, records: int) -> None:
        with self.load() as load:
            load.more(records)
            load.settle()

    def begin_anew(self) -> None:
        """Begins another history. Call it once the topic is created again."""
        self.history = History()

    # --- the local disk -----------------------------------------------------------------------------------------------
    def local_bytes(self) -> int:
        return local_bytes(self.node, self.topic)

    def offload(self) -> None:
        """Returns once the bucket holds all records and the local disk none."""
        seal(self.node, self.topic)
        until(lambda: self.local_bytes() == 0, "local segments are evicted")

    # --- reading ------------------------------------------------------------------------------------------------------
    def fetch(self, offset: int, wait_ms: int = 500) -> single_requests.Fetched:
        """Returns the answer to a Fetch; asserts that it holds no wrong record. Use it with one producer at a time, because
        records must be in order."""
        found = single_requests.fetch(self.node.kafka, self.topic, offset, wait_ms=wait_ms)
        sent = self.sent()
        for record in decode(found.data[: _whole_batches(found.data)]):
            assert (record.key, record.value) == (sent[record.offset].key, sent[record.offset].value)
        return found

    def sent(self) -> list[Content]:
        return [send.content for send in self.history.sends.values()]

    def log_start_rose(self, at_least: int = 1) -> None:
        """Returns once retention or a deletion hides the oldest records, which may be gone from now on."""

        def start() -> int:
            with bucket.opened(self.node.store, self.server.endpoint) as store:
                return max(manifest.log_start for manifest in bucket.manifests(store, self.topic))

        until(lambda: start() >= at_least, "the manifest's log start rises")
        self.history.log_starts[0] = start()
        self.history.passes = []

    def judge(self) -> None:
        """Reads everything; no record may be lost, changed, repeated or made up."""
        found = read_everything(self.node.kafka, self.topic, 1, acks=len(self.history.acks))
        self.history.passes = [*self.history.passes[-1:], found]
        told = violations(self.history, exactly_once=self.producers)
        assert not told, "\n".join(told)

    def sound(self) -> None:
        """Offloads everything, reads it back, and asserts that the bucket holds no damage."""
        self.offload()
        self.judge()
        with bucket.opened(self.node.store, self.server.endpoint) as store:
            assert [told for told in bucket.findings(store) if not told.startswith("orphan")] == []

    def swept(self) -> None:
        """Like `sound`; then waits until the bucket holds nothing that its manifests do not name."""
        self.sound()
        deadline = time.monotonic() + WAIT_S
        while found := self._unswept():
            assert time.monotonic() < deadline, "\n".join(found)
            time.sleep(0.1)
        self.judge()
        with bucket.opened(self.node.store, self.server.endpoint) as store:
            assert bucket.findings(store) == []
            held = bucket.records(store, self.topic)[0]
        assert [seen.content for seen in held] == [seen.content for seen in self.history.passes[-1].partitions[0]]

    def _unswept(self) -> list[str]:
        with bucket.opened(self.node.store, self.server.endpoint) as store:
            waiting = [f"to be deleted: {key}" for key in bucket.waiting(store, self.topic)]
            return bucket.findings(store, quick=True) + waiting


@contextlib.contextmanager
def a_world(
    directory: Path,
    server: S3Server,
    topic: str,
    *,
    settings: Mapping[str, str | int | bool] | None = None,
) -> Iterator[World]:
    """A world with a prefix of its own in the bucket, named after the test's directory."""
    with S3Proxy(server.endpoint) as proxy:
        node = Node(
            directory,
            store=f"s3://{BUCKET}/{topic}/{directory.name}",
            settings=settings,
            flags=["--s3-endpoint", proxy.endpoint],
        )
        try:
            node.start()
            yield World(node, proxy, server, topic)
        finally:
            node.kill()


def _whole_batches(data: bytes) -> int:
    end = 0
    while len(data) >= end + 12 and len(data) >= end + 12 + int.from_bytes(data[end + 8 : end + 12], "big"):
        end += 12 + int.from_bytes(data[end + 8 : end + 12], "big")
    return end
