"""Object keys: they are built, parsed back, and rejected if they do not match the layout."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.keys import (
    ClusterFile,
    CursorKey,
    ManifestKey,
    MissedKey,
    PageKey,
    SegmentKey,
    SidecarKey,
    TopicFile,
    VerdictKey,
)
from storage_tiers.types import TopicId

NAMES = st.from_regex(r"\A[A-Za-z0-9._-]{1,249}\Z").filter(lambda name: name not in (".", ".."))
TOPIC_IDS = st.binary(min_size=16, max_size=16).map(TopicId)
PARTITIONS = st.integers(0, (1 << 31) - 1)
OFFSETS = st.integers(0, (1 << 63) - 1)
UUIDS = st.binary(min_size=16, max_size=16).map(bytes.hex)
EPOCHS = st.integers(0, (1 << 31) - 1)
PLACES = (NAMES, NAMES, TOPIC_IDS, PARTITIONS)
READER_PLACES = (NAMES, NAMES, NAMES, TOPIC_IDS, PARTITIONS)


def page_key(cluster: str, topic: str, topic_id: TopicId, partition: int, one: int, other: int, uuid: str) -> PageKey:
    return PageKey(cluster, topic, topic_id, partition, min(one, other), max(one, other), uuid)


ANY_KEY = st.one_of(
    st.builds(ClusterFile, NAMES),
    st.builds(TopicFile, NAMES, NAMES),
    st.builds(ManifestKey, *PLACES),
    st.builds(page_key, *PLACES, OFFSETS, OFFSETS, UUIDS),
    st.builds(SegmentKey, *PLACES, OFFSETS, EPOCHS, UUIDS),
    st.builds(SidecarKey, *PLACES, OFFSETS, EPOCHS, UUIDS),
    st.builds(CursorKey, *READER_PLACES),
    st.builds(VerdictKey, *READER_PLACES, OFFSETS, OFFSETS),
    st.builds(MissedKey, *READER_PLACES, OFFSETS, OFFSETS),
)


@given(ANY_KEY)
def test_every_key_is_read_back(parsed: keys.Key) -> None:
    assert keys.parse(keys.key(parsed)) == parsed


@given(ANY_KEY, st.data())
def test_parsed_keys_are_written_back_unchanged(parsed: keys.Key, data: st.DataObject) -> None:
    text = keys.key(parsed)
    at = data.draw(st.integers(0, len(text)))
    changed = text[:at] + data.draw(st.sampled_from(["", "/", "0", "-", ".", "a", "\n"])) + text[at + 1 :]
    try:
        found = keys.parse(changed)
    except ValueError:
        return
    assert keys.key(found) == changed


def test_the_layout_is_as_documented() -> None:
    place = ("c", "__consumer_offsets", TopicId(bytes(16)), 7)
    root = "c/topics/__consumer_offsets/AAAAAAAAAAAAAAAAAAAAAA"
    assert keys.cluster_key("c") == "c/cluster.json"
    assert keys.topic_file_key("c", "__consumer_offsets") == "c/topics/__consumer_offsets/topic.json"
    assert keys.key(keys.ManifestKey(*place)) == f"{root}/manifests/00007.json"
    assert keys.key(keys.SegmentKey(*place, 42, 3, "f" * 32)) == f"{root}/segments/00007/{42:020}-3-{'f' * 32}.log"
    assert keys.key(keys.SidecarKey(*place, 42, 3, "f" * 32)) == f"{root}/segments/00007/{42:020}-3-{'f' * 32}.idx"
    assert keys.key(keys.PageKey(*place, 0, 99, "f" * 32)) == f"{root}/pages/00007/0-99-{'f' * 32}.json.gz"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "a\n", "a" * 250])
def test_names_that_kafka_refuses_make_no_keys(name: str) -> None:
    with pytest.raises(ValueError):
        keys.topic_file_key("c", name)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "c",
        "c/other.json",
        "c/topics/t/AAAAAAAAAAAAAAAAAAAAAA/manifests/7.json",
        "c/topics/t/AAAAAAAAAAAAAAAAAAAAAA/manifests/000007.json",
        "c/topics/t/AAAAAAAAAAAAAAAAAAAAAB/manifests/00007.json",
        f"c/topics/t/AAAAAAAAAAAAAAAAAAAAAA/segments/00007/{1:020}-1-{'F' * 32}.log",
        f"c/topics/t/AAAAAAAAAAAAAAAAAAAAAA/segments/00007/{1:020}-01-{'f' * 32}.log",
        f"c/topics/t/AAAAAAAAAAAAAAAAAAAAAA/segments/00007/{1:020}-1-{'f' * 32}.tmp",
        f"c/topics/t/AAAAAAAAAAAAAAAAAAAAAA/segments/00007/{1 << 63:020}-1-{'f' * 32}.log",
        f"c/topics/t/AAAAAAAAAAAAAAAAAAAAAA/pages/00007/9-8-{'f' * 32}.json.gz",
    ],
)
def test_keys_outside_the_layout_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        keys.key(keys.parse(text))
