"""There are no coordinators, and FindCoordinator says so in every version."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kafka_gateway.handler_client import HandlerClient

COORDINATOR_NOT_AVAILABLE, TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 15, 53


def request(version: int, kind: int) -> dict[str, Any]:
    named: dict[str, Any] = {"coordinator_keys": ("a", "b")} if version >= 4 else {"key": "a"}
    return named | ({"key_type": kind} if version >= 1 else {})


def rows(answer: Any, version: int) -> list[Any]:
    return list(answer.coordinators) if version >= 4 else [answer]


@pytest.mark.parametrize("version", range(7))
async def test_no_group_has_a_coordinator(handlers: HandlerClient, version: int) -> None:
    found = rows(await handlers.ask("find_coordinator", version, **request(version, 0)), version)
    assert {int(row.error_code) for row in found} == {COORDINATOR_NOT_AVAILABLE}
    assert {(row.node_id, row.host, row.port) for row in found} == {(-1, "", -1)}
    assert [row.key for row in found] == ["a", "b"] if version >= 4 else len(found) == 1
    if version >= 1:
        assert "assign()" in found[0].error_message


@pytest.mark.parametrize("version", range(1, 7))
async def test_no_transactional_id_may_be_used(handlers: HandlerClient, version: int) -> None:
    found = rows(await handlers.ask("find_coordinator", version, **request(version, 1)), version)
    assert {int(row.error_code) for row in found} == {TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
    assert "transactions are not served" in found[0].error_message
