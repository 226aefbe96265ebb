"""IncrementalAlterConfigs, key 44, versions 0 to 1 (KIP-339): a request may name each resource, and each of its keys, once."""

from __future__ import annotations

from collections import Counter
from typing import Any

from grpc_api.contract.topics import AlterOp, ConfigAlteration
from kafka_gateway.errors import code_of, message_of
from kafka_gateway.handlers.describe_configs import resource_of
from kafka_gateway.message_handler import Call, Fields
from storage_tiers.errors import InvalidRequest, LogError

ONCE = "Each resource must appear at most once."
_OPERATIONS = {int(operation): operation for operation in AlterOp}


async def serve(request: Any, call: Call) -> Fields:
    times = Counter([(wanted.resource_type, wanted.resource_name) async for wanted in call.each(request.resources)])
    rows = []
    async for wanted in call.each(request.resources):
        try:
            if times[wanted.resource_type, wanted.resource_name] > 1:
                raise InvalidRequest(ONCE)
            resource, alterations = resource_of(wanted), await _alterations(wanted, call)
            await call.core.configs.alter_configs(resource, alterations, validate_only=bool(request.validate_only))
        except LogError as error:
            rows.append(row(call, wanted, code_of(error), message_of(error)))
        else:
            rows.append(row(call, wanted, 0, None))
    return {"responses": tuple(rows)}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"responses": (row(call, wanted, code, message) for wanted in request.resources)}


async def _alterations(wanted: Any, call: Call) -> list[ConfigAlteration]:
    names = {config.name async for config in call.each(wanted.configs)}
    if len(names) < len(wanted.configs):
        raise InvalidRequest("Error due to duplicate config keys")
    alterations = []
    async for config in call.each(wanted.configs):
        operation = _OPERATIONS.get(config.config_operation)
        if operation is None:
            raise InvalidRequest(f"Unknown operations type {config.config_operation}")
        if config.value is None and operation != AlterOp.DELETE:
            raise InvalidRequest(f"Null value not supported for : {config.name}")
        alterations.append(ConfigAlteration(config.name, operation, config.value))
    return alterations


def row(call: Call, wanted: Any, code: int, message: str | None) -> Any:
    return call.make(
        "AlterConfigsResourceResponse",
        error_code=code,
        error_message=message,
        resource_type=wanted.resource_type,
        resource_name=wanted.resource_name,
    )
