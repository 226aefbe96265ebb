"""The local log of a topic's only partition, and its eviction to the bucket."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from storage_tiers.records.decoder import decode
from tests.clients.samples import Record
from tests.support.clients import TIERED, local_bytes, seal, until
from tests.support.node import Node

#: Configs of topics that keep their local segments until `evict`.
KEPT = {**TIERED, "local.retention.ms": "-1"}


def log(node: Node, topic: str) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(node.partition_dir(topic).glob("*.log")))


def stored(node: Node, topic: str) -> list[Record]:
    """The partition's local records, decoded by the plain decoder."""
    return [Record(each.key, each.value, each.headers, each.timestamp) for each in decode(log(node, topic))]


def evict(node: Node, topics: Sequence[str]) -> None:
    """Returns once all records are in the bucket and no local copy is left."""
    change = ConfigEntry("local.retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
    resources = [ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[change]) for topic in topics]
    admin = AdminClient({"bootstrap.servers": node.kafka})
    for altered in admin.incremental_alter_configs(resources).values():
        altered.result(30)
    for topic in topics:
        seal(node, topic)
    until(lambda: not any(local_bytes(node, topic, 1) for topic in topics), "local segments are evicted")
