"""Commands of one broker that share calls to the controller."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from grpc import StatusCode
from grpc.aio import AioRpcError, Metadata

from grpc_api.contract.topics import NewTopic
from grpc_api.servicers.errors import DEFECT
from service.controller import controller_pb2 as pb
from service.controller.client import MAX_CALL_BYTES, MAX_CALLS, MAX_COMMANDS
from service.controller.limits import MAX_COMMANDS_OF_A_CALL
from service.metadata import commands
from service.metadata.commands import AllocateProducerIds, Command, CreateTopic, DeleteTopic
from service.metadata.controller import MAX_UNCONFIRMED_COMMANDS
from storage_tiers.errors import LeaderNotAvailable, LogError, UnknownTopicOrPartition
from tests.service.broker.support import until
from tests.service.controller.support import Following, controlling, following
from tests.service.metadata.records import topic_id


class Gate:
    """The `Execute` of a broker's stub: notes each call, and sends it once `opened`. The answers to the first `lost`
    calls do not arrive."""

    def __init__(self, one: Following, lost: int = 0) -> None:
        self._execute = one.remote._stub.Execute
        self._lost = lost
        self.opened = asyncio.Event()
        self.calls: list[pb.ExecuteRequest] = []
        one.remote._stub.Execute = self

    async def __call__(self, request: pb.ExecuteRequest, **how: Any) -> pb.ExecuteReply:
        self.calls.append(request)
        await self.opened.wait()
        reply: pb.ExecuteReply = await self._execute(request, **how)
        if len(self.calls) <= self._lost:
            raise AioRpcError(StatusCode.UNAVAILABLE, Metadata(), Metadata(), "the connection broke")
        return reply

    @property
    def sizes(self) -> list[int]:
        return [len(each.commands) for each in self.calls]


async def _ready(one: Following) -> None:
    await until(lambda: not one.remote.fenced)


def _asked(one: Following, count: int) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(one.remote.execute(AllocateProducerIds(1))) for _ in range(count)]


async def _result(asked: asyncio.Task[Any]) -> Any:
    """The command's result, or its error."""
    try:
        return await asked
    except LogError as error:
        return error


async def test_commands_that_arrive_during_calls_share_the_next_one(tmp_path: Path) -> None:
    async with controlling(tmp_path) as controller, following(controller.address, 1) as one:
        await _ready(one)
        gate = Gate(one)
        asked = _asked(one, MAX_CALLS + MAX_COMMANDS_OF_A_CALL + 3)
        await until(lambda: len(one.remote._queue) == MAX_COMMANDS_OF_A_CALL + 3)
        assert gate.sizes == [1] * MAX_CALLS
        gate.opened.set()
        blocks = await asyncio.gather(*asked)
        assert gate.sizes == [1] * MAX_CALLS + [MAX_COMMANDS_OF_A_CALL, 3]
        assert sorted(each.first for each in blocks) == [1000 * each for each in range(len(asked))]
        assert (one.remote._calls, one.remote._tasks) == (0, set())


async def test_a_large_command_has_a_call_of_its_own(tmp_path: Path) -> None:
    async with controlling(tmp_path) as controller, following(controller.address, 1) as one:
        await _ready(one)
        gate = Gate(one)
        topics = [NewTopic(f"t{each}", 1, 1, {"retention.ms": "1" * MAX_CALL_BYTES}) for each in range(2)]
        asked = _asked(one, MAX_CALLS)
        asked += [asyncio.create_task(one.remote.execute(CreateTopic(new, topic_id(1)))) for new in topics]
        asked += _asked(one, 2)
        await until(lambda: len(one.remote._queue) == 4)
        gate.opened.set()
        await asyncio.gather(*asked, return_exceptions=True)
        assert gate.sizes == [1, 1, 1, 1, 2]


async def test_one_refused_command_and_one_defect_leave_the_others_of_their_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan = commands.plan

    def broken(image: Any, command: Command[Any], configs: Any) -> Any:
        if command == DeleteTopic("defect"):
            raise RuntimeError("a defect")
        return plan(image, command, configs)

    monkeypatch.setattr("service.metadata.controller.plan", broken)
    async with controlling(tmp_path) as controller, following(controller.address, 1) as one:
        await _ready(one)
        gate = Gate(one)
        first = _asked(one, MAX_CALLS)
        shared: list[Command[Any]] = [AllocateProducerIds(1), DeleteTopic("none"), DeleteTopic("defect")]
        asked = [asyncio.create_task(one.remote.execute(each)) for each in (*shared, AllocateProducerIds(1))]
        await until(lambda: len(one.remote._queue) == 4)
        gate.opened.set()
        made, refused, failed, also_made = [await _result(each) for each in asked]
        await asyncio.gather(*first)
        assert gate.sizes == [1] * MAX_CALLS + [4]
        assert (made.size, also_made.size) == (1000, 1000)
        assert isinstance(refused, UnknownTopicOrPartition)
        assert type(failed) is LogError
        assert DEFECT in str(failed)
    assert "a defect" in caplog.text


async def test_the_commands_of_a_lost_call_are_sent_again_and_carried_out_once(tmp_path: Path) -> None:
    async with controlling(tmp_path) as controller, following(controller.address, 1) as one:
        await _ready(one)
        gate = Gate(one, lost=MAX_CALLS + 1)
        asked = _asked(one, MAX_CALLS + 5)
        await until(lambda: len(one.remote._queue) == 5)
        gate.opened.set()
        blocks = await asyncio.gather(*asked)
        assert sorted(each.first for each in blocks) == [1000 * each for each in range(len(asked))]
        assert sum(gate.sizes) == 2 * len(asked)
        assert controller.metadata.image.next_producer_id == 1000 * len(asked)


async def test_a_command_whose_caller_has_left_is_not_sent(tmp_path: Path) -> None:
    async with controlling(tmp_path) as controller, following(controller.address, 1) as one:
        await _ready(one)
        gate = Gate(one)
        asked = _asked(one, MAX_CALLS + 2)
        await until(lambda: len(one.remote._queue) == 2)
        asked[-1].cancel()
        await asyncio.gather(asked[-1], return_exceptions=True)
        gate.opened.set()
        await asyncio.gather(*asked[:-1])
        await one.remote.execute(AllocateProducerIds(1))
        assert gate.sizes == [1] * (MAX_CALLS + 2)


async def test_an_ended_call_answers_all_of_its_commands(tmp_path: Path) -> None:
    async with controlling(tmp_path) as controller, following(controller.address, 1) as one:
        await _ready(one)
        Gate(one)
        sent = one.remote._outcome(pb.NumberedCommand(sequence=0, command=b""))
        asked = asyncio.create_task(sent)
        await until(lambda: len(one.remote._tasks) == 1)
        for each in tuple(one.remote._tasks):
            each.cancel()
        with pytest.raises(LeaderNotAvailable, match="was ended"):
            await asked


def test_the_controller_keeps_the_results_of_all_commands_in_flight() -> None:
    assert MAX_COMMANDS <= MAX_UNCONFIRMED_COMMANDS
