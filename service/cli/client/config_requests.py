"""DescribeConfigs and IncrementalAlterConfigs, sent to a node directly, because librdkafka supports neither the cluster-wide
broker defaults (a resource without a name) nor the documentation of configs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from service.cli.client.requests import ask
from service.cli.errors import CommandError
from service.cli.kafka import unknown_topic

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
#: The names that `tidelog configs` prints for the sources of DescribeConfigs.
SOURCES = {1: "topic", 2: "broker", 3: "all brokers", 4: "start", 5: "default"}


@dataclass(frozen=True, slots=True)
class Described:
    """`value` is None for a secret or an unset config. `synonyms` are (key, value, source), the effective one first."""

    name: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool
    documentation: str
    synonyms: Sequence[tuple[str, str | None, str]]


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """`operation` is IncrementalAlterConfigs' number: set, delete, append or subtract. `value` is None for delete."""

    name: str
    operation: int
    value: str | None


def describe_configs(address: str, kind: int, name: str, keys: Sequence[str] = ()) -> list[Described]:
    """The configs of one resource, sorted by name: all, or those in `keys` that exist. Raises CommandError if the node
    refuses."""
    from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
    from kio.schema.describe_configs.v4.response import DescribeConfigsResponse
    from kio.static.primitive import i8

    asked = DescribeConfigsResource(
        resource_type=i8(kind), resource_name=name, configuration_keys=tuple(keys) if keys else None
    )
    request = DescribeConfigsRequest(resources=(asked,), include_synonyms=True, include_documentation=True)
    (found,) = ask(address, request, DescribeConfigsResponse).results
    _check(address, found, kind, name, "cannot describe")
    entries = [
        Described(
            entry.name,
            entry.value,
            SOURCES.get(entry.config_source, str(entry.config_source)),
            entry.read_only,
            entry.is_sensitive,
            entry.documentation or "",
            [(s.name, s.value, SOURCES.get(s.source, str(s.source))) for s in entry.synonyms],
        )
        for entry in found.configs
    ]
    return sorted(entries, key=lambda entry: entry.name)


def alter_configs(address: str, kind: int, name: str, changes: Sequence[ConfigChange], *, validate_only: bool) -> None:
    """Makes all changes or none. Raises CommandError with the node's reason if it refuses them."""
    from kio.schema.incremental_alter_configs.v1.request import (
        AlterableConfig,
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
    )
    from kio.schema.incremental_alter_configs.v1.response import IncrementalAlterConfigsResponse
    from kio.static.primitive import i8

    configs = tuple(
        AlterableConfig(name=change.name, config_operation=i8(change.operation), value=change.value)
        for change in changes
    )
    asked = AlterConfigsResource(resource_type=i8(kind), resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=(asked,), validate_only=validate_only)
    (answer,) = ask(address, request, IncrementalAlterConfigsResponse).responses
    _check(address, answer, kind, name, "cannot change the configs of")


def _check(address: str, answer: Any, kind: int, name: str, what: str) -> None:
    if answer.error_code:
        if kind == TOPIC and answer.error_code.name == "unknown_topic_or_partition":
            raise unknown_topic(address, name)
        raise CommandError(
            f"{what} {_named(kind, name)}: {answer.error_message or 'refused'} ({answer.error_code.name.upper()})"
        )


def _named(kind: int, name: str) -> str:
    if kind == TOPIC:
        return f"topic {name}"
    return f"broker {name}" if name else "all brokers"
