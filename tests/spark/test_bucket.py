"""Finding clusters, topics, ids and partitions: the reader reads what exists, and an ambiguous request gets an error that lists
the choices."""

from __future__ import annotations

import asyncio

import pytest

from pyspark_tidelog.options import OptionError, parse_options
from pyspark_tidelog.partition_plans import described, plan_bucket
from pyspark_tidelog.plan import PartitionPlan
from storage_tiers.cold.manifest.model import Ids, Oldest, PageKind, PageRef, State
from storage_tiers.cold.offline.bucket import Bucket as BucketReader
from storage_tiers.errors import TierCorrupt
from tests.spark.buckets import CLUSTER, START_MS, Bucket, numbered, topic_id_of

OTHER = "OTHERXMZQKGqoUySTmrTXA"


def plans(bucket: Bucket, topics: str = "a", **more: str) -> tuple[PartitionPlan, ...]:
    reader = BucketReader(bucket.store, "the bucket")
    return plan_bucket(reader, parse_options({"store": "/x", "topics": topics, **more}))


def refusal(bucket: Bucket, topics: str = "a", **more: str) -> str:
    with pytest.raises(OptionError) as refused:
        plans(bucket, topics, **more)
    return str(refused.value)


def test_a_plan_lists_the_offsets_to_read_of_each_partition(memory_bucket: Bucket) -> None:
    memory_bucket.publish("a", 2)
    memory_bucket.publish("b", 1)
    memory_bucket.extend("a", numbered(0, 20), partition=1)
    memory_bucket.extend("a", numbered(20, 10), partition=1)
    memory_bucket.extend("b", numbered(0, 5))
    found = plans(memory_bucket, "b,a")
    assert [(str(plan.ids), plan.start, plan.end, plan.commit) for plan in found] == [
        ("b-0", 0, 5, 1),
        ("a-0", 0, 0, 0),
        ("a-1", 0, 30, 2),
    ]
    assert found[2].committed_at == START_MS + 2_000
    assert described(found[1]).endswith("nothing in the bucket yet")
    assert (
        "offsets [0, 30) as of manifest commit 2 at 2023-11-14T22:13:22.000+00:00, which ends at 30; 1 split"
        in described(found[2])
    )


def test_an_empty_bucket_is_refused(memory_bucket: Bucket) -> None:
    memory_bucket.store.delete([f"{CLUSTER}/cluster.json"])
    assert "holds no tidelog cluster" in refusal(memory_bucket)
    assert "holds no tidelog cluster" in refusal(memory_bucket, clusterId=CLUSTER)


def test_several_clusters_are_listed(memory_bucket: Bucket) -> None:
    memory_bucket.publish("a", 1)
    memory_bucket.extend("a", numbered(0, 5))
    other = Bucket(memory_bucket.store, memory_bucket.directory, OTHER)
    other.create_cluster()
    memory_bucket.store.put("somebody else's/object", b"")
    assert [plan.end for plan in plans(memory_bucket)] == [5]  # read from the only cluster that has the topic
    assert "none of which have 'a', 'nothing'" in refusal(memory_bucket, "a,nothing")
    other.publish("a", 1, state=State.DELETED)
    assert [plan.end for plan in plans(memory_bucket)] == [5]
    other.publish("b", 1)
    assert "none of which have 'a', 'b'" in refusal(memory_bucket, "a,b")
    memory_bucket.publish("b", 1)
    message = refusal(memory_bucket, "b")
    assert "2 of which have 'b'" in message
    assert f"the clusters {OTHER}, {CLUSTER}" in message
    assert "clusterId" in message
    assert [plan.end for plan in plans(memory_bucket, clusterId=CLUSTER)] == [5]
    assert f"no cluster 'mine' in the bucket; the bucket holds the clusters {OTHER}, {CLUSTER}" in refusal(
        memory_bucket, clusterId="mine"
    )


