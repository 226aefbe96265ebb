"""Commands: each is plain data, has a planner, and makes the change that it names; the controller carries them out in turn."""

from __future__ import annotations

import ast
import asyncio
import pickle
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import service
from grpc_api.contract.features import FeatureChange, FeatureUpdate
from grpc_api.contract.topics import AlterOp, ConfigAlteration, Endpoint, NewTopic, Resource, ResourceKind
from service.configs.resolve import Resolver
from service.metadata import commands
from service.metadata import records_pb2 as pb
from service.metadata.commands import (
    PLANNERS,
    AllocateProducerIds,
    AlterConfigs,
    ClaimIncarnation,
    Command,
    ConfirmIncarnation,
    CreatePartitions,
    CreateTopic,
    DeletedTopic,
    DeleteTopic,
    ElectUnclean,
    FenceBroker,
    ForgetTopic,
    FoundCluster,
    HandOver,
    LeadEverything,
    LevelChange,
    PlacedTopic,
    ProducerIdBlock,
    RaiseLeaderEpoch,
    Reassign,
    RegisterBroker,
    ShutDownBroker,
    SkipProducerIds,
    TopicFilesSeen,
    UnfenceBroker,
    UnregisterBroker,
    UpdateFeatures,
    plan,
)
from service.metadata.controller import Controller
from service.metadata.image import MetadataImage
from service.metadata.log import MetadataLog
from service.metadata.parts import NO_LEADER, StartImage
from service.metadata.planner import PRODUCER_ID_GAP
from service.metadata.reassignments import reassign
from storage_tiers.clock import SystemRng
from storage_tiers.errors import InvalidRequest, LogError, StorageError, TopicExists, UnknownTopicOrPartition
from tests.service.metadata.disks import TroubledFiles
from tests.service.metadata.records import broker, deleted, image_with_brokers, new_topic, topic_id

CONFIGS = Resolver({}, node_id=1, has_store=True)
#: The topic `t` of two partitions, id 1; the topic `gone`, id 2, whose deletion has begun.
BEFORE = image_with_brokers([None]).apply_batch([*new_topic("t", 1, 2), *new_topic("gone", 2), deleted(2)])
TOPIC = Resource(ResourceKind.TOPIC, "t")
METRICS = Resource(ResourceKind.CLIENT_METRICS, "m")
AT = Endpoint("INSIDE", "localhost", 9092)
LEVEL = "transaction.version"


class Example(NamedTuple):
    """A command that changes `BEFORE`, its result, and a look at the image with its values before and after the
    command."""

    command: Command[Any]
    result: object
    look: Callable[[MetadataImage], object]
    before: object
    after: object


def _set(key: str, value: str) -> tuple[ConfigAlteration, ...]:
    return (ConfigAlteration(key, AlterOp.SET, value),)


