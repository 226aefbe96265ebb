"""Members of consumer groups in the SDK: what each reads, what is committed, and what happens when members come and go."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from grpc_api.contract.caller import Caller
from grpc_api.contract.coordinator_errors import (
    FencedInstanceId,
    GroupIdNotFound,
    IllegalGeneration,
    NonEmptyGroup,
    UnknownMemberId,
)
from grpc_api.contract.groups import DescribeGroup, HeartbeatAnswer, LeaveGroup, LeavingMember
from grpc_api.sdk.blocking import BlockingClient
from grpc_api.sdk.client import Client
from grpc_api.sdk.consumer import GroupConsumer
from grpc_api.sdk.consumer_protocol import decode_subscription
from grpc_api.sdk.values import ConsumerOptions, Message
from storage_tiers.errors import InvalidRequest, LogError, UnknownTopicOrPartition
from storage_tiers.types import TopicPartition
from tests.grpc_api.support import Served, served
from tests.service.broker.support import until

QUICK = ConsumerOptions(heartbeat_s=0.05, auto_commit_s=0.05)
COOPERATIVE = ConsumerOptions(heartbeat_s=0.05, auto_commit_s=0.05, assignors=["cooperative-sticky"])
BY_HAND = ConsumerOptions(heartbeat_s=0.05, auto_commit_s=None)
CALLER = Caller("User:ANONYMOUS", "test", "")


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Served]:
    settings = {"offsets.topic.num.partitions": "2", "group.initial.rebalance.delay.ms": "0"}
    async with served(tmp_path / "data", broker=settings) as started:
        yield started


def parts(topic: str, *numbers: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in numbers]


async def write(client: Client, topic: str, count: int, start: int = 0) -> None:
    """Writes records with their numbers as values, over all partitions."""
    every = client.topic(topic).partitions
    async with client.producer() as producer:
        for number in range(start, start + count):
            await producer.send(topic, b"%d" % number, partition=number % len(every))


async def values(consumer: GroupConsumer, count: int) -> list[int]:
    found: list[int] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found += numbers(await consumer.take())
    return found


def numbers(messages: Sequence[Message]) -> list[int]:
    return [int(message.value or b"") for message in messages]


class Member:
    """A consumer whose program notes each record."""

    def __init__(self, consumer: GroupConsumer, found: Counter[int]) -> None:
        self.consumer = consumer
        self.seen: list[int] = []
        self._found = found
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async for message in self.consumer:
            self.seen.append(int(message.value or b""))
            self._found[self.seen[-1]] += 1

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


async def all_assigned(*consumers: GroupConsumer, topic: str = "t", count: int = 4) -> None:
    """Returns once the members have all partitions, each one once."""
    await until(lambda: sorted(p for each in consumers for p in each.assignment) == parts(topic, *range(count)))


# --- reading and committing -------------------------------------------------------------------------------------------
async def test_the_next_member_resumes_where_the_last_one_left(client: Client) -> None:
    await client.create_topic("t", partitions=3)
    await client.create_topic("u")
    await write(client, "t", 100)
    await write(client, "u", 50, 100)
    async with client.consumer("g", ["t", "u"], QUICK) as consumer:
        found = await values(consumer, 150)
        assert sorted(found) == list(range(150))
        assert consumer.assignment == [*parts("t", 0, 1, 2), *parts("u", 0)]
    assert await client.group_offsets("g") == dict(
        zip([*parts("t", 0, 1, 2), *parts("u", 0)], (34, 33, 33, 50), strict=True)
    )
    await write(client, "t", 3, 500)
    async with client.consumer("g", ["t", "u"], QUICK) as consumer:
        assert sorted(await values(consumer, 3)) == [500, 501, 502]
        assert await consumer.take(timeout_s=0.05) == []
    assert (await client.group("g")).state == "Empty"


async def test_a_record_counts_as_processed_when_the_next_one_is_asked_for(client: Client) -> None:
    await client.create_topic("t")
    await write(client, "t", 10)
    with pytest.raises(ZeroDivisionError):
        async with client.consumer("g", ["t"], QUICK) as consumer:
            async for message in consumer:
                _ = 1 // (4 - message.offset)
    assert await client.group_offsets("g") == {TopicPartition("t", 0): 4}
    async with client.consumer("g", ["t"], QUICK) as consumer:
        assert (await anext(consumer)).offset == 4
    assert await client.group_offsets("g") == {TopicPartition("t", 0): 5}


async def test_processed_records_are_committed_while_the_program_waits(client: Client) -> None:
    await client.create_topic("t")
    await write(client, "t", 10)
    async with client.consumer("g", ["t"], QUICK) as consumer:
        await values(consumer, 10)
        waiting = asyncio.create_task(consumer.take())
        async with asyncio.timeout(60):
            while await client.group_offsets("g") != {TopicPartition("t", 0): 10}:
                await asyncio.sleep(0.01)
        await write(client, "t", 1, 10)
        assert numbers(await waiting) == [10]


async def test_without_automatic_commits_only_commit_commits(client: Client) -> None:
    await client.create_topic("t")
    await write(client, "t", 10)
    async with client.consumer("g", ["t"], BY_HAND) as consumer:
        await values(consumer, 10)
        await consumer.commit({TopicPartition("t", 0): 3})
    assert await client.group_offsets("g") == {TopicPartition("t", 0): 3}
    async with client.consumer("g", ["t"], BY_HAND) as consumer:
        assert await consumer.take(2) != []
        await consumer.commit()
    assert await client.group_offsets("g") == {TopicPartition("t", 0): 5}


async def test_a_consumer_may_begin_at_the_end(client: Client) -> None:
    await client.create_topic("t")
    await write(client, "t", 10)
    async with client.consumer("g", ["t"], ConsumerOptions(start="latest", heartbeat_s=0.05)) as consumer:
        assert await consumer.take(timeout_s=0.2) == []
        await until_joined(consumer)
        await write(client, "t", 1, 10)
        assert await values(consumer, 1) == [10]


async def until_joined(consumer: GroupConsumer) -> None:
    async with asyncio.timeout(60):
        while not consumer.assignment:
            await consumer.take(timeout_s=0.05)


async def test_a_member_that_waits_briefly_joins_too(tmp_path: Path) -> None:
    settings = {"offsets.topic.num.partitions": "2", "group.initial.rebalance.delay.ms": "400"}
    async with served(tmp_path / "data", broker=settings) as node, Client.connect(node.address) as client:
        await client.create_topic("t")
        await write(client, "t", 1)
        async with client.consumer("g", ["t"], QUICK) as consumer:
            assert await consumer.take(timeout_s=0.01) == []
            async with asyncio.timeout(60):
                while not (found := await consumer.take(timeout_s=0.01)):
                    pass
            assert numbers(found) == [0]
            assert len((await client.group("g")).members) == 1


# --- members come and go ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", [QUICK, COOPERATIVE], ids=["eager", "cooperative"])
async def test_members_share_the_partitions_and_read_each_record_once(
    node: Served, client: Client, options: ConsumerOptions
) -> None:
    await client.create_topic("t", partitions=4)
    found: Counter[int] = Counter()
    await write(client, "t", 40)
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(Client.connect(node.address))
        one = Member(await stack.enter_async_context(client.consumer("g", ["t"], options)), found)
        await until(lambda: len(found) == 40)
        two = Member(await stack.enter_async_context(other.consumer("g", ["t"], options)), found)
        await until(lambda: len(one.consumer.assignment) == len(two.consumer.assignment) == 2)
        await all_assigned(one.consumer, two.consumer)
        await write(client, "t", 40, 40)
        await until(lambda: len(found) == 80)
        assert len(two.seen) == 20
        assert (await client.group("g")).assignor == options.assignors[0]
        await two.stop()
        await two.consumer.close()
        with pytest.raises(InvalidRequest, match="closed"):
            await two.consumer.take()
        await until(lambda: len(one.consumer.assignment) == 4)
        await write(client, "t", 40, 80)
        await until(lambda: len(found) == 120)
        await one.stop()
    assert set(found.values()) == {1}


async def test_a_cooperative_member_keeps_its_position_by_hand(client: Client) -> None:
    """No record of a partition that it keeps over a rebalance is read twice, although nothing was committed."""
    await client.create_topic("t", partitions=4)
    await write(client, "t", 40)
    found: Counter[int] = Counter()
    options = ConsumerOptions(heartbeat_s=0.05, auto_commit_s=None, assignors=["cooperative-sticky"])
    async with client.consumer("g", ["t"], options) as first, client.consumer("g", ["t"], options) as second:
        one = Member(first, found)
        await until(lambda: len(found) == 40)
        two = Member(second, found)
        await until(lambda: len(two.seen) == 20)
        await one.stop()
        await two.stop()
        kept = {each.partition for each in first.assignment}
    assert len(one.seen) == 40
    assert {number for number, times in found.items() if times == 1} == {n for n in range(40) if n % 4 in kept}


async def test_new_partitions_are_assigned(client: Client) -> None:
    await client.create_topic("t")
    found: Counter[int] = Counter()
    async with client.consumer("g", ["t"], QUICK) as consumer:
        member = Member(consumer, found)
        await until(lambda: consumer.assignment == parts("t", 0))
        await client.add_partitions("t", 3)
        await until(lambda: consumer.assignment == parts("t", 0, 1, 2))
        await write(client, "t", 9)
        await until(lambda: len(found) == 9)
        await member.stop()


async def test_a_program_that_asks_for_no_records_loses_its_partitions(client: Client) -> None:
    await client.create_topic("t", partitions=2)
    await write(client, "t", 10)
    slow = ConsumerOptions(heartbeat_s=0.05, auto_commit_s=None, processing_s=0.2)
    async with client.consumer("g", ["t"], slow) as consumer:
        await values(consumer, 10)
        async with asyncio.timeout(60):
            while (await client.group("g")).state != "Empty":
                await asyncio.sleep(0.01)
        with pytest.raises(IllegalGeneration):
            await consumer.commit()
        assert await client.group_offsets("g") == {}
        # The consumer joins again when it asks for records, and begins at the last commit.
        assert sorted(await values(consumer, 10)) == list(range(10))


async def test_a_member_that_the_group_forgot_joins_again(client: Client) -> None:
    await client.create_topic("t")
    await write(client, "t", 5)
    async with client.consumer("g", ["t"], QUICK) as consumer:
        await values(consumer, 5)
        (member,) = (await client.group("g")).members
        membership = consumer._membership
        membership._member_id, real = "forgotten", member.member_id
        await until(lambda: membership.must_join)
        assert membership.owned == ()
        await client._core.groups.leave(LeaveGroup("g", [LeavingMember(real)]), CALLER)
        await write(client, "t", 1, 5)
        assert 5 in await values(consumer, 1)


async def test_a_static_member_comes_back_without_a_rebalance(client: Client) -> None:
    await client.create_topic("t", partitions=2)
    await write(client, "t", 4)
    static = ConsumerOptions(heartbeat_s=0.05, instance_id="i")
    async with client.consumer("g", ["t"], static) as consumer:
        assert len(await values(consumer, 4)) == 4
        generation = consumer._membership._generation
    assert (await client.group("g")).state == "Stable"
    async with client.consumer("g", ["t"], static) as consumer:
        await until_joined(consumer)
        assert consumer._membership._generation == generation
        assert consumer.assignment == parts("t", 0, 1)
        async with client.consumer("g", ["t"], static) as newer:
            await until_joined(newer)
            with pytest.raises(FencedInstanceId):
                async with asyncio.timeout(60):
                    await anext(consumer)


async def test_eager_members_own_nothing_when_they_join(client: Client) -> None:
    await client.create_topic("t", partitions=2)
    for name, options, owned in (("eager", QUICK, []), ("kept", COOPERATIVE, parts("t", 0, 1))):
        async with client.consumer(name, ["t"], options) as consumer:
            await until_joined(consumer)
            consumer._membership.must_join = True
            await consumer.take(timeout_s=0.05)
            await until_joined(consumer)
            (member,) = (await client._core.groups.describe_group(DescribeGroup(name), CALLER)).members
            assert list(decode_subscription(member.metadata).owned) == owned


async def test_after_a_failed_rebalance_nothing_is_assigned(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next commit would cover partitions that another member has by then."""
    await client.create_topic("t")
    await write(client, "t", 4)

    async def refused(partitions: object) -> dict[TopicPartition, int]:
        raise InvalidRequest("no offsets today")

    async with client.consumer("g", ["t"], QUICK) as consumer:
        await values(consumer, 4)
        with monkeypatch.context() as patched:
            patched.setattr(consumer._membership, "committed", refused)
            consumer._membership.must_join = True
            with pytest.raises(InvalidRequest, match="no offsets today"):
                await consumer.take()
            assert consumer.assignment == []
        await until_joined(consumer)
        assert consumer.position == {TopicPartition("t", 0): 4}


