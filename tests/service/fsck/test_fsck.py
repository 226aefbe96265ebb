"""fsck names each kind of damage by its key; a sound bucket passes; young orphans are listed without counting as damage."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lambdas.verify_commit import Verifier
from service.cli.main import app
from service.fsck.bucket import FsckScope, check_bucket
from service.fsck.findings import Finding, FindingKind, Report
from service.fsck.local import check_local
from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.cluster_file import ClusterState, Holder, encode_cluster
from storage_tiers.cold.manifest.json import decode, encode
from storage_tiers.cold.manifest.model import Manifest, State
from storage_tiers.cold.manifest.topic_file import TopicState, encode_topic
from storage_tiers.cold.stores.memory import BlockingMemoryStore, MemoryStore
from storage_tiers.errors import InvalidConfig
from tests.storage_tiers.cold.support import DAY, IDS, EagerClock, Local, no_producers, tier_of
from tests.support.clock import SeededRng

NOW_MS = 1_700_000_000_000
LATER_MS = NOW_MS + 10 * DAY


@pytest.fixture
async def store(tmp_path: Path) -> BlockingMemoryStore:
    """Three segments of ten batches each, with the files of their cluster and topic."""
    clock = EagerClock(NOW_MS)
    memory = MemoryStore(clock)
    tier, local = tier_of(memory, clock), Local(tmp_path, snapshot=no_producers)
    for base in (0, 10, 20):
        await tier.extend(local.job(base, 10))
    blocking = memory.blocking()
    cluster = ClusterState(IDS.cluster_id, 1, Holder(1, "disk", "start"))
    blocking.put(keys.cluster_key(IDS.cluster_id), encode_cluster(cluster))
    topic = TopicState(IDS.cluster_id, IDS.topic, IDS.topic_id, State.LIVE, 4, 1, revision=1)
    blocking.put(keys.topic_file_key(IDS.cluster_id, IDS.topic), encode_topic(topic))
    return blocking


def manifest_of(store: BlockingMemoryStore) -> Manifest:
    return decode(store.get(IDS.manifest_key).data, IDS)


def checked(store: BlockingMemoryStore, *, quick: bool = False, now_ms: int = LATER_MS) -> Report:
    return check_bucket(store, FsckScope(quick=quick), now_ms=now_ms)


def only(report: Report) -> Finding:
    (finding,) = report.findings
    return finding


def test_a_sound_bucket_is_sound_and_every_byte_was_read(store: BlockingMemoryStore) -> None:
    report = checked(store)
    assert report.findings == []
    assert (report.clusters, report.partitions, report.segments) == (1, 1, 3)
    segments = sum(segment.length for segment in manifest_of(store).segments)
    sidecars = sum(store.head(segment.sidecar_key).size for segment in manifest_of(store).segments)
    assert report.bytes_read == segments + sidecars


def test_quick_reads_manifests_only(store: BlockingMemoryStore) -> None:
    report = checked(store, quick=True)
    assert (report.findings, report.bytes_read) == ([], 0)


def test_a_flipped_byte_is_found(store: BlockingMemoryStore) -> None:
    segment = manifest_of(store).segments[1]
    data = bytearray(store.get(segment.key).data)
    data[200] ^= 1
    store.put(segment.key, bytes(data))
    finding = only(checked(store))
    assert (finding.kind, finding.key) == (FindingKind.FLIPPED, segment.key)
    assert checked(store, quick=True).findings == []


def test_a_flipped_byte_in_a_sidecar_is_found(store: BlockingMemoryStore) -> None:
    segment = manifest_of(store).segments[0]
    data = bytearray(store.get(segment.sidecar_key).data)
    data[-1] ^= 1
    store.put(segment.sidecar_key, bytes(data))
    finding = only(checked(store))
    assert (finding.kind, finding.key) == (FindingKind.BAD_SIDECAR, segment.sidecar_key)


@pytest.mark.parametrize("quick", [False, True])
def test_a_truncated_object_is_found(store: BlockingMemoryStore, quick: bool) -> None:
    segment = manifest_of(store).segments[2]
    store.put(segment.key, store.get(segment.key).data[:-1])
    finding = only(checked(store, quick=quick))
    assert (finding.kind, finding.key) == (FindingKind.TRUNCATED, segment.key)


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("which", ["key", "sidecar_key"])
def test_a_missing_object_is_found(store: BlockingMemoryStore, quick: bool, which: str) -> None:
    key: str = getattr(manifest_of(store).segments[0], which)
    store.delete([key])
    finding = only(checked(store, quick=quick))
    assert (finding.kind, finding.key) == (FindingKind.MISSING, key)


def test_another_segments_sidecar_is_found(store: BlockingMemoryStore) -> None:
    first, second, _ = manifest_of(store).segments
    store.put(first.sidecar_key, store.get(second.sidecar_key).data)
    report = checked(store)
    assert only(report).key == first.sidecar_key
    assert only(report).kind in (FindingKind.FOREIGN_SIDECAR, FindingKind.TRUNCATED)


def test_another_segments_bytes_under_a_right_checksum_are_found(store: BlockingMemoryStore) -> None:
    manifest = manifest_of(store)
    first, second, third = manifest.segments
    swapped = dataclasses.replace(first, length=second.length, bytes=second.bytes, crc32c=second.crc32c)
    store.put(first.key, store.get(second.key).data)
    store.put(IDS.manifest_key, encode(dataclasses.replace(manifest, segments=(swapped, second, third))))
    kinds = {finding.kind for finding in checked(store).findings}
    assert FindingKind.WRONG_RECORDS in kinds


def test_an_orphan_is_damage_once_it_is_older_than_the_grace(store: BlockingMemoryStore) -> None:
    orphan = IDS.segment_key(30, 1, "f" * 32)
    store.put(orphan, b"never referenced")
    finding = only(checked(store, now_ms=LATER_MS))
    assert (finding.kind, finding.key, finding.damage) == (FindingKind.ORPHAN, orphan, True)
    report = checked(store, now_ms=NOW_MS)
    assert (only(report).kind, report.damaged) == (FindingKind.YOUNG_ORPHAN, False)


def rewritten(store: BlockingMemoryStore, change: Callable[[Manifest], Manifest]) -> None:
    store.put(IDS.manifest_key, encode(change(manifest_of(store))))


def test_files_of_commit_readers_are_not_orphans(store: BlockingMemoryStore) -> None:
    verifier = Verifier(store, "verify-commit", EagerClock(NOW_MS), SeededRng(1), lambda: 900_000)
    verifier.catch_up(IDS)
    assert len(list(store.list(f"{IDS.cluster_id}/readers/"))) == 4
    assert checked(store).findings == []


def test_overlapping_segments_are_found(store: BlockingMemoryStore) -> None:
    first, second, third = manifest_of(store).segments
    rewritten(
        store,
        lambda manifest: dataclasses.replace(manifest, segments=(first, dataclasses.replace(second, base=9), third)),
    )
    assert FindingKind.OVERLAP in {finding.kind for finding in checked(store, quick=True).findings}


def test_a_hole_between_segments_is_found(store: BlockingMemoryStore) -> None:
    first, _, third = manifest_of(store).segments
    rewritten(store, lambda manifest: dataclasses.replace(manifest, segments=(first, third)))
    findings = checked(store, quick=True).findings
    assert (FindingKind.HOLE, IDS.manifest_key) in {(finding.kind, finding.key) for finding in findings}


def test_an_unparsable_manifest_hides_no_other_fault(store: BlockingMemoryStore) -> None:
    store.put(IDS.manifest_key, b'{"format": 1, "commit": ')
    finding = only(checked(store))
    assert (finding.kind, finding.key) == (FindingKind.BAD_MANIFEST, IDS.manifest_key)


def test_an_unparsable_topic_file_is_found(store: BlockingMemoryStore) -> None:
    key = keys.topic_file_key(IDS.cluster_id, IDS.topic)
    store.put(key, b"{}")
    finding = only(checked(store))
    assert (finding.kind, finding.key) == (FindingKind.BAD_FILE, key)


def test_an_unknown_cluster_is_an_error_and_not_damage(store: BlockingMemoryStore) -> None:
    with pytest.raises(InvalidConfig, match="holds no cluster nowhere; it holds " + IDS.cluster_id):
        check_bucket(store, FsckScope(cluster_id="nowhere"), now_ms=NOW_MS)


# --- the local log ----------------------------------------------------------------------------------------------------
@pytest.fixture
def data_dir(store: BlockingMemoryStore, tmp_path: Path) -> Path:
    """A node's directory whose log holds the same three segments."""
    directory = tmp_path / "data"
    partition = directory / f"{IDS.topic}-{IDS.partition}"
    partition.mkdir(parents=True)
    (directory / "meta.properties").write_text(
        f"version=1\ncluster.id={IDS.cluster_id}\nnode.id=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAA\n"
    )
    (partition / "partition.metadata").write_text(f"version: 0\ntopic_id: {IDS.topic_id}")
    for segment in manifest_of(store).segments:
        (partition / f"{segment.base:020d}.log").write_bytes(store.get(segment.key).data)
    return directory


