"""Three brokers of one controller, each in its own process.

Broker 1 has the controller in its process; 2 and 3 follow it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tests.faults.clients import until
from tests.support.node import Node
from tests.support.ports import free_port


class Cluster:
    """`nodes` are by broker id; `store`, `settings` and `flags` apply to each. The context manager starts and ends the
    nodes."""

    def __init__(
        self,
        directory: Path,
        store: str,
        settings: Mapping[str, str | int | bool] | None = None,
        *,
        flags: Sequence[str] = (),
    ) -> None:
        at = f"127.0.0.1:{free_port()}"
        self.nodes = {}
        for broker in (1, 2, 3):
            role = ["--controller-listener", at] if broker == 1 else ["--roles", "broker", "--controller", at]
            own = [*flags, "--node-id", str(broker), *role]
            self.nodes[broker] = Node(directory / str(broker), store=store, settings=settings, flags=own)

    def __enter__(self) -> Cluster:
        with ExitStack() as stack:
            for node in self.nodes.values():
                stack.enter_context(node)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def admin(self, broker: int) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.nodes[broker].kafka})

    def leaders(self, broker: int, topic: str) -> dict[int, int]:
        """The topic's leaders, as that broker knows them."""
        partitions = self.admin(broker).list_topics(topic, timeout=10).topics[topic].partitions
        return {number: partition.leader for number, partition in partitions.items()}

    def brokers(self, asked: int) -> set[int]:
        return set(self.admin(asked).list_topics(timeout=10).brokers)

    def wait_leaders(self, asked: int, topic: str, wanted: set[int]) -> None:
        until(lambda: set(self.leaders(asked, topic).values()) == wanted, f"{topic} is led by {wanted}")