async def test_a_late_answer_of_an_earlier_generation_changes_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_topic("t")
    async with client.consumer("g", ["t"], BY_HAND) as consumer:
        await until_joined(consumer)
        membership = consumer._membership
        generation = membership._generation

        def late(*request: object) -> asyncio.Future[HeartbeatAnswer]:
            membership._generation = generation + 1
            answer: asyncio.Future[HeartbeatAnswer] = asyncio.get_running_loop().create_future()
            answer.set_result(HeartbeatAnswer(IllegalGeneration("of an earlier generation")))
            return answer

        with monkeypatch.context() as patched:
            patched.setattr(client._core.groups, "heartbeat", late)
            await membership.beat()
            assert (membership.must_join, membership.owned) == (False, parts("t", 0))
        membership._generation = generation


async def test_partitions_that_the_client_does_not_know_yet_are_waited_for(client: Client) -> None:
    await client.create_topic("t")
    async with client.consumer("g", ["t"], ConsumerOptions(retry_s=0.2)) as consumer:
        with pytest.raises(UnknownTopicOrPartition, match="the group assigned t-1"):
            await consumer._wait_for_metadata(parts("t", 0, 1))
    async with client.consumer("g", ["t"]) as consumer:
        waiting = asyncio.create_task(consumer._wait_for_metadata(parts("t", 0, 1)))
        await client.add_partitions("t", 2)
        await waiting


