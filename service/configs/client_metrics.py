"""Subscriptions to clients' metrics (KIP-714) as configs of the resource "client metrics": the metrics, the interval, the
clients.

A subscription exists as soon as one of its configs is set. Wording follows Kafka 4.2. Unlike in Kafka, a pattern that could be
slow to match is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from grpc_api.contract.topics import (
    AlterOp,
    ConfigAlteration,
    ConfigEntry,
    ConfigKind,
    ConfigSource,
    ConfigSynonym,
    Resource,
    ResourceKind,
)
from kafka_gateway.match_patterns import longest_text
from service.configs.types import parse, split_list
from service.metadata import records_pb2 as pb
from service.metadata.image import MetadataImage
from service.metadata.snapshot import config_record
from storage_tiers.errors import InvalidConfig, InvalidRequest

INTERVAL, MATCH, METRICS = "interval.ms", "match", "metrics"
SHORTEST_MS, LONGEST_MS = 100, 3_600_000
#: The properties of a client that a pattern may name (Kafka: ClientMetricsConfigs.ALLOWED_MATCH_PARAMS).
KNOWN_OF_CLIENTS = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
_KINDS = {INTERVAL: ConfigKind.INT, MATCH: ConfigKind.LIST, METRICS: ConfigKind.LIST}
_DEFAULTS = {INTERVAL: "300000", MATCH: "", METRICS: ""}
_DOCUMENTATION = {
    INTERVAL: "Metrics push interval in milliseconds",
    MATCH: "Client match criteria",
    METRICS: "Telemetry metric name prefix list",
}


def describe(image: MetadataImage, name: str, keys: Sequence[str] | None = None) -> list[ConfigEntry]:
    """All configs of a subscription, or those in `keys`. A missing subscription has the defaults."""
    if not name:
        raise InvalidRequest("Client metrics subscription name must not be empty")
    own = image.config(ResourceKind.CLIENT_METRICS, name)
    entries = []
    for key, default in _DEFAULTS.items():
        if keys is not None and key not in keys:
            continue
        value = own.get(key, default)
        if _KINDS[key] is ConfigKind.LIST:
            value = ",".join(split_list(value))
        source = ConfigSource.CLIENT_METRICS if key in own else ConfigSource.DEFAULT
        synonyms = (ConfigSynonym(key, value, source),) if key in own else ()
        entries.append(
            ConfigEntry(key, value, source, _KINDS[key], synonyms=synonyms, documentation=_DOCUMENTATION[key])
        )
    return entries


def alter(
    image: MetadataImage, resource: Resource, alterations: Sequence[ConfigAlteration], *, replace: bool = False
) -> tuple[pb.MetadataRecord, ...]:
    """The records of all alterations; `replace` also removes configs that they do not name. If an alteration is invalid, raises
    InvalidRequest or InvalidConfig in Kafka's words and makes no records."""
    if not resource.name:
        raise InvalidRequest("Subscription name can't be empty")
    if len({alteration.name for alteration in alterations}) != len(alterations):
        raise InvalidRequest("Error due to duplicate config keys")
    old = image.config(resource.kind, resource.name)
    new: dict[str, str | None] = dict.fromkeys(old) if replace else {}
    for alteration in alterations:
        if alteration.name not in _KINDS:
            raise InvalidRequest(f"Unknown client metrics configuration: {alteration.name}")
        new[alteration.name] = _altered(alteration)
    for name, text in new.items():
        if text is not None:
            _check(name, text)
    return tuple(
        pb.MetadataRecord(config=config_record(resource, name, text))
        for name, text in new.items()
        if text != old.get(name)
    )


def _altered(alteration: ConfigAlteration) -> str | None:
    name, op, text = alteration
    if op is AlterOp.DELETE:
        return None
    if text is None:
        raise InvalidRequest(f"Null value not supported for : {name}")
    if op is AlterOp.SET:
        return text
    # Kafka's controller accepts only SET and DELETE here, even for lists.
    raise InvalidConfig(f"Can't {op.name} to key {name} because its type is not LIST.")


def _check(name: str, text: str) -> None:
    value = parse(name, _KINDS[name], text)
    if name == INTERVAL and not SHORTEST_MS <= int(str(value)) <= LONGEST_MS:
        raise InvalidRequest(
            f"Invalid value {text} for {INTERVAL}, interval must be between {SHORTEST_MS} and {LONGEST_MS} (1 hour)"
        )
    for pattern in split_list(text) if name == MATCH else ():
        if not _is_match(pattern):
            known = ", ".join(KNOWN_OF_CLIENTS)
            form = f"it is NAME=REGEX, with NAME one of {known}, and REGEX without nested repeats"
            raise InvalidConfig(f"Illegal client matching pattern: {pattern} ({form})")


def _is_match(pattern: str) -> bool:
    """Whether the pattern has Kafka's form, NAME=REGEX with one equals sign, and a regex that certainly matches quickly."""
    what, _, expression = pattern.partition("=")
    if what.strip() not in KNOWN_OF_CLIENTS or not expression or "=" in expression.rstrip("="):
        return False
    return longest_text(expression.strip()) > 0
