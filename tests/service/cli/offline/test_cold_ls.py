"""`cold ls` on stores that the tier itself wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.model import MAX_SEGMENTS, Ids, State
from storage_tiers.cold.manifest.topic_file import TopicState, encode_topic
from storage_tiers.cold.stores.directory import DirectoryStore
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.open import open_store
from storage_tiers.cold.stores.port import ObjectStore
from storage_tiers.files import OsFiles
from storage_tiers.types import TopicId
from tests.service.cli.support import tidelog
from tests.storage_tiers.cold.support import IDS, TOPIC_ID, EagerClock, Local, tier_of

OLD_ID = TopicId(bytes(16))


async def offload(store: ObjectStore, directory: Path, ids: Ids, ranges: list[tuple[int, int]]) -> None:
    local = Local(directory)
    tier = tier_of(store, EagerClock(), ids=ids, seed=ids.partition + 7)
    for base, count in ranges:
        await tier.extend(local.job(base, count))


@pytest.fixture
async def url(tmp_path: Path) -> str:
    """A directory store: `flights` with partitions 3 and 4 under its topic id and 3 under an earlier id, and `trains`."""
    store = await DirectoryStore.create(str(tmp_path / "store"), OsFiles())
    segments = tmp_path / "segments"
    segments.mkdir()
    cluster = IDS.cluster_id
    await offload(store, segments, IDS, [(0, 10), (10, 5)])
    await offload(store, segments, Ids(cluster, "flights", TOPIC_ID, 4), [(0, 3)])
    await offload(store, segments, Ids(cluster, "flights", OLD_ID, 3), [(0, 2)])
    await offload(store, segments, Ids(cluster, "trains", TopicId(b"t" * 16), 0), [(0, 1)])
    state = TopicState(cluster, "flights", TOPIC_ID, State.LIVE, 5, 1)
    await store.put(keys.topic_file_key(cluster, "flights"), encode_topic(state))
    await store.close()
    return f"file://{tmp_path / 'store'}"


def test_json_lists_every_partition_with_its_segments(url: str) -> None:
    ran = tidelog("cold", "ls", "--store", url, "flights", "--json")

    assert ran.code == 0
    found = {(p["topic_id"], p["partition"]): p for p in ran.json["partitions"]}
    assert set(found) == {(str(TOPIC_ID), 3), (str(TOPIC_ID), 4), (str(OLD_ID), 3)}
    newest = found[str(TOPIC_ID), 3]
    assert (newest["log_start"], newest["end"], newest["commit"], newest["records"]) == (0, 15, 2, 15)
    assert [(r["base"], r["end"], r["records"], r["added_commit"]) for r in newest["segments"]] == [
        (0, 10, 10, 1),
        (10, 15, 5, 2),
    ]
    assert newest["current"] is True
    assert found[str(OLD_ID), 3]["current"] is False
    assert ran.json["totals"] == {
        "partitions": 3,
        "segments": 4,
        "records": 20,
        "bytes": sum(p["bytes"] for p in found.values()),
    }


def test_the_sizes_are_those_of_the_objects(url: str) -> None:
    root = Path(url.removeprefix("file://"))

    parts = tidelog("cold", "ls", "--store", url, "--json").json["partitions"]
    pieces = [piece for part in parts for piece in part["segments"]]
    assert len(pieces) == 5
    for piece in pieces:
        assert (root / piece["key"]).stat().st_size == piece["length"] == piece["bytes"]
        assert (root / piece["sidecar_key"]).exists()


def test_text_shows_a_line_for_each_partition_and_the_totals(url: str) -> None:
    ran = tidelog("cold", "ls", "--store", url)

    header, *rows, totals = ran.out.splitlines()
    assert header.split()[:3] == ["TOPIC", "TOPIC", "ID"]
    assert [(row.split()[0], row.split()[3]) for row in rows] == [
        ("flights", "replaced"),
        ("flights", "live"),
        ("flights", "live"),
        ("trains", "live"),
    ]
    assert totals.startswith(f"cluster {IDS.cluster_id}: 4 partitions, 5 segments, 21 records, ")


def test_segments_are_shown_on_request(url: str) -> None:
    ran = tidelog("cold", "ls", "--store", url, "trains", "--segments")

    assert ran.code == 0
    assert sum(".log" in line for line in ran.out.splitlines()) == 1


def test_a_cluster_is_chosen_by_its_id(url: str) -> None:
    chosen = tidelog("cold", "ls", "--store", url, "--cluster-id", IDS.cluster_id, "--json").json
    other = tidelog("cold", "ls", "--store", url, "--cluster-id", "another", "--json").json

    assert chosen["totals"]["partitions"] == 4
    assert other["totals"]["partitions"] == 0


def test_several_clusters_are_distinguished(url: str) -> None:
    root = Path(url.removeprefix("file://"))
    (root / IDS.cluster_id).rename(root / "zzz")
    other = tidelog("cold", "ls", "--store", url)

    assert other.code == 1, "a manifest under another cluster's key is not served"
    assert "belongs to" in other.err


def test_an_unknown_topic_is_exit_code_1(url: str) -> None:
    ran = tidelog("cold", "ls", "--store", url, "boats")

    assert ran.code == 1
    assert "no manifest of topic boats" in ran.err


def test_a_manifest_that_cannot_be_read_does_not_hide_the_others(url: str) -> None:
    root = Path(url.removeprefix("file://"))
    (root / IDS.manifest_key).write_text("{")

    ran = tidelog("cold", "ls", "--store", url, "--json")

    assert ran.code == 1
    assert "flights-3" in ran.err
    damaged = [part for part in ran.json["partitions"] if "damage" in part]
    assert [(part["topic"], part["partition"]) for part in damaged] == [("flights", 3)]
    assert len(ran.json["partitions"]) == 4


async def test_segments_in_manifest_pages_are_listed_too(tmp_path: Path) -> None:
    store = await open_store(StoreLocation.parse("memory://many-segments"), OsFiles(), EagerClock())
    await offload(store, tmp_path, IDS, [(base, 1) for base in range(MAX_SEGMENTS + 10)])

    ran = tidelog("cold", "ls", "--store", "memory://many-segments", "--json")

    (part,) = ran.json["partitions"]
    assert [piece["base"] for piece in part["segments"]] == list(range(MAX_SEGMENTS + 10))
    assert ran.json["totals"]["segments"] == part["records"] == MAX_SEGMENTS + 10


def test_an_empty_store_is_empty(tmp_path: Path) -> None:
    ran = tidelog("cold", "ls", "--store", tmp_path)

    assert ran.code == 0
    assert ran.out.splitlines()[-1] == "0 partitions, 0 segments, 0 records, 0 B"
