"""A bucket as an auditor sees it: what `fsck` finds when orphans get no grace, and every record that manifests name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from service.fsck.bucket import FsckScope, check_bucket
from storage_tiers.clock import SystemClock
from storage_tiers.cold.manifest.lookup import live_segments
from storage_tiers.cold.manifest.model import Ids, Manifest, State
from storage_tiers.cold.offline.bucket import Bucket
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.open import open_blocking_store
from storage_tiers.cold.stores.port import BlockingObjectStore
from storage_tiers.records.decoder import decode as decode_records
from tests.history.passes import Content, Seen


@contextmanager
def opened(url: str, endpoint: str | None = None) -> Iterator[BlockingObjectStore]:
    store = open_blocking_store(StoreLocation.parse(url, endpoint=endpoint))
    try:
        yield store
    finally:
        store.close()


def findings(store: BlockingObjectStore, *, quick: bool = False) -> list[str]:
    """All damage, and every object that no manifest names, however young."""
    report = check_bucket(store, FsckScope(quick=quick, grace_ms=0), now_ms=SystemClock().unix_ms())
    return [f"{finding.kind.value}: {finding.key}: {finding.detail}" for finding in report.findings]


def manifests(store: BlockingObjectStore, topic: str) -> Iterator[Manifest]:
    """The manifests of every partition of every topic id that the name has had, in key order."""
    bucket = Bucket(store)
    for cluster in bucket.folders():
        for key in bucket.manifests(cluster, topic):
            manifest = bucket.manifest(Ids(key.cluster, key.topic, key.topic_id, key.partition))
            assert manifest is not None, f"{key} vanished"
            yield manifest


def waiting(store: BlockingObjectStore, topic: str) -> list[str]:
    """Keys that manifests still name only because they are to be deleted."""
    found: list[str] = []
    for manifest in manifests(store, topic):
        found += [key for item in manifest.removed for key in item.keys]
        found += [tombstoned.key for tombstoned in manifest.tombstoned]
    return found


def records(store: BlockingObjectStore, topic: str) -> dict[int, list[Seen]]:
    """The records of the live topic that a reader of the bucket finds, by partition. Verifies every batch's checksum."""
    found: dict[int, list[Seen]] = {}
    for manifest in manifests(store, topic):
        if manifest.state is State.LIVE:
            assert manifest.ids.partition not in found, f"two live ids of {topic}"
            found[manifest.ids.partition] = list(_records(store, manifest))
    return found


def _records(store: BlockingObjectStore, manifest: Manifest) -> Iterator[Seen]:
    for segment in live_segments(manifest, Bucket(store).pages(manifest.ids)):
        for record in decode_records(store.get(segment.key, segment.position, segment.length).data):
            if record.offset >= manifest.log_start:
                headers = tuple((name, value or b"") for name, value in record.headers)
                content = Content(record.key or b"", record.value or b"", record.timestamp, headers)
                yield Seen(record.offset, record.leader_epoch, content)
