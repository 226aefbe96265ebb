"""Group requests that wait for other members: they hold up no other request, their memory is counted, and they end with their
client."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from grpc_api.contract.caller import Caller
from grpc_api.contract.groups import GroupsListed, LeaveGroup, LeavingMember, ListedGroup, ListGroups, SyncGroup
from grpc_api.contract.transactions import ListedTransaction, ListTransactions, TransactionsListed
from kafka_gateway import group_messages
from kafka_gateway.messages import GROUP_REQUEST_BYTES, Messages
from kafka_gateway.options import Options
from kafka_gateway.server import GatewayServer
from service.coordination.deadlines import Timer
from service.coordination.groups import unfinished
from service.coordination.shard_state import ShardState
from storage_tiers.turns import AT_WORK, TurnScheduler
from tests.kafka_gateway.kio_frames import milliseconds, request_frame, response
from tests.kafka_gateway.memory_core import MemoryCore
from tests.kafka_gateway.server_support import Client, connected, serving, until

CALLER = Caller("User:ANONYMOUS", "c", "/h")
#: Far longer than `until` waits: no session and no rebalance ends by itself in a test.
TEN_MINUTES = milliseconds(600_000)
MANY = 20_000


def join(group: str, member: str = "", protocols: int = 1, metadata: bytes = b"") -> bytes:
    """A JoinGroup of version 3, in which a new member needs no id."""
    return request_frame(
        "join_group",
        3,
        group_id=group,
        session_timeout=TEN_MINUTES,
        rebalance_timeout=TEN_MINUTES,
        member_id=member,
        protocol_type="consumer",
        protocols=[{"name": f"p{number}", "metadata": metadata} for number in range(protocols)],
    )


@asynccontextmanager
async def with_groups(
    directory: Path, scheduler: TurnScheduler | None = None
) -> AsyncIterator[tuple[MemoryCore, GatewayServer]]:
    async with serving(directory, Options(scheduler=scheduler or TurnScheduler())) as (core, server):
        hosts = core.groups._runtime.hosts.values()
        await until(lambda: all(host.state is ShardState.ACTIVE for host in hosts))
        yield core, server


async def joined_alone(server: GatewayServer, group: str) -> str:
    """Joins the group over a connection that closes, and returns the member id. Later members wait for this member, which never
    rejoins."""
    async with connected(server) as client:
        client.send(join(group))
        body = await client.receive()
        assert body is not None
        return str(response("join_group", 3, body).member_id)


def hurried() -> TurnScheduler:
    """A scheduler whose slices end as soon as they begin, so that every request is a long one."""
    steps = itertools.count()
    return TurnScheduler(lambda: float(next(steps)))


async def test_long_requests_continue_while_large_ones_wait_for_members(tmp_path: Path) -> None:
    """Otherwise AT_WORK waiting members, of any clients, would block all long requests of the node."""
    async with with_groups(tmp_path, hurried()) as (core, server), AsyncExitStack() as stack:
        await joined_alone(server, "g")
        waiting = []
        for _ in range(AT_WORK + 1):
            client = await stack.enter_async_context(connected(server))
            client.send(join("g", protocols=50))
            waiting.append(asyncio.ensure_future(client.receive()))
        group = core.groups._host("g")._shard._groups.groups
        await until(lambda: len(group["g"].members) == AT_WORK + 2)
        other = await stack.enter_async_context(connected(server))
        found = await other.ask("describe_groups", 0, groups=[f"unknown-{number}" for number in range(1000)])
        assert len(found.groups) == 1000
        assert not any(each.done() for each in waiting)
        for each in waiting:
            each.cancel()


@pytest.mark.parametrize("scheduler", [None, hurried()], ids=["read at once", "read in slices"])
async def test_a_request_that_waits_for_members_is_counted_until_its_client_leaves(
    scheduler: TurnScheduler | None, tmp_path: Path
) -> None:
    async with with_groups(tmp_path, scheduler) as (core, server):
        await joined_alone(server, "g")
        tasks = len(asyncio.all_tasks())
        async with connected(server) as client:
            client.send(join("g", metadata=bytes(200_000)))
            await until(lambda: len(core.groups._host("g")._shard._groups.groups["g"].members) == 2)
            assert server.held_bytes >= 200_000
        await until(lambda: server.held_bytes == 0)
        await until(lambda: len(asyncio.all_tasks()) <= tasks)


@asynccontextmanager
async def a_follower(core: MemoryCore, server: GatewayServer) -> AsyncIterator[tuple[Client, dict[str, Any]]]:
    """A member whose SyncGroup will wait for the leader's, and the fields of this request."""
    async with AsyncExitStack() as stack:
        first = await joined_alone(server, "g")
        clients = [await stack.enter_async_context(connected(server)) for _ in range(2)]
        for client in clients:
            client.send(join("g"))
        group = core.groups._host("g")._shard._groups.groups["g"]
        await until(lambda: len(group.members) == 3)
        core.groups._host("g").ask(LeaveGroup("g", [LeavingMember(first)]), CALLER)
        answers = [response("join_group", 3, await client.receive() or b"") for client in clients]
        (follower,) = [each for each in zip(clients, answers, strict=True) if each[1].member_id != each[1].leader]
        client, joined = follower
        yield client, {"group_id": "g", "generation_id": 2, "member_id": joined.member_id}


