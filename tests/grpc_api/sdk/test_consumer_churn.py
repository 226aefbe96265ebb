"""Members that come, leave and lose their connections at random, while records are written: no record is lost. If no member
crashes, none is read twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from grpc_api.sdk.client import Client
from grpc_api.sdk.consumer import GroupConsumer
from grpc_api.sdk.values import ConsumerOptions
from storage_tiers.types import TopicPartition
from tests.grpc_api.support import Served, served
from tests.service.broker.support import until

PARTITIONS, MEMBERS, STEPS, RECORDS = 6, 4, 12, 60


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Served]:
    settings = {
        "offsets.topic.num.partitions": "2",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "500",
    }
    async with served(tmp_path / "data", broker=settings) as started:
        yield started


class Program:
    """Reads as a member until it is stopped; notes what it has processed."""

    def __init__(self, consumer: GroupConsumer, found: Counter[int]) -> None:
        self.consumer = consumer
        self._found = found
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async for message in self.consumer:
            self._found[int(message.value or b"")] += 1

    async def stop(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
        await self.consumer.close()

    async def crash(self) -> None:
        """The program ends without leaving the group: its session expires later, and its last reads are not committed."""
        self.consumer._membership._member_id = ""
        self.consumer._membership._generation = -1
        await self.stop()


async def churn(node: Served, client: Client, options: ConsumerOptions, seed: int, *, crashes: bool) -> Counter[int]:
    chance = random.Random(seed)
    await client.create_topic("t", partitions=PARTITIONS)
    found: Counter[int] = Counter()
    members: list[Program] = []
    written = 0
    async with client.producer() as producer:
        for _ in range(STEPS):
            if members and chance.random() < 0.4:
                leaving = members.pop(chance.randrange(len(members)))
                await (leaving.crash() if crashes and chance.random() < 0.5 else leaving.stop())
            elif len(members) < MEMBERS:
                members.append(Program(client.open_consumer("g", ["t"], options), found))
            for _ in range(RECORDS):
                await producer.send("t", b"%d" % written, partition=written % PARTITIONS)
                written += 1
            await asyncio.sleep(chance.random() * 0.2)
        await producer.flush()
    if not members:
        members.append(Program(client.open_consumer("g", ["t"], options), found))
    await until(lambda: len(found) == written or any(each.task.done() for each in members), 60)
    for each in members:
        assert not each.task.done(), each.task.exception()
        await each.stop()
    assert sum((await client.group_offsets("g")).values()) == written
    return found


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("assignors", [["range"], ["cooperative-sticky"]], ids=["eager", "cooperative"])
async def test_members_that_leave_in_peace_read_each_record_once(
    node: Served, client: Client, assignors: list[str], seed: int
) -> None:
    options = ConsumerOptions(heartbeat_s=0.05, auto_commit_s=0.05, assignors=assignors)
    found = await churn(node, client, options, seed, crashes=False)
    assert set(found.values()) == {1}


@pytest.mark.parametrize("assignors", [["range"], ["cooperative-sticky"]], ids=["eager", "cooperative"])
async def test_members_that_crash_lose_nothing(node: Served, client: Client, assignors: list[str]) -> None:
    options = ConsumerOptions(heartbeat_s=0.05, auto_commit_s=0.05, assignors=assignors, session_s=0.5)
    await churn(node, client, options, 7, crashes=True)


async def test_a_member_that_is_closed_as_a_rebalance_begins_commits(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_topic("t", partitions=1)
    async with client.producer() as producer:
        for number in range(10):
            await producer.send("t", b"%d" % number)
    consumer = client.open_consumer("g", ["t"], ConsumerOptions(heartbeat_s=30, auto_commit_s=30))
    read = 0
    while read < 10:
        read += len(await consumer.take())
    commit, blocked = consumer._membership.commit, asyncio.Event()

    async def never(*_: object, **__: object) -> None:
        blocked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(consumer._membership, "commit", never)
    consumer._membership.must_join = True
    joining = asyncio.create_task(consumer.take())
    await blocked.wait()
    monkeypatch.setattr(consumer._membership, "commit", commit)
    joining.cancel()
    with suppress(asyncio.CancelledError):
        await joining
    await consumer.close()
    assert await client.group_offsets("g") == {TopicPartition("t", 0): 10}