EXAMPLES = [
    Example(
        CreateTopic(NewTopic("new", 3, 1, {"retention.ms": "5"}), topic_id(9)),
        PlacedTopic(topic_id(9), 3, 1),
        lambda image: (
            (len(image.topics[topic_id(9)].partitions), image.topic_config("new"))
            if topic_id(9) in image.topics
            else None
        ),
        None,
        (3, {"retention.ms": "5"}),
    ),
    Example(
        DeleteTopic("t"), DeletedTopic("t", topic_id(1), 2), lambda image: topic_id(1) in image.deleting, False, True
    ),
    Example(
        DeleteTopic(topic_id(1)), DeletedTopic("t", topic_id(1), 2), lambda image: "t" in image.topic_ids, True, False
    ),
    Example(CreatePartitions("t", 5), None, lambda image: len(image.topics[topic_id(1)].partitions), 2, 5),
    Example(CreatePartitions("t", 3, ((1,),)), None, lambda image: len(image.topics[topic_id(1)].partitions), 2, 3),
    Example(
        AlterConfigs(TOPIC, _set("retention.ms", "7"), 1),
        None,
        lambda image: image.topic_config("t"),
        {},
        {"retention.ms": "7"},
    ),
    Example(
        AlterConfigs(METRICS, _set("interval.ms", "1000"), 1),
        None,
        lambda image: image.config(*METRICS),
        {},
        {"interval.ms": "1000"},
    ),
    Example(
        UpdateFeatures((FeatureUpdate(LEVEL, 2, FeatureChange.UPGRADE),)),
        (LevelChange(LEVEL, 0, 2),),
        lambda image: image.features.get(LEVEL),
        None,
        2,
    ),
    Example(AllocateProducerIds(1), ProducerIdBlock(0, 1000), lambda image: image.next_producer_id, 0, 1000),
    Example(SkipProducerIds(), None, lambda image: image.next_producer_id, 0, PRODUCER_ID_GAP),
    Example(TopicFilesSeen({topic_id(1): 4}), None, lambda image: image.topic_files.get(topic_id(1)), None, 4),
    Example(ForgetTopic(topic_id(2)), None, lambda image: topic_id(2) in image.deleting, True, False),
    Example(
        ClaimIncarnation(1, 5, b"me"),
        None,
        lambda image: image.unconfirmed_starts,
        (),
        (StartImage(1, 5, b"me"),),
    ),
    Example(ConfirmIncarnation(5, b"me"), None, lambda image: image.incarnation, 0, 5),
    Example(FoundCluster("c"), None, lambda image: (image.cluster_id, image.features.get(LEVEL)), ("", None), ("c", 2)),
    Example(
        RegisterBroker(7, b"disk", (AT,), "rack"),
        1,
        lambda image: image.brokers[7].endpoints if 7 in image.brokers else None,
        None,
        (AT,),
    ),
    Example(UnfenceBroker(8, 1), None, lambda image: image.brokers[8].may_lead, False, True),
    Example(FenceBroker(1, 1), None, lambda image: image.brokers[1].fenced, False, True),
    Example(ShutDownBroker(1, 1), None, lambda image: image.brokers[1].shutting_down, False, True),
    Example(UnregisterBroker(8), None, lambda image: 8 in image.brokers, True, False),
    Example(ElectUnclean("t", 1), None, lambda image: image.topics[topic_id(1)].partitions[1].leader, NO_LEADER, 1),
    Example(ElectUnclean("t", 1, 70), None, lambda image: image.topics[topic_id(1)].partitions[1].leader, NO_LEADER, 1),
    Example(Reassign("t", 0, (8,)), None, lambda image: image.topics[topic_id(1)].partitions[0].replicas, (1,), (8, 1)),
    Example(Reassign("t", 1, None), None, lambda image: image.topics[topic_id(1)].partitions[1].adding, (8,), ()),
    Example(
        HandOver(topic_id(1), 1, 1, 1, 0, 1, 70),
        None,
        lambda image: image.topics[topic_id(1)].partitions[1].leader,
        1,
        8,
    ),
    Example(
        RaiseLeaderEpoch(topic_id(1), 0, 1, 1, 40),
        None,
        lambda image: image.topics[topic_id(1)].partitions[0].leader_epoch,
        0,
        41,
    ),
    Example(LeadEverything(1), None, lambda image: image.topics[topic_id(1)].partitions[0].leader_epoch, 0, 1),
]


def start_of(command: Command[Any]) -> MetadataImage:
    """`BEFORE` with the changes that the command needs."""
    if isinstance(command, UpdateFeatures):
        registered = plan(BEFORE, RegisterBroker(1, b"disk", (AT,)), CONFIGS)[0]
        return BEFORE.apply_batch(registered)
    if isinstance(command, UnfenceBroker):
        return BEFORE.apply_batch(plan(BEFORE, RegisterBroker(8, b"disk", (AT,), fenced=True), CONFIGS)[0])
    if isinstance(command, ElectUnclean):
        lost = pb.PartitionChangeRecord(topic_id=topic_id(1), index=1, leader=NO_LEADER)
        return BEFORE.apply_batch([pb.MetadataRecord(partition_change=lost)])
    if isinstance(command, UnregisterBroker):
        return BEFORE.apply_batch([broker(8, fenced=True)])
    if isinstance(command, Reassign | HandOver):
        image = BEFORE.apply_batch([broker(8)])
        return image.apply_batch(reassign(image, "t", 1, (8,), is_tiered=True))
    if isinstance(command, ConfirmIncarnation):
        return BEFORE.apply_batch(plan(BEFORE, ClaimIncarnation(1, 5, b"me"), CONFIGS)[0])
    return BEFORE


def each_example() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example.command).__name__)


def test_every_command_has_a_planner_and_an_example() -> None:
    known = {each for each in vars(commands).values() if isinstance(each, type) and issubclass(each, Command)} - {
        Command
    }
    assert known == set(PLANNERS)
    assert known == {type(example.command) for example in EXAMPLES}