async def waits_for_the_leader(core: MemoryCore) -> None:
    members = core.groups._host("g")._shard._groups.groups["g"].members
    await until(lambda: any(each.sync_waiter is not None for each in members.values()))


@pytest.mark.parametrize("scheduler", [None, hurried()], ids=["read at once", "read in slices"])
async def test_a_request_that_waits_for_the_leader_is_counted_until_its_client_leaves(
    scheduler: TurnScheduler | None, tmp_path: Path
) -> None:
    async with with_groups(tmp_path, scheduler) as (core, server):
        tasks = len(asyncio.all_tasks())
        async with a_follower(core, server) as (client, fields):
            assignments = [{"member_id": "m", "assignment": bytes(200_000)}]
            client.send(request_frame("sync_group", 3, **fields, assignments=assignments))
            await waits_for_the_leader(core)
            server._memory.reclaim(float("inf"))  # otherwise the request's receive buffer counts, too
            assert server.held_bytes >= 200_000
        await until(lambda: server.held_bytes == 0)
        await until(lambda: len(asyncio.all_tasks()) <= tasks)


def live_rows(schema: str) -> int:
    return sum(type(each).__name__ == schema for each in gc.get_objects())


@pytest.mark.parametrize(
    ("scheduler", "count"),
    [(None, 3_000), (None, 5_000), (hurried(), 5_000)],
    ids=["by the codec", "by the schema", "in slices"],
)
async def test_a_request_that_waits_keeps_no_rows(scheduler: TurnScheduler | None, count: int, tmp_path: Path) -> None:
    """Only the request's bytes are counted, and decoded empty rows take many times as much memory."""
    async with with_groups(tmp_path, scheduler) as (core, server), a_follower(core, server) as (client, fields):
        rows = [{"member_id": f"m{each}", "assignment": b""} for each in range(count)]
        client.send(request_frame("sync_group", 3, **fields, assignments=rows))
        await waits_for_the_leader(core)
        await until(lambda: live_rows("SyncGroupRequestAssignment") == 0)
        await until(lambda: not any(each.assignments for each in gc.get_objects() if type(each) is SyncGroup))
        await joined_alone(server, "h")
        async with connected(server) as other:
            other.send(join("h", protocols=50, metadata=bytes(50)))
            await until(lambda: len(core.groups._host("h")._shard._groups.groups["h"].members) == 2)
            await until(lambda: live_rows("JoinGroupRequestProtocol") == 0)


