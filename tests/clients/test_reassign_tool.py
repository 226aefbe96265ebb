"""Kafka's own tool moves a partition between brokers with a throttle, and removes the throttle when it verifies the move."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import ConfigResource

from tests.clients import tools
from tests.faults.clients import until
from tests.service.serve.test_cluster import consumed, create, produce
from tests.support.cluster import Cluster
from tests.support.talker import Talker


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("reassigned")
    with Cluster(directory, f"file://{directory / 'store'}") as made:
        yield made


def throttles(cluster: Cluster) -> set[str]:
    """The throttle's configs that are set, of the topic and of all brokers."""
    found: set[str] = set()
    for resource in (ConfigResource("topic", "t"), *(ConfigResource("broker", str(n)) for n in cluster.nodes)):
        asked = int(resource.name) if resource.name.isdecimal() else 1
        admin = cluster.admin(asked)
        entries = admin.describe_configs([resource])[resource].result()
        found |= {key for key, entry in entries.items() if "throttled" in key and not entry.is_default}
    return found


def test_kafkas_tool_moves_a_partition_with_a_throttle(cluster: Cluster, java: Talker, tmp_path: Path) -> None:
    create(cluster, 1, "t")
    produce(cluster, 1, "t", range(60))
    before = cluster.leaders(1, "t")
    wanted = {number: leader % 3 + 1 for number, leader in before.items()}
    plan = tmp_path / "plan.json"
    rows = [{"topic": "t", "partition": number, "replicas": [broker]} for number, broker in wanted.items()]
    plan.write_text(json.dumps({"version": 1, "partitions": rows}))

    def reassign(*words: str) -> Any:
        arguments = ["--bootstrap-server", cluster.nodes[2].kafka, *words, "--reassignment-json-file", str(plan)]
        return java.ask(command="tool", tool=tools.CLASSES["kafka-reassign-partitions"], arguments=arguments)

    begun = reassign("--execute", "--throttle", "50000000")
    assert "Successfully started partition reassignments" in str(begun), begun
    assert throttles(cluster) >= {"leader.replication.throttled.replicas", "leader.replication.throttled.rate"}
    until(lambda: cluster.leaders(3, "t") == wanted, "the partitions have moved")
    verified = reassign("--verify")
    assert str(verified).count("is completed") == len(wanted), verified
    assert throttles(cluster) == set()
    assert consumed(cluster, 3, "t", "readers", 60) == set(range(60))