# --- the node ---------------------------------------------------------------------------------------------------------
async def test_a_consumer_continues_when_the_node_is_back(node: Served, client: Client) -> None:
    await client.create_topic("t", partitions=2)
    await write(client, "t", 20)
    found: Counter[int] = Counter()
    async with client.consumer("g", ["t"], QUICK) as consumer:
        member = Member(consumer, found)
        await until(lambda: len(found) == 20)
        for start in (20, 40):
            await node.close_connection()
            await node.come_back()
            await write(client, "t", 20, start)
            await until(lambda: len(found) == start + 20)  # noqa: B023
        await member.stop()
    assert set(found.values()) == {1}


async def test_a_node_that_stays_away_is_an_error_after_the_retry_time(node: Served, client: Client) -> None:
    await client.create_topic("t")
    async with client.consumer("g", ["t"], ConsumerOptions(heartbeat_s=0.05, retry_s=0.3)) as consumer:
        await until_joined(consumer)
        await node.close_connection()
        with pytest.raises(LogError):
            async with asyncio.timeout(60):
                await anext(consumer)
        await node.come_back()
        await write(client, "t", 1)
        found: list[int] = []
        async with asyncio.timeout(30):
            while not found:
                with suppress(LogError):  # while its channel connects again
                    found = await values(consumer, 1)
        assert found == [0]


