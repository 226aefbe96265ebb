"""The contract's `Configs`: described from the metadata image, changed through the metadata log; levels of loggers, which
nothing stores, in the process itself."""

from __future__ import annotations

from collections.abc import Sequence

from grpc_api.contract.topics import ConfigAlteration, ConfigEntry, Resource, ResourceKind
from service.configs import client_metrics
from service.configs.loggers import Loggers
from service.configs.resolve import Resolver
from service.metadata import planner
from service.metadata.image import MetadataImage
from service.metadata.log import MetadataLog


class ConfigService:
    def __init__(self, metadata: MetadataLog, configs: Resolver) -> None:
        self._metadata = metadata
        self._configs = configs
        self._loggers = Loggers(configs.node_id)

    async def describe_configs(self, resource: Resource, keys: Sequence[str] | None = None) -> Sequence[ConfigEntry]:
        if resource.kind is ResourceKind.BROKER_LOGGER:
            return self._loggers.describe(resource.name, keys)
        if resource.kind is ResourceKind.CLIENT_METRICS:
            return client_metrics.describe(self._metadata.image, resource.name, keys)
        return self._configs.describe(self._metadata.image, resource, keys)

    async def alter_configs(
        self,
        resource: Resource,
        alterations: Sequence[ConfigAlteration],
        *,
        validate_only: bool = False,
        replace: bool = False,
    ) -> None:
        if resource.kind is ResourceKind.BROKER_LOGGER and not replace:
            self._loggers.alter(resource.name, alterations, validate_only=validate_only)
            return

        def plan(image: MetadataImage) -> tuple[planner.Records, None]:
            if resource.kind is ResourceKind.CLIENT_METRICS and not replace:
                records = client_metrics.alter(image, resource, alterations)
            else:
                records = self._configs.alter(image, resource, alterations, replace=replace)
            return (() if validate_only else records), None

        await self._metadata.change(plan)
