"""FindCoordinator: the coordinator of a group or a transactional id in every version; an unknown key type is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from grpc_api.contract.caller import Caller
from tests.kafka_gateway.handler_client import HandlerClient

INVALID_REQUEST = 42
GROUP, TRANSACTION = 0, 1


def request(version: int, kind: int) -> dict[str, Any]:
    named: dict[str, Any] = {"coordinator_keys": ("a", "b")} if version >= 4 else {"key": "a"}
    return named | ({"key_type": kind} if version >= 1 else {})


def rows(answer: Any, version: int) -> list[Any]:
    return list(answer.coordinators) if version >= 4 else [answer]


@pytest.mark.parametrize(
    ("version", "kind"),
    [(version, kind) for version in range(7) for kind in (GROUP, TRANSACTION) if version or not kind],
)
async def test_a_coordinator_is_found_at_its_listener(handlers: HandlerClient, version: int, kind: int) -> None:
    found = rows(await handlers.ask("find_coordinator", version, **request(version, kind)), version)
    (broker,) = (await handlers.ask("metadata", 1, topics=())).brokers
    assert {(int(row.error_code), row.node_id, row.host, row.port) for row in found} == {
        (0, broker.node_id, broker.host, broker.port)
    }
    assert [row.key for row in found] == ["a", "b"] if version >= 4 else len(found) == 1


@pytest.mark.parametrize("version", range(1, 7))
async def test_an_unknown_type_of_coordinator_is_refused(handlers: HandlerClient, version: int) -> None:
    found = rows(await handlers.ask("find_coordinator", version, **request(version, 9)), version)
    assert {int(row.error_code) for row in found} == {INVALID_REQUEST}


@pytest.mark.parametrize("version", [3, 4])
async def test_a_defect_of_one_key_is_logged(
    handlers: HandlerClient, version: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def coordinator(_group_id: str, _caller: Caller) -> asyncio.Future[int]:
        failed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        failed.set_exception(RuntimeError("a defect"))
        return failed

    monkeypatch.setattr(handlers.core.groups, "coordinator", coordinator)
    found = rows(await handlers.ask("find_coordinator", version, **request(version, GROUP)), version)
    assert {int(row.error_code) for row in found} == {-1}
    assert "request.defect" in caplog.text
