"""Requests that librdkafka's admin client lacks: leader epochs, tiered ends, open transactions, brokers' ids.

Each request opens its own connection, without retries. Versions are fixed: Metadata 12 (topic ids, leader epochs), ListOffsets
9 (KIP-1005, the latest tiered offset), DescribeProducers 0.
"""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from service.cli.errors import CommandError
from service.cli.kafka import CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S
from service.cli.listener import split_address

#: ListOffsets' special timestamp (KIP-1005).
LATEST_TIERED = -5
#: The error code for a partition whose store is behind.
STORAGE_ERROR = 56
_CLIENT_ID = "tidelog-cli"
#: COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE and NOT_COORDINATOR.
COORDINATOR_AWAY = (14, 15, 16)
#: The maximum number of retries of a request to a coordinator, and the pause before each retry in seconds.
_ATTEMPTS, _PAUSE_S = 100, 0.1

Answer = TypeVar("Answer")


def leader_epochs(address: str, topic: str) -> Mapping[int, int]:
    """The leader epoch of each partition; -1 if there is no leader."""
    from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
    from kio.schema.metadata.v12.response import MetadataResponse
    from kio.schema.types import TopicName

    request = MetadataRequest(
        topics=(MetadataRequestTopic(topic_id=None, name=TopicName(topic)),),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    answer: MetadataResponse = ask(address, request, MetadataResponse)
    return {part.partition_index: part.leader_epoch for found in answer.topics for part in found.partitions}


def brokers(address: str) -> Sequence[int]:
    """The brokers' ids, in order."""
    from kio.schema.metadata.v12.request import MetadataRequest
    from kio.schema.metadata.v12.response import MetadataResponse

    request = MetadataRequest(topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False)
    answer: MetadataResponse = ask(address, request, MetadataResponse)
    return sorted(broker.node_id for broker in answer.brokers)


def tiered_ends(address: str, topic: str, partitions: Sequence[int]) -> Mapping[int, int | None]:
    """By partition, the offset after the last record in the object store. The value is None if the store is behind, that is,
    shows less than the node has seen. Partitions that the node at `address` does not lead, or of which the store has no
    records, are omitted."""
    from kio.schema.list_offsets.v9.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
    from kio.schema.list_offsets.v9.response import ListOffsetsResponse
    from kio.schema.types import BrokerId, TopicName
    from kio.static.primitive import i8, i32, i64

    asked = tuple(ListOffsetsPartition(partition_index=i32(p), timestamp=i64(LATEST_TIERED)) for p in partitions)
    request = ListOffsetsRequest(
        replica_id=BrokerId(-1),
        isolation_level=i8(0),
        topics=(ListOffsetsTopic(name=TopicName(topic), partitions=asked),),
    )
    answer: ListOffsetsResponse = ask(address, request, ListOffsetsResponse)
    return {
        part.partition_index: part.offset + 1 if part.error_code == 0 else None
        for found in answer.topics
        for part in found.partitions
        if (part.error_code == 0 and part.offset >= 0) or part.error_code == STORAGE_ERROR
    }


class OpenTransaction(NamedTuple):
    """A partition's oldest open transaction. Until it ends, records from `offset` on are not offloaded, and consumers with
    `read_committed` do not get them."""

    producer_id: int
    offset: int


def open_transactions(address: str, topic: str, partitions: Sequence[int]) -> Mapping[int, OpenTransaction]:
    """The open transactions by partition. Partitions that have none, or that the node at `address` does not lead, are
    omitted."""
    from kio.schema.describe_producers.v0.request import DescribeProducersRequest, TopicRequest
    from kio.schema.describe_producers.v0.response import DescribeProducersResponse
    from kio.schema.types import TopicName
    from kio.static.primitive import i32

    asked = TopicRequest(name=TopicName(topic), partition_indexes=tuple(map(i32, partitions)))
    answer: DescribeProducersResponse = ask(
        address, DescribeProducersRequest(topics=(asked,)), DescribeProducersResponse
    )
    found = {
        part.partition_index: [
            OpenTransaction(each.producer_id, each.current_txn_start_offset)
            for each in part.active_producers
            if each.current_txn_start_offset >= 0
        ]
        for found in answer.topics
        for part in found.partitions
    }
    return {index: min(each, key=lambda one: one.offset) for index, each in found.items() if each}


def ask(address: str, request: Any, answer_type: Any) -> Any:
    """Sends a kio request and returns its answer. Raises CommandError if there is no answer."""
    from kio.serial import entity_reader

    payload = _asked(address, request)
    _, position = entity_reader(answer_type.__header_schema__)(payload, 0)
    answer, _ = entity_reader(answer_type)(payload, position)
    return answer


def ask_for_numbers(address: str, request: Any, answer_type: Any) -> Any:
    """Like `ask`, but times and error codes in the answer are numbers. `ask` would fail for a missing time, because that is -1
    and kio refuses times before 1970."""
    from kio.serial import entity_reader

    from kafka_gateway.message_reader import at_once, steps_of

    payload = _asked(address, request)
    _, position = entity_reader(answer_type.__header_schema__)(payload, 0)
    return at_once(steps_of(answer_type), payload[position:])[0]


def _asked(address: str, request: Any) -> bytes:
    from kio.serial import entity_writer
    from kio.static.primitive import i16, i32

    header = request.__header_schema__(
        request_api_key=i16(request.__api_key__),
        request_api_version=i16(request.__version__),
        correlation_id=i32(1),
        client_id=_CLIENT_ID,
    )
    frame = io.BytesIO()
    entity_writer(type(header))(frame, header)
    entity_writer(type(request))(frame, request)
    try:
        return _exchange(address, frame.getvalue())
    except OSError as error:
        raise CommandError(f"{address} does not answer {type(request).__name__}: {error.strerror or error}") from None


def _exchange(address: str, frame: bytes) -> bytes:
    with socket.create_connection(split_address(address), CONNECT_TIMEOUT_S) as connection:
        connection.settimeout(REQUEST_TIMEOUT_S)
        connection.sendall(len(frame).to_bytes(4, "big") + frame)
        return _receive(connection, int.from_bytes(_receive(connection, 4), "big"))


def _receive(connection: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        piece = connection.recv(count - len(received))
        if not piece:
            raise ConnectionResetError("it closed the connection")
        received += piece
    return bytes(received)


def from_coordinator(
    step: Callable[[], Answer], code_of: Callable[[Answer], int], passing: Collection[int] = COORDINATOR_AWAY
) -> Answer:
    """Repeats `step` for about ten seconds while its error code is one of `passing`, and returns its last answer."""
    answer = step()
    for _ in range(_ATTEMPTS):
        if code_of(answer) not in passing:
            break
        time.sleep(_PAUSE_S)
        answer = step()
    return answer
