"""Many clients that send, pipeline, leave or fall idle together leave slices of the event loop to all other clients."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from pathlib import Path
from typing import Any

import pytest

from kafka_gateway.connection import PRODUCE
from kafka_gateway.message_handler import Call
from kafka_gateway.options import Options
from kafka_gateway.ready_sockets import MEMBERS_SHARE, MEMBERS_SHARE_BESIDE_OTHERS, ReadySockets
from kafka_gateway.server import GatewayServer
from kafka_gateway.session import GatewaySession
from storage_tiers.turns import AT_WORK, BEGIN_A_TURN, SLICE_S, TurnScheduler
from tests.kafka_gateway.handler_client import HandlerClient, joined
from tests.kafka_gateway.kio_frames import request_frame, response
from tests.kafka_gateway.server_support import PARTITION, PATIENCE_S, connected, metadata, produce, serving, until


async def test_clients_that_pipeline_share_a_slice_between_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound also holds when their delayed answers are made all at once: between two turns of the loop no more requests
    start than one connection alone could start."""
    monkeypatch.setattr("kafka_gateway.server.WATCHED_BY_LOOP", 0)
    readings = itertools.count()
    for module in ("server", "dispatcher"):  # each reading of the clock moves it by a slice
        monkeypatch.setattr(f"kafka_gateway.{module}.SECONDS", lambda: next(readings) * SLICE_S)
    in_turns: list[int] = []
    async with serving(tmp_path) as (core, server), contextlib.AsyncExitStack() as stack:
        committed = core.partitions[PARTITION].committed = asyncio.get_running_loop().create_future()
        clients = [await stack.enter_async_context(connected(server)) for _ in range(40)]
        for client in clients:
            client.send(produce(0, acks=-1), *(metadata(correlation) for correlation in range(1, 10)))
        await until(lambda: server.pending_replies(PRODUCE) == 40)
        started = server.counters.requests
        committed.set_result(None)
        async with asyncio.timeout(PATIENCE_S):
            while started < 400:
                await asyncio.sleep(0)
                in_turns.append(server.counters.requests - started)
                started = server.counters.requests
        for client in clients:
            assert [await client.correlation() for _ in range(10)] == list(range(10))
    assert max(in_turns) <= 4


