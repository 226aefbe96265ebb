"""Leader hints (KIP-951) of Produce and Fetch, byte for byte as kio writes them."""

from __future__ import annotations

import asyncio
import io
import uuid
from typing import Any

import pytest
from kio.serial import entity_writer

from grpc_api.contract.log import Appended, Fetched
from grpc_api.contract.topics import BrokerDescription, ClusterDescription, Endpoint
from kafka_gateway.handlers.fetch import MANY
from kafka_gateway.options import Options
from storage_tiers.errors import FencedLeaderEpoch, LogError, NotLeader, UnknownLeaderEpoch
from tests.kafka_gateway.handler_client import HandlerClient
from tests.kafka_gateway.kio_frames import message, record_batch, response
from tests.kafka_gateway.memory_core import MemoryCore

BATCH = record_batch(b"a")
#: Broker 3 has no INSIDE listener.
BROKERS = (
    BrokerDescription(1, (Endpoint("PLAINTEXT", "one", 9092), Endpoint("INSIDE", "10.0.0.1", 19092))),
    BrokerDescription(2, (Endpoint("PLAINTEXT", "two", 9093), Endpoint("INSIDE", "10.0.0.2", 19093)), "rack-b"),
    BrokerDescription(3, (Endpoint("PLAINTEXT", "three", 9094),)),
)
LEADERS = {0: (2, 7), 1: (3, 4), 2: (-1, 9)}
NO_LEADER = (-1, -1)
ERRORS = [NotLeader("moved"), FencedLeaderEpoch("old"), UnknownLeaderEpoch("new")]


@pytest.fixture(autouse=True)
def three_brokers(core: MemoryCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "cluster", lambda: ClusterDescription("three", 1, BROKERS))
    monkeypatch.setattr(core, "leader", lambda partition: LEADERS.get(partition.partition, NO_LEADER))


def refusing(core: MemoryCore, monkeypatch: pytest.MonkeyPatch, errors: list[LogError | None]) -> None:
    """Partition n gets the error at index n modulo the number of errors; None refuses nothing."""

    def append(appends: Any, *, transaction: Any = None) -> Any:
        found = [errors[each.partition.partition % len(errors)] for each in appends]
        return [Appended(0, 7, -1, 0) if error is None else error for error in found]

    def fetch(wanted: Any) -> Any:
        return [Fetched(errors[each.partition.partition % len(errors)], 0, 0, 0) for each in wanted.partitions]

    monkeypatch.setattr(core, "append", append)
    monkeypatch.setattr(core, "fetch", fetch)


def topic_id(core: MemoryCore) -> uuid.UUID:
    return uuid.UUID(bytes=bytes(core.ids["first"]))


async def produced(core: MemoryCore, version: int, indexes: range, listener: str = "PLAINTEXT", acks: int = 1) -> Any:
    rows = [{"index": index, "records": BATCH} for index in indexes]
    topics = [{"name": "first", "topic_id": topic_id(core), "partition_data": rows}]
    return await read(core, "produce", version, listener, acks=acks, topic_data=topics)


async def fetched(
    core: MemoryCore, version: int, indexes: range, listener: str = "PLAINTEXT", replica: int = -1
) -> Any:
    rows = [{"partition": index, "partition_max_bytes": 1000} for index in indexes]
    topics = [{"topic": "first", "topic_id": topic_id(core), "partitions": rows}]
    asker = {"replica_id": replica, "replica_state": {"replica_id": replica, "replica_epoch": -1}}
    return await read(core, "fetch", version, listener, topics=topics, max_bytes=1 << 20, **asker)


async def read(core: MemoryCore, api: str, version: int, listener: str, **values: Any) -> Any:
    """The decoded answer; asserts that kio writes it with the same bytes."""
    options = Options()
    options.request_context.client.listener = listener
    framed = await HandlerClient(core, options).answer(api, version, **values)
    answer = response(api, version, framed[4:])
    kind = message(api, version, "response")
    header = kind.__header_schema__(correlation_id=int.from_bytes(framed[4:8], "big"))
    written = io.BytesIO()
    entity_writer(type(header))(written, header)
    entity_writer(kind)(written, answer)
    assert written.getvalue() == framed[4:]
    return answer


