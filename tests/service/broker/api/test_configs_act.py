"""Every honoured topic config takes effect live: a change to a topic that has records applies to the records that follow.

Configs that act on single batches are in test_record_configs.py; the rules themselves are tested where they are implemented.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from grpc_api.contract.topics import AlterOp, ConfigAlteration, NewTopic, Resource, ResourceKind
from service.serve.rounds import rounds
from service.serve.servers import connection_limits
from storage_tiers.errors import InvalidRecord, InvalidRequest, LogError, TopicDeletionDisabled
from storage_tiers.hot.log import HotLog
from storage_tiers.records.batch import HEADER_BYTES, stamp_max_timestamp
from storage_tiers.records.builder import NewRecord, build_batch
from storage_tiers.types import TopicPartition
from tests.service.broker.support import Running, running, until

VALUE = b"v" * 300


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path / "data") as started:
        yield started


async def alter(node: Running, topic: str | None = "t", **values: str | None) -> None:
    """Alters the configs of a topic, or with None the defaults of all brokers."""
    resource = Resource(ResourceKind.BROKER, "") if topic is None else Resource(ResourceKind.TOPIC, topic)
    changes = [
        ConfigAlteration(name.replace("_", "."), AlterOp.DELETE if value is None else AlterOp.SET, value)
        for name, value in values.items()
    ]
    await node.core.configs.alter_configs(resource, changes)


def hot(node: Running) -> HotLog:
    return node.node.broker.partitions.get(TopicPartition("t", 0)).log.hot


async def add(node: Running, count: int = 1, *, at: int | None = None) -> None:
    """Appends records stamped now, or `at` (ms)."""
    for _ in range(count):
        when = int(time.time() * 1000) if at is None else at
        await node.append_batch("t", build_batch([NewRecord(b"k", VALUE, (), when)]))


def segments(node: Running) -> int:
    return len(hot(node).segments())


async def index_entries(node: Running) -> int:
    """The number of entries in the offset indexes of all segments, which are closed and flushed first."""
    hot(node).roll()
    await node.node.work.flusher.flush(node.node.broker.partitions.get(TopicPartition("t", 0)))
    return sum(
        path.stat().st_size // 8
        for path in (Path(node.node.ground.data.path) / "t-0").glob("*.index")
        if path.stat().st_size
    )


async def rolls_by_size(node: Running) -> bool:
    before = segments(node)
    await add(node, 6)
    return segments(node) > before


async def rolls_by_age(node: Running) -> bool:
    before = segments(node)
    for age in (90_000, 30_000, 0):
        await add(node, at=int(time.time() * 1000) - age)
    return segments(node) > before


async def waits_for_the_disk(node: Running) -> bool:
    await add(node)
    return hot(node).recovery_point == hot(node).end_offset


async def is_flushed_by_the_clock(node: Running) -> bool:
    await add(node)
    await node.node.broker.maintenance.flush_by_time()
    if hot(node).settings.flush_ms > 1000:
        return hot(node).recovery_point == hot(node).end_offset
    await until(lambda: hot(node).recovery_point == hot(node).end_offset)
    return True


async def forgets_what_is_old(node: Running) -> bool:
    await add(node, 3, at=int(time.time() * 1000) - 3_000_000)
    hot(node).roll()
    await add(node)
    await node.node.broker.retention.tick()
    return hot(node).log_start_offset > 0


async def is_offloaded(node: Running) -> bool:
    """Whether the node offloads a new record without a request."""
    await add(node)
    led = node.node.broker.partitions.get(TopicPartition("t", 0))
    clock, now = node.node.ground.host.clock, node.node.work.expiry.now
    await until(lambda: clock.steady_ms() > hot(node).segments()[-1].first_append_ms + 1)
    if not node.node.work.tiering._has_to_offload(led, now()):
        return False
    await until(lambda: led.log.tiered_end == led.log.end_offset)
    return True


#: The configs to set, a function that observes their effect, and the broker's key where it is not `log.` and the topic's key.
ACTS: list[tuple[dict[str, str], Callable[[Running], Awaitable[bool]], dict[str, str]]] = [
    ({"segment_ms": "60000"}, rolls_by_age, {"segment_ms": "log_roll_ms"}),
    (
        {"segment_index_bytes": "24", "index_interval_bytes": "0"},
        rolls_by_size,
        {"segment_index_bytes": "log_index_size_max_bytes"},
    ),
    ({"flush_messages": "1"}, waits_for_the_disk, {"flush_messages": "log_flush_interval_messages"}),
    ({"flush_ms": "0"}, is_flushed_by_the_clock, {"flush_ms": "log_flush_interval_ms"}),
    (
        {"cleanup_policy": "compact", "max_compaction_lag_ms": "60000"},
        rolls_by_age,
        {"max_compaction_lag_ms": "log_cleaner_max_compaction_lag_ms"},
    ),
    ({"retention_ms": "1000000"}, forgets_what_is_old, {}),
    ({"retention_bytes": "500"}, forgets_what_is_old, {}),
]
Case: TypeAlias = tuple[str | None, dict[str, str], Callable[[Running], Awaitable[bool]]]
CASES: list[Case] = [("t", change, acts) for change, acts, _ in ACTS]
CASES += [(None, {names.get(k, f"log_{k}"): v for k, v in change.items()}, acts) for change, acts, names in ACTS]
# No broker config allows segments this small.
CASES += [("t", {"internal_segment_bytes": "1000"}, rolls_by_size)]


@pytest.mark.parametrize(("whose", "change", "acts"), CASES, ids=[",".join(case[1]) for case in CASES])
async def test_a_config_acts_at_once_and_stops_when_it_is_deleted(
    node: Running, whose: str | None, change: dict[str, str], acts: Callable[[Running], Awaitable[bool]]
) -> None:
    """`whose` is a topic, or None for all brokers."""
    await node.create("t", configs={"remote.storage.enable": "false"})
    assert not await acts(node)
    await alter(node, whose, **change)
    assert await acts(node)
    await alter(node, whose, **dict.fromkeys(change))
    if acts is not forgets_what_is_old:
        assert not await acts(node)


async def test_index_entries_follow_the_topics_interval(node: Running) -> None:
    await node.create("t", configs={"remote.storage.enable": "false", "index.interval.bytes": "1000"})
    await add(node, 20)
    sparse = await index_entries(node)
    await alter(node, index_interval_bytes="0")
    await add(node, 20)
    assert await index_entries(node) - sparse > 3 * sparse > 0


async def test_a_topic_without_delete_in_its_policy_keeps_old_records(node: Running) -> None:
    await node.create("t", configs={"retention.ms": "1000000", "cleanup.policy": "compact"})
    assert not await forgets_what_is_old(node)
    await alter(node, cleanup_policy="compact,delete")
    assert await forgets_what_is_old(node)


async def test_local_segments_are_evicted_by_the_topics_configs(node: Running) -> None:
    await node.create("t", configs={"local.retention.ms": "-2", "local.retention.bytes": "-2"})
    for change in ({"local_retention_ms": "0"}, {"local_retention_ms": None, "local_retention_bytes": "0"}):
        await add(node, 3)
        await node.seal("t")
        assert hot(node).local_start_offset < hot(node).end_offset
        await alter(node, **change)
        await node.evicted("t")
        await alter(node, local_retention_ms="-2", local_retention_bytes="-2")


async def test_a_topics_offloads_follow_its_lag_bound_a_pause_and_the_end_of_tiering(node: Running) -> None:
    await node.create("t")
    assert not await is_offloaded(node)
    await alter(node, tidelog_tier_max_lag_ms="1")
    assert await is_offloaded(node)
    await alter(node, remote_log_copy_disable="true", local_retention_ms="0")
    assert not await is_offloaded(node)
    with pytest.raises(InvalidRequest, match=r"t has remote.log.copy.disable=true: nothing is offloaded"):
        await node.seal("t")
    await until(lambda: hot(node).local_start_offset == hot(node).end_offset - 1)  # the untiered record stays
    assert len(await node.read_all("t")) == hot(node).end_offset
    await alter(node, remote_log_copy_disable=None)
    assert await is_offloaded(node)
    await alter(node, remote_storage_enable="false")
    assert not await is_offloaded(node)
    assert len(await node.read_all("t")) == hot(node).end_offset


async def test_records_are_validated_unless_the_topic_says_header(node: Running) -> None:
    await node.create("t")
    whole = build_batch([NewRecord(b"k", VALUE, (), int(time.time() * 1000))])
    broken = bytearray(whole)
    broken[HEADER_BYTES + 5] = 0x7F  # the key's length: the record's frame no longer fits
    stamp_max_timestamp(broken, int(time.time() * 1000))
    with pytest.raises(InvalidRecord):
        await node.append_batch("t", bytes(broken))
    await alter(node, tidelog_record_validation="header")
    await node.append_batch("t", bytes(broken))


async def test_an_idle_producer_is_forgotten_after_the_brokers_time(node: Running) -> None:
    await node.create("t")
    now = int(time.time() * 1000)
    batch = build_batch([NewRecord(b"k", VALUE, (), now)], producer_id=7, producer_epoch=0, base_sequence=0)
    await node.append_batch("t", batch)
    await node.append_batch("t", batch)
    assert hot(node).end_offset == 1
    await alter(node, None, producer_id_expiration_ms="1")
    await until(lambda: int(time.time() * 1000) > now + 1)
    await node.node.broker.maintenance.checkpoint()
    await node.append_batch("t", batch)
    assert hot(node).end_offset == 2


async def test_a_partition_remembers_a_bounded_number_of_producers(
    node: Running, caplog: pytest.LogCaptureFixture
) -> None:
    await node.create("t")
    await alter(node, None, tidelog_partition_max_producer_ids="2")

    async def send(producer: int) -> int:
        """Sends the producer's first batch, for the first time or again; returns the log end offset."""
        made = [NewRecord(b"k", VALUE, (), int(time.time() * 1000))]
        await node.append_batch("t", build_batch(made, producer_id=producer, producer_epoch=0, base_sequence=0))
        return hot(node).end_offset

    assert [await send(producer) for producer in (1, 2, 1, 3)] == [1, 2, 2, 3]
    assert [await send(producer) for producer in (3, 2)] == [3, 3]
    assert await send(1) == 4, "producer 1 was idle longest"
    caplog.set_level("WARNING")
    await node.node.broker.maintenance.checkpoint()
    assert "producers.forgotten" in caplog.text


