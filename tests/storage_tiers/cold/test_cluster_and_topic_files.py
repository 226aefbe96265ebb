"""cluster.json and topic.json: which writer may replace which version."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.cluster_file import (
    TAKE_OVER_GAP,
    ClusterState,
    Holder,
    check_incarnation,
    decode_cluster,
    encode_cluster,
    open_cluster,
)
from storage_tiers.cold.manifest.documents import document as sealed
from storage_tiers.cold.manifest.model import State
from storage_tiers.cold.manifest.topic_file import (
    MAX_EARLIER,
    TopicState,
    decode_topic,
    delete_topic,
    encode_topic,
    publish_topic,
    published,
    read_topic,
)
from storage_tiers.cold.stores.memory import MemoryStore
from storage_tiers.errors import FencedWriter, StoreBehind, TierCorrupt, TierUnavailable
from storage_tiers.types import TopicId
from tests.support.clock import ManualClock
from tests.support.faulty_store import FaultyStore

CLUSTER = "ckQWLXMZQKGqoUySTmrTXA"


def holder(start: str, directory: str = "disk-1") -> Holder:
    return Holder(1, directory, start)


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore(ManualClock()))


class TestIncarnation:
    async def test_every_start_raises_the_incarnation_by_one(self, store: FaultyStore) -> None:
        for number in range(3):
            assert await open_cluster(store, CLUSTER, holder(f"start {number}"), number) == number + 1
        await check_incarnation(store, CLUSTER, 3, holder("start 2"))

    async def test_one_of_two_copies_stops(self, store: FaultyStore) -> None:
        await open_cluster(store, CLUSTER, holder("first"), 0)
        await open_cluster(store, CLUSTER, holder("the original"), 1)
        with pytest.raises(FencedWriter, match=r"at incarnation 2 .* at 1: a copy of its directory has run"):
            await open_cluster(store, CLUSTER, holder("the copy"), 1)
        with pytest.raises(FencedWriter):
            await check_incarnation(store, CLUSTER, 1, holder("first"))

    async def test_exactly_one_of_racing_starts_wins(self, store: FaultyStore) -> None:
        starts = [open_cluster(store, CLUSTER, holder(f"start {n}"), 0) for n in range(8)]
        outcomes = await asyncio.gather(*starts, return_exceptions=True)
        assert outcomes.count(1) == 1
        assert sum(isinstance(outcome, FencedWriter) for outcome in outcomes) == 7

    @pytest.mark.parametrize("known", [0, 1])
    async def test_a_claim_whose_answer_was_lost_is_recognised_as_ones_own(
        self, store: FaultyStore, known: int
    ) -> None:
        if known:
            await open_cluster(store, CLUSTER, holder("earlier"), 0)
        store.lose_answer(1, "put", "cluster.json")
        assert await open_cluster(store, CLUSTER, holder("mine"), known) == known + 1
        store.fail(1, "put", "cluster.json")
        assert await open_cluster(store, CLUSTER, holder("next"), known + 1) == known + 2
        assert store.count("put") == known + 3

    async def test_a_store_that_went_backwards_is_distinguished_from_a_copy(self, store: FaultyStore) -> None:
        with pytest.raises(StoreBehind, match="shows incarnation 0, this directory has held 1"):
            await open_cluster(store, CLUSTER, holder("next"), 1)
        await open_cluster(store, CLUSTER, holder("first"), 0)
        with pytest.raises(StoreBehind, match="shows incarnation 1, this directory has held 2"):
            await open_cluster(store, CLUSTER, holder("next"), 2)

    async def test_a_take_over_of_a_bucket_put_back_fences_the_newer_node(self, store: FaultyStore) -> None:
        await open_cluster(store, CLUSTER, holder("first"), 0)
        taker = Holder(1, "another disk", "taker")
        assert await open_cluster(store, CLUSTER, taker, 1, TAKE_OVER_GAP) == 1 + TAKE_OVER_GAP
        for held in (4, TAKE_OVER_GAP + 4):
            with pytest.raises(FencedWriter, match="the cluster was taken over"):
                await open_cluster(store, CLUSTER, holder("next"), held)
        with pytest.raises(StoreBehind):
            await open_cluster(store, CLUSTER, holder("next"), 2 * TAKE_OVER_GAP + 1)

    async def test_an_unreachable_store_leaves_the_outcome_open(self, store: FaultyStore) -> None:
        store.down = True
        with pytest.raises(TierUnavailable):
            await open_cluster(store, CLUSTER, holder("mine"), 0)
        store.down = False
        assert await open_cluster(store, CLUSTER, holder("mine"), 0) == 1
        assert await open_cluster(store, CLUSTER, holder("mine"), 0) == 1, "the same start, retried"

    def test_the_file_is_strict(self) -> None:
        state = ClusterState(CLUSTER, 3, holder("s"))
        assert decode_cluster(encode_cluster(state), CLUSTER) == state
        with pytest.raises(TierCorrupt, match="belongs to cluster"):
            decode_cluster(encode_cluster(replace(state, cluster_id="other")), CLUSTER)
        with pytest.raises(TierCorrupt, match="incarnation"):
            decode_cluster(
                sealed({"format": 2, "least_reader": 2, "cluster_id": CLUSTER, "holder": {}, "incantation": 3}), CLUSTER
            )
        with pytest.raises(TierCorrupt, match="checksum"):
            decode_cluster(encode_cluster(state).replace(b'"incarnation": 3', b'"incarnation": 4'), CLUSTER)


def topic(number: int, **fields: object) -> TopicState:
    made = TopicState(CLUSTER, "flights", TopicId(bytes([number] * 16)), State.LIVE, 6, 1, {"retention.ms": "-1"})
    return replace(made, **fields)  # type: ignore[arg-type]


class TestTopicFile:
    async def test_a_fenced_node_creates_no_topic(self, store: FaultyStore) -> None:
        await open_cluster(store, CLUSTER, holder("old"), 0)
        await publish_topic(store, topic(1))
        await open_cluster(store, CLUSTER, holder("new"), 1)
        with pytest.raises(FencedWriter, match="at incarnation 2 in the bucket, this node is 1"):
            await publish_topic(store, topic(2, topic="other"))
        await publish_topic(store, topic(2, topic="other", incarnation=2))

    async def test_a_file_that_went_backwards_is_left_alone(self, store: FaultyStore) -> None:
        first = await publish_topic(store, topic(1))
        older = encode_topic(first)
        seen = await publish_topic(store, topic(1, partitions=9, revision=first.revision))
        await store.put(keys.topic_file_key(CLUSTER, "flights"), older)
        with pytest.raises(StoreBehind, match="is at revision 1, revision 2 was seen"):
            await publish_topic(store, topic(1, partitions=10, revision=seen.revision))
        await store.delete([keys.topic_file_key(CLUSTER, "flights")])
        with pytest.raises(StoreBehind, match="is gone"):
            await publish_topic(store, topic(1, partitions=10, revision=seen.revision))

    async def test_a_topic_file_is_published_and_read_back(self, store: FaultyStore) -> None:
        assert await read_topic(store, CLUSTER, "flights") is None
        state = await publish_topic(store, topic(1))
        assert state == replace(topic(1), revision=1) == await read_topic(store, CLUSTER, "flights")
        assert decode_topic(encode_topic(state), CLUSTER, "flights") == state
        puts = store.count("put")
        await publish_topic(store, topic(1))
        assert store.count("put") == puts, "nothing changed, nothing written"

    async def test_partitions_only_grow_and_configs_follow(self, store: FaultyStore) -> None:
        await publish_topic(store, topic(1))
        state = await publish_topic(store, topic(1, partitions=8, configs={}))
        assert (state.partitions, state.configs, state.revision) == (8, {}, 2)
        assert (await publish_topic(store, topic(1, partitions=7))).partitions == 8

    async def test_a_topic_file_is_deleted_and_created_again_under_another_id(self, store: FaultyStore) -> None:
        await publish_topic(store, topic(1))
        assert (await delete_topic(store, topic(1))).state is State.DELETED
        with pytest.raises(FencedWriter, match="deleted or replaced"):
            await publish_topic(store, topic(1))
        again = await publish_topic(store, topic(2))
        assert (again.state, again.earlier) == (State.LIVE, (topic(1).topic_id,))
        assert await delete_topic(store, topic(1)) == again, "a late deletion of the first one changes nothing"
        with pytest.raises(FencedWriter):
            await publish_topic(store, topic(1))

    async def test_a_topic_deleted_before_it_was_published(self, store: FaultyStore) -> None:
        late = store.hold(1, "put", "topic.json")
        publication = asyncio.create_task(publish_topic(store, topic(1)))
        await late.reached.wait()
        assert (await delete_topic(store, topic(1))).state is State.DELETED
        late.open()
        with pytest.raises(FencedWriter):
            await publication
        found = await read_topic(store, CLUSTER, "flights")
        assert found is not None and found.state is State.DELETED

    async def test_an_older_incarnation_is_fenced(self, store: FaultyStore) -> None:
        await publish_topic(store, topic(1, incarnation=5))
        for act in (publish_topic(store, topic(1, incarnation=4, partitions=9)), delete_topic(store, topic(1))):
            with pytest.raises(FencedWriter, match="incarnation 5"):
                await act

    async def test_a_lost_answer_to_a_write_of_the_topic_file_is_no_error(self, store: FaultyStore) -> None:
        store.lose_answer(1, "put", "topic.json")
        assert (await publish_topic(store, topic(1))).revision == 1
        store.fail(1, "put", "topic.json")
        assert (await delete_topic(store, topic(1))).revision == 2

    async def test_racing_updates_all_arrive(self, store: FaultyStore) -> None:
        await publish_topic(store, topic(1))
        await asyncio.gather(*(publish_topic(store, topic(1, partitions=6 + n)) for n in range(1, 5)))
        found = await read_topic(store, CLUSTER, "flights")
        assert found is not None and found.partitions == 10

    def test_earlier_ids_are_bounded(self) -> None:
        state = topic(0)
        for number in range(1, MAX_EARLIER + 10):
            state = published(state, topic(0, topic_id=TopicId(number.to_bytes(16, "big"))))
        assert len(state.earlier) == MAX_EARLIER
        assert state.earlier[-1] == TopicId((MAX_EARLIER + 8).to_bytes(16, "big"))

    def test_the_file_is_strict(self) -> None:
        data = encode_topic(topic(1))
        with pytest.raises(TierCorrupt, match="belongs to topic flights"):
            decode_topic(data, CLUSTER, "other")
        for damaged in (data.replace(b'"live"', b'"lively"'), data.replace(b'"-1"', b"-1"), data[:-3]):
            with pytest.raises(TierCorrupt):
                decode_topic(damaged, CLUSTER, "flights")
