"""examples/reader_go, written from docs/formats.md without tidelog code, reads a store with every feature as we do."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from storage_tiers.cold.manifest.lookup import live_segments
from storage_tiers.cold.manifest.model import Manifest
from storage_tiers.cold.offline.bucket import Bucket
from storage_tiers.cold.offline.partition import PartitionReader, manifest_at
from storage_tiers.cold.segments import sidecar
from storage_tiers.cold.stores.directory import BlockingDirectoryStore
from storage_tiers.errors import OffsetOutOfRange
from storage_tiers.files import OsFiles
from storage_tiers.hot.producer_state import ProducerStateManager
from storage_tiers.records.decoder import Record, decode
from tests.storage_tiers.cold.full_store import NOW_MS, WRITTEN_MS, FullStore, build, ids_of
from tests.support.install_reader_go import reader_go

PARTITIONS = range(5)


@pytest.fixture(scope="module")
def program() -> Path:
    found = reader_go()
    if isinstance(found, str):
        pytest.skip(found)
    return found


class Stores:
    """One store, as seen by both readers."""

    def __init__(self, program: Path, directory: Path, full: FullStore) -> None:
        self._program = program
        self._directory = directory
        self.full = full
        self.bucket = Bucket(full.store)

    def ran(self, partition: int, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self._program), "-store", str(self._directory), "-topic", "flights", f"-partition={partition}"]
        return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=False)

    def go(self, partition: int, *arguments: str) -> list[dict[str, Any]]:
        done = self.ran(partition, *arguments)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def manifest(self, partition: int, commit: int | None = None) -> Manifest:
        manifest = self.bucket.live_manifest(ids_of(partition))
        return manifest if commit is None else manifest_at(manifest, self.bucket.pages(manifest.ids), commit)

    def ours(self, manifest: Manifest, offset: int, *, committed: bool = False) -> list[dict[str, Any]]:
        pieces = PartitionReader(self.bucket, manifest).pieces(offset)
        return [
            _shown(record)
            for piece in pieces
            for record in decode(piece.records, start_offset=offset, aborted=piece.aborted if committed else ())
        ]


def _shown(record: Record) -> dict[str, Any]:
    def text(value: bytes | None) -> str | None:
        return None if value is None else base64.b64encode(value).decode()

    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "epoch": record.leader_epoch,
        "key": text(record.key),
        "value": text(record.value),
        "headers": [{"name": name, "value": text(value)} for name, value in record.headers],
    }


@pytest.fixture(scope="module")
def stores(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Stores:
    full = asyncio.run(build(Path(tmp_path_factory.mktemp("logs"))))
    directory = Path(tmp_path_factory.mktemp("store"))
    copy = BlockingDirectoryStore(str(directory), OsFiles())
    for info in full.store.list(""):
        copy.put(info.key, full.store.get(info.key).data)
    return Stores(program, directory, full)


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("committed", [False, True])
def test_every_record_is_read(stores: Stores, partition: int, committed: bool) -> None:
    manifest = stores.manifest(partition)
    found = stores.go(partition, *(["-committed"] if committed else []))
    assert found == stores.ours(manifest, manifest.log_start, committed=committed)
    assert bool(found) == (partition in (1, 3, 4))


def test_reading_begins_at_each_offset(stores: Stores) -> None:
    manifest = stores.manifest(1)
    for offset in range(manifest.log_start, manifest.end + 1, 3):
        assert stores.go(1, f"-offset={offset}", "-committed") == stores.ours(manifest, offset, committed=True)
    below = stores.ran(1, f"-offset={manifest.log_start - 1}")
    assert below.returncode == 1 and f"below log start {manifest.log_start}" in below.stderr
    with pytest.raises(OffsetOutOfRange):
        stores.ours(manifest, manifest.log_start - 1)


def test_a_time_is_found_at_the_offset_of_our_reader(stores: Stores) -> None:
    for partition in PARTITIONS:
        reader = PartitionReader(stores.bucket, stores.manifest(partition))
        for timestamp in (0, *range(WRITTEN_MS - 1, WRITTEN_MS + 122, 7), NOW_MS):
            (found,) = stores.go(partition, f"-time={timestamp}")
            assert found["offset"] == reader.first_offset_at(timestamp), (partition, timestamp)


def test_each_readable_commit_shows_its_records(stores: Stores) -> None:
    now = stores.manifest(1)
    assert now.swept and now.pins
    for commit in range(now.swept, now.commit + 1):
        manifest = stores.manifest(1, commit)
        found = stores.go(1, f"-commit={commit}")
        assert found == stores.ours(manifest, manifest.log_start), commit
    for commit in (now.swept - 1, now.commit + 1):
        refused = stores.ran(1, f"-commit={commit}")
        assert refused.returncode == 1 and "cannot be read" in refused.stderr


def test_every_section_of_every_sidecar_is_decoded(stores: Stores) -> None:
    for partition in (1, 2, 3, 4):
        manifest = stores.manifest(partition)
        *described, newest = stores.go(partition, "-describe")
        segments = list(live_segments(manifest, stores.bucket.pages(manifest.ids)))
        kept = [found for found in described if found["segment"]["end"] > manifest.log_start]
        assert [found["segment"]["base"] for found in kept] == [segment.base for segment in segments]
        for found, segment in zip(kept, segments, strict=True):
            ours = sidecar.parse(stores.full.store.get(segment.sidecar_key).data)
            theirs = found["sidecar"]
            assert [tuple(row.values()) for row in theirs["Index"]] == [tuple(row) for row in ours.index]
            assert theirs["Checks"] == list(ours.mib_crcs)
            said = [(t.producer_id, t.first_offset, t.last_offset, t.last_stable_offset) for t in ours.aborted]
            assert [tuple(row.values()) for row in theirs["Aborted"] or []] == said
            assert [tuple(row.values()) for row in theirs["Epochs"]] == [tuple(row) for row in ours.epochs]
            state = ProducerStateManager.restore(ours.producer_state, now_ms=0)
            assert {row["ID"]: (row["Epoch"], row["LastOffset"]) for row in theirs["Producers"] or []} == {
                producer_id: (each.epoch, each.last_offset) for producer_id, each in state.producers.items()
            }
        assert newest["manifest"]["end"] == manifest.end and newest["epochs"]


def test_deleted_records_are_absent(stores: Stores) -> None:
    gone = stores.ran(0, "-topic", "gone")
    assert gone.returncode == 1 and "was deleted" in gone.stderr
    earlier = stores.ran(0, "-topic-id", str(ids_of(0).topic_id))
    assert (earlier.returncode, earlier.stdout) == (0, "")


def test_damage_is_refused(stores: Stores) -> None:
    """Damage is a flipped byte in the manifest, a page, a sidecar or a segment."""
    manifest = stores.manifest(1)
    of = manifest.segments[0]
    for key in (manifest.ids.manifest_key, manifest.live_pages[0].key, of.sidecar_key, of.key):
        path = stores._directory / key
        data = path.read_bytes()
        damaged = bytearray(data)
        damaged[len(data) // 2 if key != of.sidecar_key else of.sections[0].position] ^= 1
        path.write_bytes(damaged)
        try:
            assert stores.ran(1).returncode == 1, key
        finally:
            path.write_bytes(data)
