"""Group requests through their handlers: waiting members cost no task, and each API reports a coordinator's refusal in its own
field. `tests/differential/sessions/groups.py` has Apache Kafka's answer to each request."""

from __future__ import annotations

import asyncio
import datetime
import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from grpc_api.contract.coordinator_errors import NotCoordinator
from grpc_api.contract.request_parts import AT_ONCE
from grpc_api.contract.topics import NewTopic
from kafka_gateway.handlers import offset_fetch
from kafka_gateway.options import Options
from kafka_gateway.reply import DelayedReply
from service.coordination.shard_state import ShardState
from storage_tiers.turns import TurnScheduler
from tests.kafka_gateway.handler_client import HandlerClient
from tests.kafka_gateway.memory_core import MemoryCore

NONE, UNKNOWN_TOPIC_OR_PARTITION, NOT_COORDINATOR, INCONSISTENT_GROUP_PROTOCOL, INVALID_GROUP_ID = 0, 3, 16, 23, 24
UNKNOWN_MEMBER_ID = 25
POLICY_VIOLATION, OPERATION_NOT_ATTEMPTED = 44, 55
SUBSCRIPTION = b"\0\0\0\0\0\1\0\5first\xff\xff\xff\xff"
HALF_A_MINUTE = datetime.timedelta(seconds=30)


def join(member: str = "", group: str = "g") -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout": HALF_A_MINUTE,
        "rebalance_timeout": HALF_A_MINUTE,
        "member_id": member,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": ({"name": "range", "metadata": SUBSCRIPTION},),
    }


async def loaded(core: MemoryCore) -> None:
    """Returns once all group shards of the core are active."""
    hosts = core.groups._runtime.hosts.values()
    async with asyncio.timeout(60):
        while any(host.state is not ShardState.ACTIVE for host in hosts):
            await asyncio.sleep(0.001)


async def member(handlers: HandlerClient) -> str:
    first = await handlers.ask("join_group", 5, **join())
    joined = await handlers.ask("join_group", 5, **join(first.member_id))
    assert int(joined.error_code) == NONE
    return str(joined.member_id)


async def test_members_that_wait_cost_no_task(core: MemoryCore) -> None:
    await loaded(core)
    # With this clock requests are read at once, however busy the machine is.
    handlers = HandlerClient(core, Options(scheduler=TurnScheduler(lambda: 0.0)))
    leader = await member(handlers)
    before = len(asyncio.all_tasks())
    waiting = [handlers.begin("join_group", 3, **join()) for _ in range(50)]
    await asyncio.sleep(0)
    assert all(isinstance(reply, DelayedReply) and not reply.future.done() for reply in waiting)
    assert len(asyncio.all_tasks()) == before
    last = await handlers.ask("join_group", 3, **join(leader))
    assert len(last.members) == 51
    assert {(await reply.future).generation for reply in waiting} == {2}


async def test_a_heartbeat_is_answered_in_the_same_turn(core: MemoryCore, handlers: HandlerClient) -> None:
    await loaded(core)
    beat = {"group_id": "g", "generation_id": 1, "member_id": await member(handlers)}
    reply = handlers.begin("heartbeat", 4, **beat, group_instance_id=None)
    assert isinstance(reply, Sequence)


async def test_a_sync_that_names_the_protocols_type_and_name_is_accepted(
    core: MemoryCore, handlers: HandlerClient
) -> None:
    await loaded(core)
    sync = {"group_id": "g", "generation_id": 1, "member_id": await member(handlers), "group_instance_id": None}
    plan = ({"member_id": sync["member_id"], "assignment": b"all"},)
    without = await handlers.ask("sync_group", 5, **sync, assignments=plan, protocol_type=None, protocol_name=None)
    assert int(without.error_code) == INCONSISTENT_GROUP_PROTOCOL
    both = await handlers.ask(
        "sync_group", 5, **sync, assignments=plan, protocol_type="consumer", protocol_name="range"
    )
    assert (int(both.error_code), both.assignment) == (NONE, b"all")


async def test_a_leader_assigns_to_members_in_more_than_four_mebibytes(
    core: MemoryCore, handlers: HandlerClient
) -> None:
    await loaded(core)
    leader = await member(handlers)
    plan = tuple({"member_id": f"m{n}", "assignment": bytes(3000)} for n in range(2000))
    sync = {"group_id": "g", "generation_id": 1, "member_id": leader, "group_instance_id": None}
    answer = await handlers.ask("sync_group", 3, **sync, assignments=plan)
    assert (int(answer.error_code), answer.assignment) == (NONE, b"")


