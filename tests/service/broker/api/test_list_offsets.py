"""Offset lookups by time, while segments move between tiers and while records are not yet committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from grpc_api.contract.log import Append, Appended, OffsetQuery, OffsetSpec
from grpc_api.contract.ready import settled
from storage_tiers.records.builder import NewRecord, build_batch
from storage_tiers.types import TimestampOffset, TopicPartition
from tests.service.broker.support import TIERED, Running, running

T0 = TopicPartition("t", 0)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path / "data") as started:
        yield started


def at(timestamp: int) -> bytes:
    return build_batch([NewRecord(b"k", b"v" * 200, timestamp=timestamp)])


async def test_records_evicted_during_a_lookup_are_still_found(node: Running) -> None:
    await node.create("t", configs=TIERED)
    # The first segment's index has the late timestamp of a record below the log start, so the lookup must read this segment,
    # and finds nothing.
    for timestamp in (9000, *range(1001, 1010)):
        await node.append_batch("t", at(timestamp))
    await node.seal("t")
    await node.evicted("t")
    await node.log.delete_records(T0, 1)
    commit = node.store.hold(1, "put", "manifests/")
    look = node.store.hold(1, "get", ".idx")
    for timestamp in range(2000, 2020):
        await node.append_batch("t", at(timestamp))
    asking = asyncio.ensure_future(node.log.list_offsets([OffsetQuery(T0, 2003)]))
    await look.reached.wait()
    commit.open()
    await node.seal("t")
    await node.evicted("t")
    look.open()
    (answer,) = await asking
    assert isinstance(answer, TimestampOffset)
    assert (answer.timestamp, answer.offset) == (2003, 13)


async def test_a_record_that_is_not_committed_has_no_timestamp_yet(node: Running) -> None:
    await node.create("t", configs={"flush.messages": "1"})
    await node.append_batch("t", at(1000))
    (waiting,) = await settled(node.log.append([Append(T0, memoryview(at(2000)))]))
    (answer,) = await node.log.list_offsets([OffsetQuery(T0, OffsetSpec.MAX_TIMESTAMP)])
    assert answer is None
    assert isinstance(waiting, Appended)
    assert waiting.committed is not None
    await waiting.committed
    (answer,) = await node.log.list_offsets([OffsetQuery(T0, OffsetSpec.MAX_TIMESTAMP)])
    assert isinstance(answer, TimestampOffset)
    assert answer.offset == 1


async def test_lookups_in_the_bucket_do_not_wait_for_each_other(node: Running) -> None:
    await node.create("t", 2, configs=TIERED)
    for partition in range(2):
        for timestamp in range(1000, 1010):
            await node.append_batch("t", at(timestamp), partition=partition)
    await node.seal("t")
    await node.evicted("t", 0)
    await node.evicted("t", 1)
    gates = [node.store.hold(1, "get", f"segments/0000{partition}/") for partition in range(2)]
    queries = [OffsetQuery(TopicPartition("t", partition), 1005) for partition in range(2)]
    asking = asyncio.ensure_future(node.log.list_offsets(queries))
    async with asyncio.timeout(60):
        for gate in gates:
            await gate.reached.wait()
    for gate in gates:
        gate.open()
    assert [answer.offset for answer in await asking if isinstance(answer, TimestampOffset)] == [5, 5]
