"""Requests about transactions that librdkafka's admin client lacks, and the search for hanging transactions.

A transaction hangs in a partition if it is open there and no coordinator knows it. It never ends by itself, and consumers with
`read_committed` stop there. A transaction whose marker was lost with a disk also hangs if a later transaction of its
transactional id is open in the partition. As in Kafka's own tool, only transactions of producers that have been silent for long
are checked. Partitions and coordinators are queried one after the other, and other transactions may end meanwhile.

Requests go to the brokers' advertised addresses. They are retried while a coordinator is created or loaded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from service.cli.client.positions import PartitionKey
from service.cli.client.requests import COORDINATOR_AWAY, ask, ask_for_numbers, from_coordinator
from service.cli.errors import CommandError
from service.cli.kafka import unknown_topic

#: The error codes after which a request to a coordinator is repeated: codes of a coordinator that is being created, loaded or
#: moved, and CONCURRENT_TRANSACTIONS.
_PASSING = (*COORDINATOR_AWAY, 51)
_UNKNOWN_TOPIC_OR_PARTITION = 3
_INVALID_REGULAR_EXPRESSION = 128
_TRANSACTIONAL_ID_NOT_FOUND = 105
#: FindCoordinator's type of key.
_TRANSACTION = 1
ONGOING = "Ongoing"


class Cluster(NamedTuple):
    """`brokers` has the addresses by broker id. `leaders` has the leader of each partition, and omits partitions without
    one."""

    brokers: Mapping[int, str]
    partitions: Collection[PartitionKey]
    leaders: Mapping[PartitionKey, int]


class TransactionRow(NamedTuple):
    """A row in a list of transactional ids. `coordinator` is a broker id, and `state` is Kafka's name of the transaction's
    state."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


class TransactionSnapshot(NamedTuple):
    """`start_ms` is None if the producer has begun no transaction yet."""

    transactional_id: str
    coordinator: int
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int | None
    partitions: Sequence[PartitionKey]