async def test_a_connection_that_the_loop_watches_takes_its_part_of_a_slice_and_the_time_counts_as_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the few watched connections is served in a call of its own. With a whole slice each, they would hold the loop for
    eight slices together."""
    readings = itertools.count()
    for module in ("server", "dispatcher"):  # each reading of the clock moves it by a sixteenth of a slice
        monkeypatch.setattr(f"kafka_gateway.{module}.SECONDS", lambda: next(readings) * SLICE_S / 16)
    turn, in_turns, busy_s = GatewayServer._turn_of, list[int](), list[float]()

    def counted(server: GatewayServer, session: GatewaySession) -> None:
        requests, before_s = server.counters.requests, server.counters.busy_s
        turn(server, session)
        in_turns.append(server.counters.requests - requests)
        busy_s.append(server.counters.busy_s - before_s)

    monkeypatch.setattr(GatewayServer, "_turn_of", counted)
    async with serving(tmp_path) as (_, server), connected(server) as client:
        client.send(*(produce(correlation) for correlation in range(40)))
        assert [await client.correlation() for _ in range(40)] == list(range(40))
    assert sum(in_turns) > 0
    assert max(in_turns) <= 3
    assert all(each > 0 for each in busy_s)


async def test_a_short_request_whose_task_starts_late_does_not_wait_for_long_ones(tmp_path: Path) -> None:
    now = 0.0
    scheduler = TurnScheduler(lambda: now)
    async with serving(tmp_path) as (core, _):
        for _ in range(AT_WORK):
            await scheduler.turn().rest()
        rows = [{"partition_index": 0, "timestamp": -1}]
        looks_up = HandlerClient(core, Options(scheduler=scheduler)).begin(
            "list_offsets", 7, replica_id=-1, topics=[{"name": "topic", "partitions": rows}]
        )
        now += 1  # the loop was busy with others
        with pytest.raises(StopIteration) as ended:
            looks_up.send(None)
        (topic,) = response("list_offsets", 7, joined(ended.value.value)[4:]).topics
        assert [int(row.error_code) for row in topic.partitions] == [0]


async def test_the_first_slices_of_a_turn_share_a_slice() -> None:
    """Each turn begins at least one request, whatever the clock says. In the end all have begun, in order."""
    for step_s, most in ((SLICE_S / 4, 5), (SLICE_S, 1), (10 * SLICE_S, 1)):
        ticks, began, turns = itertools.count(), list[int](), list[int]()
        scheduler = TurnScheduler(lambda ticks=ticks, step_s=step_s: next(ticks) * step_s / 2)  # type: ignore[misc]

        async def request(number: int, scheduler: TurnScheduler = scheduler, began: list[int] = began) -> None:
            await scheduler.turn().begin()
            began.append(number)

        tasks = [asyncio.create_task(request(number)) for number in range(100)]
        while not all(task.done() for task in tasks):
            before = len(began)
            await asyncio.sleep(0)
            turns.append(len(began) - before)
        assert began == sorted(began) and len(began) == 100
        assert max(turns) <= 2 * most  # the observer's turn spans two of the scheduler's


async def test_a_cancelled_request_delays_no_other() -> None:
    scheduler = TurnScheduler(lambda: 0.0 if not began else 1.0)
    began: list[int] = []

    async def request(number: int) -> None:
        await scheduler.turn().begin()
        began.append(number)

    tasks = [asyncio.create_task(request(number)) for number in range(3 * BEGIN_A_TURN)]
    await asyncio.sleep(0)
    for task in tasks[: 2 * BEGIN_A_TURN]:
        task.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*tasks[2 * BEGIN_A_TURN :])
    assert began[-BEGIN_A_TURN:] == list(range(2 * BEGIN_A_TURN, 3 * BEGIN_A_TURN))


async def test_a_turn_handles_only_as_many_sockets_as_its_time_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So 2,000 clients that send at once are served over several turns, with all other work in between."""
    monkeypatch.setattr("kafka_gateway.server.SLICE_S", 0.0)
    monkeypatch.setattr("kafka_gateway.server.WATCHED_BY_LOOP", 0)
    in_turns: list[int] = []
    turn = GatewayServer._turn

    def counted(server: GatewayServer, sockets: ReadySockets) -> None:
        before = server.counters.requests
        turn(server, sockets)
        in_turns.append(server.counters.requests - before)

    monkeypatch.setattr(GatewayServer, "_turn", counted)
    async with serving(tmp_path) as (_, server), contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(server)) for _ in range(20)]
        await until(lambda: server.connections == 20)
        for correlation in range(3):
            for client in clients:
                client.send(metadata(correlation))
            assert {await client.correlation() for client in clients} == {correlation}
    assert sum(in_turns) == 60
    assert max(in_turns) == 1


async def test_thousands_of_leaving_clients_do_not_delay_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_gateway.server.WATCHED_BY_LOOP", 0)
    async with serving(tmp_path) as (_, server), contextlib.AsyncExitStack() as stack:
        leaving = [await stack.enter_async_context(connected(server)) for _ in range(200)]
        async with connected(server) as stays:
            await until(lambda: server.connections == 201)
            monkeypatch.setattr("kafka_gateway.server.SLICE_S", 0.0)
            for client in leaving:
                client.writer.transport.abort()
            while server.connections == 201:
                await asyncio.sleep(0)
            stays.send(metadata(5))
            assert await stays.correlation() == 5
            assert server.connections > 100
            await until(lambda: server.connections == 1)


async def test_thousands_of_idle_connections_are_closed_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_gateway.server.SLICE_S", 0.0)
    closed_in_turns: list[int] = []
    async with serving(tmp_path, connections_max_idle_ms=400) as (_, server), contextlib.AsyncExitStack() as stack:
        for _ in range(50):
            await stack.enter_async_context(connected(server))
        async with asyncio.timeout(PATIENCE_S):
            while server.counters.connections_closed < 50:
                before = server.counters.connections_closed
                await asyncio.sleep(0)
                closed_in_turns.append(server.counters.connections_closed - before)
    assert max(closed_in_turns) <= 2


