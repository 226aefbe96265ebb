"""Damage to a store as a whole: fsck finds objects that vanish, revert to older versions, or belong to something else."""

from __future__ import annotations

import asyncio
import dataclasses
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.cli.main import app
from service.fsck.bucket import FsckScope, check_bucket
from service.fsck.findings import FindingKind, Report
from service.fsck.local import check_local
from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.documents import document
from storage_tiers.cold.manifest.json import decode, encode
from storage_tiers.cold.manifest.model import CommitId, Manifest, Removed
from storage_tiers.cold.manifest.topic_file import TopicState, decode_topic, encode_topic
from storage_tiers.cold.manifest.transitions import first_manifest
from storage_tiers.cold.stores.directory import BlockingDirectoryStore
from storage_tiers.cold.stores.memory import BlockingMemoryStore
from storage_tiers.compaction.clean_point import BUCKET_FILE_NAME, FILE_NAME
from storage_tiers.errors import InvalidConfig
from storage_tiers.files import OsFiles
from storage_tiers.records.batch import ATTRIBUTES, HEADER_BYTES, headers
from storage_tiers.records.builder import assemble, build_batch
from storage_tiers.records.checksum import crc32c
from storage_tiers.types import TopicId
from tests.service.fsck.test_field_mutations import stored
from tests.service.fsck.test_section_mutations import segments
from tests.storage_tiers.cold.full_store import CLUSTER, FLIGHTS, GONE, INCARNATION, NOW_MS, FullStore, ids_of, plain
from tests.storage_tiers.cold.support import DAY, Local, no_producers, tier_of

MANIFEST = ids_of(1).manifest_key
TOPIC = keys.topic_file_key(CLUSTER, "flights")


@pytest.fixture
def store(full: FullStore) -> Iterator[BlockingMemoryStore]:
    """The store that uses every feature, restored after each test."""
    kept = {info.key: full.store.get(info.key).data for info in full.store.list("")}
    yield full.store
    full.store.delete([info.key for info in full.store.list("")])
    for key, data in kept.items():
        full.store.put(key, data)


def found(store: BlockingMemoryStore, **scope: object) -> set[tuple[FindingKind, str]]:
    """The damage found, with every object younger than the grace, so that no orphan counts."""
    report = check_bucket(store, FsckScope(**scope), now_ms=NOW_MS)  # type: ignore[arg-type]
    return {(finding.kind, finding.key) for finding in report.findings if finding.damage}


def manifest_of(store: BlockingMemoryStore, partition: int = 1) -> Manifest:
    ids = ids_of(partition)
    return decode(store.get(ids.manifest_key).data, ids)


def rewrite(store: BlockingMemoryStore, change: Callable[[Manifest], Manifest], partition: int = 1) -> None:
    store.put(ids_of(partition).manifest_key, encode(change(manifest_of(store, partition))))


def rewrite_topic(store: BlockingMemoryStore, **fields: object) -> None:
    state = decode_topic(store.get(TOPIC).data, CLUSTER, "flights")
    store.put(TOPIC, encode_topic(dataclasses.replace(state, **fields)))  # type: ignore[arg-type]


# --- manifests ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("quick", [False, True])
def test_a_manifest_that_is_missing_is_found(store: BlockingMemoryStore, quick: bool) -> None:
    store.delete([MANIFEST])
    assert found(store, quick=quick) == {(FindingKind.NO_MANIFEST, MANIFEST)}


def test_a_first_offload_in_progress_is_not_damage(store: BlockingMemoryStore) -> None:
    store.put(ids_of(0).segment_key(0, 1, "1" * 32), b"offloaded, not yet committed")
    assert found(store) == set()
    old = check_bucket(store, FsckScope(), now_ms=NOW_MS + 2 * DAY)
    assert [finding.kind for finding in old.findings] == [FindingKind.NO_MANIFEST]


def test_a_live_topics_manifest_that_says_deleted_is_found(store: BlockingMemoryStore) -> None:
    gone = decode(store.get(ids_of(0, "gone", GONE).manifest_key).data)
    store.put(MANIFEST, encode(dataclasses.replace(gone, ids=ids_of(1))))
    assert (FindingKind.WRONG_TOPIC, MANIFEST) in found(store)


def test_a_manifest_replaced_by_an_empty_one_is_found(store: BlockingMemoryStore) -> None:
    now = manifest_of(store)
    empty = dataclasses.replace(
        first_manifest(ids_of(1)),
        line=now.line,
        commit=1,
        recent=now.recent[:1],
        writer=now.writer,
        incarnation=now.incarnation,
    )
    store.put(MANIFEST, encode(empty))
    assert found(store) >= {(FindingKind.WENT_BACK, MANIFEST)}


