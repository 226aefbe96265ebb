"""Requests of thousands of rows for groups and transactions: no turn of the event loop works on all of them."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from grpc_api.contract.caller import Caller
from grpc_api.contract.groups import LeaveGroup, Left
from grpc_api.contract.request_parts import parts_of
from kafka_gateway.errors import ErrorCode
from storage_tiers.turns import SLICE_S, TurnScheduler
from tests.kafka_gateway.kio_frames import request_frame, response
from tests.kafka_gateway.server_support import connected
from tests.kafka_gateway.test_waiting_groups import hurried, joined_alone, with_groups

#: Rows of a request, and the most calls that a turn may make: fewer than two for each row.
ROWS = 8_000
CALLS = 12_000
_GROUP: dict[str, Any] = {"group_id": "g"}
_TRANSACTION: dict[str, Any] = {"producer_id": 1, "producer_epoch": 0}
_NUMBERS = range(ROWS)

#: By name: schema, version and fields.
LONG: dict[str, tuple[str, int, dict[str, Any]]] = {
    "offsets of one topic": (
        "offset_fetch",
        8,
        {"groups": [{"group_id": "g", "topics": [{"name": "topic", "partition_indexes": list(_NUMBERS)}]}]},
    ),
    "offsets of many topics": (
        "offset_fetch",
        7,
        {**_GROUP, "topics": [{"name": f"t{each}", "partition_indexes": [0]} for each in _NUMBERS]},
    ),
    "offsets in a transaction": (
        "txn_offset_commit",
        3,
        {
            **_GROUP,
            **_TRANSACTION,
            "transactional_id": "x",
            "generation_id": -1,
            "topics": [
                {
                    "name": "topic",
                    "partitions": [
                        {"partition_index": each % 2, "committed_offset": 1, "committed_metadata": None}
                        for each in _NUMBERS
                    ],
                }
            ],
        },
    ),
    "offsets to delete": (
        "offset_delete",
        0,
        {
            **_GROUP,
            "topics": [{"name": "topic", "partitions": [{"partition_index": each % 9} for each in _NUMBERS]}],
        },
    ),
    "partitions to add": (
        "add_partitions_to_txn",
        3,
        {
            "v3_and_below_transactional_id": "x",
            "v3_and_below_producer_id": 1,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [{"name": "topic", "partitions": list(_NUMBERS)}],
        },
    ),
    "partitions to verify": (
        "add_partitions_to_txn",
        5,
        {
            "transactions": [
                {
                    **_TRANSACTION,
                    "transactional_id": "x",
                    "verify_only": True,
                    "topics": [{"name": f"t{each}", "partitions": [0]} for each in _NUMBERS],
                }
            ]
        },
    ),
    "transactions to verify": (
        "add_partitions_to_txn",
        5,
        {
            "transactions": [
                {
                    **_TRANSACTION,
                    "transactional_id": f"x{each}",
                    "verify_only": True,
                    "topics": [{"name": "unknown", "partitions": [0]}],
                }
                for each in _NUMBERS
            ]
        },
    ),
    "offsets of unknown topics in a transaction": (
        "txn_offset_commit",
        3,
        {
            **_GROUP,
            **_TRANSACTION,
            "transactional_id": "x",
            "generation_id": -1,
            "topics": [
                {
                    "name": f"unknown-{each}",
                    "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": None}],
                }
                for each in _NUMBERS
            ],
        },
    ),
    "partitions to mark": (
        "write_txn_markers",
        1,
        {
            "markers": [
                {
                    **_TRANSACTION,
                    "transaction_result": False,
                    "coordinator_epoch": 0,
                    "topics": [{"name": "topic", "partition_indexes": list(_NUMBERS)}],
                }
            ]
        },
    ),
    "members that leave": (
        "leave_group",
        5,
        {**_GROUP, "members": [{"member_id": f"m{each}", "group_instance_id": None} for each in _NUMBERS]},
    ),
}

#: Requests like those of LONG, whose answers have no rows.
REFUSED: dict[str, tuple[str, int, dict[str, Any]]] = {
    "states of groups to list": ("list_groups", 5, {"states_filter": [f"Unknown-{each}" for each in _NUMBERS]}),
    "types of groups to list": ("list_groups", 5, {"types_filter": [f"Unknown-{each}" for each in _NUMBERS]}),
    "protocols of a member": (
        "join_group",
        5,
        {
            **_GROUP,
            "protocol_type": "consumer",
            "protocols": [{"name": f"p{each}", "metadata": b""} for each in _NUMBERS],
        },
    ),
}


class CallsATurn:
    """The most calls of functions, Python's and built-in ones, in one turn of the loop."""

    def __init__(self) -> None:
        self.most = self._calls = 0
        self._loop = asyncio.get_running_loop()
        self.is_on = True
        self._turn()

    def _turn(self) -> None:
        self.most, self._calls = max(self.most, self._calls), 0
        if self.is_on:
            self._loop.call_soon(self._turn)

    def count(self, _: object, event: str, __: object) -> None:
        self._calls += event in ("call", "c_call")


