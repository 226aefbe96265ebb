"""FindCoordinator: a group's coordinator in every version; none for transactional ids and unknown types."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kafka_gateway.handler_client import HandlerClient

INVALID_REQUEST, TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 42, 53


def request(version: int, kind: int) -> dict[str, Any]:
    named: dict[str, Any] = {"coordinator_keys": ("a", "b")} if version >= 4 else {"key": "a"}
    return named | ({"key_type": kind} if version >= 1 else {})


def rows(answer: Any, version: int) -> list[Any]:
    return list(answer.coordinators) if version >= 4 else [answer]


@pytest.mark.parametrize("version", range(7))
async def test_a_group_has_a_coordinator_at_its_listener(handlers: HandlerClient, version: int) -> None:
    found = rows(await handlers.ask("find_coordinator", version, **request(version, 0)), version)
    (broker,) = (await handlers.ask("metadata", 1, topics=())).brokers
    assert {(int(row.error_code), row.node_id, row.host, row.port) for row in found} == {
        (0, broker.node_id, broker.host, broker.port)
    }
    assert [row.key for row in found] == ["a", "b"] if version >= 4 else len(found) == 1


@pytest.mark.parametrize("version", range(1, 7))
async def test_no_transactional_id_may_be_used(handlers: HandlerClient, version: int) -> None:
    found = rows(await handlers.ask("find_coordinator", version, **request(version, 1)), version)
    assert {int(row.error_code) for row in found} == {TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
    assert {(row.node_id, row.host, row.port) for row in found} == {(-1, "", -1)}
    assert "transactions are not served" in found[0].error_message


@pytest.mark.parametrize("version", range(1, 7))
async def test_an_unknown_type_of_coordinator_is_refused(handlers: HandlerClient, version: int) -> None:
    found = rows(await handlers.ask("find_coordinator", version, **request(version, 9)), version)
    assert {int(row.error_code) for row in found} == {INVALID_REQUEST}