def test_a_local_log_that_agrees_is_sound(store: BlockingMemoryStore, data_dir: Path) -> None:
    report = Report()
    check_local(store, str(data_dir), report)
    assert report.findings == []
    assert report.bytes_read


def test_a_local_log_that_disagrees_is_found(store: BlockingMemoryStore, data_dir: Path) -> None:
    path = data_dir / f"{IDS.topic}-{IDS.partition}" / f"{10:020d}.log"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))
    report = Report()
    check_local(store, str(data_dir), report)
    finding = only(report)
    assert (finding.kind, finding.key) == (FindingKind.LOCAL_DISAGREES, str(path))


@pytest.mark.parametrize("damage", ["missing", "empty", "halved", "zeroed"])
def test_a_local_log_that_lacks_records_between_others_is_found(
    store: BlockingMemoryStore, data_dir: Path, damage: str
) -> None:
    first, middle, _ = sorted((data_dir / f"{IDS.topic}-{IDS.partition}").glob("*.log"))
    data = middle.read_bytes()
    left = {"empty": b"", "halved": data[: len(data) // 2], "zeroed": bytes(len(data))}
    if damage == "missing":
        middle.unlink()
    else:
        middle.write_bytes(left[damage])
    report = Report()
    check_local(store, str(data_dir), report)
    finding = only(report)
    assert finding.kind is FindingKind.LOCAL_DISAGREES
    assert finding.key == str(first if damage == "missing" else middle)
    assert "the next segment begins at 20" in finding.detail


# --- the command ------------------------------------------------------------------------------------------------------
@pytest.fixture
def directory(store: BlockingMemoryStore, tmp_path: Path) -> Path:
    """The same bucket as a directory store."""
    from storage_tiers.cold.stores.directory import BlockingDirectoryStore
    from storage_tiers.files import OsFiles

    (tmp_path / "store").mkdir()
    copy = BlockingDirectoryStore(str(tmp_path / "store"), OsFiles())
    for info in store.list(""):
        copy.put(info.key, store.get(info.key).data)
    return tmp_path / "store"


def test_exit_codes_tell_sound_damaged_and_unreadable_stores_apart(
    directory: Path, store: BlockingMemoryStore, tmp_path: Path
) -> None:
    runner = CliRunner()
    sound = runner.invoke(app, ["fsck", "--store", str(directory)])
    assert sound.exit_code == 0, sound.output
    assert "sound: 1 cluster, 1 partition, 3 segments" in sound.output
    (victim,) = directory.rglob(f"{20:020d}-1-*.log")
    victim.write_bytes(victim.read_bytes()[:-5])
    shown = runner.invoke(app, ["fsck", "--store", str(directory)])
    assert shown.exit_code == 1
    assert f" (truncated): {manifest_of(store).segments[2].key}\n" in shown.output, (
        "the name of the finding in the page"
    )
    damaged = runner.invoke(app, ["fsck", "--store", str(directory), "--json"])
    assert damaged.exit_code == 1
    printed = json.loads(damaged.output)
    assert printed["sound"] is False
    assert [finding["kind"] for finding in printed["findings"]] == ["truncated"]
    assert printed["findings"][0]["key"] == manifest_of(store).segments[2].key
    missing = runner.invoke(app, ["fsck", "--store", str(tmp_path / "nowhere")])
    assert missing.exit_code == 2


def test_a_store_without_a_cluster_is_not_called_sound(tmp_path: Path) -> None:
    (tmp_path / "mistyped").mkdir()
    ran = CliRunner().invoke(app, ["fsck", "--store", str(tmp_path / "mistyped")])
    assert ran.exit_code == 2
    assert "there is no cluster in " in ran.output


def test_local_logs_are_not_left_out_in_silence(directory: Path, tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["fsck", "--store", str(directory), "--data-dir", str(tmp_path), "--quick"])
    assert ran.exit_code == 2
    assert "leave --quick out" in " ".join(ran.output.split())
