"""DescribeConfigs, key 32, versions 1 to 4, of topics and brokers. No keys asked for means all. v3 has documentation."""

from __future__ import annotations

from typing import Any

from grpc_api.contract.topics import ConfigEntry, Resource, ResourceKind
from kafka_gateway.errors import code_of, message_of
from kafka_gateway.message_handler import Call, Fields
from storage_tiers.errors import InvalidRequest, LogError


async def serve(request: Any, call: Call) -> Fields:
    return {"results": tuple([await _describe(wanted, request, call) for wanted in request.resources])}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"results": tuple(_result(call, wanted, code, message, ()) for wanted in request.resources)}


def resource_of(wanted: Any) -> Resource:
    """Raises InvalidRequest for a kind of resource that does not exist."""
    try:
        return Resource(ResourceKind(wanted.resource_type), wanted.resource_name)
    except ValueError:
        raise InvalidRequest(f"Unknown resource type {wanted.resource_type}") from None


async def _describe(wanted: Any, request: Any, call: Call) -> Any:
    try:
        resource = resource_of(wanted)
        entries = await call.core.configs.describe_configs(resource, wanted.configuration_keys or None)
    except LogError as error:
        return _result(call, wanted, code_of(error), message_of(error), ())
    synonyms = bool(request.include_synonyms)
    documentation = bool(getattr(request, "include_documentation", False))
    configs = tuple(_config(call, e, synonyms=synonyms, documentation=documentation) for e in entries)
    return _result(call, wanted, 0, "", configs)


def _result(call: Call, wanted: Any, code: int, message: str, configs: tuple[Any, ...]) -> Any:
    return call.make(
        "DescribeConfigsResult",
        error_code=code,
        error_message=message,
        resource_type=wanted.resource_type,
        resource_name=wanted.resource_name,
        configs=configs,
    )


def _config(call: Call, entry: ConfigEntry, *, synonyms: bool, documentation: bool) -> Any:
    rows = tuple(
        call.make("DescribeConfigsSynonym", name=synonym.name, value=synonym.value, source=int(synonym.source))
        for synonym in (entry.synonyms if synonyms else ())
    )
    return call.make(
        "DescribeConfigsResourceResult",
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=int(entry.source),
        is_sensitive=entry.sensitive,
        synonyms=rows,
        config_type=int(entry.kind),
        documentation=entry.documentation if documentation else None,
    )
