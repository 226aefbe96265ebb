"""DescribeConfigs, key 32, versions 1 to 4. A null or empty list of keys means all keys. v3 can ask for documentation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grpc_api.contract.topics import ConfigEntry, Resource, ResourceKind
from kafka_gateway.errors import code_of, message_of
from kafka_gateway.message_handler import Call, Fields
from kafka_gateway.message_writer import Encoded
from storage_tiers.errors import InvalidRequest, LogError


async def serve(request: Any, call: Call) -> Fields:
    rows = _Rows(call, request)
    # A duplicate resource is answered twice, as in Kafka, but looked up and encoded once.
    known: dict[Any, Any] = {}
    results = []
    async for wanted in call.each(request.resources):
        if wanted not in known:
            known[wanted] = await _describe(wanted, call, rows)
        results.append(known[wanted])
    return {"results": results}


def refuse(request: Any, call: Call, code: int, message: str) -> Fields:
    return {"results": (_result(call, wanted, code, message, ()) for wanted in request.resources)}


def resource_of(wanted: Any) -> Resource:
    """Raises InvalidRequest for an unknown resource type."""
    try:
        return Resource(ResourceKind(wanted.resource_type), wanted.resource_name)
    except ValueError:
        raise InvalidRequest(f"Unknown resource type {wanted.resource_type}") from None


async def _describe(wanted: Any, call: Call, rows: _Rows) -> Any:
    try:
        resource = resource_of(wanted)
        entries = await call.core.configs.describe_configs(resource, wanted.configuration_keys or None)
    except LogError as error:
        return _result(call, wanted, code_of(error), message_of(error), ())
    return _result(call, wanted, 0, "", rows.of(entries))


class _Rows:
    """Encodes the configs of resources for the answer. The core returns one object for all resources with the same configs,
    which is the common case; the object is encoded once and sent for each of these resources."""

    def __init__(self, call: Call, request: Any) -> None:
        self._call = call
        self._synonyms = bool(request.include_synonyms)
        self._documentation = bool(getattr(request, "include_documentation", False))
        self._written: dict[int, tuple[Sequence[ConfigEntry], Encoded]] = {}

    def of(self, entries: Sequence[ConfigEntry]) -> Encoded:
        known = self._written.get(id(entries))
        if known is not None:
            return known[1]
        call, synonyms, documentation = self._call, self._synonyms, self._documentation
        rows = call.messages.encoded(_config(call, e, synonyms=synonyms, documentation=documentation) for e in entries)
        # Keeps the entries alive, so that their id is not reused.
        self._written[id(entries)] = entries, rows
        return rows


def _result(call: Call, wanted: Any, code: int, message: str, configs: Encoded | tuple[()]) -> Any:
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
