"""One suite for all implementations of the core's contract: the broker's core, the same core over a gRPC channel, three
brokers of one controller (`cluster.py`), and the core in memory on which the gateway's handlers are tested.

The first two run on a whole node in this process: a hot disk and a memory store. `test_contract_of_a_node.py` tests them on
what the core in memory lacks (tiers, logs with producers and transactions, flushes, broker configs).
"""

from __future__ import annotations

import asyncio

import pytest

from grpc_api.contract.log import Append, Appended, FetchPartition, OffsetQuery, OffsetSpec
from grpc_api.contract.ready import settled
from grpc_api.contract.topics import AlterOp, ConfigAlteration, NewTopic, Resource, ResourceKind
from storage_tiers.errors import (
    CorruptRecord,
    InvalidConfig,
    InvalidTopic,
    LogError,
    NoReassignmentInProgress,
    OffsetOutOfRange,
    TopicExists,
    UnknownLeaderEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from storage_tiers.records.builder import NewRecord, build_batch
from storage_tiers.records.decoder import Record
from storage_tiers.types import TopicId, TopicPartition
from tests.service.broker.support import Driven, batch, records

T0 = TopicPartition("t", 0)


def values(found: list[Record]) -> list[bytes | None]:
    return [record.value for record in found]


# --- appending --------------------------------------------------------------------------------------------------------
async def test_offsets_follow_one_another_and_records_come_back(any_core: Driven) -> None:
    await any_core.create("t")
    first = await any_core.append("t", b"a", b"b")
    second = await any_core.append("t", b"c")
    assert (first.base_offset, second.base_offset) == (0, 2)
    assert values(await any_core.read("t", 0)) == [b"a", b"b", b"c"]
    assert values(await any_core.read("t", 1)) == [b"b", b"c"]


async def test_a_refused_batch_leaves_no_trace_and_does_not_end_its_neighbours(any_core: Driven) -> None:
    await any_core.create("t", 2)
    broken = bytearray(batch(b"x"))
    broken[-1] ^= 1
    appends = [
        Append(T0, memoryview(broken)),
        Append(TopicPartition("t", 1), memoryview(batch(b"y"))),
        Append(TopicPartition("none", 0), memoryview(batch(b"z"))),
    ]
    bad, good, unknown = await settled(any_core.log.append(appends))
    assert isinstance(bad, CorruptRecord)
    assert isinstance(good, Appended)
    assert isinstance(unknown, UnknownTopicOrPartition)
    assert (await any_core.end("t"), await any_core.end("t", 1)) == (0, 1)


async def test_producer_ids_are_never_given_twice(any_core: Driven) -> None:
    given = [await any_core.log.init_producer_id() for _ in range(5)]
    assert len(set(given)) == 5
    together = await asyncio.gather(*(any_core.log.init_producer_id() for _ in range(20)))
    assert not set(together) & set(given)


async def test_many_appends_under_way_keep_their_order(any_core: Driven) -> None:
    await any_core.create("t")
    under_way = [any_core.log.append([Append(T0, memoryview(batch(b"%03d" % i)))]) for i in range(200)]
    answers = [(await settled(ready))[0] for ready in under_way]
    assert [answer.base_offset for answer in answers if isinstance(answer, Appended)] == list(range(200))
    assert values(await any_core.read_all("t")) == [b"%03d" % i for i in range(200)]


# --- fetching ---------------------------------------------------------------------------------------------------------
async def test_a_waiting_fetch_is_answered_by_the_append(any_core: Driven) -> None:
    await any_core.create("t")
    waiting = asyncio.ensure_future(any_core.read("t", 0, wait_ms=20_000))
    await asyncio.sleep(0)
    assert not waiting.done()
    await any_core.append("t", b"a")
    assert values(await waiting) == [b"a"]


async def test_an_empty_fetch_answers_when_its_time_is_up(any_core: Driven) -> None:
    await any_core.create("t")
    (answer,) = await any_core.fetch(FetchPartition(T0, 0, 100), wait_ms=20)
    assert (answer.error, answer.size, answer.high_watermark) == (None, 0, 0)


async def test_max_bytes_is_shared_but_one_batch_is_always_returned(any_core: Driven) -> None:
    await any_core.create("t", 2)
    await any_core.append("t", b"a" * 500)
    await any_core.append("t", b"b" * 500, partition=1)
    wanted = FetchPartition(T0, 0, 10), FetchPartition(TopicPartition("t", 1), 0, 1000)
    first, second = await any_core.fetch(*wanted, max_bytes=10)
    assert values(records(first)) == [b"a" * 500]
    assert second.size == 0


async def test_out_of_range_offsets_and_foreign_epochs_are_refused(any_core: Driven) -> None:
    await any_core.create("t")
    await any_core.append("t", b"a")
    cases: list[tuple[FetchPartition, type[LogError]]] = [
        (FetchPartition(T0, 2, 100), OffsetOutOfRange),
        (FetchPartition(T0, 0, 100, current_leader_epoch=9), UnknownLeaderEpoch),
        (FetchPartition(TopicPartition("t", 7), 0, 100), UnknownTopicOrPartition),
    ]
    for wanted, kind in cases:
        (answer,) = await any_core.fetch(wanted, wait_ms=5000)
        assert isinstance(answer.error, kind)


async def test_offsets_are_listed_by_name_and_by_time(any_core: Driven) -> None:
    await any_core.create("t")
    for timestamp in (1_000, 3_000, 2_000):
        await any_core.append_batch("t", build_batch([NewRecord(b"k", b"v", timestamp=timestamp)]))

    async def ask(timestamp: int) -> tuple[int, int] | None:
        (answer,) = await any_core.log.list_offsets([OffsetQuery(T0, timestamp)])
        assert not isinstance(answer, LogError)
        return None if answer is None else (answer.timestamp, answer.offset)

    assert [await ask(spec) for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)] == [(-1, 0), (-1, 3)]
    assert await ask(OffsetSpec.MAX_TIMESTAMP) == (3_000, 1)
    assert [await ask(at) for at in (0, 1_000, 1_001, 3_000, 3_001)] == [
        *((1_000, 0), (1_000, 0), (3_000, 1), (3_000, 1)),
        None,
    ]
    (unknown,) = await any_core.log.list_offsets([OffsetQuery(TopicPartition("none", 0), OffsetSpec.LATEST)])
    assert isinstance(unknown, UnknownTopicOrPartition)