async def test_consumers_leave_no_task_behind(node: Served, client: Client) -> None:
    await client.create_topic("t")
    async with client.consumer("g", ["t"], QUICK) as consumer:
        await until_joined(consumer)  # the groups' topic is there from here on
    tasks = len(asyncio.all_tasks())
    for _ in range(3):
        async with client.consumer("g", ["t"], QUICK) as consumer:
            await until_joined(consumer)
        async with client.consumer("g", ["t"], QUICK):
            pass  # it asks for no records, so it never joins
        assert (await client.group("g")).members == []
    await until(lambda: len(asyncio.all_tasks()) <= tasks)


# --- threads ----------------------------------------------------------------------------------------------------------
async def test_threads_use_the_same_consumer(node: Served, client: Client) -> None:
    await client.create_topic("t", partitions=2)
    await write(client, "t", 30)
    await asyncio.to_thread(in_a_thread, node.address)
    assert sum((await client.group_offsets("g")).values()) == 25


def in_a_thread(address: str) -> None:
    with BlockingClient.connect(address) as client:
        with client.consumer("g", ["t"], QUICK) as consumer:
            found = [consumer.poll(20) for _ in range(10)]
            assert all(found)
            assert consumer.assignment == parts("t", 0, 1)
            assert sum(consumer.position.values()) == 9
            consumer.commit()
            assert sum(client.group_offsets("g").values()) == 10
            for message in consumer:
                found.append(message)
                if len(found) == 20:
                    break
        with pytest.raises(ZeroDivisionError), client.consumer("g", ["t"], QUICK) as consumer:
            while True:
                rest = consumer.take(5, 20)
                found += rest
                _ = 1 // (30 - len(found))
        assert len({(each.partition, each.offset) for each in found if each}) == 30
        assert client.groups() == {"g": "Empty"}


