"""A command from another process is carried out once, however often it arrives, even across a restart of the
controller.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from grpc_api.contract.topics import NewTopic
from service.configs.resolve import Resolver
from service.metadata.command_codec import encode_result
from service.metadata.commands import (
    AllocateProducerIds,
    CreateTopic,
    DeletedTopic,
    DeleteTopic,
    FenceBroker,
    ForgetTopic,
    HandOver,
    PlacedTopic,
    ProducerIdBlock,
    Reassign,
    RegisterBroker,
)
from service.metadata.controller import MAX_UNCONFIRMED_COMMANDS, CommandAnswer, CommandOrigin, Controller
from service.metadata.log import MetadataLog
from storage_tiers.clock import SystemRng
from storage_tiers.errors import (
    BrokerFenced,
    BrokerNotRegistered,
    InvalidRequest,
    StaleBrokerEpoch,
    StorageError,
    UnknownTopicOrPartition,
)
from tests.service.metadata.disks import TroubledFiles
from tests.service.metadata.records import topic_id

CONFIGS = Resolver({}, node_id=100, has_store=False)


@asynccontextmanager
async def opened(path: Path, files: TroubledFiles | None = None) -> AsyncIterator[tuple[Controller, MetadataLog]]:
    """A controller with brokers 1 and 2, which it registers if its log does not hold them yet."""
    log = MetadataLog.open(str(path), files or TroubledFiles(), SystemRng())
    controller = Controller(log, CONFIGS)
    for broker_id in (1, 2):
        if broker_id not in log.image.brokers:
            await controller.execute(RegisterBroker(broker_id, b"disk", ()))
    try:
        yield controller, log
    finally:
        await log.close()


def number(sequence: int, *, broker: int = 1, epoch: int = 1, answered_below: int = 0) -> CommandOrigin:
    return CommandOrigin(broker, epoch, sequence, answered_below)


def new(name: str, identity: int) -> CreateTopic:
    return CreateTopic(NewTopic(name, 1, 1), topic_id(identity))


async def test_a_repeated_command_is_answered_and_not_done_again(tmp_path: Path) -> None:
    """A retried DeleteTopics must not delete a topic that was created again under the same name."""
    async with opened(tmp_path) as (controller, log):
        await controller.answer(new("t", 1), number(1))
        first = await controller.answer(DeleteTopic("t"), number(2))
        assert first == CommandAnswer(encode_result(DeletedTopic("t", topic_id(1), 1)), log.last_index)
        await controller.answer(new("t", 2), number(3, broker=2))
        again = await controller.answer(DeleteTopic("t"), number(2))
        assert again.result == first.result
        assert again.offset >= first.offset
        assert log.image.topic_ids["t"] == topic_id(2)
    async with opened(tmp_path) as (controller, log):
        assert (await controller.answer(DeleteTopic("t"), number(2))).result == first.result
        assert log.image.topic_ids["t"] == topic_id(2), "also after a restart of the controller"


async def test_a_repeated_consent_is_not_refused_after_it_was_carried_out(tmp_path: Path) -> None:
    """A leader takes InvalidRequest and InvalidReplicaAssignment for the proof that its consent had no effect."""
    async with opened(tmp_path) as (_, log):
        controller = Controller(log, Resolver({}, node_id=100, has_store=True))
        configs = {"remote.storage.enable": "true"}
        await controller.execute(CreateTopic(NewTopic("t", -1, -1, configs, {0: [1]}), topic_id(1)))
        await controller.execute(Reassign("t", 0, (2,)))
        placed = log.image.topics[topic_id(1)].partitions[0]
        consent = HandOver(topic_id(1), 0, 1, 1, placed.leader_epoch, placed.partition_epoch, 70)
        await controller.answer(consent, number(5))
        await controller.execute(FenceBroker(2, 1))
        await controller.answer(consent, number(5, answered_below=5))
        with pytest.raises(InvalidRequest, match="has changed"):
            await controller.answer(consent, number(6))


async def test_a_command_that_waits_for_the_disk_is_answered_to_all_that_sent_it(tmp_path: Path) -> None:
    files = TroubledFiles()
    async with opened(tmp_path, files) as (controller, log):
        files.hold.clear()
        both = [asyncio.ensure_future(controller.answer(AllocateProducerIds(1), number(1))) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(each.done() for each in both)
        files.hold.set()
        assert [(await each).result for each in both] == [ProducerIdBlock(0, 1000)] * 2
        assert log.image.next_producer_id == 1000
        assert not controller._under_way, "the map does not grow with every command"


async def test_commands_share_an_fsync_before_their_answers_are_awaited(tmp_path: Path) -> None:
    files = TroubledFiles()
    async with opened(tmp_path, files) as (controller, log):
        files.hold.clear()
        before = log.last_index
        asked = [controller.answer(AllocateProducerIds(1), number(each)) for each in range(1, 10)]
        files.hold.set()
        assert [(await each).result.first for each in asked] == [1000 * each for each in range(9)]
        assert log.last_index == before + 1


async def test_an_answer_waits_for_all_that_it_was_planned_on(tmp_path: Path) -> None:
    """A broker registers again because its first answer is late: the repetition changes nothing, and is not answered
    before the first."""
    files = TroubledFiles()
    async with opened(tmp_path, files) as (controller, log):
        files.hold.clear()
        again = RegisterBroker(3, b"disk", (), start_id=b"start")
        asked: list[asyncio.Future[Any]] = [asyncio.ensure_future(controller.execute(again)) for _ in range(2)]
        await asyncio.sleep(0)
        asked.append(asyncio.ensure_future(controller.answer(ForgetTopic(topic_id(1)), number(1))))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not any(each.done() for each in asked)
        files.hold.set()
        assert [await each for each in asked] == [1, 1, CommandAnswer(encode_result(None), log.last_index)]
        assert log.image.brokers[3].start_id == b"start"


async def test_an_answer_that_was_planned_on_a_refused_change_is_an_error(tmp_path: Path) -> None:
    files = TroubledFiles()
    async with opened(tmp_path, files) as (controller, log):
        files.fail["pwrite"] = 1
        again = RegisterBroker(3, b"disk", (), start_id=b"start")
        asked = await asyncio.gather(*(controller.execute(again) for _ in range(2)), return_exceptions=True)
        assert [type(each) for each in asked] == [StorageError] * 2
        assert 3 not in log.image.brokers


async def test_a_command_that_the_disk_refused_is_done_when_it_comes_again(tmp_path: Path) -> None:
    files = TroubledFiles()
    async with opened(tmp_path, files) as (controller, log):
        files.fail["pwrite"] = 1
        with pytest.raises(StorageError):
            await controller.answer(AllocateProducerIds(1), number(1))
        assert log.image.sessions == {}
        assert (await controller.answer(AllocateProducerIds(1), number(1))).result == ProducerIdBlock(0, 1000)


async def test_a_refused_command_leaves_nothing_and_may_succeed_later(tmp_path: Path) -> None:
    async with opened(tmp_path) as (controller, log):
        with pytest.raises(UnknownTopicOrPartition):
            await controller.answer(DeleteTopic("t"), number(1))
        assert log.image.sessions == {}
        await controller.answer(new("t", 1), number(2))
        assert (await controller.answer(DeleteTopic("t"), number(1))).result == DeletedTopic("t", topic_id(1), 1)


async def test_a_command_that_changes_nothing_is_not_written(tmp_path: Path) -> None:
    async with opened(tmp_path) as (controller, log):
        before = log.last_index
        assert await controller.answer(ForgetTopic(topic_id(1)), number(1)) == CommandAnswer(
            encode_result(None), before
        )
        assert log.last_index == before


async def test_confirmed_results_are_dropped(tmp_path: Path) -> None:
    async with opened(tmp_path) as (controller, log):
        for sequence in (1, 2, 3):
            await controller.answer(new(f"t{sequence}", sequence), number(sequence, answered_below=sequence - 1))
        assert sorted(log.image.sessions[1].results) == [2, 3]
        with pytest.raises(InvalidRequest, match="has confirmed the answer of its command 1"):
            await controller.answer(new("t1", 1), number(1))


async def test_a_broker_that_confirms_nothing_is_refused_at_a_bound(tmp_path: Path) -> None:
    async with opened(tmp_path) as (controller, log):
        asked = [controller.answer(AllocateProducerIds(1), number(each)) for each in range(MAX_UNCONFIRMED_COMMANDS)]
        await asyncio.gather(*asked)
        with pytest.raises(InvalidRequest, match="confirm them first"):
            await controller.answer(AllocateProducerIds(1), number(MAX_UNCONFIRMED_COMMANDS))
        await controller.answer(AllocateProducerIds(2), number(1, broker=2))
        confirmed = number(MAX_UNCONFIRMED_COMMANDS, answered_below=MAX_UNCONFIRMED_COMMANDS)
        assert (await controller.answer(AllocateProducerIds(1), confirmed)).offset == log.last_index
        assert list(log.image.sessions[1].results) == [MAX_UNCONFIRMED_COMMANDS]


async def test_only_the_current_registration_of_a_live_broker_is_served(tmp_path: Path) -> None:
    async with opened(tmp_path) as (controller, log):
        with pytest.raises(BrokerNotRegistered):
            await controller.answer(new("t", 1), number(1, broker=7))
        await controller.execute(FenceBroker(2, 1))
        with pytest.raises(BrokerFenced, match="retry"):
            await controller.answer(new("t", 1), number(1, broker=2))
        await controller.answer(new("u", 2), number(1))
        await controller.execute(RegisterBroker(1, b"disk", ()))
        with pytest.raises(StaleBrokerEpoch):
            await controller.answer(new("t", 1), number(1))
        assert list(log.image.topic_ids) == ["u"]
        placed = await controller.answer(new("v", 3), number(1, epoch=2))
        assert placed.result == PlacedTopic(topic_id(3), 1, 1), (
            "a new registration counts its commands from the beginning"
        )
