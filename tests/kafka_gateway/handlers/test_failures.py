"""However a core fails, every request of every version gets a response that reports the error."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_gateway.registry import APIS, Api
from storage_tiers.errors import StorageError
from tests.kafka_gateway.handler_client import KEYS, HandlerClient
from tests.kafka_gateway.memory_core import MemoryCore

SCHEMAS = {api.key: schema for schema, api in KEYS.items()}
#: The core's method that each API calls first.
ASKED = {
    2: "list_offsets", 3: "describe", 19: "create", 20: "delete", 21: "delete_records", 22: "init_producer_id",
    23: "epoch_end_offset", 32: "describe_configs", 37: "create_partitions", 44: "alter_configs",
}  # fmt: skip
TOPIC: dict[str, Any] = {
    "name": "first",
    "topic": "first",
    "topic_id": None,
    "partitions": [{"partition_index": 0, "partition": 0, "timestamp": -1, "offset": 0, "leader_epoch": 0}],
}
REQUEST: dict[str, Any] = {
    "topics": [TOPIC],
    "topic_names": ["first"],
    "transactional_id": None,
    "resources": [{"resource_type": 2, "resource_name": "first", "configs": [], "configuration_keys": None}],
}


def cases() -> list[Any]:
    return [
        pytest.param(api, version, id=f"{api.name} {version}")
        for api in APIS
        if api.key in ASKED
        for version in range(api.served_from, api.highest + 1)
    ]


def error_codes(answer: Any) -> set[int]:
    """The nonzero error codes of the response and all its parts."""
    found = {int(answer.error_code)} if hasattr(answer, "error_code") else set()
    for name in getattr(answer, "__slots__", ()):
        value = getattr(answer, name)
        for inner in value if isinstance(value, tuple) else ():
            found |= error_codes(inner)
    return found - {0}


@pytest.mark.parametrize(("api", "version"), cases())
@pytest.mark.parametrize(("failure", "code"), [(KeyError("bug"), -1), (StorageError("the disk is full"), 56)])
async def test_a_failure_of_the_core_is_answered(
    core: MemoryCore, monkeypatch: pytest.MonkeyPatch, api: Api, version: int, failure: Exception, code: int
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise failure

    monkeypatch.setattr(core, ASKED[api.key], fail)
    answer = await HandlerClient(core).ask(SCHEMAS[api.key], version, **REQUEST)
    assert error_codes(answer) == {code}