class PartitionProducer(NamedTuple):
    """The state of a producer in a partition. Unknown fields are None. `start_offset` is the first offset of its open
    transaction."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int | None
    last_sequence: int | None
    last_ms: int | None
    start_offset: int | None

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.partition


# --- the cluster ------------------------------------------------------------------------------------------------------
def cluster_of(address: str, topics: Collection[str] | None) -> Cluster:
    """The brokers, and the partitions of these topics, or of all topics if `topics` is None. Raises CommandError if a topic
    does not exist."""
    from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
    from kio.schema.metadata.v12.response import MetadataResponse
    from kio.schema.types import TopicName

    asked = (
        None
        if topics is None
        else tuple(MetadataRequestTopic(topic_id=None, name=TopicName(topic)) for topic in sorted(topics))
    )
    request = MetadataRequest(topics=asked, allow_auto_topic_creation=False, include_topic_authorized_operations=False)
    answer: MetadataResponse = ask(address, request, MetadataResponse)
    for topic in answer.topics:
        if topic.error_code == _UNKNOWN_TOPIC_OR_PARTITION:
            raise unknown_topic(address, str(topic.name))
    partitions = {
        (str(topic.name), int(each.partition_index)): int(each.leader_id)
        for topic in answer.topics
        for each in topic.partitions
    }
    brokers = {int(each.node_id): f"{each.host}:{each.port}" for each in answer.brokers}
    leaders = {key: leader for key, leader in partitions.items() if leader in brokers}
    return Cluster(brokers, sorted(partitions), leaders)


# --- coordinators -----------------------------------------------------------------------------------------------------
def list_transactions(
    cluster: Cluster,
    *,
    states: Iterable[str] = (),
    producer_ids: Iterable[int] = (),
    duration_ms: int = -1,
    pattern: str | None = None,
) -> list[TransactionRow]:
    """The transactional ids, sorted. With `duration_ms`, only those whose transaction has been open for longer."""
    from kio.schema.list_transactions.v2.request import ListTransactionsRequest
    from kio.schema.list_transactions.v2.response import ListTransactionsResponse
    from kio.schema.types import ProducerId
    from kio.static.primitive import i64

    request = ListTransactionsRequest(
        state_filters=tuple(states),
        producer_id_filters=tuple(map(ProducerId, producer_ids)),
        duration_filter=i64(duration_ms),
        transactional_id_pattern=pattern,
    )
    found = []
    for number, address in cluster.brokers.items():
        answer = _asked_until_loaded(address, request, ListTransactionsResponse)
        if answer.error_code == _INVALID_REGULAR_EXPRESSION:
            raise CommandError(
                f"{pattern!r} is not a regular expression, or uses syntax that tidelog lacks: docs/cli.md, Transactions"
            )
        _require(answer.error_code, f"cannot list the transactions of broker {number}")
        found += [
            TransactionRow(str(each.transactional_id), number, int(each.producer_id), str(each.transaction_state))
            for each in answer.transaction_states
        ]
    return sorted(found)


def describe(cluster: Cluster, address: str, transactional_id: str) -> TransactionSnapshot:
    from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
    from kio.schema.describe_transactions.v0.response import DescribeTransactionsResponse
    from kio.schema.types import TransactionalId

    request = DescribeTransactionsRequest(transactional_ids=(TransactionalId(transactional_id),))

    def once() -> tuple[int, Any]:
        number = _coordinator(address, transactional_id)
        answer = ask_for_numbers(cluster.brokers[number], request, DescribeTransactionsResponse)
        return number, answer.transaction_states[0]

    number, found = from_coordinator(once, lambda done: int(done[1].error_code), _PASSING)
    if found.error_code == _TRANSACTIONAL_ID_NOT_FOUND:
        raise CommandError(f"there is no transactional id {transactional_id}; `tidelog txn list` shows all")
    _require(found.error_code, f"cannot describe {transactional_id}")
    return TransactionSnapshot(
        transactional_id,
        number,
        found.transaction_state,
        found.producer_id,
        found.producer_epoch,
        round(found.transaction_timeout.total_seconds() * 1000),
        found.transaction_start_time if found.transaction_start_time >= 0 else None,
        sorted((topic.topic, partition) for topic in found.topics for partition in topic.partitions),
    )


def fence(cluster: Cluster, transaction: TransactionSnapshot) -> None:
    """Aborts the open transaction and fences its producer, whose next request is refused. Returns after the markers are
    written."""
    from datetime import timedelta

    from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
    from kio.schema.init_producer_id.v5.response import InitProducerIdResponse
    from kio.schema.types import TransactionalId
    from kio.static.primitive import i32Timedelta

    request = InitProducerIdRequest(
        transactional_id=TransactionalId(transaction.transactional_id),
        transaction_timeout=i32Timedelta.parse(timedelta(milliseconds=transaction.timeout_ms)),
    )
    answer = _asked_until_loaded(cluster.brokers[transaction.coordinator], request, InitProducerIdResponse)
    _require(answer.error_code, f"cannot abort the transaction of {transaction.transactional_id}")


def _coordinator(address: str, transactional_id: str) -> int:
    from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest
    from kio.schema.find_coordinator.v6.response import FindCoordinatorResponse
    from kio.static.primitive import i8

    request = FindCoordinatorRequest(key_type=i8(_TRANSACTION), coordinator_keys=(transactional_id,))
    found = from_coordinator(
        lambda: ask(address, request, FindCoordinatorResponse).coordinators[0],
        lambda done: int(done.error_code),
        _PASSING,
    )
    _require(found.error_code, f"cannot find the coordinator of {transactional_id}")
    return int(found.node_id)


# --- partitions -------------------------------------------------------------------------------------------------------
def producers(cluster: Cluster, keys: Sequence[PartitionKey]) -> list[PartitionProducer]:
    """The active producers of these partitions. Raises CommandError for a partition without a leader."""
    from kio.schema.describe_producers.v0.request import DescribeProducersRequest, TopicRequest
    from kio.schema.describe_producers.v0.response import DescribeProducersResponse
    from kio.schema.types import TopicName
    from kio.static.primitive import i32

    found = []
    for number, led in _by_leader(cluster, keys).items():
        request = DescribeProducersRequest(
            topics=tuple(
                TopicRequest(name=TopicName(topic), partition_indexes=tuple(map(i32, partitions)))
                for topic, partitions in led.items()
            )
        )
        answer = ask(cluster.brokers[number], request, DescribeProducersResponse)
        for topic in answer.topics:
            for each in topic.partitions:
                _require(each.error_code, f"cannot see the producers of {topic.name}-{each.partition_index}")
                found += [_producer(str(topic.name), int(each.partition_index), row) for row in each.active_producers]
    return sorted(found, key=lambda each: (each.key, each.producer_id))


def _by_leader(cluster: Cluster, keys: Sequence[PartitionKey]) -> Mapping[int, Mapping[str, list[int]]]:
    found: dict[int, dict[str, list[int]]] = {}
    for key in keys:
        if key not in cluster.leaders:
            raise CommandError(f"{key[0]}-{key[1]} has no leader now")
        found.setdefault(cluster.leaders[key], {}).setdefault(key[0], []).append(key[1])
    return found


def _producer(topic: str, partition: int, row: Any) -> PartitionProducer:
    def known(value: int) -> int | None:
        return int(value) if value >= 0 else None

    return PartitionProducer(
        topic,
        partition,
        int(row.producer_id),
        int(row.producer_epoch),
        known(row.coordinator_epoch),
        known(row.last_sequence),
        known(row.last_timestamp),
        known(row.current_txn_start_offset),
    )


def abort_in_partition(cluster: Cluster, open_one: PartitionProducer) -> None:
    """Writes an abort marker for this transaction into this partition alone. A coordinator would write all markers of the
    transaction."""
    from kio.schema.types import ProducerId, TopicName
    from kio.schema.write_txn_markers.v1.request import (
        WritableTxnMarker,
        WritableTxnMarkerTopic,
        WriteTxnMarkersRequest,
    )
    from kio.schema.write_txn_markers.v1.response import WriteTxnMarkersResponse
    from kio.static.primitive import i16, i32

    marker = WritableTxnMarker(
        producer_id=ProducerId(open_one.producer_id),
        producer_epoch=i16(open_one.producer_epoch),
        transaction_result=False,
        topics=(WritableTxnMarkerTopic(name=TopicName(open_one.topic), partition_indexes=(i32(open_one.partition),)),),
        coordinator_epoch=i32(open_one.coordinator_epoch or 0),
    )
    leader = cluster.brokers[cluster.leaders[open_one.key]]
    answer = ask(leader, WriteTxnMarkersRequest(markers=(marker,)), WriteTxnMarkersResponse)
    (result,) = (each for row in answer.markers for topic in row.topics for each in topic.partitions)
    _require(result.error_code, f"cannot abort the transaction in {open_one.topic}-{open_one.partition}")


# --- hanging transactions ---------------------------------------------------------------------------------------------
def hanging(
    cluster: Cluster, address: str, keys: Sequence[PartitionKey], *, silent_ms: int, now_ms: int
) -> list[PartitionProducer]:
    """The hanging transactions of these partitions whose producers have written nothing there for longer than `silent_ms`."""
    suspects = [
        each
        for each in producers(cluster, keys)
        if each.start_offset is not None and (each.last_ms is None or now_ms - each.last_ms > silent_ms)
    ]
    known = owners(cluster, address, suspects)
    return [each for each in suspects if each not in known]


def owners(cluster: Cluster, address: str, opened: Sequence[PartitionProducer]) -> Mapping[PartitionProducer, str]:
    """The transactional ids of the transactions that their coordinators know. If the id's own open transaction has a newer
    producer epoch, the one in the partition is an earlier transaction whose marker is lost, and has no entry."""
    if not opened:
        return {}
    listed = list_transactions(cluster, producer_ids=sorted({each.producer_id for each in opened}))
    known = {each.producer_id: describe(cluster, address, each.transactional_id) for each in listed}
    return {
        each: known[each.producer_id].transactional_id
        for each in opened
        if each.producer_id in known and _is_present(each, known[each.producer_id])
    }


def _is_present(opened: PartitionProducer, known: TransactionSnapshot) -> bool:
    is_earlier = known.state == ONGOING and opened.producer_epoch < known.producer_epoch
    return opened.key in known.partitions and not is_earlier


# --- answers ----------------------------------------------------------------------------------------------------------
def _asked_until_loaded(address: str, request: Any, answer_type: Any) -> Any:
    return from_coordinator(lambda: ask(address, request, answer_type), lambda answer: int(answer.error_code), _PASSING)


def _require(code: int, what: str) -> None:
    """Raises a CommandError that begins with `what` if the error code is not 0."""
    from kio.schema.errors import ErrorCode

    if code != 0:
        raise CommandError(f"{what}: {ErrorCode(code).name.upper()}")
