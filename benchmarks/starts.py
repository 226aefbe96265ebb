"""Measures the time from a start to the first answer. With 10,000 partitions, it measures the time from a start after a kill -9
until ten of the partitions accept a record."""

from __future__ import annotations

import datetime as dt
import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from kio.schema.create_topics.v5 import request as create_request
from kio.schema.create_topics.v5 import response as create_response
from kio.schema.metadata.v9 import request as metadata_request
from kio.schema.metadata.v9 import response as metadata_response
from kio.schema.produce.v9 import request as produce_request
from kio.schema.produce.v9 import response as produce_response
from kio.schema.types import TopicName
from kio.static.primitive import Records, i16, i32, i32Timedelta

from benchmarks import load
from benchmarks.brokers import Broker

#: A KRaft controller accepts at most 10,000 changes in one request, so the partitions are spread over topics.
TOPICS, PARTITIONS_A_TOPIC = 10, 1000
ACCEPTING = 10
PAUSE_S = 0.02
LIMIT_S = 300.0
#: Errors of a broker that does not listen yet, or has closed the connection.
ABSENT: tuple[type[Exception], ...] = (OSError, struct.error)


def first_answer(broker: Broker) -> Iterator[tuple[str, str, float]]:
    """Starts a stopped broker; yields the row. The broker runs afterwards."""
    began = time.perf_counter()
    broker.spawn()
    ask = metadata_request.MetadataRequest(
        topics=(),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    until(lambda: bool(_called(broker.address, ask, metadata_response.MetadataResponse).brokers), "its first answer")
    yield "start to first answer", "s", time.perf_counter() - began


def fill(address: str, tag: str) -> list[str]:
    """Creates the topics and puts one batch of ten records into every partition; returns their names."""
    names = [f"many-{tag}-{at}" for at in range(TOPICS)]
    batch = load.record_batch(10, 100)
    connection = load.Connection(address)
    for name in names:
        topic = create_request.CreatableTopic(
            name=TopicName(name),
            num_partitions=i32(PARTITIONS_A_TOPIC),
            replication_factor=i16(1),
            assignments=(),
            configs=(),
        )
        timeout = i32Timedelta.parse(dt.timedelta(seconds=LIMIT_S))
        request = create_request.CreateTopicsRequest(topics=(topic,), timeout=timeout, validate_only=False)
        answer = connection.call(request, create_response.CreateTopicsResponse)
        if int(answer.topics[0].error_code):
            raise load.LoadFailed(f"{address}: create {name}: {answer.topics[0].error_code}")
    connection.close()
    for name in names:
        until(partial(accepts, address, name, range(PARTITIONS_A_TOPIC), batch), f"{name} to accept")
    return names


def after_kill(broker: Broker, topics: list[str]) -> Iterator[tuple[str, str, float]]:
    """Kills a running broker and starts it again; yields the rows. The broker runs afterwards."""
    broker.kill()
    batch = load.record_batch(1, 100)
    began = time.perf_counter()
    broker.spawn()
    left = {name: PARTITIONS_A_TOPIC // ACCEPTING * at for at, name in enumerate(topics[:ACCEPTING])}

    def all_accept() -> bool:
        for name, index in list(left.items()):
            if not accepts(broker.address, name, (index,), batch):
                return False
            del left[name]
        return True

    until(all_accept, "ten partitions to accept")
    yield "10,000 partitions: restart after kill -9 until ten accept", "s", time.perf_counter() - began
    resident = broker.resident_megabytes()
    if resident is not None:
        yield "10,000 partitions: resident memory afterwards", "MB", resident


def accepts(address: str, topic: str, partitions: range | tuple[int, ...], batch: bytes) -> bool:
    """Whether the broker appends the batch to each of the partitions. Raises OSError or struct.error if it does not answer."""
    data = produce_request.TopicProduceData(
        name=TopicName(topic),
        partition_data=tuple(
            produce_request.PartitionProduceData(index=i32(index), records=Records.parse(batch)) for index in partitions
        ),
    )
    timeout = i32Timedelta.parse(dt.timedelta(seconds=30))
    request = produce_request.ProduceRequest(transactional_id=None, acks=i16(1), timeout=timeout, topic_data=(data,))
    answer = _called(address, request, produce_response.ProduceResponse)
    return not any(int(p.error_code) for p in answer.responses[0].partition_responses)


def _called(address: str, request: Any, response: Any) -> Any:
    connection = load.Connection(address)
    connection.socket.settimeout(LIMIT_S)
    try:
        return connection.call(request, response)
    finally:
        connection.close()


def until(condition: Callable[[], bool], what: str, absent: tuple[type[Exception], ...] = ABSENT) -> None:
    """Evaluates the condition until it is true. An exception of the types `absent` counts as false. Raises LoadFailed after
    LIMIT_S."""
    deadline = time.perf_counter() + LIMIT_S
    while time.perf_counter() < deadline:
        try:
            if condition():
                return
        except absent:
            pass
        time.sleep(PAUSE_S)
    raise load.LoadFailed(f"waited {LIMIT_S:g} s for {what}")
