"""A node's configs: what it was started with, what it says of itself, and what they are now."""

from __future__ import annotations

from dataclasses import dataclass

from service.build.ground import Ground, Listening
from service.configs.resolve import Resolver
from service.configs.values import BrokerConfigs, TopicConfigs
from service.metadata.log import MetadataLog
from service.node_place import NO_STORE, listener_configs


@dataclass(frozen=True, slots=True)
class NodeConfigs:
    """`broker` are this broker's, each as it is when it is asked for."""

    resolver: Resolver
    metadata: MetadataLog
    broker: BrokerConfigs

    def topic(self, name: str) -> TopicConfigs:
        """As they are now."""
        return self.resolver.topic(self.metadata.image, name)


def build_configs(ground: Ground, listening: Listening) -> NodeConfigs:
    """Of settings that were checked (`node_place.check`)."""
    settings, metadata = ground.settings, ground.metadata
    static = {
        **settings.broker,
        **listener_configs(settings),
        **_addresses(listening),
        "log.dirs": ground.data.path,
    }
    resolver = Resolver(static, node_id=settings.node_id, has_store=settings.store != NO_STORE)
    return NodeConfigs(resolver, metadata, BrokerConfigs(lambda name: resolver.broker_value(metadata.image, name)))


def _addresses(listening: Listening) -> dict[str, str]:
    """Of what is no listener of Kafka's."""
    named = {"tidelog.grpc.listener": listening.grpc, "tidelog.http.listener": listening.http}
    return {name: address for name, address in named.items() if address is not None}
