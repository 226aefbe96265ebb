"""Commands and results survive encoding; bytes that encode none are refused with the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from grpc_api.contract.features import FeatureUpdate
from grpc_api.contract.topics import AlterOp, ConfigAlteration, NewTopic, Resource, ResourceKind
from service.metadata import commands_pb2 as pb
from service.metadata.command_codec import (
    MAX_CONFIGS,
    MAX_TOPIC_FILES,
    decode_command,
    decode_result,
    encode_command,
    encode_result,
)
from service.metadata.commands import (
    AllocateProducerIds,
    AlterConfigs,
    Command,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    ElectUnclean,
    ForgetTopic,
    HandOver,
    LevelChange,
    RaiseLeaderEpoch,
    Reassign,
    RegisterBroker,
    TopicFilesSeen,
    UnregisterBroker,
    UpdateFeatures,
)
from service.metadata.planner import MAX_PARTITIONS_PER_REQUEST
from service.metadata.records_pb2 import ReplicaList, TopicFileSeen, TopicFilesRecord
from service.metadata.registrations import MAX_BROKERS
from storage_tiers.errors import InvalidReplicaAssignment, InvalidRequest, PolicyViolation
from tests.service.metadata.records import topic_id
from tests.service.metadata.test_commands import EXAMPLES, Example

#: The commands that a broker of another process sends.
OF_BROKERS = (
    CreateTopic,
    DeleteTopic,
    CreatePartitions,
    AlterConfigs,
    UpdateFeatures,
    AllocateProducerIds,
    TopicFilesSeen,
    ForgetTopic,
    UnregisterBroker,
    ElectUnclean,
    Reassign,
    HandOver,
    RaiseLeaderEpoch,
)

#: Values at their edges, which the examples do not have.
MORE: list[Command[Any]] = [
    CreateTopic(NewTopic("t", configs={"a": None, "b": ""}), topic_id(1), validate_only=True),
    CreateTopic(NewTopic("t", assignments={0: (1, 2), 1: ()}), topic_id(1)),
    DeleteTopic(""),
    CreatePartitions("t", 5, (), validate_only=True),
    AlterConfigs(
        Resource(ResourceKind.BROKER, ""),
        (ConfigAlteration("a", AlterOp.DELETE, None),),
        7,
        replace=True,
        validate_only=True,
    ),
    UpdateFeatures((FeatureUpdate("f", -1, None),), validate_only=True),
    RegisterBroker(3, b"\xff", (), "", b"start", fenced=True, peer="host:9093"),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example.command).__name__)
def test_commands_and_results_survive_a_round_trip_through_bytes(example: Example) -> None:
    assert decode_command(encode_command(example.command)) == example.command
    again = decode_result(encode_result(example.result))
    assert again == example.result
    assert type(again) is type(example.result)


@pytest.mark.parametrize("command", MORE, ids=lambda command: type(command).__name__)
def test_values_at_the_edges_of_their_ranges_survive_a_round_trip(command: Command[Any]) -> None:
    assert decode_command(encode_command(command)) == command


def test_a_command_without_level_changes_survives_a_round_trip() -> None:
    for changes in ((), (LevelChange("a", 0, 2), LevelChange("b", 2, 0))):
        assert decode_result(encode_result(changes)) == changes


@pytest.mark.parametrize(
    ("encoded", "said"),
    [
        (b"\xff\xff", "cannot be decoded"),
        (pb.Command(forget_topic=pb.ForgetTopic(topic_id=b"short")).SerializeToString(), "16 bytes, not 5"),
        (pb.Command(alter_configs=pb.AlterConfigs(resource_kind=77)).SerializeToString(), "77"),
        (b"", "upgrade the controller before its brokers"),
        (b"\xfa\x06\x00", "upgrade the controller before its brokers"),
    ],
)
def test_other_bytes_are_refused(encoded: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        decode_command(encoded)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example.command).__name__)
def test_a_broker_sends_its_own_commands_and_no_others(example: Example) -> None:
    """No broker may send a claim, the founding of a cluster, or a command about another broker's life."""
    command = example.command
    encoded = encode_command(command)
    if not isinstance(command, OF_BROKERS):
        with pytest.raises(InvalidRequest, match="only the controller's own process may send it"):
            decode_command(encoded, of_broker=1)
        return
    named = command.asked if isinstance(command, AlterConfigs) else getattr(command, "broker_id", 1)
    assert decode_command(encoded, of_broker=named) == command
    if isinstance(command, (AllocateProducerIds, AlterConfigs, HandOver, RaiseLeaderEpoch)):
        with pytest.raises(InvalidRequest, match=f"in the name of broker {named}"):
            decode_command(encoded, of_broker=named + 1)


def test_more_rows_than_any_command_has_are_refused_before_they_are_values() -> None:
    """Each row costs the loop microseconds, and half a megabyte has room for hundreds of thousands of rows."""
    named = pb.AlterConfigs(resource_kind=2, alterations=[pb.ConfigAlteration()] * (MAX_CONFIGS + 1))
    with pytest.raises(
        InvalidRequest, match=f"{MAX_CONFIGS + 1} alterations in one command, .* send smaller requests$"
    ):
        decode_command(pb.Command(alter_configs=named).SerializeToString())
    topic = pb.NewTopic(name="t", configs=[pb.NamedValue()] * (MAX_CONFIGS + 1))
    with pytest.raises(InvalidRequest, match=f"{MAX_CONFIGS + 1} configs in one command"):
        decode_command(pb.Command(create_topic=pb.CreateTopic(topic=topic, topic_id=b"1" * 16)).SerializeToString())
    files = [TopicFileSeen(topic_id=b"1" * 16)] * (MAX_TOPIC_FILES + 1)
    with pytest.raises(InvalidRequest, match=f"{MAX_TOPIC_FILES + 1} topics in one command"):
        decode_command(pb.Command(topic_files_seen=TopicFilesRecord(files=files)).SerializeToString())
    lists = pb.Assignments(partitions=[ReplicaList()] * (MAX_PARTITIONS_PER_REQUEST + 1))
    with pytest.raises(PolicyViolation, match="Excessively large number of partitions"):
        decode_command(pb.Command(create_partitions=pb.CreatePartitions(assignments=lists)).SerializeToString())
    nodes = ReplicaList(nodes=range(MAX_BROKERS + 1))
    with pytest.raises(InvalidReplicaAssignment, match=f"a cluster has at most {MAX_BROKERS} brokers"):
        decode_command(pb.Command(reassign=pb.Reassign(topic="t", replicas=nodes)).SerializeToString())
