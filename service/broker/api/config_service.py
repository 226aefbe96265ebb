"""The contract's `Configs`: it describes configs from the metadata image and changes them through the controller. Log levels
are not stored: they change in the process itself."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from grpc_api.contract.topics import ConfigAlteration, ConfigEntry, Resource, ResourceKind
from service.configs import client_metrics
from service.configs.broker_keys import BROKER_KEYS
from service.configs.describing import ConfigDescriptions
from service.configs.loggers import Loggers
from service.metadata.commands import AlterConfigs
from service.metadata.controller import Commands
from service.metadata.following import Metadata
from storage_tiers import events
from storage_tiers.errors import LogError

log = logging.getLogger(__name__)


class ConfigService:
    """The contract's `Configs`. The metadata log keeps the configs of topics, brokers and client metrics; this process keeps
    the levels of its loggers."""

    def __init__(
        self, metadata: Metadata, controller: Commands, descriptions: ConfigDescriptions, *, node_id: int
    ) -> None:
        self._metadata = metadata
        self._controller = controller
        self._descriptions = descriptions
        self._node_id = node_id
        self._loggers = Loggers(node_id)

    async def describe_configs(self, resource: Resource, keys: Sequence[str] | None = None) -> Sequence[ConfigEntry]:
        if resource.kind is ResourceKind.BROKER_LOGGER:
            return self._loggers.describe(resource.name, keys)
        if resource.kind is ResourceKind.CLIENT_METRICS:
            return client_metrics.describe(self._metadata.image, resource.name, keys)
        return self._descriptions.describe(self._metadata.image, resource, keys)

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
        try:
            command = AlterConfigs(resource, tuple(alterations), self._node_id, replace, validate_only)
            await self._controller.execute(command)
        except LogError as error:
            events.provoked(
                log, "config.refused", by="alter", resource=resource.kind.name, name=resource.name, error=error
            )
            raise
        for alteration in () if validate_only else alterations:
            _say_changed(resource, alteration, replace=replace)


def _say_changed(resource: Resource, alteration: ConfigAlteration, *, replace: bool) -> None:
    key = BROKER_KEYS.find(alteration.name)
    secret = key is not None and key.sensitive
    events.info(
        log,
        "config.changed",
        resource=resource.kind.name,
        name=resource.name,
        key=alteration.name,
        operation="REPLACE" if replace else alteration.op.name,
        value=None if secret else alteration.value,
    )