@pytest.mark.parametrize("behind", [2, 3, 4])
def test_a_manifest_older_than_its_segments_is_found(store: BlockingMemoryStore, behind: int) -> None:
    """A bucket may be restored to yesterday's version: the manifest is whole, but newer segments exist beside it."""

    def older(manifest: Manifest) -> Manifest:
        left = manifest.segments[:-behind]
        end = left[-1].end if left else manifest.live_pages[-1].end
        newest = segments(store)[end - 10]
        sidecar = dataclasses.replace(
            manifest.sidecar,  # type: ignore[type-var]
            key=ids_of(1).prefix + newest["sidecar"],
            sections=left[-1].sections if left else manifest.sidecar.sections,  # type: ignore[union-attr]
        )
        return dataclasses.replace(manifest, segments=left, end=end, sidecar=sidecar)

    rewrite(store, older)
    assert (FindingKind.WENT_BACK, MANIFEST) in found(store)


def test_one_uncommitted_offload_is_not_damage(store: BlockingMemoryStore) -> None:
    segment = manifest_of(store).segments[-1]
    for old, new in (
        (segment.key, ids_of(1).segment_key(120, 2, "a" * 32)),
        (segment.sidecar_key, ids_of(1).sidecar_key(120, 2, "a" * 32)),
    ):
        data = store.get(old).data
        if new.endswith(".idx"):
            fields = struct.unpack_from(">8sHHIqqQI", data)
            head = struct.pack(">8sHHIqqQI", *_moved(fields))
            table = data[48 : 48 + 28 * fields[3]]
            data = head + struct.pack(">I", crc32c(table, crc32c(head))) + data[48:]
        store.put(new, data)
    assert found(store) == set()


def _moved(head: tuple[object, ...]) -> tuple[object, ...]:
    return (*head[:4], 120, 130, *head[6:])


# --- objects ----------------------------------------------------------------------------------------------------------
def pinned(store: BlockingMemoryStore) -> Removed:
    (item,) = [item for item in manifest_of(store).removed if item.segment is not None]
    assert manifest_of(store).pins[0].holds(item)
    return item


def test_a_removed_object_of_a_pinned_segment_is_found(store: BlockingMemoryStore) -> None:
    for key in pinned(store).keys:
        data = store.get(key).data
        store.delete([key])
        assert found(store) == {(FindingKind.MISSING, key)}
        store.put(key, data)


def test_a_flipped_object_of_a_pinned_segment_is_found(store: BlockingMemoryStore) -> None:
    segment, sidecar = pinned(store).keys
    for key, kind in ((segment, FindingKind.FLIPPED), (sidecar, FindingKind.BAD_SIDECAR)):
        data = bytearray(store.get(key).data)
        data[-1] ^= 1
        store.put(key, bytes(data))
        assert (kind, key) in found(store)


def test_removed_segments_without_a_pin_may_be_gone(store: BlockingMemoryStore) -> None:
    segment = segments(store)[10]
    store.delete([ids_of(1).prefix + segment["key"]])
    assert found(store) == set()


@pytest.mark.parametrize("name", ["key", "sidecar"])
def test_bytes_appended_to_an_object_are_found(store: BlockingMemoryStore, name: str) -> None:
    for base in (40, 110):
        key = ids_of(1).prefix + segments(store)[base][name]
        store.put(key, store.get(key).data + b"x")
        assert (FindingKind.TRUNCATED, key) in found(store, quick=True)


def test_a_missing_or_damaged_newest_sidecar_that_no_segment_names_is_found(store: BlockingMemoryStore) -> None:
    newest = manifest_of(store, 2).sidecar
    assert newest is not None and newest.alone
    data = store.get(newest.key).data
    store.delete([newest.key])
    assert found(store) == {(FindingKind.MISSING, newest.key)}
    store.put(newest.key, data[:-1])
    assert found(store) >= {(FindingKind.BAD_SIDECAR, newest.key)}


def test_a_missing_page_is_found(store: BlockingMemoryStore) -> None:
    for ref in manifest_of(store).pages:
        store.delete([ref.key])
    assert {(FindingKind.MISSING, ref.key) for ref in manifest_of(store).pages} <= found(store)


