"""The SDK's clients over three brokers, each in its own process: the address of any one broker is enough."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpc_api.sdk.blocking import BlockingClient
from grpc_api.sdk.client import Client
from grpc_api.sdk.reader import Reader
from grpc_api.sdk.values import ConsumerOptions, ProducerOptions, ReaderOptions
from storage_tiers.errors import LeaderNotAvailable, LogError
from storage_tiers.types import TopicPartition
from tests.service.cli.support import tidelog
from tests.support.clients import until
from tests.support.cluster import Cluster

PARTITIONS = 6
BROKERS = (1, 2, 3)
UNTIL_END = ReaderOptions(until_end=True)
OPTIONS = ConsumerOptions(start="earliest")
#: Bounds a wait that should end; no test waits it out.
PATIENCE_S = 60


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with Cluster(directory, f"file://{directory / 'store'}", {"group.initial.rebalance.delay.ms": 0}) as made:
        yield made


async def led_by_all(client: Client, topic: str) -> dict[int, int]:
    """Creates the topic; returns its leaders by partition."""
    await client.create_topic(topic, partitions=PARTITIONS)
    async with asyncio.timeout(PATIENCE_S):
        while {each.leader for each in client.topic(topic).partitions} != set(BROKERS):
            await asyncio.sleep(0.02)
    return {each.partition: each.leader for each in client.topic(topic).partitions}


async def send(client: Client, topic: str, count: int, first: int = 0) -> None:
    """Sends records to all partitions in turn."""
    async with client.producer() as producer:
        sent = [
            await producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
            for number in range(first, first + count)
        ]
    assert Counter(each.result().partition for each in sent) == dict.fromkeys(range(PARTITIONS), count // PARTITIONS)


async def numbers(reader: Reader) -> list[int]:
    return [int(message.value or b"") async for message in reader]


@pytest.mark.parametrize("broker", BROKERS)
async def test_records_go_to_all_leaders_and_come_from_them(cluster: Cluster, broker: int) -> None:
    async with Client.connect(cluster.nodes[broker].grpc) as client:
        topic = f"records-{broker}"
        await led_by_all(client, topic)
        await send(client, topic, 600)
        read = await numbers(client.reader(topic, options=UNTIL_END))
        assert sorted(read) == list(range(600))
        for partition in range(PARTITIONS):
            assert [each for each in read if each % PARTITIONS == partition] == list(range(partition, 600, PARTITIONS))
        assert await client.offsets(topic, "latest") == dict.fromkeys(range(PARTITIONS), 100)
        await client.delete_records(topic, 4, 30)
        assert (await client.offsets(topic, "earliest"))[4] == 30


async def test_a_reader_continues_with_records_of_all_leaders_as_they_come(cluster: Cluster) -> None:
    async with Client.connect(cluster.nodes[3].grpc) as client:
        await led_by_all(client, "followed")
        reader = client.reader("followed")
        for first in range(0, 60, PARTITIONS):
            await send(client, "followed", PARTITIONS, first)
            got: list[int] = []
            async with asyncio.timeout(PATIENCE_S):
                while len(got) < PARTITIONS:
                    got += [int(each.value or b"") for each in await reader.take()]
            assert sorted(got) == list(range(first, first + PARTITIONS))
        await reader.close()


async def test_the_bucket_is_sealed_and_shown_for_all_leaders(cluster: Cluster) -> None:
    async with Client.connect(cluster.nodes[2].grpc) as client:
        await led_by_all(client, "sealed")
        await send(client, "sealed", 12)
        assert [each.partition for each in await client.seal("sealed")] == list(range(PARTITIONS))
        manifests = await client.cold_manifests("sealed")
        assert [(each.partition, each.end) for each in manifests] == [(n, 2) for n in range(PARTITIONS)]  # type: ignore[union-attr]
        assert [each.end async for each in client.cold_segments("sealed", 5)] == [2]


async def test_a_seal_reaches_every_broker_that_answers_before_the_error_about_another_one(tmp_path: Path) -> None:
    """A program that ends at the error would otherwise end the seals of the other brokers."""
    with Cluster(tmp_path, f"file://{tmp_path / 'store'}", {"group.initial.rebalance.delay.ms": 0}) as own:
        async with Client.connect(own.nodes[2].grpc) as client:
            leaders = await led_by_all(client, "sealed")
            await send(client, "sealed", 12)
            until(lambda: list((tmp_path / "store").glob("*/topics/sealed/topic.json")) != [], "the topic's file")
            own.nodes[1].kill()
            with pytest.raises(LeaderNotAvailable):
                await client.seal("sealed")
        listed = tidelog("cold", "ls", "sealed", "--json", "--store", str(tmp_path / "store"))
    ends = {each["partition"]: each["end"] for each in json.loads(listed.out)["partitions"]}
    assert ends == {each: 2 for each, leader in leaders.items() if leader != 1}


@pytest.mark.parametrize("broker", BROKERS)
async def test_members_find_their_coordinator_and_every_group_is_listed(cluster: Cluster, broker: int) -> None:
    """The coordinators of nine groups are at several brokers."""
    async with Client.connect(cluster.nodes[broker].grpc) as client:
        topic = f"shared-{broker}"
        await led_by_all(client, topic)
        await send(client, topic, 60)
        names = [f"group-{broker}-{number}" for number in range(3)]
        for name in names:
            got: list[int] = []
            async with client.consumer(name, [topic], OPTIONS) as consumer, asyncio.timeout(PATIENCE_S):
                while len(got) < 60:
                    got += [int(each.value or b"") for each in await consumer.take()]
            assert sorted(got) == list(range(60))
            at = await client.group_offsets(name)
            assert at == {TopicPartition(topic, each): 10 for each in range(PARTITIONS)}
            assert (await client.group(name)).state == "Empty"
        assert set(names) <= set(await client.groups())
        await client.alter_group_offsets(names[0], {TopicPartition(topic, 0): 3})
        assert (await client.group_offsets(names[0]))[TopicPartition(topic, 0)] == 3
        await client.delete_group(names[1])
        assert names[1] not in await client.groups()


async def test_transactions_span_leaders_and_coordinators(cluster: Cluster) -> None:
    async with Client.connect(cluster.nodes[2].grpc) as client:
        await led_by_all(client, "paid")
        for number in range(4):
            async with client.transactional_producer(f"sdk-payer-{number}") as producer:
                for commit in (True, False):
                    try:
                        async with producer.transaction() as transaction:
                            for partition in range(PARTITIONS):
                                await transaction.send("paid", b"1" if commit else b"0", partition=partition)
                            await transaction.send_offsets(f"paying-{number}", {TopicPartition("paid", 0): 7 + commit})
                            if not commit:
                                raise RuntimeError("the program gives up")
                    except RuntimeError:
                        assert not commit
            assert await client.group_offsets(f"paying-{number}") == {TopicPartition("paid", 0): 8}
        options = ReaderOptions(until_end=True, committed_only=True)
        assert await numbers(client.reader("paid", options=options)) == [1] * 4 * PARTITIONS


def test_blocking_clients_find_all_leaders(cluster: Cluster) -> None:
    with BlockingClient.connect(cluster.nodes[3].grpc) as client:
        client.create_topic("blocking", partitions=PARTITIONS)
        with client.producer() as producer:
            sent = [producer.send("blocking", b"%d" % n, partition=n % PARTITIONS) for n in range(60)]
        assert [each.result().partition for each in sent] == [n % PARTITIONS for n in range(60)]
        with client.reader("blocking", options=UNTIL_END) as reader:
            read = [int(each.value or b"") for each in reader]
        assert sorted(read) == list(range(60))


async def test_a_dead_broker_costs_its_own_partitions_only_until_it_is_back(cluster: Cluster) -> None:
    async with Client.connect(cluster.nodes[1].grpc) as client:
        leaders = await led_by_all(client, "killed")
        lost = {partition for partition, leader in leaders.items() if leader == 2}
        reader = client.reader("killed", options=ReaderOptions(retry_s=PATIENCE_S))
        async with client.producer(ProducerOptions(delivery_timeout_s=PATIENCE_S)) as producer:
            cluster.nodes[2].kill()
            sent = {each: await producer.send("killed", b"%d" % each, partition=each) for each in range(PARTITIONS)}
            living = set(range(PARTITIONS)) - lost
            async with asyncio.timeout(PATIENCE_S):
                for each in living:
                    assert (await sent[each]).offset == 0
            assert not any(sent[each].done() for each in lost)
            cluster.nodes[2].start()
            async with asyncio.timeout(PATIENCE_S):
                for each in lost:
                    assert (await sent[each]).offset == 0
                got: set[int] = set()
                while len(got) < PARTITIONS:
                    got |= {int(message.value or b"") for message in await reader.take()}
        await reader.close()


async def test_a_reader_has_living_partitions_and_then_the_error_of_the_dead_one(cluster: Cluster) -> None:
    async with Client.connect(cluster.nodes[1].grpc) as client:
        leaders = await led_by_all(client, "half")
        await send(client, "half", PARTITIONS)
        reader = client.reader("half", start=dict.fromkeys(range(PARTITIONS), 0), options=ReaderOptions(retry_s=2))
        cluster.nodes[3].kill()
        got: set[int] = set()
        try:
            with pytest.raises(LogError):
                while True:
                    got |= {int(message.value or b"") for message in await reader.take()}
        finally:
            cluster.nodes[3].start()
        assert got >= {partition for partition, leader in leaders.items() if leader != 3}
        await reader.close()
