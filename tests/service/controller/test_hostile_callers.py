"""Callers that are not brokers of the cluster, and brokers that misbehave: each refusal is precise, and nothing is
accepted.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from grpc import StatusCode
from grpc.aio import AioRpcError

from grpc_api.channel import answered
from grpc_api.contract.topics import NewTopic
from grpc_api.limits import MAX_MESSAGE_BYTES
from grpc_api.proto.errors_pb2 import ErrorDetail
from service.controller import controller_pb2 as pb
from service.controller.server import (
    MAX_FIELDS,
    MAX_STREAMS_OF_ONE,
    SNAPSHOT_BYTES,
    SNAPSHOT_RECORDS,
    snapshot_parts,
)
from service.metadata import commands_pb2
from service.metadata.command_codec import encode_command
from service.metadata.commands import (
    ClaimIncarnation,
    Command,
    CreateTopic,
    FenceBroker,
    FoundCluster,
    RegisterBroker,
)
from service.metadata.log import MAX_GROUP_BYTES, MAX_PROPOSAL_BYTES
from service.metadata.records_pb2 import ReplicaList
from service.metadata.registrations import MAX_REGISTRATION_BYTES
from storage_tiers.errors import Busy, InvalidRequest
from tests.service.broker.support import until
from tests.service.controller.support import controlling, following
from tests.service.metadata.records import configured, topic_id


async def test_a_broker_changes_nothing_that_is_the_controllers_alone(tmp_path: Path) -> None:
    async with controlling(tmp_path) as controller, following(controller.address, 1) as one:
        await until(lambda: not one.remote.fenced)
        before = controller.metadata.proposed
        commands: list[Command[Any]] = [
            FoundCluster("another"),
            RegisterBroker(2, b"disk", ()),
            FenceBroker(1, 1),
            ClaimIncarnation(1, 1 << 40, b"start"),
        ]
        for command in commands:
            with pytest.raises(InvalidRequest, match="only the controller's own process may send it"):
                await one.remote.execute(command)
        assert controller.metadata.proposed is before


async def test_commands_and_registrations_of_many_fields_are_refused_before_they_are_parsed(tmp_path: Path) -> None:
    async with controlling(tmp_path) as controller, following(controller.address, 1) as one:
        await until(lambda: not one.remote.fenced)
        lists = commands_pb2.Assignments(partitions=[ReplicaList()] * (MAX_FIELDS + 1))
        grown = commands_pb2.CreatePartitions(topic="t", count=9, assignments=lists)
        many = commands_pb2.Command(create_partitions=grown).SerializeToString()
        request = pb.ExecuteRequest(broker_id=1, broker_epoch=1, commands=[pb.NumberedCommand(command=many)])
        (outcome,) = (await one.remote._stub.Execute(request)).outcomes
        assert f"has more than {MAX_FIELDS} fields" in ErrorDetail.FromString(outcome.error).message
        long = encode_command(RegisterBroker(2, b"d" * MAX_REGISTRATION_BYTES, (), fenced=True))
        with pytest.raises(AioRpcError, match="give it fewer listeners, or shorter names") as refused:
            await one.remote._stub.Register(pb.RegisterRequest(command=long))
        assert refused.value.code() is StatusCode.INVALID_ARGUMENT


async def test_a_connection_has_few_streams_of_each_kind(tmp_path: Path) -> None:
    """Each change of the metadata wakes every Follow stream, and each stream may hold a part of a snapshot."""
    async with controlling(tmp_path) as controller, following(controller.address, 1) as one:
        await until(lambda: not one.remote.fenced)
        held = [one.remote._stub.Follow(pb.FollowRequest()) for _ in range(MAX_STREAMS_OF_ONE - 1)]
        for each in held:
            assert (await each.read()).end > 0
        with pytest.raises(Busy, match=f"{MAX_STREAMS_OF_ONE} Follow streams of this connection are open already"):
            await answered(one.remote._stub.Follow(pb.FollowRequest()).read(), controller.address)
        held.pop().cancel()
        await until(lambda: sum(controller.service._streams.values()) == MAX_STREAMS_OF_ONE)  # incl. heartbeats
        held.append(one.remote._stub.Follow(pb.FollowRequest()))
        assert (await held[-1].read()).end > 0
        assert not one.beating.done()
        for each in held:
            each.cancel()


async def test_each_part_of_a_snapshot_waits_for_its_turn(tmp_path: Path) -> None:
    """Otherwise each turn of the loop would make a part of the snapshot for every reader."""
    async with controlling(tmp_path) as controller:
        await controller.controller.execute(RegisterBroker(1, b"disk", ()))
        await controller.controller.execute(CreateTopic(NewTopic("t", 3 * SNAPSHOT_RECORDS, 1), topic_id(1)))
        begun = 0

        async def begin() -> None:
            nonlocal begun
            begun += 1

        controller.service._calls.begin = begin  # type: ignore[method-assign]
        parts = controller.service._followed(-1, -1, asyncio.Event())
        received = [await anext(parts)]
        while not received[-1].last:
            received.append(await anext(parts))
        assert begun == len(received) > 3


async def test_each_command_of_a_call_waits_for_its_turn(tmp_path: Path) -> None:
    """Otherwise the largest call would hold the loop for as long as all its commands take."""
    async with controlling(tmp_path) as controller, following(controller.address, 1) as one:
        await until(lambda: not one.remote.fenced)
        one.beating.cancel()
        begin, begun = controller.service._calls.begin, 0

        async def counted() -> None:
            nonlocal begun
            begun += 1
            await begin()

        controller.service._calls.begin = counted  # type: ignore[method-assign]
        commands = [pb.NumberedCommand(sequence=each, command=b"?") for each in range(5)]
        await one.remote._stub.Execute(pb.ExecuteRequest(broker_id=1, broker_epoch=1, commands=commands))
        assert begun == len(commands)


def test_a_part_of_a_snapshot_is_bounded_in_records_and_bytes() -> None:
    small = [configured("t", "retention.ms", "1")] * (2 * SNAPSHOT_RECORDS + 1)
    assert [len(part) for part in snapshot_parts(small)] == [SNAPSHOT_RECORDS, SNAPSHOT_RECORDS, 1]
    large = [configured("t", "k", "x" * (SNAPSHOT_BYTES // 3))] * 4 + [configured("t", "k", "x" * SNAPSHOT_BYTES)]
    assert [len(part) for part in snapshot_parts(large)] == [2, 2, 1]
    assert list(snapshot_parts([])) == []


def test_an_entry_fits_into_a_message_to_a_broker() -> None:
    entry = pb.FollowReply(offset=1 << 62, term=1 << 62, batch=b"x" * MAX_GROUP_BYTES, end=1 << 62)
    assert entry.ByteSize() <= MAX_MESSAGE_BYTES
    assert MAX_PROPOSAL_BYTES <= MAX_GROUP_BYTES
