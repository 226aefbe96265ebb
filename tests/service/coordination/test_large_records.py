"""A record that no batch can hold is refused before anything changes: the shard and its other state stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpc_api.contract.coordinator_errors import (
    CoordinatorRecordTooLarge,
    GroupMetadataTooLarge,
    OffsetMetadataTooLarge,
)
from grpc_api.contract.groups import DeleteGroup, DescribeGroup, LeavingMember, OffsetDelete, TopicPartitionIndexes
from grpc_api.contract.topics import AlterOp, ConfigAlteration, Resource, ResourceKind
from grpc_api.contract.transactions import AddPartitions, ProducerIdAndEpoch
from service.broker.partition.partition import Partition
from service.coordination.groups.classic_group import GroupState
from service.coordination.groups.rebalancing import GroupSettings
from service.coordination.outcome import CoordinatorRecord
from service.coordination.record_batches import MOST_GZIP_BYTES, encode_batch
from service.coordination.transaction_records import encode_key, encode_value
from service.coordination.transactions.shard import TIME_OUT_AGAIN_MS
from service.coordination.transactions.transaction import Transaction
from storage_tiers.errors import NotLeader
from storage_tiers.records.batch import headers
from storage_tiers.records.codecs import Codec
from storage_tiers.types import TopicPartition
from tests.service.broker.coordinators.transactional import Client
from tests.service.broker.support import running, until
from tests.service.coordination.groups.driver import Driver
from tests.service.coordination.groups.shard_driver import MINUTE, Broker, expired
from tests.service.coordination.held import CALLER
from tests.service.coordination.transactions.driver import A, C, Coordinator
from tests.support.clock import SeededRng

MANY = [TopicPartition("t", number) for number in range(200)]
ONE_PARTITION = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}


async def test_a_transaction_that_no_record_holds_leaves_the_shard_as_it_is(tmp_path: Path) -> None:
    async with running(tmp_path / "data", broker=ONE_PARTITION) as node:
        await node.create("t", partitions=200)
        one, other = await Client(node, "a").begin(), await Client(node, "b").begin()
        config = Resource(ResourceKind.TOPIC, "__transaction_state")
        await node.core.configs.alter_configs(config, [ConfigAlteration("max.message.bytes", AlterOp.SET, "400")])
        host = node.node.broker.coordinators.shards.transactions.host(0)
        before = host.look(lambda shard: shard)
        answer = await one.transactions.add_partitions(AddPartitions("a", one.producer, MANY), CALLER)
        assert isinstance(answer.error, CoordinatorRecordTooLarge)
        assert "max.message.bytes" in str(answer.error)
        assert host.look(lambda shard: shard) is before
        for client in (one, other):
            await client.add(MANY[0])
            assert await client.end(commit=True) is None
            await client.reaches("CompleteCommit")


def test_a_transaction_that_is_open_while_the_bound_falls_ends_once_it_rises() -> None:
    x = Coordinator()
    producer = x.producer(timeout_ms=1_000)
    assert x.add(producer, A, *MANY).error is None
    x.shard.bound(300)
    records = len(x.log)
    for refused in (x.end(producer), x.end(producer, version=1), x.init(), x.add(producer, C)):
        assert isinstance(refused.error, CoordinatorRecordTooLarge)
    x.wait(1_000)
    assert (len(x.log), x.status) == (records, "Ongoing")
    x.shard.bound(1 << 20)
    x.wait(TIME_OUT_AGAIN_MS)
    assert x.status == "PrepareAbort"


def test_a_decided_transaction_is_completed_once_its_record_fits() -> None:
    x = Coordinator()
    producer = x.producer()
    assert x.add(producer, A, *MANY).error is None
    assert x.end(producer).error is None
    (markers,) = x.shard.prepared()
    records = len(x.log)
    x.shard.bound(100)
    with pytest.raises(CoordinatorRecordTooLarge, match=r"max\.message\.bytes"):
        x.shard.completed(markers, x.now)
    assert (len(x.log), x.status) == (records, "PrepareCommit")
    x.shard.bound(300)  # the partitions would not fit
    x.keep(x.shard.completed(markers, x.now))
    assert x.status == "CompleteCommit"


async def test_a_completion_that_does_not_fit_is_logged_and_leaves_the_shard_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(*_: object) -> NoReturn:
        raise NotLeader("not yet")

    async def bound(most: int) -> None:
        config = Resource(ResourceKind.TOPIC, "__transaction_state")
        await node.core.configs.alter_configs(config, [ConfigAlteration("max.message.bytes", AlterOp.SET, str(most))])

    async with running(tmp_path / "data", broker=ONE_PARTITION) as node:
        await node.create("t")
        client = await Client(node, "a").begin()
        await client.add(MANY[0])
        with monkeypatch.context() as patched:
            patched.setattr(Partition, "append_marker", refuses)
            assert await client.end(commit=True) is None
            await bound(100)
        host = node.node.broker.coordinators.shards.transactions.host(0)
        before = host.look(lambda shard: shard)
        await until(lambda: "transaction.not_completed" in {record.__dict__.get("event") for record in caplog.records})
        assert host.look(lambda shard: shard) is before
        await bound(1 << 20)
        await client.reaches("CompleteCommit")


def test_an_offset_is_lowered_once_its_record_fits() -> None:
    broker = Broker()
    broker.commit(9, metadata="m" * 400)
    broker.commit(9, partition=1)
    broker.restart()
    ends = {TopicPartition("t", each): 3 for each in range(2)}
    broker.shard.bound(300)
    with pytest.raises(CoordinatorRecordTooLarge, match=r"max\.message\.bytes"):
        broker.shard.lower_offsets("g", ends, {})
    assert [broker.fetch(partition=each).offset for each in range(2)] == [9, 9]
    broker.shard.bound(1 << 20)
    broker.keep(broker.shard.lower_offsets("g", ends, {}))
    assert [broker.fetch(partition=each).offset for each in range(2)] == [3, 3]


def test_an_id_that_no_record_holds_is_not_begun() -> None:
    x = Coordinator()
    x.shard.bound(300)
    assert isinstance(x.init("x" * 300).error, CoordinatorRecordTooLarge)
    assert (x.log, list(x.shard.figures())) == ([], [])
    assert x.init("x").error is None


def test_a_commit_that_no_record_holds_is_refused_as_a_whole() -> None:
    broker = Broker()
    broker.commit(4)
    broker.shard.bound(500)
    records = len(broker.log)
    assert broker.commit(5, metadata="m" * 400) is CoordinatorRecordTooLarge
    assert broker.commit(5, metadata="m" * 400, group="new") is CoordinatorRecordTooLarge
    assert broker.commit(5, metadata="m" * 5_000) is OffsetMetadataTooLarge
    assert (len(broker.log), broker.fetch().offset) == (records, 4)
    assert broker.shard.describe(DescribeGroup("new")).error is not None
    assert broker.commit(5, metadata="m" * 100) is None
    broker.shard.bound(1 << 20)
    assert broker.commit(6, metadata="m" * 400) is None


def test_a_group_that_no_record_holds_is_not_made() -> None:
    driver = Driver(max_record_bytes=300)
    driver.join("long", group="g" * 300)
    assert driver.error("long") is GroupMetadataTooLarge
    assert (driver.records, dict(driver.groups.groups)) == ([], {})


def test_a_group_whose_record_no_longer_fits_becomes_empty_without_one() -> None:
    driver = Driver()
    (member,) = driver.stable("a")
    records = len(driver.records)
    driver.groups.rebalancing.settings = GroupSettings(max_record_bytes=50)
    driver.leave(LeavingMember(member))
    assert (driver.group.state, len(driver.records)) == (GroupState.EMPTY, records)
    assert driver.notes[-1] == "group.too_large"


def test_offsets_and_groups_whose_tombstones_do_not_fit_stay_until_they_do() -> None:
    broker = Broker()
    broker.commit(4, group="g" * 300)

    def deleted(*partitions: int) -> object:
        return broker.ask(OffsetDelete("g" * 300, [TopicPartitionIndexes("t", partitions)])).error

    def after_expiry() -> int:
        broker.keep(expired(broker.shard, "g" * 300, broker.now + 1_000 * MINUTE))
        broker.keep(broker.shard.forget_partitions("g" * 300, {TopicPartition("t", 0): 1 << 60}))
        return len(broker.log)

    broker.shard.bound(300)
    assert isinstance(broker.ask(DeleteGroup("g" * 300)).error, CoordinatorRecordTooLarge)
    assert isinstance(deleted(0, 9), CoordinatorRecordTooLarge)
    assert deleted(9) is None, "the partition has no offset, and needs no tombstone"
    assert (after_expiry(), broker.fetch(group="g" * 300).offset) == (1, 4)
    broker.shard.bound(1 << 20)
    assert deleted(0) is None
    assert broker.ask(DeleteGroup("g" * 300)).error is None


def test_an_id_whose_tombstone_does_not_fit_expires_once_it_does() -> None:
    x = Coordinator()
    x.producer()
    x.shard.bound(50)
    x.wait(x.shard.settings.expiration_ms)
    assert len(x.log) == 1
    x.shard.bound(1 << 20)
    x.wait(TIME_OUT_AGAIN_MS)
    assert (len(x.log), list(x.shard.figures())) == (2, [])


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_gzip_leaves_a_large_batch_as_it_is(codec: Codec) -> None:
    def codec_of(size: int) -> int:
        batch = encode_batch([CoordinatorRecord(b"g", bytes(size))], 1, None, codec)
        return next(header.attributes & 7 for _, header in headers(memoryview(batch)))

    assert codec_of(MOST_GZIP_BYTES - 200) == codec
    assert codec_of(MOST_GZIP_BYTES) == (Codec.NONE if codec is Codec.GZIP else codec)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.SNAPPY, Codec.ZSTD])
def test_a_batch_that_its_codec_would_enlarge_stays_as_it_is(codec: Codec) -> None:
    """The batch is already cut to the log's bound: if it were enlarged, it would exceed that bound."""
    records = [CoordinatorRecord(b"g", SeededRng(1).token(1000))]
    assert encode_batch(records, 1, None, codec) == encode_batch(records, 1, None)


names = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=249)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=50), st.dictionaries(names, st.integers(1, 200), max_size=20))
def test_the_size_of_a_transaction_is_a_little_more_than_its_records(name: str, topics: dict[str, int]) -> None:
    known, now = Transaction(name, 1 << 60, 60_000, 1 << 40), 1 << 40
    partitions = [TopicPartition(topic, number) for topic, count in topics.items() for number in range(count)]
    size = known.record_bytes(partitions)
    known.previous_id = known.next_id = (1 << 62) + 5
    known.producer = ProducerIdAndEpoch(1 << 62, 30_000)
    known.add(partitions, 2, now)
    known.prepare(commit=True, client_version=2, spare_id=(1 << 62) + 9, now_ms=now)
    written = len(encode_batch([CoordinatorRecord(encode_key(name), encode_value(known.value))], now, None))
    assert written <= size <= written + 150 + 12 * len(topics)
    assert not known.surely_fits(written - 1, ())


def test_few_partitions_fit_without_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(*_: Any) -> int:
        raise AssertionError("a transaction of few partitions is not measured at each request")

    monkeypatch.setattr(Transaction, "record_bytes", count)
    x = Coordinator()
    x.committed(x.producer(), A, *MANY)