# --- brokers' configs at start ----------------------------------------------------------------------------------------


async def test_topics_are_created_with_the_brokers_defaults(tmp_path: Path) -> None:
    told = {"num.partitions": "3", "auto.create.topics.enable": "false", "delete.topic.enable": "false"}
    async with running(tmp_path / "data", broker=told) as node:
        (made,) = await node.core.topics.create([NewTopic("t")])
        assert not isinstance(made, LogError)
        assert made.partitions == 3
        await node.core.topics.auto_create(["absent"])
        (absent,) = node.core.topics.describe(["absent"])
        assert isinstance(absent, LogError)
        (kept,) = await node.core.topics.delete(["t"])
        assert isinstance(kept, TopicDeletionDisabled)
    async with running(tmp_path / "data", broker={"broker.rack": "r1"}) as node:
        await node.core.topics.auto_create(["made"])
        assert not isinstance(node.core.topics.describe(["made"])[0], LogError)
        assert not isinstance((await node.core.topics.delete(["t"]))[0], LogError)
        assert [broker.rack for broker in node.core.topics.cluster().brokers] == ["r1"]


@pytest.mark.parametrize(
    ("topic", "partitions", "own"),
    [
        ("__consumer_offsets", 7, {"cleanup.policy": "compact", "segment.bytes": "104857600"}),
        ("__transaction_state", 5, {"cleanup.policy": "compact", "min.insync.replicas": "2"}),
    ],
)
async def test_a_coordinators_topic_that_a_client_asks_for_is_made_as_its_coordinator_makes_it(
    tmp_path: Path, topic: str, partitions: int, own: dict[str, str]
) -> None:
    told = {"offsets.topic.num.partitions": "7", "transaction.state.log.num.partitions": "5"}
    async with running(tmp_path / "data", broker=told) as node:
        await node.core.topics.auto_create([topic])
        (made,) = node.core.topics.describe([topic])
        assert not isinstance(made, LogError)
        assert (len(made.partitions), made.internal) == (partitions, True)
        assert own.items() <= dict(node.node.ground.metadata.image.topic_config(topic)).items()


async def test_connection_bounds_follow_dynamic_configs(node: Running) -> None:
    await alter(
        node,
        None,
        max_connections="70",
        max_connections_per_ip="7",
        max_connections_per_ip_overrides="10.0.0.1:3,[::1]:4",
        max_connection_creation_rate="5",
    )
    limits = connection_limits(node.node)
    assert (limits.total, limits.per_address, limits.a_second) == (70, 7, 5)
    assert limits.overrides == {"10.0.0.1": 3, "::1": 4}
    with pytest.raises(InvalidRequest, match=r"'x' does not appear to be an IPv4 or IPv6 address"):
        await alter(node, None, max_connections_per_ip_overrides="x:3")


async def test_rounds_follow_the_configured_interval(tmp_path: Path) -> None:
    told = {
        "log.retention.check.interval.ms": "7000",
        "log.flush.offset.checkpoint.interval.ms": "9000",
        "log.flush.start.offset.checkpoint.interval.ms": "5000",
    }
    async with running(tmp_path / "data", broker=told) as node:
        periods = {worker.name: worker.period_s for worker in rounds(node.node)}
    assert (periods["retention"], periods["checkpoints"]) == (7.0, 5.0)