def test_records_that_no_reader_can_decode_are_found(store: BlockingMemoryStore) -> None:
    """All checksums match: the batch's own, the sidecar's checks, the segment's."""
    for damage in (_garbage_payload, _wrong_count_inside):
        batches = [build_batch([plain(offset)], base_offset=offset, leader_epoch=1) for offset in range(10)]
        batches[4] = damage(batches[4])
        data = b"".join(batches)
        segment = manifest_of(store, 3).segments[0]
        assert len(data) == segment.length
        whole = data + store.get(segment.key).data[segment.length :]
        store.put(segment.key, whole)
        sidecar = bytearray(store.get(segment.sidecar_key).data)
        at = {section.name: section.position for section in segment.sections}["checks"]
        sidecar[at : at + 4] = struct.pack(">I", crc32c(data))
        sections = tuple(
            section._replace(crc32c=crc32c(bytes(sidecar[at : at + 4]))) if section.name == "checks" else section
            for section in segment.sections
        )
        table = b"".join(struct.pack(">8sQQI", each.name.encode(), *each[1:]) for each in sections)
        head = struct.pack(">8sHHIqqQI", *struct.unpack_from(">8sHHIqqQ", sidecar), crc32c(data))
        store.put(
            segment.sidecar_key, head + struct.pack(">I", crc32c(table, crc32c(head))) + table + bytes(sidecar[188:])
        )
        changed = dataclasses.replace(segment, crc32c=crc32c(data), sections=sections)
        rewrite(
            store,
            lambda old, changed=changed: dataclasses.replace(old, segments=(changed, *old.segments[1:])),  # type: ignore[misc]
            3,
        )
        assert found(store) == {(FindingKind.UNDECODABLE, segment.key)}


def _signed(batch: bytearray) -> bytes:
    batch[17:21] = struct.pack(">I", crc32c(bytes(batch[ATTRIBUTES:])))
    return bytes(batch)


def _garbage_payload(batch: bytes) -> bytes:
    changed = bytearray(batch)
    changed[ATTRIBUTES + 1] |= 4  # claims zstd
    return _signed(changed)


def _wrong_count_inside(batch: bytes) -> bytes:
    changed = bytearray(batch)
    changed[HEADER_BYTES] ^= 8  # damages the first record's length
    return _signed(changed)


# --- topics and clusters ----------------------------------------------------------------------------------------------
def test_missing_files_of_topics_and_clusters_are_found(store: BlockingMemoryStore) -> None:
    for key in (TOPIC, keys.cluster_key(CLUSTER)):
        data = store.get(key).data
        store.delete([key])
        assert found(store) == {(FindingKind.MISSING, key)}
        store.put(key, data)


def test_a_topics_file_of_another_id_is_found(store: BlockingMemoryStore) -> None:
    rewrite_topic(store, topic_id=TopicId(b"another id of 16"))
    assert found(store) == {(FindingKind.WRONG_TOPIC, TOPIC)}


def test_a_topics_file_of_another_topic_is_found(store: BlockingMemoryStore) -> None:
    other = TopicState(CLUSTER, "other", FLIGHTS, decode_topic(store.get(TOPIC).data, CLUSTER, "flights").state, 5, 5)
    store.put(TOPIC, encode_topic(other))
    assert found(store) == {(FindingKind.BAD_FILE, TOPIC)}


def test_a_cluster_file_of_another_cluster_is_found(store: BlockingMemoryStore) -> None:
    key = keys.cluster_key(CLUSTER)
    store.put(key, document(stored(store, key) | {"cluster_id": "somebodyElsesCluster00"}))
    assert found(store) == {(FindingKind.BAD_FILE, key)}


def test_a_topic_file_with_fewer_partitions_than_manifests_is_found(store: BlockingMemoryStore) -> None:
    rewrite_topic(store, partitions=4)
    assert found(store) == {(FindingKind.WRONG_TOPIC, TOPIC)}


def test_a_readers_cursor_ahead_of_its_manifest_is_found(store: BlockingMemoryStore) -> None:
    """The cursor is right: the manifest was set back."""
    key = keys.key(keys.CursorKey(CLUSTER, "audit", "flights", FLIGHTS, 1))
    store.put(key, document(stored(store, key) | {"commit": 200}))
    assert found(store) == {(FindingKind.ABOVE_OWNER, key)}


def test_damaged_files_of_a_commit_reader_are_found(store: BlockingMemoryStore) -> None:
    files = list(store.list(f"{CLUSTER}/readers/"))
    assert files
    for info in files:
        data = store.get(info.key).data
        for wrong in (
            data[:-3],
            data.replace(b'"audit"', b'"other"'),
            document(stored(store, info.key) | {"partition": 9}),
        ):
            store.put(info.key, wrong)
            assert found(store) == {(FindingKind.BAD_FILE, info.key)}
        store.put(info.key, data)