async def test_deleted_records_are_out_of_range(any_core: Driven) -> None:
    await any_core.create("t")
    for value in (b"a", b"b", b"c"):
        await any_core.append("t", value)
    assert [await any_core.log.delete_records(T0, before) for before in (2, 1)] == [2, 2]
    with pytest.raises(OffsetOutOfRange):
        await any_core.read("t", 1)
    assert values(await any_core.read("t", 2)) == [b"c"]
    for before in (4, -2):
        with pytest.raises(OffsetOutOfRange):
            await any_core.log.delete_records(T0, before)
    assert await any_core.log.delete_records(T0, -1) == 3


async def test_the_end_offset_of_an_epoch_is_looked_up(any_core: Driven) -> None:
    await any_core.create("t")
    epoch = (await any_core.append("t", b"a")).leader_epoch
    assert await any_core.log.epoch_end_offset(T0, epoch) == (epoch, 1)
    assert await any_core.log.epoch_end_offset(T0, -1) == (-1, -1)
    with pytest.raises(UnknownTopicOrPartition):
        await any_core.log.epoch_end_offset(TopicPartition("none", 0), epoch)


# --- topics -----------------------------------------------------------------------------------------------------------
async def test_a_recreated_topic_starts_empty(any_core: Driven) -> None:
    ids = set()
    for value in (b"old", b"new"):
        await any_core.create("t")
        (found,) = any_core.core.topics.describe(["t"])
        assert not isinstance(found, LogError)
        ids.add(found.topic_id)
        await any_core.append("t", value)
        assert values(await any_core.read_all("t")) == [value]
        assert await any_core.core.topics.delete(["t"]) == [("t", found.topic_id)]
        (gone,) = any_core.core.topics.describe(["t"])
        assert isinstance(gone, UnknownTopicOrPartition)
    assert len(ids) == 2


async def test_a_topic_exists_once(any_core: Driven) -> None:
    await any_core.create("t")
    with pytest.raises(TopicExists):
        await any_core.create("t")


async def test_added_partitions_take_records(any_core: Driven) -> None:
    await any_core.create("t")
    await any_core.core.topics.create_partitions("t", 3, None)
    assert (await any_core.append("t", b"a", partition=2)).base_offset == 0


async def test_topics_and_partitions_are_described_as_they_are_now(any_core: Driven) -> None:
    await any_core.create("t", 2)
    (found,) = any_core.core.topics.describe(["t"])
    assert not isinstance(found, LogError)
    assert (found.name, [part.partition for part in found.partitions]) == ("t", [0, 1])
    assert any_core.log.topic_name(found.topic_id) == "t"
    (by_id, nobody) = any_core.core.topics.describe([], [found.topic_id, TopicId(b"x" * 16)])
    assert by_id == found
    assert isinstance(nobody, UnknownTopicId)
    await any_core.core.topics.create_partitions("t", 5, None)
    (grown,) = any_core.core.topics.describe(["t"])
    assert not isinstance(grown, LogError)
    assert len(grown.partitions) == 5
    await any_core.core.topics.delete([], [found.topic_id])
    assert not any_core.core.topics.describe()
    assert any_core.log.topic_name(found.topic_id) is None


