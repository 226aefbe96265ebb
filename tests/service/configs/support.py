"""Helpers of the config tests: an image, resolvers with and without a store, changes and descriptions."""

from __future__ import annotations

from collections.abc import Sequence

from grpc_api.contract.topics import AlterOp, ConfigAlteration, ConfigEntry, Resource, ResourceKind
from service.configs.describing import ConfigDescriptions
from service.configs.resolve import Resolver
from service.metadata.image import MetadataImage
from tests.service.metadata.records import new_topic

EMPTY = MetadataImage().apply_batch([*new_topic("z", 1), *new_topic("__consumer_offsets", 2)])
NODE = Resolver({}, node_id=1, has_store=False)
TIERED = Resolver({}, node_id=1, has_store=True)
Z = Resource(ResourceKind.TOPIC, "z")
BROKER = Resource(ResourceKind.BROKER, "1")
EVERY_BROKER = Resource(ResourceKind.BROKER, "")
SET, DELETE, APPEND, SUBTRACT = AlterOp.SET, AlterOp.DELETE, AlterOp.APPEND, AlterOp.SUBTRACT
Ops = Sequence[tuple[str, AlterOp, str | None]]


def altered(image: MetadataImage, resource: Resource, *ops: tuple[str, AlterOp, str | None]) -> MetadataImage:
    return image.apply_batch(NODE.alter(image, resource, [ConfigAlteration(*op) for op in ops]))


def described(image: MetadataImage, resource: Resource, name: str, node: Resolver = NODE) -> ConfigEntry:
    (entry,) = ConfigDescriptions(node).describe(image, resource, [name])
    return entry


def listed(entry: ConfigEntry) -> list[tuple[str, str | None, int]]:
    return [(s.name, s.value, int(s.source)) for s in entry.synonyms]