@pytest.mark.parametrize("watched_by_loop", [0, 8])
async def test_a_member_that_waits_and_leaves_is_closed_wherever_it_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watched_by_loop: int
) -> None:
    monkeypatch.setattr("kafka_gateway.server.WATCHED_BY_LOOP", watched_by_loop)
    async with with_groups(tmp_path) as (core, server):
        await joined_alone(server, "g")
        async with connected(server) as client:
            beat = await client.ask("heartbeat", 4, group_id="g", generation_id=1, member_id="unknown")
            assert int(beat.error_code) == 25
            client.send(join("g"))
            await until(lambda: len(core.groups._host("g")._shard._groups.groups["g"].members) == 2)
        await until(lambda: server.connections == 0)


async def test_a_client_that_is_leaving_stays_in_the_epoll_that_has_named_it(tmp_path: Path) -> None:
    """The other epoll would name the client in every turn of the loop, and no turn would close it."""
    async with with_groups(tmp_path) as (_, server), connected(server) as client:
        await client.ask("metadata", 1, topics=None)
        (session,) = server._sessions.values()
        for leaving, epoll in ((True, server._clients.epoll), (False, server._members.epoll)):
            session.leaving = leaving
            await client.ask("heartbeat", 4, group_id="g", generation_id=1, member_id="unknown")
            assert session.epoll is epoll


class RestingScheduler(TurnScheduler):
    """Counts the rests; from `hurry` on every slice ends as soon as it begins."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.rests = 0

    def hurry(self) -> None:
        steps = itertools.count()
        self.seconds = lambda: float(next(steps))

    async def rest(self) -> None:
        self.rests += 1
        await super().rest()


async def test_a_large_answer_to_a_member_that_waited_is_made_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_messages, "MEMBERS_AT_ONCE", 39)
    scheduler = RestingScheduler()
    async with with_groups(tmp_path, scheduler) as (core, server), AsyncExitStack() as stack:
        leading, *others = [await stack.enter_async_context(connected(server)) for _ in range(40)]
        leader = await joined_alone(server, "g")
        for client in others:
            client.send(join("g", metadata=bytes(10)))
        host = core.groups._host("g")
        await until(lambda: len(host._shard._groups.groups["g"].members) == 40)
        member = next(each for each in host._shard._groups.groups["g"].members.values() if each.member_id != leader)
        # A pending member id keeps the rebalance open, so that the leader's request waits too.
        host._shard._groups.groups["g"].pending_joins["late"] = Timer(None)
        leading.send(join("g", leader))
        await until(lambda: server.counters.requests == 41)
        assert scheduler.rests == 0 and member.join_waiter is not None
        scheduler.hurry()
        leave = LeaveGroup("g", [LeavingMember("late")])
        host.ask(leave, CALLER)
        body = await leading.receive()
        assert body is not None
        assert len(response("join_group", 3, body).members) == 40
        assert scheduler.rests > 0
        for client in others:
            answer = await client.receive()
            assert answer is not None and response("join_group", 3, answer).generation_id == 2


class Listing:
    """Counts the turns of the loop while something is listed."""

    def __init__(self) -> None:
        self.turns = 0
        self._loop = asyncio.get_running_loop()
        self._is_on = True
        self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self.turns += 1
        if self._is_on:
            self._loop.call_soon(self._turn)

    def end(self) -> int:
        self._is_on = False
        return self.turns


class ManyRows:
    """A coordinator's shard with many rows to list."""

    def __init__(self, rows: Sequence[ListedGroup | ListedTransaction]) -> None:
        self._rows = rows

    def list(self, *_: object) -> list[Sequence[ListedGroup | ListedTransaction]]:
        return [self._rows[at : at + 100] for at in range(0, len(self._rows), 100)]


