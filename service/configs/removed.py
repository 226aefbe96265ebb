"""The config keys that Kafka 4 removed, each with its replacement, for the error message."""

from __future__ import annotations

from collections.abc import Mapping

_ZOOKEEPER = "there is no ZooKeeper; the controller's own log has the cluster's metadata"
_LISTENERS = "write listeners and advertised.listeners, here the node's own settings listeners and advertised_listeners"
_ENCODER = "no password is stored, so none is encoded"
_FORMAT = "every record batch has format 2"
_DIFFERENCE = "write {0}before.max.ms and {0}after.max.ms"

REMOVED_FROM_BROKERS: Mapping[str, str] = {
    "advertised.host.name": _LISTENERS,
    "advertised.port": _LISTENERS,
    "broker.id.generation.enable": "write node.id, here the node's own setting node_id",
    "control.plane.listener.name": "a controller has its own listener, the node's own setting controller_listener",
    "controlled.shutdown.max.retries": "a shutdown is retried until it is done",
    "controlled.shutdown.retry.backoff.ms": "a shutdown is retried until it is done",
    "delegation.token.master.key": "there are no delegation tokens, so none is signed",
    "host.name": _LISTENERS,
    "inter.broker.protocol.version": "write metadata.version through UpdateFeatures",
    "leader.imbalance.per.broker.percentage": "leadership returns to the preferred replica at any imbalance",
    "log.message.downconversion.enable": _FORMAT,
    "log.message.format.version": _FORMAT,
    "log.message.timestamp.difference.max.ms": _DIFFERENCE.format("log.message.timestamp."),
    "offsets.commit.required.acks": "offset commits always wait for all in-sync replicas",
    "password.encoder.cipher.algorithm": _ENCODER,
    "password.encoder.iterations": _ENCODER,
    "password.encoder.key.length": _ENCODER,
    "password.encoder.keyfactory.algorithm": _ENCODER,
    "password.encoder.old.secret": _ENCODER,
    "password.encoder.secret": _ENCODER,
    "port": _LISTENERS,
    "quota.consumer.default": "Kafka sets default quotas through AlterClientQuotas, and quotas are not served yet",
    "quota.producer.default": "Kafka sets default quotas through AlterClientQuotas, and quotas are not served yet",
    "reserved.broker.max.id": "ids are never generated",
}

REMOVED_FROM_TOPICS: Mapping[str, str] = {
    "message.downconversion.enable": _FORMAT,
    "message.format.version": _FORMAT,
    "message.timestamp.difference.max.ms": _DIFFERENCE.format("message.timestamp."),
}


def removed(scope: str, name: str) -> str | None:
    """The replacement of a key that Kafka 4 removed; None for any other key. `scope` is `topic` or `broker`."""
    if scope == "broker" and name.startswith("zookeeper."):
        return _ZOOKEEPER
    return (REMOVED_FROM_BROKERS if scope == "broker" else REMOVED_FROM_TOPICS).get(name)