@each_example()
def test_a_command_makes_its_change_and_has_its_result(example: Example) -> None:
    image = start_of(example.command)
    records, result = plan(image, example.command, CONFIGS)
    assert result == example.result
    assert example.look(image) == example.before
    assert example.look(image.apply_batch(records)) == example.after


@each_example()
def test_a_command_that_is_only_checked_makes_no_records(example: Example) -> None:
    command = example.command
    if not any(field.name == "validate_only" for field in fields(command)):  # type: ignore[arg-type]
        return
    given = {field.name: getattr(command, field.name) for field in fields(command)}  # type: ignore[arg-type]
    checked = type(command)(**{**given, "validate_only": True})
    assert plan(start_of(command), checked, CONFIGS) == ((), example.result)


# --- plain data -------------------------------------------------------------------------------------------------------


def what_is_not_data(value: object) -> list[object]:
    """The parts of `value` that could not be sent to another node."""
    if value is None or isinstance(value, str | int | bytes | Enum):
        return []
    if isinstance(value, tuple):
        return [part for each in value for part in what_is_not_data(each)]
    if isinstance(value, Mapping):
        return [part for pair in value.items() for part in what_is_not_data(pair)]
    if is_dataclass(value):
        return [part for field in fields(value) for part in what_is_not_data(getattr(value, field.name))]
    return [value]


@each_example()
def test_a_command_and_its_result_are_plain_data(example: Example) -> None:
    assert what_is_not_data(example.command) == []
    assert what_is_not_data(example.result) == []
    assert pickle.loads(pickle.dumps(example.command)) == example.command


@each_example()
def test_a_command_does_not_change(example: Example) -> None:
    for field in fields(example.command):  # type: ignore[arg-type]
        with pytest.raises(FrozenInstanceError):
            setattr(example.command, field.name, None)


def test_fields_that_are_not_data_are_found() -> None:
    assert what_is_not_data((1, ({"a": len},))) == [len]
    assert what_is_not_data([1]) == [[1]]


# --- the controller ---------------------------------------------------------------------------------------------------


async def test_commands_are_planned_on_accepted_ones_and_answered_when_durable(tmp_path: Path) -> None:
    files = TroubledFiles()
    log = MetadataLog.open(str(tmp_path), files, SystemRng())
    controller = Controller(log, CONFIGS)
    await controller.execute(RegisterBroker(1, b"disk", (AT,)))
    files.hold.clear()
    asked = [CreateTopic(NewTopic(name, 1, 1), topic_id(number)) for number, name in enumerate("aba", 1)]
    waiting = [asyncio.ensure_future(controller.execute(command)) for command in asked]
    with pytest.raises(TopicExists):
        await waiting[2]
    assert not any(each.done() for each in waiting[:2])
    files.hold.set()
    assert [await each for each in waiting[:2]] == [PlacedTopic(topic_id(number), 1, 1) for number in (1, 2)]
    assert sorted(log.image.topic_ids) == ["a", "b"]
    await log.close()


async def test_a_command_without_records_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    files = TroubledFiles()
    log = MetadataLog.open(str(tmp_path), files, SystemRng())
    await Controller(log, CONFIGS).execute(ForgetTopic(topic_id(1)))
    assert log.last_index == 0
    await log.close()


async def test_a_command_that_the_disk_refuses_has_changed_nothing(tmp_path: Path) -> None:
    files = TroubledFiles()
    log = MetadataLog.open(str(tmp_path), files, SystemRng())
    controller = Controller(log, CONFIGS)
    files.fail["pwrite"] = 1
    with pytest.raises(StorageError):
        await controller.execute(AllocateProducerIds(1))
    assert await controller.execute(AllocateProducerIds(1)) == ProducerIdBlock(0, 1000)
    await log.close()


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (CreateTopic(NewTopic("new", 1, 1), topic_id(1)), InvalidRequest),
        (CreateTopic(NewTopic("new", 1, 1), topic_id(2)), InvalidRequest),
        (DeleteTopic("gone"), UnknownTopicOrPartition),
    ],
    ids=["id of a live topic", "id of a topic being deleted", "no such topic"],
)
def test_a_command_that_cannot_be_carried_out_is_refused(command: Command[Any], error: type[LogError]) -> None:
    with pytest.raises(error):
        plan(BEFORE, command, CONFIGS)


def test_nothing_but_the_controller_and_a_take_over_proposes_records() -> None:
    root = Path(service.__path__[0])
    callers = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "propose"
    }
    assert callers == {"metadata/controller.py", "takeover/run.py"}