@contextmanager
def counted() -> Iterator[CallsATurn]:
    calls = CallsATurn()
    sys.setprofile(calls.count)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        calls.is_on = False


@pytest.mark.parametrize("name", LONG | REFUSED)
async def test_rows_of_a_long_request_share_no_turn_of_the_loop(name: str, tmp_path: Path) -> None:
    schema, version, fields = LONG.get(name) or REFUSED[name]
    request = request_frame(schema, version, **fields)
    async with with_groups(tmp_path, hurried()) as (core, server), connected(server) as client:
        core.groups._scheduler = core.transactions._scheduler = hurried()
        await joined_alone(server, "g")
        with counted() as calls:
            client.send(request)
            body = await client.receive()
        assert body is not None
        assert rows_of(response(schema, version, body)) == (ROWS if name in LONG else 0)
        assert calls.most < CALLS


@pytest.mark.parametrize("name", ["transactions to verify", "offsets of unknown topics in a transaction"])
async def test_an_answer_that_is_there_at_once_does_not_renew_the_slice(name: str, tmp_path: Path) -> None:
    """Otherwise thousands of rows that the coordinator refuses would be one step. Each reading of the clock moves it by a
    fortieth of a slice."""
    schema, version, fields = LONG[name]
    request, ticks = request_frame(schema, version, **fields), itertools.count()
    scheduler = TurnScheduler(lambda: next(ticks) * SLICE_S / 40)
    async with with_groups(tmp_path, scheduler) as (_, server), connected(server) as client:
        await joined_alone(server, "g")
        with counted() as calls:
            client.send(request)
            assert await client.receive() is not None
        # The decoder reads the clock every sixteen rows: the longest turn is a whole slice of decoding.
        assert calls.most < 6 * CALLS


async def test_members_that_leave_in_one_request_leave_in_one_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise another request of the group could come in between, and find a membership that no request asked for."""
    schema, version, fields = LONG["members that leave"]
    decided: list[LeaveGroup] = []
    async with with_groups(tmp_path, hurried()) as (core, server), connected(server) as client:
        leave = core.groups.leave

        def decide(asked: LeaveGroup, caller: Caller) -> asyncio.Future[Left]:
            decided.append(asked)
            return leave(asked, caller)

        monkeypatch.setattr(core.groups, "leave", decide)
        await client.ask(schema, version, **fields)
    assert [[each.member_id for each in asked.members] for asked in decided] == [[f"m{each}" for each in _NUMBERS]]


async def test_an_answer_of_too_many_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a request that repeats one name would keep one of the few slots for long requests busy for minutes."""
    async with with_groups(tmp_path) as (_, server), connected(server) as client:
        await joined_alone(server, "g")
        asked: dict[str, Any] = {"groups": ["g"] * 100, "include_authorized_operations": False}
        for most, code in ((200, 0), (199, int(ErrorCode.POLICY_VIOLATION))):
            monkeypatch.setattr("kafka_gateway.message_writer.ANSWER_ROWS", most)
            groups = (await client.ask("describe_groups", 5, **asked)).groups
            assert [int(each.error_code) for each in groups] == [code] * 100


def rows_of(answer: Any) -> int:
    """The innermost rows of an answer."""
    fields = [getattr(answer, name) for name in getattr(answer, "__slots__", ())]
    arrays = [each for each in fields if isinstance(each, tuple)]
    return sum(rows_of(row) for rows in arrays for row in rows) if arrays else 1


@pytest.mark.parametrize("counts", [[], [0], [3], [1, 0, 4], [5, 5], [2] * 7])
def test_parts_have_all_rows_in_order(counts: list[int]) -> None:
    topics = [(f"t{at}", list(range(count))) for at, count in enumerate(counts)]
    parts = list(parts_of(topics, most=3))
    rows: dict[str, list[int]] = {}
    for part in parts:
        assert 0 < sum(max(1, len(each.partitions)) for each in part) <= 3
        for at, topic, partitions in part:
            assert topic == topics[at][0]
            rows.setdefault(topic, []).extend(partitions)
    assert rows == dict(topics)
