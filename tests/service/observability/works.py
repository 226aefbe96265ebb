"""Pieces of work for a node, and what each changes: every metric has a row here (or in `test_metrics.IN_A_PROCESS`)."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import AsyncIterator

import pytest

from kafka_gateway.errors import ErrorCode
from service.broker.partition.leading import recover_from_store
from service.broker.partition.partition import WRITTEN_BY_THREAD, Partition
from service.metadata.commands import AllocateProducerIds
from storage_tiers.errors import StorageError, StoreBehind
from storage_tiers.files import DescriptorReserve
from storage_tiers.hot.batch_write import BatchWrite
from storage_tiers.types import TopicPartition
from tests.faults.single_requests import idempotent_batch
from tests.kafka_gateway.kio_frames import record_batch
from tests.service.broker.support import TIERED, until
from tests.service.observability.world import ROSE, Is, Within, World, produce_frame, work

BATCH = record_batch(b"a", b"b", b"c")
SIZE = len(BATCH)
FRAME = produce_frame("t", {0: BATCH, 1: BATCH})
TOPICS = "kafka_server_brokertopicmetrics_"
REQUESTS = "kafka_network_requestmetrics_"
MANAGER = "kafka_server_replicamanager_"
CONTROLLER = "kafka_controller_kafkacontroller_"
SOCKETS = "kafka_server_socket_server_metrics_"
SESSIONS = "kafka_server_fetchsessioncache_"
PURGATORY = "kafka_server_delayedoperationpurgatory_purgatorysize"
FIRST = '{topic="t",partition="0"}'


def partition(world: World, topic: str = "t", number: int = 0) -> Partition:
    return world.inner.broker.partitions.get(TopicPartition(topic, number))


async def cold(world: World, count: int = 40) -> None:
    """Makes a topic whose closed segments are only in the bucket."""
    await world.create("t", configs=TIERED)
    for number in range(count):
        await world.node.append("t", b"%03d" % number * 50)
    await world.node.seal("t")
    await world.node.evicted("t")


# --- producing --------------------------------------------------------------------------------------------------------
@work(
    {
        TOPICS + "messagesin_total": 6,
        TOPICS + 'messagesin_total{topic="t"}': 6,
        TOPICS + "bytesin_total": 2 * SIZE,
        TOPICS + 'bytesin_total{topic="t"}': 2 * SIZE,
        TOPICS + "totalproducerequests_total": 2,
        TOPICS + 'totalproducerequests_total{topic="t"}': 2,
        TOPICS + "failedproducerequests_total": 0,
        TOPICS + 'messagesin_total{topic="other"}': 0,
        REQUESTS + 'requests_total{request="Produce"}': 1,
        REQUESTS + 'requestbytes_count{request="Produce"}': 1,
        REQUESTS + 'requestbytes_sum{request="Produce"}': len(FRAME) - 4,
        REQUESTS + 'totaltimems_count{request="Produce"}': 1,
        REQUESTS + 'totaltimems_sum{request="Produce"}': ROSE,
        REQUESTS + 'totaltimems_bucket{request="Produce",le="+Inf"}': 1,
        REQUESTS + 'requestqueuetimems_count{request="Produce"}': 1,
        REQUESTS + 'requestqueuetimems_sum{request="Produce"}': ROSE,
        REQUESTS + 'localtimems_count{request="Produce"}': 1,
        REQUESTS + 'localtimems_sum{request="Produce"}': ROSE,
        REQUESTS + 'remotetimems_count{request="Produce"}': 0,
        REQUESTS + 'responsequeuetimems_count{request="Produce"}': 1,
        REQUESTS + 'responsequeuetimems_sum{request="Produce"}': Within(0, 1000),
        REQUESTS + 'responsesendtimems_count{request="Produce"}': 1,
        REQUESTS + 'responsesendtimems_sum{request="Produce"}': ROSE,
        "kafka_log_log_logendoffset" + FIRST: 3,
        "kafka_log_log_logstartoffset" + FIRST: 0,
        "kafka_log_log_size" + FIRST: SIZE,
        "kafka_log_log_numlogsegments" + FIRST: Is(1),
        "tidelog_tier_offload_lag_bytes" + FIRST: SIZE,
        "tidelog_tier_offload_lag_segments" + FIRST: 1,
        "tidelog_tier_offload_lag_seconds" + FIRST: ROSE,
        "tidelog_tier_offload_lag_seconds_max": ROSE,
        SOCKETS + "incoming_byte_total": len(FRAME),
        SOCKETS + "outgoing_byte_total": ROSE,
        "tidelog_gateway_busy_seconds_total": ROSE,
        "kafka_network_socketserver_networkprocessoravgidle_percent": Within(0, 0.9999999),
        "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent": Within(0, 0.9999999),
        "process_cpu_seconds_total": ROSE,
        "tidelog_scrape_seconds_count": 2,
        "tidelog_scrape_seconds_sum": ROSE,
    }
)
async def batches_are_produced(world: World) -> AsyncIterator[None]:
    await world.create("t", 2)
    await world.create("other")
    yield
    await world.ask(FRAME)
    began = world.inner.ground.host.clock.unix_ms()
    await until(lambda: world.inner.ground.host.clock.unix_ms() > began + 1)
    yield


@work(
    {
        TOPICS + "bytesrejected_total": SIZE,
        TOPICS + 'bytesrejected_total{topic="t"}': SIZE,
        TOPICS + "failedproducerequests_total": 1,
        TOPICS + 'failedproducerequests_total{topic="t"}': 1,
        REQUESTS + 'errors_total{request="Produce",error="MESSAGE_TOO_LARGE"}': 1,
        TOPICS + "messagesin_total": 0,
    }
)
async def a_batch_is_too_large(world: World) -> AsyncIterator[None]:
    await world.create("t", configs={"max.message.bytes": str(SIZE - 1)})
    yield
    assert await world.produce("t", {0: BATCH}) == [ErrorCode.MESSAGE_TOO_LARGE]
    yield


@work(
    {
        TOPICS + "failedproducerequests_total": 1,
        TOPICS + "totalproducerequests_total": 1,
        REQUESTS + 'errors_total{request="Produce",error="UNKNOWN_TOPIC_OR_PARTITION"}': 1,
        TOPICS + 'failedproducerequests_total{topic="t"}': 0,
    }
)
async def the_topic_is_unknown(world: World) -> AsyncIterator[None]:
    yield
    await world.produce("t", {0: BATCH})
    yield


@work(
    {
        TOPICS + "invalidmagicnumberrecords_total": 1,
        TOPICS + "invalidmessagecrcrecords_total": 1,
        TOPICS + "invalidoffsetorsequencerecords_total": 1,
        TOPICS + "nokeycompactedtopicrecords_total": 1,
        TOPICS + "failedproducerequests_total": 4,
        TOPICS + "messagesin_total": 0,
    }
)
async def batches_are_wrong(world: World) -> AsyncIterator[None]:
    await world.create("t")
    await world.create("compacted", configs={"cleanup.policy": "compact"})
    yield
    await world.produce("t", {0: BATCH[:16] + b"\1" + BATCH[17:]})
    await world.produce("t", {0: BATCH[:-1] + b"\1"})
    await world.produce("t", {0: record_batch(b"x", attributes=0x20)})
    await world.produce("compacted", {0: BATCH})
    yield


@work({MANAGER + "produceridcount": 1})
async def a_producer_has_an_id(world: World) -> AsyncIterator[None]:
    await world.create("t")
    yield
    assert await world.produce("t", {0: idempotent_batch(7, 0, b"a")}) == [0]
    yield


@work(
    {
        "kafka_log_logflushstats_logflushrateandtimems_count": 1,
        "kafka_log_logflushstats_logflushrateandtimems_sum": ROSE,
        REQUESTS + 'remotetimems_count{request="Produce"}': 1,
        REQUESTS + 'remotetimems_sum{request="Produce"}': ROSE,
    }
)
async def an_answer_waits_for_its_flush(world: World) -> AsyncIterator[None]:
    await world.create("t", configs={"flush.messages": "1"})
    yield
    assert await world.produce("t", {0: BATCH}) == [0]
    yield


@work(
    {
        "tidelog_append_queue_bytes": Within(WRITTEN_BY_THREAD, 2 * WRITTEN_BY_THREAD),
        "tidelog_append_written_by_threads_total": 1,
        "tidelog_append_seconds_per_gigabyte": Is(2.5),
    }
)
async def a_thread_writes(world: World) -> AsyncIterator[None]:
    await world.create("t")
    yield
    gate, write = threading.Event(), BatchWrite._write

    def waits(held: BatchWrite) -> None:
        assert gate.wait(30)
        write(held)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchWrite, "_write", waits)
        world.inner.broker.append_queues.cost.s_per_gb, world.inner.broker.append_queues.cost.is_slow = 2.5, True
        _, writer = await world.connect()
        writer.write(produce_frame("t", {0: record_batch(bytes(WRITTEN_BY_THREAD))}))
        await until(lambda: world.gateway.pending_replies(0) == 1)
        yield
        gate.set()
        await until(lambda: world.inner.broker.append_queues.held_bytes == 0)


@work({"tidelog_produce_throttled_total": 1, PURGATORY + '{delayedOperation="Produce"}': Is(1)})
async def the_disk_fills(world: World) -> AsyncIterator[None]:
    await world.create("t")
    yield
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(world.inner.work.disk), "look", lambda _: None)
        world.inner.work.disk.throttle_s = 30.0
        _, writer = await world.connect()
        writer.write(produce_frame("t", {0: BATCH}))
        await until(lambda: world.gateway.pending_replies(0) == 1)
        yield


@work(
    {
        "tidelog_produce_refused_total": 1,
        "tidelog_disk_used_ratio": Is(0.99),
        REQUESTS + 'errors_total{request="Produce",error="KAFKA_STORAGE_ERROR"}': 1,
    }
)
async def the_disk_is_full(world: World) -> AsyncIterator[None]:
    await world.create("t")
    yield
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(world.inner.work.disk), "look", lambda _: None)
        world.inner.work.disk.judge(0.99)
        assert await world.produce("t", {0: BATCH}) == [ErrorCode.KAFKA_STORAGE_ERROR]
        yield


@work({"tidelog_clock_step_seconds": Within(3599, 3601)})
async def somebody_sets_the_clock(world: World) -> AsyncIterator[None]:
    yield
    inner = world.inner.ground.host.clock
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(inner), "unix_ms", lambda self: self.steady_ms() + 3_600_000)
        await until(lambda: world.inner.work.expiry.step_ms > 0)
        yield


# --- topics and metadata ----------------------------------------------------------------------------------------------
@work(
    {
        MANAGER + "partitioncount": 3,
        MANAGER + "leadercount": 3,
        MANAGER + "atminisrpartitioncount": 3,
        MANAGER + "underreplicatedpartitions": Is(0),
        MANAGER + "reassigningpartitions": Is(0),
        CONTROLLER + "globaltopiccount": 1,
        CONTROLLER + "globalpartitioncount": 3,
        CONTROLLER + "offlinepartitionscount": 0,
        CONTROLLER + "preferredreplicaimbalancecount": Is(0),
        CONTROLLER + "lastappliedrecordoffset": ROSE,
        CONTROLLER + "lastcommittedrecordoffset": ROSE,
        CONTROLLER + "activecontrollercount": Is(1),
        CONTROLLER + "activebrokercount": Is(1),
        CONTROLLER + "fencedbrokercount": Is(0),
    }
)
async def a_topic_is_created(world: World) -> AsyncIterator[None]:
    yield
    await world.create("t", 3)
    yield


# As in Kafka, the effective minimum is at most the number of replicas.
@work({MANAGER + "underminisrpartitioncount": 0, MANAGER + "atminisrpartitioncount": 1})
async def a_topic_wants_two_in_sync(world: World) -> AsyncIterator[None]:
    yield
    await world.create("t", configs={"min.insync.replicas": "2"})
    yield


@work({CONTROLLER + "metadataerrorcount": 1, CONTROLLER + "lastappliedrecordoffset": 0})
async def the_disk_refuses_metadata(world: World) -> AsyncIterator[None]:
    yield

    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        own_log = world.inner.ground.own_log
        assert own_log is not None
        patch.setattr(own_log._store, "append", refuse)
        with pytest.raises(StorageError):
            await world.inner.configs.controller.execute(AllocateProducerIds(1))
    yield


@work({MANAGER + "offlinereplicacount": Is(1), CONTROLLER + "offlinepartitionscount": 1})
async def a_partition_cannot_be_opened(world: World) -> AsyncIterator[None]:
    yield
    with open(os.path.join(world.inner.ground.data.path, "t-0"), "w"):
        pass
    with pytest.raises(StorageError, match="none of its partitions could be opened"):
        await world.create("t")
    await until(lambda: world.inner.broker.assignment.unopened == 1)
    yield


@work({"kafka_log_logmanager_offlinelogdirectorycount": 1, MANAGER + "offlinereplicacount": Is(1)})
async def the_disk_refuses_a_partition(world: World) -> AsyncIterator[None]:
    await world.create("t")
    yield
    partition(world).fail(StorageError("fsync failed"))
    yield


@work({"tidelog_partitions_store_behind": 1})
async def the_store_shows_less_of_a_partition(world: World) -> AsyncIterator[None]:
    await world.create("t")
    yield
    with pytest.raises(StoreBehind), world.inner.work.tiering.lineage.asking(partition(world)):
        raise StoreBehind("t-0: an older manifest")
    yield


@work({"tidelog_recovering_partitions": 1, MANAGER + "leadercount": -1, CONTROLLER + "offlinepartitionscount": 1})
async def a_partition_waits_for_the_bucket(world: World) -> AsyncIterator[None]:
    await world.create("t")
    world.node.store.down = True
    yield
    recover_from_store(partition(world))
    yield


@work(
    {
        'tidelog_metrics_left_out{kind="topic"}': 1,
        'tidelog_metrics_left_out{kind="partition"}': 2,
        TOPICS + "messagesin_total": 3,
        TOPICS + 'messagesin_total{topic="second"}': 0,
        'kafka_log_log_logendoffset{topic="second",partition="0"}': 0,
    },
    tidelog_metrics_topics="1",
    tidelog_metrics_partitions="1",
)
async def there_are_more_than_are_listed(world: World) -> AsyncIterator[None]:
    await world.create("first")
    yield
    await world.create("second", 2)
    assert await world.produce("second", {0: BATCH}) == [0]
    yield


@work({TOPICS + "messagesin_total": 0, TOPICS + "bytesin_total": 0, TOPICS + "totalproducerequests_total": 0})
async def a_topic_is_deleted(world: World) -> AsyncIterator[None]:
    await world.create("t")
    assert await world.produce("t", {0: BATCH}) == [0]
    yield
    await world.node.core.topics.delete(["t"])
    await until(lambda: not len(world.inner.broker.partitions))
    yield


# --- the node ---------------------------------------------------------------------------------------------------------
@work(
    {
        "kafka_server_kafkaserver_brokerstate": Is(6),
        "tidelog_ready": Is(0),
    }
)
async def the_node_stops(world: World) -> AsyncIterator[None]:
    await until(lambda: world.inner.ground.readiness.ready)
    yield
    world.inner.ground.readiness.stopping = True
    yield


@work({"tidelog_descriptor_shortages_total": 1})
async def a_log_draws_on_the_reserve(world: World) -> AsyncIterator[None]:
    reserve = DescriptorReserve(1)
    reserve.fill()
    world.inner.ground.host.descriptors._reserve = reserve
    yield
    assert reserve.release_one()
    yield
    reserve.close()


@work(
    {
        "kafka_server_kafkaserver_brokerstate": Is(3),
        "tidelog_ready": Is(1),
        "process_open_fds": 1,
        "process_max_fds": Is(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        "process_resident_memory_bytes": Within(20e6, 4e9),
        "process_virtual_memory_bytes": Within(20e6, 1e14),
        "process_threads": Within(1, 1000),
        "process_start_time_seconds": Within(1.6e9, 1e11),
    }
)
async def a_file_is_open(world: World) -> AsyncIterator[None]:
    await until(lambda: world.inner.ground.readiness.ready)
    yield
    with open(os.devnull, "rb"):
        yield