async def test_a_partitions_leader_is_that_of_its_description(any_core: Driven) -> None:
    await any_core.create("t", 2)
    (found,) = any_core.core.topics.describe(["t"])
    assert not isinstance(found, LogError)
    for part in found.partitions:
        assert any_core.core.topics.leader(TopicPartition("t", part.partition)) == (part.leader, part.leader_epoch)
    assert found.partitions[0].leader >= 0
    for missing in (TopicPartition("t", 2), TopicPartition("t", -1), TopicPartition("other", 0)):
        assert any_core.core.topics.leader(missing) == (-1, -1)


async def test_an_unclean_election_changes_no_live_leader(any_core: Driven) -> None:
    await any_core.create("t")
    partition = TopicPartition("t", 0)
    before = any_core.core.topics.leader(partition)
    await any_core.core.topics.elect_unclean(partition)
    assert any_core.core.topics.leader(partition) == before
    for missing in (TopicPartition("t", 1), TopicPartition("other", 0)):
        with pytest.raises(UnknownTopicOrPartition):
            await any_core.core.topics.elect_unclean(missing)


async def test_a_move_that_is_not_under_way_cannot_be_cancelled(any_core: Driven) -> None:
    await any_core.create("t")
    with pytest.raises(NoReassignmentInProgress):
        await any_core.core.topics.reassign(TopicPartition("t", 0), None)
    for missing in (TopicPartition("t", 1), TopicPartition("other", 0)):
        with pytest.raises(UnknownTopicOrPartition):
            await any_core.core.topics.reassign(missing, None)


async def test_illegal_and_unknown_names_are_distinguished(any_core: Driven) -> None:
    unknown, illegal, empty = any_core.core.topics.describe(["nothing", "a/b", ""])
    assert isinstance(unknown, UnknownTopicOrPartition)
    assert isinstance(illegal, InvalidTopic)
    assert isinstance(empty, InvalidTopic)


async def test_the_cluster_names_its_brokers(any_core: Driven) -> None:
    cluster = any_core.core.topics.cluster()
    assert cluster.cluster_id
    assert cluster.controller_id in {each.node_id for each in cluster.brokers}
    assert {each.endpoints[0].host for each in cluster.brokers} == {"127.0.0.1"}


async def test_topics_are_made_with_configs_and_validated_without_being_made(any_core: Driven) -> None:
    (made,) = await any_core.core.topics.create([NewTopic("t", 3, 1, {"retention.ms": "1000"})], validate_only=True)
    assert not isinstance(made, LogError)
    assert made.partitions == 3
    assert {entry.name: entry.value for entry in made.configs}["retention.ms"] == "1000"
    assert not any_core.core.topics.describe()
    (refused,) = await any_core.core.topics.create([NewTopic("t", 1, 1, {"retention.ms": "soon"})])
    assert isinstance(refused, InvalidConfig)
    await any_core.core.topics.auto_create(["auto"])
    (auto,) = any_core.core.topics.describe(["auto"])
    assert not isinstance(auto, LogError)


async def test_subscribers_get_changes_until_they_leave(any_core: Driven) -> None:
    heard = 0

    def listen() -> None:
        nonlocal heard
        heard += 1

    leave = any_core.core.topics.subscribe(listen)
    await any_core.create("t")
    assert heard > 0
    leave()
    before = heard
    await any_core.create("u")
    assert heard == before


async def test_config_alterations_apply_all_or_none(any_core: Driven) -> None:
    await any_core.create("t", configs={"retention.ms": "1000"})
    resource = Resource(ResourceKind.TOPIC, "t")

    async def retention() -> tuple[str | None, str]:
        (entry,) = await any_core.core.configs.describe_configs(resource, ["retention.ms"])
        return entry.value, entry.source.name

    def to(value: str | None, *, name: str = "retention.ms") -> ConfigAlteration:
        return ConfigAlteration(name, AlterOp.SET if value else AlterOp.DELETE, value)

    assert await retention() == ("1000", "DYNAMIC_TOPIC")
    with pytest.raises(InvalidConfig):
        await any_core.core.configs.alter_configs(resource, [to("2000"), to("1", name="no.such.config")])
    await any_core.core.configs.alter_configs(resource, [to("2000")], validate_only=True)
    assert await retention() == ("1000", "DYNAMIC_TOPIC")
    await any_core.core.configs.alter_configs(resource, [to("2000")])
    assert await retention() == ("2000", "DYNAMIC_TOPIC")
    await any_core.core.configs.alter_configs(resource, [to(None)])
    assert await retention() == ("604800000", "DEFAULT")
    with pytest.raises(UnknownTopicOrPartition):
        await any_core.core.configs.describe_configs(Resource(ResourceKind.TOPIC, "nothing"))