# --- administration ---------------------------------------------------------------------------------------------------
async def test_groups_are_listed_described_moved_and_deleted(client: Client) -> None:
    await client.create_topic("t", partitions=2)
    await write(client, "t", 10)
    async with client.consumer("g", ["t"], QUICK) as consumer:
        await values(consumer, 10)
        group = await client.group("g")
        assert (group.name, group.state, group.assignor) == ("g", "Stable", "range")
        (member,) = group.members
        assert (member.client_id, member.host, member.partitions) == ("tidelog", "/127.0.0.1", parts("t", 0, 1))
        with pytest.raises(UnknownMemberId):
            await client.alter_group_offsets("g", {TopicPartition("t", 0): 1})
        with pytest.raises(NonEmptyGroup):
            await client.delete_group("g")
    assert await client.groups() == {"g": "Empty"}
    first, second = parts("t", 0, 1)
    await client.alter_group_offsets("g", {first: 2, second: None})
    async with asyncio.timeout(60):
        while await client.group_offsets("g") != {first: 2}:
            await asyncio.sleep(0.01)
    await client.alter_group_offsets("new", {second: 1})
    with pytest.raises(UnknownTopicOrPartition):
        await client.alter_group_offsets("g", {TopicPartition("t", 9): 1})
    with pytest.raises(UnknownTopicOrPartition):
        await client.alter_group_offsets("g", {TopicPartition("t", 9): None})
    await client.delete_group("g")
    async with asyncio.timeout(60):
        while await client.groups() != {"new": "Empty"}:
            await asyncio.sleep(0.01)
    with pytest.raises(GroupIdNotFound):
        await client.group("g")
    with pytest.raises(GroupIdNotFound):
        await client.delete_group("g")


# --- wrong input ------------------------------------------------------------------------------------------------------
async def test_wrong_subscriptions_are_refused(client: Client) -> None:
    async with client.consumer("g", ["nothing"], QUICK) as consumer:
        with pytest.raises(UnknownTopicOrPartition):
            await consumer.take()
        await client.create_topic("nothing")
        await until_joined(consumer)
    wrong: Sequence[Callable[[], object]] = [
        lambda: client.open_consumer("g", "t", QUICK),
        lambda: client.open_consumer("g", [], QUICK),
        lambda: client.open_consumer(7, ["t"], QUICK),  # type: ignore[arg-type]
    ]
    for each in wrong:
        with pytest.raises(InvalidRequest):
            each()
