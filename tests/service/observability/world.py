"""A node and its gateway in this process, scraped before and after a piece of work, and the notation for such work:

@work({'kafka_..._total{topic="t"}': 3, "kafka_...": ROSE})
async def three_records(world):
    await world.create("t")
    yield                       # first scrape: nothing before it counts
    await world.produce("t", {0: BATCH})
    yield                       # second scrape; cleaning up may follow
"""

from __future__ import annotations

import asyncio
import dataclasses
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics_families
from prometheus_client.parser import text_string_to_metric_families

from kafka_gateway.server import GatewayServer, serve
from service.observability.scrape import Scraper
from service.serve.servers import gateway_options
from tests.kafka_gateway.kio_frames import milliseconds, request_frame, response
from tests.service.broker.support import Running, running

PRODUCE, FETCH = 8, 11


@dataclasses.dataclass(frozen=True, slots=True)
class Is:
    """The value afterwards, whatever it was before."""

    value: float


@dataclasses.dataclass(frozen=True, slots=True)
class Within:
    """Bounds of the value afterwards, both inclusive."""

    least: float
    most: float


class Rose:
    def __repr__(self) -> str:
        return "ROSE"


ROSE = Rose()
#: The amount of the change, or one of the classes above.
Change = float | Is | Within | Rose
Samples = dict[str, float]


class World:
    def __init__(self, node: Running, gateway: GatewayServer) -> None:
        self.node = node
        self.inner = node.node
        self.gateway = gateway
        self.scraper = Scraper(node.node, gateway)
        self._writers: list[asyncio.StreamWriter] = []

    create = property(lambda self: self.node.create)

    async def scrape(self) -> Samples:
        """Every sample, by its text. Prometheus's own parsers must read both formats and find the same number of samples.
        Concurrent work may add a sample between the two scrapes; then both are repeated, at most ten times."""
        for _ in range(10):
            plain, same = await self._scraped()
            if plain is not None:
                return plain
        raise AssertionError(f"the two forms have not as many samples ten times in a row: {same}")

    async def _scraped(self) -> tuple[Samples | None, int]:
        plain = (await self.scraper.scrape(open_metrics=False)).decode()
        families = list(text_string_to_metric_families(plain))
        read = sum(len(family.samples) for family in families)
        lines = [line.rpartition(" ") for line in plain.splitlines() if not line.startswith("#")]
        assert read == len(lines)
        open_metrics = (await self.scraper.scrape(open_metrics=True)).decode()
        same = list(open_metrics_families(open_metrics))  # type: ignore[no-untyped-call]
        samples = sum(len(family.samples) for family in same)
        return ({sample: float(value) for sample, _, value in lines} if samples == read else None), samples

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.port)
        self._writers.append(writer)
        return reader, writer

    async def ask(self, frame: bytes) -> bytes:
        """Sends one request on a new connection, and returns the answer without its size."""
        reader, writer = await self.connect()
        writer.write(frame)
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        answer = await reader.readexactly(size)
        writer.close()
        return answer

    async def produce(self, topic: str, batches: Mapping[int, bytes]) -> list[int]:
        """Returns the error code of each partition."""
        found = response("produce", PRODUCE, await self.ask(produce_frame(topic, batches)))
        return [int(each.error_code) for each in found.responses[0].partition_responses]

    async def fetch(self, topic: str, offset: int, **how: Any) -> int:
        """Returns the partition's error code; 0 if the answer names no partition."""
        found = response("fetch", FETCH, await self.ask(fetch_frame(topic, offset, **how)))
        return int(found.responses[0].partitions[0].error_code) if found.responses else 0

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


def produce_frame(topic: str, batches: Mapping[int, bytes]) -> bytes:
    rows = [{"index": index, "records": batch} for index, batch in batches.items()]
    return request_frame(
        "produce",
        PRODUCE,
        transactional_id=None,
        acks=-1,
        timeout=milliseconds(30_000),
        topic_data=[{"name": topic, "partition_data": rows}],
    )


def fetch_frame(topic: str, offset: int, *, partition: int = 0, wait_ms: int = 0, session_epoch: int = -1) -> bytes:
    row = {
        "partition": partition,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
    }
    return request_frame(
        "fetch",
        FETCH,
        replica_id=-1,
        max_wait=milliseconds(wait_ms),
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=0,
        session_epoch=session_epoch,
        rack_id="",
        topics=[{"topic": topic, "partitions": [row]}],
    )


Act = Callable[[World], AsyncIterator[None]]


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """`act` yields twice, to be scraped before and after; `broker` holds the node's configs."""

    act: Act
    changes: Mapping[str, Change]
    broker: Mapping[str, str]


#: Every declared piece of work, by name.
WORKS: dict[str, Work] = {}


def work(changes: Mapping[str, Change], **broker: str) -> Callable[[Act], Act]:
    """Declares a piece of work; in the names of `broker`, underscores stand for dots."""

    def declare(act: Act) -> Act:
        WORKS[act.__name__] = Work(act, changes, {key.replace("_", "."): value for key, value in broker.items()})
        return act

    return declare


@asynccontextmanager
async def observed(directory: Path, broker: Mapping[str, str]) -> AsyncIterator[World]:
    async with running(directory, broker=broker) as node:
        gateway = await serve(node.node.broker.core, gateway_options(node.node))
        node.node.ground.readiness.recovered = True
        world = World(node, gateway)
        try:
            yield world
        finally:
            world.close()
            await gateway.stop()
