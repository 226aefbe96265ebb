"""Builds a node's configs: its static configs, its listeners as configs, and the resolver of current values, including dynamic
configs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from service.build.ground import Ground, Listening
from service.configs.describing import ConfigDescriptions
from service.configs.resolve import Resolver
from service.configs.values import BrokerConfigs, TopicConfigs
from service.metadata.controller import Commands
from service.metadata.following import Metadata
from service.settings.derived import listener_configs, roles_of
from service.settings.node_settings import NO_STORE


@dataclass(frozen=True, slots=True)
class NodeConfigs:
    """`broker` holds this broker's configs; reading an attribute resolves its current value. `controller` changes the metadata,
    including dynamic configs."""

    resolver: Resolver
    descriptions: ConfigDescriptions
    metadata: Metadata
    broker: BrokerConfigs
    controller: Commands

    def topic(self, name: str) -> TopicConfigs:
        """The topic's current configs."""
        return self.resolver.topic(self.metadata.image, name)


def build_configs(ground: Ground, listening: Listening, controller_of: Callable[[Resolver], Commands]) -> NodeConfigs:
    """Builds the configs from settings that `settings.derived.check` has accepted. `controller_of` makes the object that
    carries out commands."""
    settings, metadata = ground.settings, ground.metadata
    static = {
        **settings.broker,
        **listener_configs(settings),
        **_addresses(listening),
        "log.dirs": ground.data.path,
        "process.roles": roles_of(settings),
    }
    resolver = Resolver(static, node_id=settings.node_id, has_store=settings.store != NO_STORE)
    broker = BrokerConfigs(lambda name: resolver.broker_value(metadata.image, name))
    return NodeConfigs(resolver, ConfigDescriptions(resolver), metadata, broker, controller_of(resolver))


def _addresses(listening: Listening) -> dict[str, str]:
    """The gRPC and HTTP listeners as configs."""
    named = {"tidelog.grpc.listener": listening.grpc, "tidelog.http.listener": listening.http}
    return {name: address for name, address in named.items() if address is not None}