def test_a_damaged_snapshot_of_the_metadata_is_found(store: BlockingMemoryStore) -> None:
    key = keys.snapshot_key(CLUSTER, INCARNATION, 12, 3)
    data = store.get(key).data
    for at in range(len(data)):
        store.put(key, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert found(store, topic=None, quick=True) == {(FindingKind.BAD_FILE, key)}, at
    for wrong in (data[:-1], data + b"x", b""):
        store.put(key, wrong)
        assert found(store, quick=True) == {(FindingKind.BAD_FILE, key)}
    store.put(key, data)
    above = keys.snapshot_key(CLUSTER, INCARNATION + 1, 12, 3)
    store.put(above, data)
    assert found(store, quick=True) == {(FindingKind.ABOVE_OWNER, above)}


def test_the_page_has_a_remedy_for_every_finding() -> None:
    text = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
    assert [kind.name.lower() for kind in FindingKind if f"| `{kind.name.lower()}` |" not in text] == []


def test_a_topic_that_does_not_exist_is_an_error_and_not_damage(store: BlockingMemoryStore, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="no topic 'flihgts'; it holds flights, gone"):
        check_bucket(store, FsckScope(topic="flihgts"), now_ms=NOW_MS)
    (tmp_path / "store").mkdir()
    copy = BlockingDirectoryStore(str(tmp_path / "store"), OsFiles())
    for info in store.list(""):
        copy.put(info.key, store.get(info.key).data)
    ran = CliRunner().invoke(app, ["fsck", "--store", str(tmp_path / "store"), "--topic", "flihgts"])
    assert ran.exit_code == 2
    assert "no topic 'flihgts'" in " ".join(ran.output.split())
    ran = CliRunner().invoke(app, ["fsck", "--store", str(tmp_path / "store"), "--topic", "flights"])
    assert ran.exit_code == 0, ran.output


def test_changes_of_a_running_node_are_not_damage(full: FullStore, store: BlockingMemoryStore, tmp_path: Path) -> None:
    """The node offloads and commits between fsck's listing and its reading of the manifests."""
    ids = ids_of(0)
    tier, local = tier_of(full.memory, full.clock, ids=ids, incarnation=5), Local(tmp_path, snapshot=no_producers)
    asyncio.run(tier.extend(local.job(0, 10)))

    class Racing:
        """Extends the partition once, while fsck reads its topic's file."""

        def __init__(self) -> None:
            self.raced = False

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def get(self, key: str, start: int = 0, length: int | None = None) -> object:
            if key == TOPIC and not self.raced:
                self.raced = True
                asyncio.run(tier.extend(local.job(10, 10)))
            return store.get(key, start, length)

    racing = Racing()
    report = check_bucket(racing, FsckScope(), now_ms=NOW_MS)  # type: ignore[arg-type]
    assert racing.raced
    assert [finding for finding in report.findings if finding.damage] == []


# --- a node's own copy ------------------------------------------------------------------------------------------------
@pytest.fixture
def data_dir(store: BlockingMemoryStore, tmp_path: Path) -> Path:
    """A node's directory that holds the current manifest of partition 1 and nothing else of it."""
    directory = tmp_path / "data"
    (directory / "flights-1").mkdir(parents=True)
    (directory / "meta.properties").write_text(f"version=1\ncluster.id={CLUSTER}\nnode.id=1\ndirectory.id={'A' * 22}\n")
    (directory / "flights-1" / "partition.metadata").write_text(f"version: 0\ntopic_id: {FLIGHTS}")
    (directory / "flights-1" / "tiered-manifest.json").write_bytes(store.get(MANIFEST).data)
    return directory


def local(store: BlockingMemoryStore, data_dir: Path) -> list[tuple[FindingKind, str]]:
    report = Report()
    check_local(store, str(data_dir), report)
    return [(finding.kind, finding.key) for finding in report.findings]


def test_a_saved_manifest_that_the_stores_manifest_contains_is_sound(
    store: BlockingMemoryStore, data_dir: Path
) -> None:
    assert local(store, data_dir) == []
    saved = data_dir / "flights-1" / "tiered-manifest.json"
    now = manifest_of(store)
    older = dataclasses.replace(now, commit=now.commit - 1, recent=now.recent[:-1])
    saved.write_bytes(encode(older))
    assert local(store, data_dir) == []


def test_a_saved_manifest_newer_than_the_stores_is_found(store: BlockingMemoryStore, data_dir: Path) -> None:
    now = manifest_of(store)
    saved = str(data_dir / "flights-1" / "tiered-manifest.json")
    rewrite(
        store, lambda manifest: dataclasses.replace(manifest, commit=manifest.commit - 1, recent=manifest.recent[:-1])
    )
    assert local(store, data_dir) == [(FindingKind.WENT_BACK, saved)]
    store.put(MANIFEST, encode(dataclasses.replace(now, line="f" * 32)))
    assert local(store, data_dir) == [(FindingKind.WENT_BACK, saved)]
    store.delete([MANIFEST])
    assert local(store, data_dir) == [(FindingKind.WENT_BACK, saved)]


def test_segments_of_an_old_saved_manifest_must_be_live_or_removed_since(
    store: BlockingMemoryStore, data_dir: Path
) -> None:
    """The saved manifest's commit is older than any in `recent`: each of its segments must then be live or removed
    since."""
    now = manifest_of(store)
    ids = tuple(CommitId(commit, f"{commit:032x}") for commit in range(now.commit + 9, now.commit + 41))
    later = dataclasses.replace(now, commit=now.commit + 40, recent=ids)
    store.put(MANIFEST, encode(later))
    assert local(store, data_dir) == []
    first, *rest = later.segments
    moved = dataclasses.replace(rest[0], base=first.base)
    store.put(MANIFEST, encode(dataclasses.replace(later, segments=(moved, *rest[1:]))))
    assert local(store, data_dir) == [(FindingKind.WENT_BACK, str(data_dir / "flights-1" / "tiered-manifest.json"))]


def test_a_compacted_local_log_is_sound_and_a_changed_one_is_not(store: BlockingMemoryStore, data_dir: Path) -> None:
    segment = manifest_of(store).segments[0]
    stored_bytes = store.get(segment.key, segment.position, segment.length).data
    path = data_dir / "flights-1" / f"{segment.base:020}.log"
    path.write_bytes(stored_bytes)
    assert local(store, data_dir) == []
    at, header = next((at, each) for at, each in headers(stored_bytes) if not each.control)
    end = at + header.size
    reduced = assemble(header._replace(attributes=0, base_timestamp=-1, count=0), b"")
    path.write_bytes(stored_bytes[:at] + reduced + stored_bytes[end:])
    assert local(store, data_dir) == []
    foreign = assemble(header._replace(base_sequence=header.base_sequence + 1), stored_bytes[at + HEADER_BYTES : end])
    path.write_bytes(stored_bytes[:at] + foreign + stored_bytes[end:])
    assert local(store, data_dir) == [(FindingKind.LOCAL_DISAGREES, str(path))]
    path.write_bytes(stored_bytes[: end - 1] + bytes([stored_bytes[end - 1] ^ 1]) + stored_bytes[end:])
    assert local(store, data_dir) == [(FindingKind.LOCAL_DISAGREES, str(path))]


@pytest.mark.parametrize(("checkpoint", "excused"), [(None, []), (FILE_NAME, []), (BUCKET_FILE_NAME, [0])])
def test_a_batch_that_only_the_bucket_lacks_is_damage_unless_compaction_explains_it(
    store: BlockingMemoryStore, data_dir: Path, checkpoint: str | None, excused: list[int]
) -> None:
    """Compaction of the bucket explains that batches are missing there; that of the local log does not, and the newest
    segment is never rewritten."""
    manifest = manifest_of(store)
    last = len(manifest.segments) - 1
    assert last > 0
    if checkpoint is not None:
        (data_dir / "flights-1" / checkpoint).write_text("{}")
    for index in (0, last):
        segment = manifest.segments[index]
        content = store.get(segment.key, segment.position, segment.length).data
        path = data_dir / "flights-1" / f"{segment.base:020}.log"
        path.write_bytes(content)
        first = next(headers(content))[1].size
        store.put(segment.key, content[first:])
        shorter = dataclasses.replace(segment, position=0, length=segment.length - first)
        segments = (*manifest.segments[:index], shorter, *manifest.segments[index + 1 :])
        store.put(MANIFEST, encode(dataclasses.replace(manifest, segments=segments)))
        expected = [] if index in excused else [(FindingKind.LOCAL_DISAGREES, str(path))]
        assert local(store, data_dir) == expected
        path.unlink()
        store.put(segment.key, content)