async def test_members_of_groups_do_not_precede_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All members of a group send at once, and an epoll names them in the order in which they sent."""
    monkeypatch.setattr("kafka_gateway.server.WATCHED_BY_LOOP", 0)
    heartbeat: dict[str, Any] = {"group_id": "group", "generation_id": 1, "member_id": "member"}
    async with serving(tmp_path) as (_, server), contextlib.AsyncExitStack() as stack:
        members = [await stack.enter_async_context(connected(server)) for _ in range(50)]
        other = await stack.enter_async_context(connected(server))
        for member in members:
            await member.ask("heartbeat", 4, **heartbeat)
        monkeypatch.setattr("kafka_gateway.server.SLICE_S", 0.0)  # each turn serves one
        for asks_now in (other, members[0]):  # a client with another request no longer counts as a member
            await asks_now.ask("metadata", 1, topics=None)
            others = [member for member in members if member is not asks_now]
            before = server.counters.requests
            for member in others:
                member.send(request_frame("heartbeat", 4, **heartbeat))
            asks_now.send(metadata(5))
            assert await asks_now.correlation() == 5
            assert server.counters.requests - before < 10
            for member in others:
                assert await member.receive() is not None


async def test_other_clients_requests_come_before_each_turn_of_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members of groups have an epoll of their own. An epoll names its ready files in turn. If all clients shared one, members
    would be named again before a client that became ready during their turn, and its produce would wait for two turns."""
    monkeypatch.setattr("kafka_gateway.server.WATCHED_BY_LOOP", 0)
    serve = GatewayServer._serve_ready
    members_turns: list[int] = []

    def seen(server: GatewayServer, sockets: ReadySockets, began: float) -> None:
        if sockets is server._members:
            members_turns.append(len(server._clients.epoll.poll(0)))
        serve(server, sockets, began)

    monkeypatch.setattr(GatewayServer, "_serve_ready", seen)
    heartbeat: dict[str, Any] = {"group_id": "group", "generation_id": 1, "member_id": "member"}
    async with serving(tmp_path) as (_, server), contextlib.AsyncExitStack() as stack:
        members = [await stack.enter_async_context(connected(server)) for _ in range(20)]
        other = await stack.enter_async_context(connected(server))
        for member in members:
            await member.ask("heartbeat", 4, **heartbeat)
        monkeypatch.setattr("kafka_gateway.server.SLICE_S", 0.0)  # each turn serves one
        for member in members:
            member.send(request_frame("heartbeat", 4, **heartbeat))
        members_turns.clear()
        for correlation in range(5):
            other.send(metadata(correlation))
            assert await other.correlation() == correlation
        for member in members:
            assert await member.receive() is not None
    assert len(members_turns) >= 20
    assert not any(members_turns)


async def test_members_make_room_for_produce_and_fetch_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each member that joins asks for its coordinator first. If such requests reduced the members' share, a rebalance would
    take twice the time."""
    monkeypatch.setattr("kafka_gateway.server.WATCHED_BY_LOOP", 0)
    async with serving(tmp_path) as (_, server), connected(server) as client:
        now = asyncio.get_running_loop().time
        client.send(metadata(1))
        assert await client.correlation() == 1
        assert server._members.share(now()) == MEMBERS_SHARE
        client.send(produce(2, acks=-1))
        assert await client.correlation() == 2
        assert server._members.share(server._now) == MEMBERS_SHARE_BESIDE_OTHERS


async def test_requests_that_wait_for_a_coordinator_leave_their_places_to_other_long_ones() -> None:
    scheduler, answer = TurnScheduler(), asyncio.get_running_loop().create_future()
    unused: Any = None
    waiting = []
    for _ in range(AT_WORK):
        call = Call(unused, unused, unused, "", unused, scheduler.turn(lambda: True))
        await call.turn.rest()
        waiting.append(asyncio.create_task(call.waiting(answer)))
    other = scheduler.turn(lambda: True)
    await asyncio.wait_for(other.rest(), 30)
    other.leave()
    answer.set_result(None)
    await asyncio.gather(*waiting)