def partitions(answer: Any) -> list[Any]:
    (topic,) = answer.responses
    return list(topic.partition_responses if hasattr(topic, "partition_responses") else topic.partitions)


def leaders(answer: Any) -> list[tuple[int, int]]:
    return [(row.current_leader.leader_id, row.current_leader.leader_epoch) for row in partitions(answer)]


def endpoints(answer: Any) -> list[tuple[int, str, int, str | None]]:
    return [(each.node_id, each.host, each.port, each.rack) for each in answer.node_endpoints]


@pytest.mark.parametrize("version", range(3, 14))
async def test_a_refused_batch_names_the_leader_from_version_10(
    core: MemoryCore, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    refusing(core, monkeypatch, [NotLeader("moved"), None, NotLeader("none"), NotLeader("gone")])
    answer = await produced(core, version, range(4))
    assert [int(row.error_code) for row in partitions(answer)] == [6, 0, 6, 6]
    if version >= 10:
        assert leaders(answer) == [(2, 7), NO_LEADER, (-1, 9), NO_LEADER]
        assert endpoints(answer) == [(2, "two", 9093, "rack-b")]
    else:
        assert not hasattr(answer, "node_endpoints")


@pytest.mark.parametrize("version", range(4, 19))
async def test_a_refused_read_names_the_leader_from_version_16(
    core: MemoryCore, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """UNKNOWN_LEADER_EPOCH has no hint."""
    refusing(core, monkeypatch, list(ERRORS))
    answer = await fetched(core, version, range(3))
    assert [int(row.error_code) for row in partitions(answer)] == [6, 74, 75]
    if version >= 16:
        assert leaders(answer) == [(2, 7), (3, 4), NO_LEADER]
        assert endpoints(answer) == [(2, "two", 9093, "rack-b"), (3, "three", 9094, None)]
    elif version >= 12:
        assert leaders(answer) == [NO_LEADER] * 3


async def test_addresses_are_those_of_the_clients_listener(core: MemoryCore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broker 3 has no INSIDE listener, so the answer leaves out its address."""
    refusing(core, monkeypatch, [NotLeader("moved")])
    for answer in (await produced(core, 13, range(2), "INSIDE"), await fetched(core, 18, range(2), "INSIDE")):
        assert leaders(answer) == [(2, 7), (3, 4)]
        assert endpoints(answer) == [(2, "10.0.0.2", 19093, "rack-b")]


@pytest.mark.parametrize("acks", [1, -1])
async def test_a_large_request_names_leaders_too(core: MemoryCore, monkeypatch: pytest.MonkeyPatch, acks: int) -> None:
    refusing(core, monkeypatch, [NotLeader("moved"), None, None])
    count = range(2 * MANY)
    for answer in (await produced(core, 13, count, acks=acks), await fetched(core, 18, count)):
        assert len(partitions(answer)) == 2 * MANY
        assert leaders(answer)[0] == (2, 7)
        assert set(leaders(answer)[1:]) == {NO_LEADER}
        assert endpoints(answer) == [(2, "two", 9093, "rack-b")]


@pytest.mark.parametrize("version", [16, 18])
async def test_a_replica_is_named_the_leader_without_its_address(core: MemoryCore, version: int) -> None:
    answer = await fetched(core, version, range(2), replica=5)
    assert [int(row.error_code) for row in partitions(answer)] == [6, 6]
    assert leaders(answer) == [(2, 7), (3, 4)]
    assert endpoints(answer) == []


async def test_an_answer_without_errors_has_no_hints(core: MemoryCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "leader", None)
    for answer in (await produced(core, 13, range(2)), await fetched(core, 18, range(2))):
        assert leaders(answer) == [NO_LEADER] * 2
        assert endpoints(answer) == []


async def test_a_batch_whose_leader_leaves_before_its_commit_names_the_next_one(
    core: MemoryCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def append(appends: Any, *, transaction: Any = None) -> Any:
        moved = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(moved.set_exception, NotLeader("moved"))
        return [Appended(0, 7, -1, 0, moved)]

    monkeypatch.setattr(core, "append", append)
    answer = await produced(core, 13, range(1), "INSIDE", acks=-1)
    assert leaders(answer) == [(2, 7)]
    assert endpoints(answer) == [(2, "10.0.0.2", 19093, "rack-b")]
