"""Pieces of work like those in `works`, for fetches, their sessions, and connections."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from typing import Any

from kafka_gateway.errors import ErrorCode
from tests.kafka_gateway.kio_frames import request_frame
from tests.service.broker.support import until
from tests.service.observability.works import (
    BATCH,
    PURGATORY,
    REQUESTS,
    SESSIONS,
    SIZE,
    SOCKETS,
    TOPICS,
)
from tests.service.observability.world import World, fetch_frame, produce_frame, work


@work(
    {
        TOPICS + "bytesout_total": SIZE,
        TOPICS + 'bytesout_total{topic="t"}': SIZE,
        TOPICS + "totalfetchrequests_total": 1,
        TOPICS + 'totalfetchrequests_total{topic="t"}': 1,
        'tidelog_served_bytes_total{tier="hot"}': SIZE,
        REQUESTS + 'requests_total{request="Fetch"}': 1,
        REQUESTS + 'totaltimems_count{request="Fetch"}': 1,
    }
)
async def records_are_fetched(world: World) -> AsyncIterator[None]:
    await world.create("t")
    await world.produce("t", {0: BATCH})
    yield
    assert await world.fetch("t", 0) == 0
    yield


@work(
    {
        TOPICS + "failedfetchrequests_total": 1,
        TOPICS + 'failedfetchrequests_total{topic="t"}': 1,
        REQUESTS + 'errors_total{request="Fetch",error="OFFSET_OUT_OF_RANGE"}': 1,
    }
)
async def an_offset_is_out_of_range(world: World) -> AsyncIterator[None]:
    await world.create("t")
    yield
    assert await world.fetch("t", 5) == ErrorCode.OFFSET_OUT_OF_RANGE
    yield


@work({PURGATORY + '{delayedOperation="Fetch"}': 1, SOCKETS + "connection_count": 1})
async def a_fetch_waits_for_records(world: World) -> AsyncIterator[None]:
    await world.create("t")
    yield
    _, writer = await world.connect()
    writer.write(fetch_frame("t", 0, wait_ms=60_000))
    await until(lambda: world.gateway.pending_replies(1) == 1)
    yield


@work({SESSIONS + "numincrementalfetchsessions": 1, SESSIONS + "numincrementalfetchpartitionscached": 1})
async def a_fetch_session_is_made(world: World) -> AsyncIterator[None]:
    await world.create("t")
    yield
    await world.fetch("t", 0, session_epoch=0)
    yield


@work(
    {SESSIONS + "incrementalfetchsessionevictions_total": 1, SESSIONS + "numincrementalfetchsessions": 0},
    max_incremental_fetch_session_cache_slots="1",
)
async def a_fetch_session_gives_way(world: World) -> AsyncIterator[None]:
    await world.create("t")
    await world.fetch("t", 0, session_epoch=0)
    yield
    sessions = world.gateway.fetch_sessions
    assert sessions is not None
    next(iter(sessions._sessions.values())).used_ms -= 1e9
    await world.fetch("t", 0, session_epoch=0)
    yield


@work(
    {SOCKETS + "connection_creation_total": 1, SOCKETS + "connection_close_total": 1, SOCKETS + "connection_count": 0}
)
async def a_client_comes_and_goes(world: World) -> AsyncIterator[None]:
    yield
    _, writer = await world.connect()
    await until(lambda: world.gateway.connections == 1)
    writer.close()
    await until(lambda: world.gateway.connections == 0)
    yield


@work(
    {
        REQUESTS + 'errors_total{request="Metadata",error="UNKNOWN_TOPIC_OR_PARTITION"}': 2,
        REQUESTS + 'errors_total{request="ApiVersions",error="UNSUPPORTED_VERSION"}': 1,
        REQUESTS + 'errors_total{request="ListOffsets",error="UNKNOWN_TOPIC_OR_PARTITION"}': 1,
    }
)
async def answers_bear_errors(world: World) -> AsyncIterator[None]:
    await world.create("t")
    yield
    topics = [{"name": name} for name in ("a", "t", "b")]
    await world.ask(request_frame("metadata", 4, topics=topics, allow_auto_topic_creation=False))
    await world.ask(struct.pack(">ihhihi", 14, 18, 99, 7, -1, 0))
    rows = [{"partition_index": 9, "timestamp": -1}, {"partition_index": 0, "timestamp": -1}]
    await world.ask(request_frame("list_offsets", 1, replica_id=-1, topics=[{"name": "t", "partitions": rows}]))
    yield


@work({"tidelog_gateway_failures_total": 1})
async def a_handler_breaks(world: World) -> AsyncIterator[None]:
    await world.create("t")
    yield

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("a bug")

    lowest, highest, _, metrics = world.gateway._dispatcher.apis[0]
    world.gateway._dispatcher.apis = {**world.gateway._dispatcher.apis, 0: (lowest, highest, broken, metrics)}
    reader, writer = await world.connect()
    writer.write(produce_frame("t", {0: BATCH}))
    assert await reader.read() == b""
    yield