@pytest.mark.parametrize("kind", ["groups", "transactions"])
async def test_groups_and_transactions_are_listed_in_slices(kind: str, tmp_path: Path) -> None:
    async with with_groups(tmp_path) as (core, _):
        service = core.groups if kind == "groups" else core.transactions
        rows = [
            ListedGroup(str(number), "", "Empty", "classic")
            if kind == "groups"
            else ListedTransaction(str(number), number, "Empty")
            for number in range(MANY)
        ]
        hosts = service._runtime.hosts.values()
        await until(lambda: all(host.state is ShardState.ACTIVE for host in hosts))
        host: Any = next(iter(hosts))
        host._shard = ManyRows(rows)
        service._scheduler = hurried()
        counting = Listing()
        if kind == "groups":
            listed: GroupsListed | TransactionsListed = await core.groups.list_groups(ListGroups(), CALLER)
            assert isinstance(listed, GroupsListed) and len(listed.groups) == MANY
        else:
            listed = await core.transactions.list(ListTransactions(), CALLER)
            assert isinstance(listed, TransactionsListed) and len(listed.transactions) == MANY
        assert counting.end() >= MANY // 100


async def test_a_request_that_is_too_large_is_refused_before_it_is_copied(tmp_path: Path) -> None:
    """A copy of 60 MiB would hold up the event loop, and no group record could hold the assignments."""
    async with with_groups(tmp_path) as (_, server), connected(server) as client:
        too_large = request_frame(
            "sync_group",
            3,
            group_id="g",
            generation_id=1,
            member_id="m",
            assignments=[{"member_id": "m", "assignment": bytes(GROUP_REQUEST_BYTES)}],
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Messages, "reading", None)
            client.send(too_large)
            assert await client.receive() is None
            assert server.counters.failures == 0


async def test_requests_of_groups_may_have_more_than_four_mebibytes(tmp_path: Path) -> None:
    """As in Kafka, such a request is judged by its contents."""
    async with with_groups(tmp_path) as (_, server), connected(server) as client:
        client.send(join("g", metadata=bytes(5 << 20)))
        joined = await client.receive()
        assert joined is not None
        (member,) = response("join_group", 3, joined).members
        assert len(member.metadata) == 5 << 20
        partitions = [
            {"partition_index": each, "committed_offset": 1, "committed_metadata": "m" * 30_000} for each in range(180)
        ]
        topics = [{"name": "t", "partitions": partitions}]
        commits: tuple[tuple[str, int, dict[str, Any]], ...] = (
            ("offset_commit", 7, {"generation_id_or_member_epoch": -1, "member_id": ""}),
            ("txn_offset_commit", 2, {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0}),
        )
        for schema, version, more in commits:
            client.send(request_frame(schema, version, group_id="g", topics=topics, **more))
            answer = await client.receive()
            assert answer is not None, schema
            (topic,) = response(schema, version, answer).topics
            assert len(topic.partitions) == 180


async def test_a_rebalance_in_steps_answers_all_members_and_what_they_ask_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unfinished, "MEMBERS_A_STEP", 3)
    async with with_groups(tmp_path) as (core, server), AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(server)) for _ in range(20)]
        leader = await joined_alone(server, "g")
        for client in clients:
            client.send(join("g"))
        group = core.groups._host("g")._shard._groups.groups["g"]
        await until(lambda: len(group.members) == 21)
        core.groups._host("g").ask(LeaveGroup("g", [LeavingMember(leader)]), CALLER)
        answers = [response("join_group", 3, await client.receive() or b"") for client in clients]
        given = [{"member_id": each.member_id, "assignment": each.member_id.encode()} for each in answers]
        for client, each in zip(clients, answers, strict=True):
            assert each.generation_id == 2
            which: dict[str, Any] = {"group_id": "g", "generation_id": 2, "member_id": each.member_id}
            rows = given if each.member_id == each.leader else []
            client.send(request_frame("sync_group", 2, **which, assignments=rows))
            client.send(request_frame("heartbeat", 2, **which))
        for client, each in zip(clients, answers, strict=True):
            synced = response("sync_group", 2, await client.receive() or b"")
            assert (int(synced.error_code), synced.assignment) == (0, each.member_id.encode())
            assert int(response("heartbeat", 2, await client.receive() or b"").error_code) == 0
