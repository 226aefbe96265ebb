"""DescribeTopicPartitions: pages and their cursor, as in Apache Kafka 4.2.1."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from grpc_api.contract.topics import NewTopic
from kafka_gateway.options import Options
from kafka_gateway.settings import GatewaySettings
from tests.kafka_gateway.handler_client import HandlerClient
from tests.kafka_gateway.memory_core import MemoryCore

LIMIT = 2000


async def ask(
    handlers: HandlerClient, names: list[str], limit: int = LIMIT, cursor: tuple[str, int] | None = None
) -> Any:
    return await handlers.ask(
        "describe_topic_partitions",
        0,
        topics=[{"name": name} for name in names],
        response_partition_limit=limit,
        cursor=None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]},
    )


def shown(answer: Any) -> list[tuple[str, int, list[int]]]:
    return [(t.name, int(t.error_code), [p.partition_index for p in t.partitions]) for t in answer.topics]


def next_of(answer: Any) -> tuple[str, int] | None:
    cursor = answer.next_cursor
    return None if cursor is None else (cursor.topic_name, cursor.partition_index)


FIRST, SECOND = ("first", 0, [0, 1, 2]), ("second", 0, [0])


async def test_topics_come_once_in_order_of_their_names(handlers: HandlerClient, core: MemoryCore) -> None:
    answer = await ask(handlers, ["second", "first", "none", "bad name", "first"])
    assert shown(answer) == [("bad name", 17, []), FIRST, ("none", 3, []), SECOND]
    assert next_of(answer) is None
    assert [topic.topic_authorized_operations for topic in answer.topics] == [3576] * 4
    assert answer.topics[1].topic_id == uuid.UUID(bytes=bytes(core.ids["first"]))
    assert answer.topics[2].topic_id is None
    row = answer.topics[1].partitions[1]
    assert (row.leader_id, row.leader_epoch, row.replica_nodes, row.isr_nodes) == (1, 0, (1,), (1,))
    assert (row.eligible_leader_replicas, row.last_known_elr, row.offline_replicas) == ((), (), ())


@pytest.mark.parametrize(
    ("limit", "pages", "cursor"),
    [
        (1, [("first", 0, [0])], ("first", 1)),
        (2, [("first", 0, [0, 1])], ("first", 2)),
        (3, [FIRST], ("second", 0)),
        (4, [FIRST, SECOND], None),
        (0, [("first", 0, [0])], ("first", 1)),
        (-1, [("first", 0, [0])], ("first", 1)),
    ],
)
@pytest.mark.parametrize("names", [["first", "second"], []])
async def test_an_answer_is_bounded_and_has_a_cursor_for_the_next(
    handlers: HandlerClient, names: list[str], limit: int, pages: Any, cursor: tuple[str, int] | None
) -> None:
    answer = await ask(handlers, names, limit)
    assert (shown(answer), next_of(answer)) == (pages, cursor)


async def test_the_node_bounds_answers_too(core: MemoryCore) -> None:
    answer = await ask(HandlerClient(core, Options(GatewaySettings(described_partitions=2))), [])
    assert (shown(answer), next_of(answer)) == ([("first", 0, [0, 1])], ("first", 2))


@pytest.mark.parametrize(
    ("names", "cursor", "pages"),
    [
        (["first", "second"], ("first", 2), [("first", 0, [2]), SECOND]),
        (["first", "second"], ("first", 7), [("first", 0, []), SECOND]),
        (["first", "second"], ("second", 0), [SECOND]),
        ([], ("second", 0), [SECOND]),
        ([], ("go", 3), [SECOND]),
        ([], ("zz", 0), []),
    ],
)
async def test_an_answer_begins_at_its_cursor(
    handlers: HandlerClient, names: list[str], cursor: tuple[str, int], pages: Any
) -> None:
    assert shown(await ask(handlers, names, cursor=cursor)) == pages


@pytest.mark.parametrize("cursor", [("first", -1), ("go", 1)])
async def test_a_cursor_that_points_nowhere_is_refused(handlers: HandlerClient, cursor: tuple[str, int]) -> None:
    answer = await ask(handlers, ["first", "second"], cursor=cursor)
    assert shown(answer) == [("first", 42, []), ("second", 42, [])]
    assert {topic.topic_authorized_operations for topic in answer.topics} == {-2147483648}


async def test_the_pages_together_have_every_partition_once(handlers: HandlerClient, core: MemoryCore) -> None:
    await core.create([NewTopic(f"t{number}", partitions=number % 5 + 1) for number in range(12)])
    whole = {(t.name, p.partition_index) for t in (await ask(handlers, [])).topics for p in t.partitions}
    seen: list[tuple[str, int]] = []
    cursor: tuple[str, int] | None = None
    while True:
        answer = await ask(handlers, [], 4, cursor)
        seen += [(t.name, p.partition_index) for t in answer.topics for p in t.partitions]
        cursor = next_of(answer)
        if cursor is None:
            break
    assert sorted(seen) == sorted(whole)
    assert len(whole) == len(seen) > 12
