"""A node with a gRPC server that can stop and return on its port while the core keeps running."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from grpc_api.servicers.server import GrpcServer, serve_grpc
from storage_tiers.hot.log import HotLog
from storage_tiers.types import TopicPartition
from tests.service.broker.support import Running, running
from tests.support.faulty_store import FaultyStore


class Served:
    def __init__(self, node: Running, server: GrpcServer) -> None:
        self.node = node
        self.server = server
        self.port = server.port
        self.address = f"127.0.0.1:{server.port}"

    def hot(self, topic: str, partition: int = 0) -> HotLog:
        """The partition's local log."""
        return self.node.node.broker.partitions.get(TopicPartition(topic, partition)).log.hot

    def published(self, topic: str) -> bool:
        """Whether the topic's file was written to the bucket."""
        return any(key.endswith(f"/{topic}/topic.json") for verb, key in self.node.store.calls if verb == "put")

    async def close_connection(self) -> None:
        """Ends every call at once, and stops listening."""
        await self.server.stop(0)

    async def come_back(self) -> None:
        self.server = await serve_grpc(self.node.core, "127.0.0.1", self.port)


@asynccontextmanager
async def served(
    directory: Path, store: FaultyStore | None = None, broker: Mapping[str, str] | None = None
) -> AsyncIterator[Served]:
    async with running(directory, store, broker) as node:
        started = Served(node, await serve_grpc(node.core, "127.0.0.1", 0))
        try:
            yield started
        finally:
            await started.server.stop(0)