def test_a_topic_that_is_not_there_lists_those_that_are(memory_bucket: Bucket) -> None:
    assert "there is no topic 'a'" in refusal(memory_bucket)
    memory_bucket.publish("b", 1)
    memory_bucket.publish("c", 1)
    assert "topics are b, c" in refusal(memory_bucket)
    assert "cannot read topic 'a/b'" in refusal(memory_bucket, "a/b")


def test_a_deleted_topic_is_refused(memory_bucket: Bucket) -> None:
    memory_bucket.publish("a", 1, state=State.DELETED)
    assert f"topic a (topic id {topic_id_of('a')}) was deleted" in refusal(memory_bucket)


def test_a_partition_deleted_during_the_query_is_an_error(memory_bucket: Bucket) -> None:
    memory_bucket.publish("a", 1)
    memory_bucket.extend("a", numbered(0, 5))
    asyncio.run(memory_bucket.tier("a").delete_partition())
    assert "a-0 of topic id" in refusal(memory_bucket)


def test_the_live_topic_id_is_read_unless_another_is_named(memory_bucket: Bucket) -> None:
    old, new = topic_id_of("a"), topic_id_of("a", 1)
    memory_bucket.publish("a", 1, generation=1, earlier=[old])
    memory_bucket.extend("a", numbered(0, 5))
    memory_bucket.extend("a", numbered(0, 7), generation=1)
    assert [plan.end for plan in plans(memory_bucket)] == [7]
    assert [plan.end for plan in plans(memory_bucket, topicId=str(new))] == [7]
    assert [plan.end for plan in plans(memory_bucket, topicId=str(old))] == [5]
    unknown = str(topic_id_of("z"))
    assert f"topic a has no topic id {unknown} in the bucket; its ids are {new}, {old}" in refusal(
        memory_bucket, topicId=unknown
    )
    assert "cannot read topic 'a'" in refusal(memory_bucket, topicId="nonsense")


def test_offsets_by_partition_name_all_partitions(memory_bucket: Bucket) -> None:
    memory_bucket.publish("a", 2)
    memory_bucket.extend("a", numbered(0, 5))
    found = plans(memory_bucket, startingOffsets='{"a": {"0": 2, "1": -2}}', endingOffsets='{"a": {"0": 4, "1": -1}}')
    assert [(plan.start, plan.end) for plan in found] == [(2, 4), (0, 0)]
    assert "startingOffsets lacks partitions [1] of a" in refusal(memory_bucket, startingOffsets='{"a": {"0": 2}}')
    assert "endingOffsets names partitions of a that do not exist: [2]" in refusal(
        memory_bucket, endingOffsets='{"a": {"0": 2, "1": -1, "2": -1}}'
    )


def test_a_manifest_that_cannot_be_parsed(memory_bucket: Bucket) -> None:
    memory_bucket.publish("a", 1)
    manifest = memory_bucket.extend("a", numbered(0, 5))
    memory_bucket.store.put(manifest.ids.manifest_key, b"{")
    with pytest.raises(TierCorrupt, match="is not JSON"):
        plans(memory_bucket)


def test_no_more_pages_are_held_than_asked_for(memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, loaded = BucketReader(memory_bucket.store, "the bucket"), list[str]()

    def page(_: object, ref: PageRef) -> str:
        loaded.append(ref.key)
        return f"page {ref.key}"

    monkeypatch.setattr(reader, "page", page)
    refs = {key: PageRef(PageKind.LIVE, key, 0, 9, 1, 100, 7, 1, 2, 9, 90, 3, oldest=Oldest(9, 2, 90)) for key in "abc"}
    load = reader.pages(Ids(CLUSTER, "a", topic_id_of("a"), 0), held=2)
    for key in "ababcbc":
        assert str(load(refs[key])) == f"page {key}"
    assert loaded == ["a", "b", "c"]
    load(refs["a"])
    assert loaded == ["a", "b", "c", "a"]
