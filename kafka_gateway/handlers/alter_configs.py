"""AlterConfigs, key 33, versions 0 to 2: replaces a resource's configs; keys not named return to their defaults.

IncrementalAlterConfigs (KIP-339) supersedes this API, but older clients and tools still send it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from grpc_api.contract.topics import AlterOp, ConfigAlteration
from kafka_gateway.errors import code_of, message_of
from kafka_gateway.handlers.describe_configs import resource_of
from kafka_gateway.handlers.incremental_alter_configs import ONCE, refuse, row
from kafka_gateway.message_handler import Call, Fields
from storage_tiers.errors import InvalidRequest, LogError

__all__ = ["refuse", "serve"]


async def serve(request: Any, call: Call) -> Fields:
    times = Counter([(wanted.resource_type, wanted.resource_name) async for wanted in call.each(request.resources)])
    rows = []
    async for wanted in call.each(request.resources):
        try:
            if times[wanted.resource_type, wanted.resource_name] > 1:
                raise InvalidRequest(ONCE)
            given = [
                ConfigAlteration(config.name, AlterOp.SET, config.value) async for config in call.each(wanted.configs)
            ]
            await call.core.configs.alter_configs(
                resource_of(wanted), given, validate_only=bool(request.validate_only), replace=True
            )
        except LogError as error:
            rows.append(row(call, wanted, code_of(error), message_of(error)))
        else:
            rows.append(row(call, wanted, 0, None))
    return {"responses": tuple(rows)}
