"""Logger levels as configs; the error texts are those of Apache Kafka 4.2.1."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from grpc_api.contract.topics import AlterOp, ConfigAlteration, ConfigSource
from service.configs.loggers import Loggers
from storage_tiers.errors import InvalidConfig, InvalidRequest, LogError

SET, DELETE, APPEND = AlterOp.SET, AlterOp.DELETE, AlterOp.APPEND
NODE = Loggers(1)
NAME = "tests.of.loggers"


@pytest.fixture(autouse=True)
def logger() -> Iterator[logging.Logger]:
    made, root = logging.getLogger(NAME), logging.root.level
    made.setLevel(logging.NOTSET)
    yield made
    made.setLevel(logging.NOTSET)
    logging.root.setLevel(root)


def level(name: str) -> str | None:
    (entry,) = NODE.describe("1", [name])
    assert entry.source is ConfigSource.DYNAMIC_BROKER_LOGGER
    return entry.value


@pytest.mark.parametrize("name", ["FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE"])
def test_a_level_is_set_inherited_and_shown(logger: logging.Logger, name: str) -> None:
    NODE.alter("1", [ConfigAlteration(NAME, SET, name)], validate_only=False)
    assert level(NAME) == name
    NODE.alter("1", [ConfigAlteration(NAME, DELETE, None)], validate_only=False)
    NODE.alter("1", [ConfigAlteration("root", SET, name)], validate_only=False)
    assert (level("root"), level(NAME)) == (name, name)
    assert logger.level == logging.NOTSET


def test_validating_changes_nothing_and_one_error_stops_all(logger: logging.Logger) -> None:
    NODE.alter("1", [ConfigAlteration(NAME, SET, "TRACE")], validate_only=True)
    with pytest.raises(InvalidConfig):
        NODE.alter(
            "1", [ConfigAlteration(NAME, SET, "TRACE"), ConfigAlteration("root", SET, "LOUD")], validate_only=False
        )
    assert logger.level == logging.NOTSET


def test_a_level_between_two_is_shown_as_the_higher_one(logger: logging.Logger) -> None:
    for number, shown in ((1, "TRACE"), (7, "DEBUG"), (25, "WARN"), (99, "FATAL")):
        logger.setLevel(number)
        assert level(NAME) == shown


@pytest.mark.parametrize(
    ("broker", "change", "error", "message"),
    [
        ("1", ("none", SET, "INFO"), InvalidConfig, "Logger none does not exist!"),
        (
            "1",
            ("root", SET, "LOUD"),
            InvalidConfig,
            "Cannot set the log level of root to LOUD as it is not a supported log level. "
            "Valid log levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN",
        ),
        ("1", ("root", DELETE, None), InvalidRequest, "Removing the log level of the root logger is not allowed"),
        (
            "1",
            ("root", APPEND, "INFO"),
            InvalidRequest,
            "APPEND operation is not allowed for the BROKER_LOGGER resource",
        ),
        ("1", ("root", SET, None), InvalidRequest, "Null value not supported for : root"),
        ("2", ("root", SET, "INFO"), InvalidRequest, "Unexpected node id. Expected 1, but received 2"),
        ("", ("root", SET, "INFO"), InvalidRequest, "Node id must be an integer, but it is: "),
    ],
)
def test_illegal_levels_and_brokers_are_refused(
    broker: str, change: tuple[str, AlterOp, str | None], error: type[LogError], message: str
) -> None:
    with pytest.raises(error) as raised:
        NODE.alter(broker, [ConfigAlteration(*change)], validate_only=False)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("broker", "message"),
    [
        ("", "Broker id must not be empty"),
        ("x", "Broker id must be an integer, but it is: x"),
        ("2", "Unexpected broker id, expected 1 but received 2"),
    ],
)
def test_only_this_brokers_loggers_are_described(broker: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        NODE.describe(broker)
    assert str(raised.value) == message
