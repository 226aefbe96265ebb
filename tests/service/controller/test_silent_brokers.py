"""A controller fences the brokers that fall silent and no others, and keeps nothing for brokers that it does not know."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpc_api.channel import answered
from service.controller import controller_pb2 as pb
from service.controller.follower import changes_between
from service.metadata import records_pb2 as records
from service.metadata.command_codec import encode_command
from service.metadata.commands import AllocateProducerIds, FenceBroker, UnfenceBroker
from service.metadata.image import MetadataImage
from storage_tiers.errors import BrokerNotRegistered, InvalidRequest, RequestTimedOut, StorageError
from tests.service.broker.support import until
from tests.service.controller.support import controlling, following, registration_of
from tests.service.controller.test_brokers import ready
from tests.service.metadata.records import new_topic, topic_id


async def test_a_broker_that_could_not_be_fenced_is_fenced_later(tmp_path: Path) -> None:
    async with controlling(tmp_path, session_s=0.3) as controller, following(controller.address, 1) as one:
        await ready(one)
        execute, refused = controller.controller.execute, list[object]()

        async def refuse_once(command: Any) -> Any:
            if isinstance(command, FenceBroker) and not refused:
                refused.append(command)
                raise StorageError("the disk refuses")
            return await execute(command)

        controller.controller.execute = refuse_once  # type: ignore[method-assign]
        one.beating.cancel()
        await until(lambda: controller.metadata.image.brokers[1].fenced)
        assert refused


async def test_the_broker_of_the_controllers_own_process_sends_no_heartbeats_and_is_not_fenced(tmp_path: Path) -> None:
    async with controlling(tmp_path) as controller:
        for broker_id in (1, 2):
            await controller.controller.execute(registration_of(broker_id, b"start"))
            await controller.controller.execute(UnfenceBroker(broker_id, 1))
    async with controlling(tmp_path, session_s=0.2, local=1) as controller:
        await until(lambda: controller.metadata.image.brokers[2].fenced)
        await asyncio.sleep(0.3)
        assert not controller.metadata.image.brokers[1].fenced


async def test_nothing_is_kept_of_the_heartbeats_of_unknown_brokers(tmp_path: Path) -> None:
    async with controlling(tmp_path) as controller, following(controller.address, 1) as one:
        await ready(one)
        for broker_id in range(100, 110):
            stream = one.remote._stub.Heartbeat()
            await stream.write(pb.HeartbeatRequest(broker_id=broker_id, broker_epoch=1, ready=True))
            with pytest.raises(BrokerNotRegistered):
                await answered(stream.read(), controller.address)
        assert list(controller.contacts._heard) == [1]


async def test_a_broker_does_not_register_as_one_that_may_lead(tmp_path: Path) -> None:
    """The broker has not shown yet that it has the metadata."""
    async with controlling(tmp_path) as controller, following(controller.address, 1) as one:
        await ready(one)
        before = controller.metadata.image
        leading = replace(registration_of(2, b"start"), fenced=False)
        with pytest.raises(InvalidRequest, match="of a fenced broker"):
            await answered(one.remote._stub.Register(pb.RegisterRequest(command=encode_command(leading))), "controller")
        assert controller.metadata.image is before


async def test_a_command_names_the_earliest_one_without_an_answer(tmp_path: Path) -> None:
    """The controller forgets the answers to earlier commands: if one of those came again, it would be carried out
    twice."""
    async with controlling(tmp_path) as controller, following(controller.address, 1) as one:
        await ready(one)
        execute, sent = one.remote._stub.Execute, list[pb.ExecuteRequest]()

        def noted(request: pb.ExecuteRequest, **how: Any) -> Any:
            sent.append(request)
            return execute(request, **how)

        one.remote._stub.Execute = noted
        await asyncio.gather(*(one.remote.execute(AllocateProducerIds(1)) for _ in range(2)))
        first = sent[0].commands[0].sequence
        numbers = [(command.sequence, call.answered_below) for call in sent for command in call.commands]
        assert numbers == [(first, first), (first + 1, first)]


async def test_the_lease_begins_with_the_registration_and_no_wait_for_a_change_is_kept(tmp_path: Path) -> None:
    async with controlling(tmp_path) as controller, following(controller.address, 1) as one:
        one.beating.cancel()
        assert not one.remote.lease.is_over(one.remote._controller.clock.steady_ms())
        again = asyncio.create_task(one.remote.run())
        await one.remote.execute(AllocateProducerIds(1))
        with pytest.raises(RequestTimedOut):
            await one.follower.reach(controller.metadata.last_index + 1, 0.0)
        assert one.follower._waiting == []
        again.cancel()


def test_a_deleted_topic_that_is_gone_has_changed() -> None:
    """This change tells listeners to finish the deletion."""
    live = MetadataImage().apply_batch(new_topic("t", 1))
    removed = records.MetadataRecord(topic_deletion=records.TopicDeletionRecord(topic_id=topic_id(1)))
    deleting = live.apply(removed)
    assert changes_between(live, deleting).topics == (topic_id(1),)
    assert changes_between(deleting, MetadataImage()).topics == (topic_id(1),)
