"""The tier's metrics, and the work that changes them: a bucket that answers, is slow, fails, or is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from storage_tiers.cold.manifest.keys import cluster_key
from storage_tiers.cold.process.operations import FetchChunk
from storage_tiers.cold.process.question import Question
from storage_tiers.cold.read.cache import ChunkKey
from storage_tiers.cold.read.pace import PERIOD_S
from storage_tiers.errors import StoreRefused
from storage_tiers.types import TopicPartition
from tests.service.broker.support import TIERED, manifest_of, until
from tests.service.observability.works import PURGATORY, REQUESTS, TOPICS, cold, partition
from tests.service.observability.world import ROSE, Is, Within, World, fetch_frame, work

MIB = 1 << 20


@work(
    {
        TOPICS + "remotecopyrequests_total": ROSE,
        TOPICS + 'remotecopyrequests_total{topic="t"}': ROSE,
        TOPICS + "remotecopybytes_total": 7 * 999,
        TOPICS + "remotecopyerrors_total": 0,
        TOPICS + "remotelogsizebytes": 7 * 999,
        TOPICS + 'remotelogsizebytes{topic="t"}': 7 * 999,
        TOPICS + "remotelogmetadatacount": ROSE,
        TOPICS + "remotecopylagbytes": Is(0),
        TOPICS + "remotecopylagsegments": Is(0),
        'tidelog_tier_offload_lag_bytes{topic="t",partition="0"}': Is(0),
        "tidelog_tier_offload_lag_seconds_max": Is(0),
        "tidelog_local_evicted_bytes_total": 7 * 999,
        'tidelog_store_requests_total{operation="put"}': ROSE,
        'tidelog_store_request_seconds_count{operation="put"}': ROSE,
        'tidelog_store_request_seconds_sum{operation="put"}': ROSE,
        "tidelog_store_uploaded_bytes_total": ROSE,
        'tidelog_tier_questions_total{question="Extend"}': ROSE,
        "tidelog_store_reachable": Is(1),
    }
)
async def segments_go_to_the_bucket(world: World) -> AsyncIterator[None]:
    await world.create("t", configs=TIERED)
    yield
    for number in range(7):
        # Each record has 999 bytes with its batch header and record frame.
        await world.node.append("t", b"%d" % number * 928)
    await world.node.seal("t")
    await world.node.evicted("t")
    yield


@work(
    {
        TOPICS + "remotefetchrequests_total": ROSE,
        TOPICS + 'remotefetchrequests_total{topic="t"}': ROSE,
        TOPICS + "remotefetchbytes_total": ROSE,
        TOPICS + "remotefetcherrors_total": 0,
        TOPICS + "bytesout_total": ROSE,
        'tidelog_served_bytes_total{tier="cold"}': ROSE,
        'tidelog_served_bytes_total{tier="hot"}': 0,
        'tidelog_cold_chunk_reads_total{result="miss"}': ROSE,
        'tidelog_cold_chunk_reads_total{result="hit"}': ROSE,
        'tidelog_cold_chunks_fetched_total{reason="asked"}': ROSE,
        "tidelog_cold_sidecars_fetched_total": ROSE,
        "tidelog_cold_chunk_cache_bytes": ROSE,
        'tidelog_store_requests_total{operation="get"}': ROSE,
        "tidelog_store_downloaded_bytes_total": ROSE,
    }
)
async def records_are_fetched_from_the_bucket(world: World) -> AsyncIterator[None]:
    await cold(world)
    yield
    await world.node.read_all("t")
    yield


@work(
    {
        'tidelog_cold_chunks_fetched_total{reason="read_ahead"}': 1,
        'tidelog_cold_chunks_fetched_total{reason="asked"}': 0,
    }
)
async def a_chunk_is_read_ahead(world: World) -> AsyncIterator[None]:
    await cold(world)
    yield
    hydrator, manifest = world.node.tier.hydrator, await manifest_of(partition(world))
    assert hydrator is not None
    assert hydrator.want(manifest.segments[-1], 0)
    await until(lambda: hydrator.read_ahead == 1)
    yield


@work({"tidelog_cold_chunks_copied_total": 1, 'tidelog_cold_chunks_fetched_total{reason="read_ahead"}': 1})
async def a_chunk_is_copied_from_another_cache(world: World) -> AsyncIterator[None]:
    """The tier process of this world has a single session, so its answer is changed here."""
    await cold(world)
    yield
    hydrator, manifest = world.node.tier.hydrator, await manifest_of(partition(world))
    assert hydrator is not None
    original = hydrator._client.ask

    async def ask(question: Question[Any]) -> Any:
        answer = await original(question)
        return replace(answer, is_copy=True) if isinstance(question, FetchChunk) else answer

    hydrator._client.ask = ask  # type: ignore[method-assign]
    assert hydrator.want(manifest.segments[-1], 0)
    await until(lambda: hydrator.read_ahead == 1)
    yield


@work({"tidelog_cold_fetches_held_seconds_total": ROSE})
async def a_fetch_yields_to_producers(world: World) -> AsyncIterator[None]:
    await cold(world)
    yield
    hydrator, manifest = world.node.tier.hydrator, await manifest_of(partition(world))
    assert hydrator is not None
    await world.node.append("t", b"produced")
    # Counts an urgent fetch for a waiting reader, whose bytes read-ahead makes up for. At that time the pace looks
    # again.
    hydrator.pace.delay(8 * MIB, world.inner.ground.host.clock.monotonic() + 2 * PERIOD_S, urgent=True)
    assert hydrator.want(manifest.segments[-1], 0)
    await until(lambda: hydrator.read_ahead == 1)
    yield


@work(
    {
        "tidelog_cold_chunks_evicted_total": 2,
        "tidelog_cold_chunks_wasted_total": 2,
        "tidelog_cold_chunk_cache_limit_bytes": Is(8 * MIB),
        "tidelog_cold_chunk_cache_bytes": -8 * MIB,
    }
)
async def the_cache_gives_space_back(world: World) -> AsyncIterator[None]:
    cache = world.node.tier.cache
    for number in range(4):
        path = f"{cache.directory}/chunk-{number}"
        with open(path, "wb"):
            pass
        cache.add(ChunkKey("object", 0, number), path, 4 * MIB, unread=True)
    yield
    cache.shrink()
    yield


@work({"tidelog_cold_fetches_in_flight": 1, PURGATORY + '{delayedOperation="Fetch"}': 1})
async def a_fetch_waits_for_the_bucket(world: World) -> AsyncIterator[None]:
    await cold(world)
    yield
    gate = world.node.store.hold(1, "get", "segments/")
    _, writer = await world.connect()
    writer.write(fetch_frame("t", 0, wait_ms=60_000))
    await gate.reached.wait()
    yield
    gate.open()


@work({"tidelog_store_retries_total": 1, 'tidelog_store_errors_total{operation="get",error="TierUnavailable"}': 1})
async def a_read_is_asked_again(world: World) -> AsyncIterator[None]:
    await cold(world)
    yield
    world.node.store.fail(1, "get", "segments/")
    await world.node.read("t", 0)
    yield


@work(
    {
        TOPICS + "remotefetcherrors_total": ROSE,
        TOPICS + 'remotefetcherrors_total{topic="t"}': ROSE,
        TOPICS + "failedfetchrequests_total": 1,
        REQUESTS + 'errors_total{request="Fetch",error="CORRUPT_MESSAGE"}': 1,
        'tidelog_tier_question_failures_total{error="TierCorrupt"}': ROSE,
    }
)
async def an_object_is_damaged(world: World) -> AsyncIterator[None]:
    await cold(world)
    manifest = await manifest_of(partition(world))
    oldest = manifest.segments[0]
    body = await world.node.store.get(oldest.key)
    await world.node.store.delete([oldest.key])
    await world.node.store.put(oldest.key, body.data[:-1] + b"\1")
    yield
    await world.fetch("t", oldest.base, wait_ms=20_000)
    yield


@work(
    {
        TOPICS + "remotecopylagbytes": ROSE,
        TOPICS + 'remotecopylagbytes{topic="t"}': ROSE,
        TOPICS + "remotecopylagsegments": ROSE,
        TOPICS + "remotecopyrequests_total": ROSE,
        TOPICS + "remotecopyerrors_total": ROSE,
        TOPICS + "remotecopybytes_total": 0,
        'tidelog_tier_offload_lag_segments{topic="t",partition="0"}': ROSE,
        "tidelog_store_reachable": Is(0),
        'tidelog_store_errors_total{operation="put",error="StoreRefused"}': ROSE,
        'tidelog_tier_question_failures_total{error="StoreRefused"}': ROSE,
    }
)
async def the_bucket_refuses(world: World) -> AsyncIterator[None]:
    await world.create("t", configs=TIERED)
    await world.node.append("t", b"first")
    await world.node.seal("t")
    await until(lambda: world.inner.ground.readiness.store == "ok")
    yield
    for place in range(1, 20):
        world.node.store.fail(place, "put", "segments/", error=StoreRefused("denied"))
    for number in range(5):
        await world.node.append("t", b"%d" % number * 1000)
    counts = partition(world).counts
    await until(lambda: counts.failed_offloads > 0)
    yield


@work(
    {
        TOPICS + "remotedeleterequests_total": ROSE,
        TOPICS + 'remotedeleterequests_total{topic="t"}': ROSE,
        TOPICS + "remotelogmetadatacount": Within(0, 10),
        'tidelog_store_requests_total{operation="delete"}': ROSE,
        "kafka_log_log_logstartoffset" + '{topic="t",partition="0"}': 40,
    },
    tidelog_tier_delete_grace_ms="1",
    log_retention_check_interval_ms="50",
)
async def objects_are_deleted(world: World) -> AsyncIterator[None]:
    await cold(world)
    yield
    await world.node.log.delete_records(TopicPartition("t", 0), -1)
    counts = partition(world).counts
    await until(lambda: counts.deletes > 0)
    yield


@work({"tidelog_store_cluster_behind": 1, "tidelog_store_reachable": Is(0)})
async def the_bucket_goes_backwards(world: World) -> AsyncIterator[None]:
    access = world.node.tier.access
    assert access is not None
    await until(lambda: access.writer is not None)
    yield
    await world.node.store.delete([cluster_key(world.inner.cluster_id)])
    access.writer = None
    claiming = asyncio.create_task(access.run())
    await until(lambda: access.behind is not None)
    yield
    claiming.cancel()


@work(
    {TOPICS + "remotedeleteerrors_total": ROSE, TOPICS + 'remotedeleteerrors_total{topic="t"}': ROSE},
    tidelog_tier_delete_grace_ms="3600000",
)
async def a_sweep_fails(world: World) -> AsyncIterator[None]:
    await cold(world)
    await world.node.log.delete_records(TopicPartition("t", 0), -1)
    await world.inner.broker.retention.tick()
    yield
    world.node.store.down = True
    world.inner.broker.sweeping._grace_ms = lambda: 0
    sweeping = asyncio.create_task(world.inner.broker.sweeping.tick())
    counts = partition(world).counts
    await until(lambda: counts.failed_deletes > 0)
    yield
    await sweeping


@work({"tidelog_tier_process_starts_total": Within(1, 5), "tidelog_tier_process_running": Is(1)})
async def the_tier_works(world: World) -> AsyncIterator[None]:
    yield
    await world.create("t", configs=TIERED)
    await world.node.append("t", b"a")
    await world.node.seal("t")
    yield
