"""The configs of groups, offsets, transactions and the cleaner take effect: one node, and one row for each config."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from grpc_api.contract.caller import Caller
from grpc_api.contract.groups import JoinGroup, MemberProtocol, OffsetCommit, OffsetFetch, PartitionCommit, TopicCommit
from grpc_api.contract.transactions import InitProducer
from service.broker.coordinators.coordinator_log import PartitionLog
from service.coordination.coordinator_runtime import partition_of
from service.metadata.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from service.serve.rounds import rounds
from storage_tiers.clock import SystemClock
from storage_tiers.compaction.protocol import CleaningRequest
from storage_tiers.records.batch import headers
from storage_tiers.records.codecs import Codec
from storage_tiers.types import TopicPartition
from tests.service.broker.api.test_configs_act import add, alter
from tests.service.broker.background.cleaner.test_cleaning import LOCAL, cleaning, closed, led, put
from tests.service.broker.support import Running, once_loaded, running, until

CALLER = Caller("User:ANONYMOUS", "app", "/127.0.0.1")
MINUTE_MS, DAY_MS = 60_000, 86_400_000
WIDE = 60


class LeapingClock(SystemClock):
    """A clock that a test moves forward."""

    ahead_ms = 0

    def unix_ms(self) -> int:
        return super().unix_ms() + self.ahead_ms

    def steady_ms(self) -> int:
        return super().steady_ms() + self.ahead_ms


class Seen(Running):
    """The node, its clock, and the requests to the cleaner process."""

    def __init__(self, node: Running, clock: LeapingClock, patch: pytest.MonkeyPatch) -> None:
        super().__init__(node.node, node.store)
        self.clock = clock
        self.patch = patch
        self.requests: list[CleaningRequest] = []
        process = cleaning(node)._process
        run = process.run

        def noted(request: CleaningRequest, *rest: Any) -> Any:
            self.requests.append(request)
            return run(request, *rest)

        patch.setattr(process, "run", noted)


Look: TypeAlias = Callable[[Seen], Awaitable[object]]


def name_of(error: object) -> str:
    return "" if error is None else type(error).__name__


# --- groups and their offsets -----------------------------------------------------------------------------------------
async def join(node: Seen, group: str, session_ms: int = 8000) -> str:
    request = JoinGroup(group, "", None, "consumer", [MemberProtocol("range", b"")], session_ms, MINUTE_MS, False)
    await once_loaded(lambda: node.core.groups.coordinator(group, CALLER))
    joined = await once_loaded(lambda: node.core.groups.join(request, CALLER))
    return name_of(joined.error)


async def commit(node: Seen, group: str, metadata: str | None = None, partitions: int = 1) -> str:
    topics = [TopicCommit("wide", [PartitionCommit(each, 5, metadata=metadata) for each in range(partitions)])]
    request = OffsetCommit(group, -1, "", None, topics)
    await once_loaded(lambda: node.core.groups.coordinator(group, CALLER))
    done = await once_loaded(lambda: node.core.groups.commit_offsets(request, CALLER))
    return name_of(done.topics[0].partitions[0].error)


async def offsets(node: Seen, group: str) -> int:
    found = await once_loaded(lambda: node.core.groups.fetch_offsets(OffsetFetch(group, None), CALLER))
    return sum(each.offset >= 0 for topic in found.topics for each in topic.partitions)


async def sessions(ends: tuple[int, int], node: Seen) -> object:
    return [await join(node, f"session-{ms}", ms) for ms in ends]


async def second_member(node: Seen) -> object:
    return [await join(node, "full"), await join(node, "full")]


async def metadata_refused(node: Seen) -> object:
    return [await commit(node, "noted", "x" * size) for size in (3, 4)]


async def kept_after(node: Seen) -> object:
    """Whether an offset is still there 89 minutes and 91 minutes after its commit."""
    assert await commit(node, "leaving") == ""
    kept = []
    for minutes in (89, 2):
        node.clock.ahead_ms += minutes * MINUTE_MS
        await node.node.broker.coordinators.offset_expiry.tick()
        await node.node.broker.coordinators.shards.groups.host(coordinator_of("leaving").partition).settled()
        kept.append(await offsets(node, "leaving"))
    return kept


async def offset_checks(node: Seen) -> object:
    return next(worker.period_s for worker in rounds(node.node) if worker.name == "offset expiry")


def coordinator_of(group: str) -> TopicPartition:
    return TopicPartition(CONSUMER_OFFSETS, partition_of(group, 3))


async def codec_of_offsets(node: Seen) -> object:
    assert await commit(node, "wide", partitions=WIDE) == ""
    kept = led_at(node, coordinator_of("wide"))
    batches = [each async for piece in PartitionLog(kept).read() for _, each in headers(memoryview(piece))]
    return {Codec(each.attributes & 7) for each in batches if each.count >= WIDE}


def led_at(node: Seen, at: TopicPartition) -> Any:
    return node.node.broker.partitions.get(at)


async def waits_for_a_commit(node: Seen) -> object:
    """The error of a commit while the disk does not answer."""
    assert await commit(node, "held") == ""
    kept = led_at(node, coordinator_of("held"))
    await alter(node, CONSUMER_OFFSETS, flush_messages="1")
    with node.patch.context() as patch:
        patch.setattr(kept, "_on_flush_needed", lambda _: None)
        topics = [TopicCommit("wide", [PartitionCommit(0, 6)])]
        answer = node.core.groups.commit_offsets(OffsetCommit("held", -1, "", None, topics), CALLER)
        await asyncio.wait({answer})
    await alter(node, CONSUMER_OFFSETS, flush_messages=None)
    kept.flushed(kept.log.end_offset)
    return name_of(answer.exception())


async def config_of(topic: str, name: str, node: Seen) -> object:
    return node.node.ground.metadata.image.topic_config(topic).get(name)


async def partitions_of(topic: str, node: Seen) -> object:
    found = node.node.ground.metadata.image.topic(topic)
    assert found is not None
    return len(found.partitions)


# --- transactions -----------------------------------------------------------------------------------------------------
async def begin(node: Seen, name: str, timeout_ms: int = 1000) -> str:
    await once_loaded(lambda: node.core.transactions.coordinator(name, CALLER))
    request = InitProducer(name, timeout_ms)
    begun = await once_loaded(lambda: node.core.transactions.init_producer(request, CALLER))
    return name_of(begun.error)


async def timeouts_refused(node: Seen) -> object:
    return [await begin(node, f"timeout-{ms}", ms) for ms in (2000, 2001)]


async def id_is_forgotten(node: Seen) -> object:
    """The errors with which an unused id is described after 59 minutes and after 61."""
    assert await begin(node, "unused") == ""
    kept = []
    for minutes in (59, 2):
        node.clock.ahead_ms += minutes * MINUTE_MS
        shard = node.node.broker.coordinators.shards.transactions.host(partition_of("unused", 2))
        shard.change(lambda state, now_ms: state.tick(now_ms))
        await shard.settled()
        kept.append(name_of((await node.core.transactions.describe("unused", CALLER)).error))
    return kept


# --- the cleaner ------------------------------------------------------------------------------------------------------
async def ordered(of: Callable[[CleaningRequest], object], node: Seen) -> object:
    """The result of `of` for the next request to the cleaner process, in a pass that finds a dirty topic."""
    node.requests.clear()
    await put(node, ("a", "1"), ("a", "2"))
    await closed(node)
    cleaning(node)._due_ms = 0
    await until(lambda: bool(node.requests) and cleaning(node)._due_ms > 0)
    return of(node.requests[0])


async def rest_after_a_pass(node: Seen) -> object:
    before = node.clock.steady_ms()
    await ordered(lambda _: None, node)
    return before + DAY_MS <= cleaning(node)._due_ms <= node.clock.steady_ms() + DAY_MS


async def young_records_are_due(node: Seen) -> object:
    """Whether fresh records are due under the broker's config, and under the topic's own config of 0."""
    await add(node, 2)
    await closed(node)
    found = []
    for own in (None, "0"):
        await alter(node, min_compaction_lag_ms=own)
        due = cleaning(node)._local(led(node))
        found.append(due is not None and due.plan.is_due)
    await alter(node, min_compaction_lag_ms=None)
    return found


async def roll_for_the_cleaner(node: Seen) -> object:
    """The ages in ms at which segments are closed, in a compacted topic and in one that is not."""
    found = [led(node).log.hot.settings.segment_ms]
    await alter(node, cleanup_policy="delete")
    found.append(led(node).log.hot.settings.segment_ms)
    await alter(node, cleanup_policy="compact")
    return found


#: The broker's config, its value, a function that observes the effect, and the expected result. Rows that move the clock
#: forward come last.
ROWS: list[tuple[str, str, Look, object]] = [
    ("group.min.session.timeout.ms", "7000", partial(sessions, (6999, 7000)), ["InvalidSessionTimeout", ""]),
    ("group.max.session.timeout.ms", "9000", partial(sessions, (9001, 9000)), ["InvalidSessionTimeout", ""]),
    ("group.max.size", "1", second_member, ["", "GroupMaxSizeReached"]),
    ("offset.metadata.max.bytes", "3", metadata_refused, ["", "OffsetMetadataTooLarge"]),
    ("offsets.commit.timeout.ms", "50", waits_for_a_commit, "CoordinatorNotAvailable"),
    ("offsets.retention.check.interval.ms", "77000", offset_checks, 77.0),
    ("offsets.topic.compression.codec", "4", codec_of_offsets, {Codec.ZSTD}),
    ("offsets.topic.num.partitions", "3", partial(partitions_of, CONSUMER_OFFSETS), 3),
    ("offsets.topic.segment.bytes", "5000001", partial(config_of, CONSUMER_OFFSETS, "segment.bytes"), "5000001"),
    ("transaction.max.timeout.ms", "2000", timeouts_refused, ["", "InvalidTransactionTimeout"]),
    ("transaction.state.log.num.partitions", "2", partial(partitions_of, TRANSACTION_STATE), 2),
    ("transaction.state.log.min.isr", "1", partial(config_of, TRANSACTION_STATE, "min.insync.replicas"), "1"),
    (
        "transaction.state.log.segment.bytes",
        "5000002",
        partial(config_of, TRANSACTION_STATE, "segment.bytes"),
        "5000002",
    ),
    ("log.cleaner.backoff.ms", str(DAY_MS), rest_after_a_pass, True),
    ("log.cleaner.dedupe.buffer.size", "3000000", partial(ordered, lambda order: order.map_bytes), 3_000_000),
    ("log.cleaner.io.buffer.load.factor", "0.5", partial(ordered, lambda order: order.map_load), 0.5),
    ("log.cleaner.io.max.bytes.per.second", "4000000", partial(ordered, lambda order: order.bytes_per_second), 4e6),
    ("log.cleaner.delete.retention.ms", "4321", partial(ordered, lambda order: order.delete_retention_ms), 4321),
    ("log.cleaner.min.compaction.lag.ms", "70000", young_records_are_due, [False, True]),
    ("log.cleaner.max.compaction.lag.ms", "80000", roll_for_the_cleaner, [80_000, 604_800_000]),
    ("transactional.id.expiration.ms", "3600000", id_is_forgotten, ["", "TransactionalIdNotFound"]),
    ("offsets.retention.minutes", "90", kept_after, [1, 0]),
]


async def test_each_config_reaches_what_acts_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = LeapingClock()
    told = {name: value for name, value, _, _ in ROWS} | {"group.initial.rebalance.delay.ms": "1"}
    async with running(tmp_path / "data", broker=told, clock=clock) as started:
        node = Seen(started, clock, monkeypatch)
        await node.create("wide", partitions=WIDE)
        own = {name: value for name, value in LOCAL.items() if name != "delete.retention.ms"}
        await node.create("t", configs=own)
        found = {name: await look(node) for name, _, look, _ in ROWS}
    assert found == {name: expected for name, _, _, expected in ROWS}
