"""Every LogError has exactly one number of Kafka's, and the numbers are Kafka's own."""

from __future__ import annotations

from collections.abc import Iterator

from kio.schema.errors import ErrorCode as KioErrorCode

from kafka_gateway.errors import CODES, ErrorCode, code_of, message_of
from storage_tiers.errors import LogError, NotLeader, UnknownTopicOrPartition


def all_log_errors(kind: type[LogError] = LogError) -> Iterator[type[LogError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__.split(".")[0] != "tests":
            yield from all_log_errors(child)


def test_every_log_error_is_mapped() -> None:
    assert set(all_log_errors()) - set(CODES) == set()


def test_nothing_else_is_mapped() -> None:
    assert set(CODES) - set(all_log_errors()) == set()


def test_the_numbers_are_kafkas() -> None:
    assert {code.name.lower(): int(code) for code in ErrorCode}.items() <= {
        code.name: int(code) for code in KioErrorCode
    }.items()


def test_what_is_no_log_error_is_an_unknown_server_error_and_says_nothing() -> None:
    error = ValueError("/secret/path")
    assert code_of(error) == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "secret" not in message_of(error)


def test_messages_of_log_errors_reach_the_client() -> None:
    assert message_of(UnknownTopicOrPartition("topic a does not exist")) == "topic a does not exist"
    assert code_of(NotLeader("elsewhere")) == 6
    assert code_of(None) == 0
