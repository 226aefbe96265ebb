"""AlterConfigs and ListConfigResources, in every version."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kafka_gateway.handler_client import HandlerClient
from tests.kafka_gateway.memory_core import MemoryCore

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32


def wanted(kind: int, name: str, **values: str | None) -> dict[str, Any]:
    configs = [{"name": key.replace("_", "."), "value": value} for key, value in values.items()]
    return {"resource_type": kind, "resource_name": name, "configs": configs}


@pytest.mark.parametrize("version", range(3))
async def test_unnamed_configs_return_to_their_defaults(
    handlers: HandlerClient, core: MemoryCore, version: int
) -> None:
    for resource in (wanted(TOPIC, "first", retention_ms="5"), wanted(TOPIC, "first", cleanup_policy="compact")):
        answer = await handlers.ask("alter_configs", version, resources=[resource], validate_only=False)
        (row,) = answer.responses
        assert (int(row.error_code), row.error_message) == (0, None)
        assert (row.resource_type, row.resource_name) == (TOPIC, "first")
    assert core.configs_of["first"] == {"cleanup.policy": "compact"}
    await handlers.ask("alter_configs", version, resources=[wanted(TOPIC, "first")], validate_only=True)
    assert core.configs_of["first"] == {"cleanup.policy": "compact"}


@pytest.mark.parametrize("version", range(3))
async def test_each_resource_has_its_own_error(handlers: HandlerClient, core: MemoryCore, version: int) -> None:
    twice = wanted(TOPIC, "first", retention_ms="5")
    rows = [twice, wanted(TOPIC, "none"), wanted(TOPIC, "second", retention_ms="7"), wanted(99, "x"), twice]
    answer = await handlers.ask("alter_configs", version, resources=rows, validate_only=False)
    assert [(row.resource_name, int(row.error_code)) for row in answer.responses] == [
        ("first", 42),
        ("none", 3),
        ("second", 0),
        ("x", 42),
        ("first", 42),
    ]
    assert answer.responses[0].error_message == "Each resource must appear at most once."
    assert {name: own for name, own in core.configs_of.items() if own} == {"second": {"retention.ms": "7"}}


async def test_client_metrics_alone_are_listed_by_the_first_version(handlers: HandlerClient) -> None:
    answer = await handlers.ask("list_config_resources", 0)
    assert (int(answer.error_code), answer.config_resources) == (0, ())


@pytest.mark.parametrize(
    ("kinds", "listed"),
    [
        ([], [(BROKER_LOGGER, "1"), (BROKER, "1"), (TOPIC, "first"), (TOPIC, "second")]),
        ([TOPIC], [(TOPIC, "first"), (TOPIC, "second")]),
        ([TOPIC, BROKER], [(BROKER, "1"), (TOPIC, "first"), (TOPIC, "second")]),
        ([CLIENT_METRICS, GROUP], []),
    ],
)
async def test_resources_are_listed_by_kind(
    handlers: HandlerClient, kinds: list[int], listed: list[tuple[int, str]]
) -> None:
    answer = await handlers.ask("list_config_resources", 1, resource_types=kinds)
    assert int(answer.error_code) == 0
    found = [(row.resource_type, row.resource_name) for row in answer.config_resources]
    assert [pair for pair in found if pair[0] != TOPIC or pair[1] in ("first", "second")] == listed


async def test_a_kind_that_does_not_exist_is_refused(handlers: HandlerClient) -> None:
    answer = await handlers.ask("list_config_resources", 1, resource_types=[TOPIC, 99])
    assert (int(answer.error_code), answer.config_resources) == (35, ())
