"""Commands and results survive their bytes; bytes that are none are refused with the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from grpc_api.contract.features import FeatureUpdate
from grpc_api.contract.topics import AlterOp, ConfigAlteration, NewTopic, Resource, ResourceKind
from service.metadata import commands_pb2 as pb
from service.metadata.command_codec import decode_command, decode_result, encode_command, encode_result
from service.metadata.commands import (
    AlterConfigs,
    Command,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    LevelChange,
    RegisterBroker,
    UpdateFeatures,
)
from storage_tiers.errors import InvalidRequest
from tests.service.metadata.records import topic_id
from tests.service.metadata.test_commands import EXAMPLES, Example

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
def test_commands_and_results_survive_their_bytes(example: Example) -> None:
    assert decode_command(encode_command(example.command)) == example.command
    again = decode_result(encode_result(example.result))
    assert again == example.result
    assert type(again) is type(example.result)


@pytest.mark.parametrize("command", MORE, ids=lambda command: type(command).__name__)
def test_values_at_their_edges_survive(command: Command[Any]) -> None:
    assert decode_command(encode_command(command)) == command


def test_level_changes_survive_also_without_any() -> None:
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
