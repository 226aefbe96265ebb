"""Apache Kafka's three brokers: broker 1 is the controller, too; 2 and 3 are brokers alone.

with KafkaCluster(directory) as kafka:            # starts all three, and waits until each knows all
    Producer({"bootstrap.servers": kafka.nodes[2].address})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from tests.support.apache_kafka import NODE_ID, ApacheKafka
from tests.support.ports import free_port

BROKERS = (1, 2, 3)


class KafkaCluster:
    """`nodes` are by broker id; `settings`, `heap` and `jvm` apply to each."""

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, str | int | bool] | None = None,
        heap: str = "512m",
        jvm: Sequence[str] = (),
    ) -> None:
        controller = f"127.0.0.1:{free_port()}"
        cluster_id = ApacheKafka.new_cluster_id()
        self.nodes: dict[int, ApacheKafka] = {}
        for broker in BROKERS:
            port = free_port()
            listeners = [f"PLAINTEXT://127.0.0.1:{port}"]
            roles = "broker"
            if broker == NODE_ID:
                listeners.append(f"CONTROLLER://{controller}")
                roles = "broker,controller"
            its_own: dict[str, str | int | bool] = {
                "process.roles": roles,
                "node.id": broker,
                "controller.quorum.voters": f"{NODE_ID}@{controller}",
                "listeners": ",".join(listeners),
            }
            self.nodes[broker] = ApacheKafka(
                directory / str(broker),
                settings={**its_own, **(settings or {})},
                port=port,
                heap=heap,
                jvm=jvm,
                cluster_id=cluster_id,
            )

    def __enter__(self) -> KafkaCluster:
        with ExitStack() as stack, ThreadPoolExecutor(len(BROKERS)) as pool:
            for node in self.nodes.values():
                stack.callback(node.kill)
            list(pool.map(lambda node: node.start(brokers=len(BROKERS)), self.nodes.values()))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def restart(self, broker: int) -> None:
        self.nodes[broker].stop()
        self.nodes[broker].start(brokers=len(BROKERS))