async def test_a_commit_of_many_partitions_is_answered_in_the_order_of_the_request(
    core: MemoryCore, handlers: HandlerClient
) -> None:
    await loaded(core)
    await core.create([NewTopic("wide", partitions=450)])

    def topic(name: str, count: int) -> dict[str, Any]:
        rows = [{"partition_index": n, "committed_offset": n, "committed_metadata": None} for n in range(count)]
        return {"name": name, "partitions": rows}

    commit = {"group_id": "o", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    topics = [topic("second", 2), topic("wide", 451), topic("first", 3), topic("second", 0)]
    answer = await handlers.ask("offset_commit", 8, **commit, topics=topics)
    codes = [(t.name, [(p.partition_index, int(p.error_code)) for p in t.partitions]) for t in answer.topics]
    assert codes == [
        ("second", [(0, NONE), (1, UNKNOWN_TOPIC_OR_PARTITION)]),
        ("wide", [*((n, NONE) for n in range(450)), (450, UNKNOWN_TOPIC_OR_PARTITION)]),
        ("first", [(n, NONE) for n in range(3)]),
        ("second", []),
    ]
    fetched = await handlers.ask("offset_fetch", 7, group_id="o", topics=None, require_stable=False)
    assert {t.name: [p.committed_offset for p in t.partitions] for t in fetched.topics} == {
        "first": [0, 1, 2],
        "second": [0],
        "wide": list(range(450)),
    }


async def test_a_commit_of_many_partitions_of_topics_by_id_is_answered_by_id(
    core: MemoryCore, handlers: HandlerClient
) -> None:
    await loaded(core)
    await core.create([NewTopic("wide", partitions=450)])
    rows = [{"partition_index": n, "committed_offset": n, "committed_metadata": None} for n in range(450)]
    commit = {"group_id": "o", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    wide, first = (uuid.UUID(bytes=bytes(core.ids[name])) for name in ("wide", "first"))
    topics = [{"topic_id": wide, "partitions": rows}, {"topic_id": first, "partitions": rows[:3]}]
    answer = await handlers.ask("offset_commit", 10, **commit, topics=topics)
    assert [(t.topic_id, len(t.partitions), {int(p.error_code) for p in t.partitions}) for t in answer.topics] == [
        (wide, 450, {NONE}),
        (first, 3, {NONE}),
    ]


async def test_below_version_3_the_error_of_the_member_that_leaves_is_that_of_the_answer(
    core: MemoryCore, handlers: HandlerClient
) -> None:
    await loaded(core)
    known = await member(handlers)
    codes = [
        int((await handlers.ask("leave_group", 2, group_id="g", member_id=each)).error_code) for each in ("m", known)
    ]
    assert codes == [UNKNOWN_MEMBER_ID, NONE]
    many = await handlers.ask("leave_group", 3, group_id="g", members=({"member_id": "m", "group_instance_id": None},))
    assert (int(many.error_code), [int(each.error_code) for each in many.members]) == (NONE, [UNKNOWN_MEMBER_ID])


async def test_commits_and_deletions_of_many_parts_are_answered_in_the_order_of_the_request(
    core: MemoryCore, handlers: HandlerClient
) -> None:
    await loaded(core)
    await core.create([NewTopic("wide", partitions=AT_ONCE + 100)])
    names = (("second", 2), ("wide", AT_ONCE + 101), ("first", 3))
    known = {"first": 3, "second": 1, "wide": AT_ONCE + 100}
    wanted = [
        (name, [(n, NONE if n < known[name] else UNKNOWN_TOPIC_OR_PARTITION) for n in range(count)])
        for name, count in names
    ]

    def topics(**more: Any) -> list[dict[str, Any]]:
        return [
            {"name": name, "partitions": [{"partition_index": n, **more} for n in range(count)]}
            for name, count in names
        ]

    def found(answer: Any) -> list[tuple[str, list[tuple[int, int]]]]:
        return [(t.name, [(p.partition_index, int(p.error_code)) for p in t.partitions]) for t in answer.topics]

    transaction = {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0, "generation_id": -1, "member_id": ""}
    offsets = topics(committed_offset=7, committed_metadata=None)
    assert found(await handlers.ask("txn_offset_commit", 3, group_id="o", **transaction, topics=offsets)) == wanted
    assert found(await handlers.ask("offset_delete", 0, group_id="o", topics=topics())) == wanted
    asked = {"v3_and_below_transactional_id": "x", "v3_and_below_producer_id": 1, "v3_and_below_producer_epoch": 0}
    rows = [{"name": name, "partitions": tuple(range(count))} for name, count in names]
    answer = await handlers.ask("add_partitions_to_txn", 3, **asked, v3_and_below_topics=rows)
    added = [
        (t.name, [(p.partition_index, int(p.partition_error_code)) for p in t.results_by_partition])
        for t in answer.results_by_topic_v3_and_below
    ]
    assert added == [
        (name, [(n, code or OPERATION_NOT_ATTEMPTED) for n, code in partitions]) for name, partitions in wanted
    ]


async def test_a_commit_in_a_transaction_does_not_queue_for_the_time_that_it_waits(
    core: MemoryCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its waits for the coordinator do not count as use of the event loop, so it does not queue behind long requests."""
    await loaded(core)
    now, rests = [0.0], []

    class Resting(TurnScheduler):
        async def rest(self) -> None:
            rests.append(now[0])
            await super().rest()

    async def enter(self: object, at: object, commit: object) -> None:
        now[0] += 0.01

    monkeypatch.setattr("tests.kafka_gateway.memory_groups.NoTransactions.enter", enter)
    handlers = HandlerClient(core, Options(scheduler=Resting(lambda: now[0])))
    transaction = {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0, "generation_id": -1, "member_id": ""}
    for count in (1, AT_ONCE, 2 * AT_ONCE):
        rows = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": None}] * count
        topics = [{"name": "first", "partitions": rows}]
        await handlers.ask("txn_offset_commit", 3, group_id="o", **transaction, topics=topics)
    assert not rests


async def test_a_topic_without_partitions_takes_no_answer_from_the_others(
    core: MemoryCore, handlers: HandlerClient
) -> None:
    """The group answers only for partitions; as in Kafka, a topic without partitions is left out."""
    await loaded(core)
    await core.create([NewTopic("wide", partitions=AT_ONCE + 1)])
    transaction = {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0, "generation_id": -1, "member_id": ""}

    def topics(count: int, **more: Any) -> list[dict[str, Any]]:
        rows = [{"partition_index": n, **more} for n in range(count)]
        return [{"name": "first", "partitions": []}, {"name": "wide", "partitions": rows}]

    def found(answer: Any) -> list[tuple[str, set[int], int]]:
        assert not int(getattr(answer, "error_code", NONE))
        return [(t.name, {int(p.error_code) for p in t.partitions}, len(t.partitions)) for t in answer.topics]

    for count in (1, AT_ONCE + 1):
        offsets = topics(count, committed_offset=7, committed_metadata=None)
        committed = await handlers.ask("txn_offset_commit", 3, group_id="o", **transaction, topics=offsets)
        assert found(committed) == [("wide", {NONE}, count)]
        deleted = await handlers.ask("offset_delete", 0, group_id="o", topics=topics(count))
        assert found(deleted) == [("wide", {NONE}, count)]


async def test_repeated_names_are_looked_up_once_and_each_is_answered(
    core: MemoryCore, handlers: HandlerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await loaded(core)
    looked_up: list[str] = []
    for name in ("describe_group", "fetch_offsets"):
        ask = getattr(core.groups, name)

        def counted(request: Any, caller: Any, ask: Any = ask, name: str = name) -> Any:
            looked_up.append(name)
            return ask(request, caller)

        monkeypatch.setattr(core.groups, name, counted)
    await member(handlers)
    asked: dict[str, Any] = {"groups": ("g", "h", "g", "g"), "include_authorized_operations": False}
    described = (await handlers.ask("describe_groups", 5, **asked)).groups
    assert [(each.group_id, len(each.members)) for each in described] == [("g", 1), ("h", 0), ("g", 1), ("g", 1)]
    groups = tuple({"group_id": name, "topics": None} for name in ("g", "h", "g"))
    fetched = (await handlers.ask("offset_fetch", 8, groups=groups, require_stable=False)).groups
    assert [each.group_id for each in fetched] == ["g", "h", "g"]
    assert looked_up == ["describe_group"] * 2 + ["fetch_offsets"] * 2


async def test_offsets_of_an_answer_have_a_bound(
    core: MemoryCore, handlers: HandlerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await loaded(core)
    topics = ({"name": "first", "partition_indexes": (0, 1, 2)},)
    groups = tuple({"group_id": f"g{number}", "topics": topics} for number in range(3))
    for most, code in ((9, NONE), (8, POLICY_VIOLATION)):
        monkeypatch.setattr(offset_fetch, "OFFSETS_A_REQUEST", most)
        answer = await handlers.ask("offset_fetch", 8, groups=groups, require_stable=False)
        assert [int(each.error_code) for each in answer.groups] == [code] * 3


async def test_a_group_that_does_not_exist_has_no_authorized_operations(
    core: MemoryCore, handlers: HandlerClient
) -> None:
    await loaded(core)
    for version, operations in ((5, 3400), (6, -(2**31))):
        asked = {"groups": ("nobody",), "include_authorized_operations": True}
        (found,) = (await handlers.ask("describe_groups", version, **asked)).groups
        assert (found.group_state, found.authorized_operations) == ("Dead", operations)


async def test_many_partitions_that_a_coordinator_refuses_are_all_refused(
    core: MemoryCore, handlers: HandlerClient
) -> None:
    for number in tuple(core.groups._runtime.hosts):
        core.groups._runtime.lost(number)
    rows = [{"partition_index": 0, "committed_offset": n, "committed_metadata": None} for n in range(300)]
    commit = {"group_id": "o", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    answer = await handlers.ask("offset_commit", 8, **commit, topics=[{"name": "first", "partitions": rows}])
    assert [int(p.error_code) for p in answer.topics[0].partitions] == [NOT_COORDINATOR] * 300


OFFSETS = ({"name": "first", "partition_indexes": (0,)},)
COMMITS = (
    {"name": "first", "partitions": ({"partition_index": 0, "committed_offset": 1, "committed_metadata": None},)},
)
#: An API, its version, a request, and a function that finds the answer's error codes.
REFUSED: list[tuple[str, int, dict[str, Any], Any]] = [
    ("join_group", 9, join(), lambda a: [a.error_code]),
    ("join_group", 0, join(), lambda a: [a.error_code]),
    (
        "sync_group",
        3,
        {"group_id": "g", "generation_id": 1, "member_id": "m", "assignments": ()},
        lambda a: [a.error_code],
    ),
    ("heartbeat", 0, {"group_id": "g", "generation_id": 1, "member_id": "m"}, lambda a: [a.error_code]),
    ("leave_group", 2, {"group_id": "g", "member_id": "m"}, lambda a: [a.error_code]),
    ("leave_group", 5, {"group_id": "g", "members": ()}, lambda a: [a.error_code]),
    (
        "offset_commit",
        8,
        {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "topics": COMMITS},
        lambda a: [p.error_code for t in a.topics for p in t.partitions],
    ),
    (
        "offset_fetch",
        1,
        {"group_id": "g", "topics": OFFSETS},
        lambda a: [p.error_code for t in a.topics for p in t.partitions],
    ),
    ("offset_fetch", 7, {"group_id": "g", "topics": None, "require_stable": True}, lambda a: [a.error_code]),
    (
        "offset_fetch",
        8,
        {"groups": ({"group_id": "g", "topics": None},), "require_stable": False},
        lambda a: [g.error_code for g in a.groups],
    ),
    (
        "offset_delete",
        0,
        {"group_id": "g", "topics": ({"name": "first", "partitions": ({"partition_index": 0},)},)},
        lambda a: [a.error_code],
    ),
    ("describe_groups", 6, {"groups": ("g", "h")}, lambda a: [g.error_code for g in a.groups]),
    ("delete_groups", 2, {"groups_names": ("g", "h")}, lambda a: [r.error_code for r in a.results]),
]


@pytest.mark.parametrize(("api", "version", "request_", "codes"), REFUSED, ids=lambda case: str(case)[:24])
async def test_a_broker_that_does_not_coordinate_a_group_answers_with_the_apis_own_error(
    core: MemoryCore, handlers: HandlerClient, api: str, version: int, request_: dict[str, Any], codes: Any
) -> None:
    for number in tuple(core.groups._runtime.hosts):
        core.groups._runtime.lost(number)
    found = [int(code) for code in codes(await handlers.ask(api, version, **request_))]
    assert found and set(found) == {NOT_COORDINATOR}


@pytest.mark.parametrize("version", [0, 9])
async def test_only_a_join_whose_own_fields_are_wrong_is_answered_with_its_member_id(
    core: MemoryCore, handlers: HandlerClient, version: int
) -> None:
    for number in tuple(core.groups._runtime.hosts):
        core.groups._runtime.lost(number)
    elsewhere = await handlers.ask("join_group", version, **join("m"))
    assert (int(elsewhere.error_code), elsewhere.member_id) == (NOT_COORDINATOR, "")
    nameless = await handlers.ask("join_group", version, **join("m", group=""))
    assert (int(nameless.error_code), nameless.member_id) == (INVALID_GROUP_ID, "m")


async def test_a_member_that_waits_is_sent_away_when_its_coordinator_is_lost(
    core: MemoryCore, handlers: HandlerClient
) -> None:
    await loaded(core)
    await member(handlers)
    waiting = handlers.begin("join_group", 3, **join())
    assert isinstance(waiting, DelayedReply)
    for number in tuple(core.groups._runtime.hosts):
        core.groups._runtime.lost(number)
    with pytest.raises(NotCoordinator):
        await waiting.future
