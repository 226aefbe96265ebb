"""Transactions: the requests and answers of a transaction coordinator (KIP-98, KIP-360, KIP-890).

Every answer holds its error as a value. Times are in ms. A producer is an id and an epoch; NO_PRODUCER where the client has
none yet. `client_version` is the `transaction.version` that the client's request speaks: 2 bumps the epoch with every
transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from storage_tiers.errors import LogError
from storage_tiers.types import NO_PRODUCER_ID, TopicPartition


class ProducerIdAndEpoch(NamedTuple):
    id: int
    epoch: int


NO_PRODUCER = ProducerIdAndEpoch(NO_PRODUCER_ID, -1)


class InitProducer(NamedTuple):
    """`expected` is the producer that a client wants to go on as (KIP-360), else NO_PRODUCER. `spare_producer_id` is an id
    never given out before, which the coordinator uses if it needs one."""

    transactional_id: str
    timeout_ms: int
    expected: ProducerIdAndEpoch
    spare_producer_id: int


class ProducerInitialized(NamedTuple):
    error: LogError | None
    producer: ProducerIdAndEpoch = NO_PRODUCER


class AddPartitions(NamedTuple):
    """`verify_only`: a broker asks whether the partitions are in the producer's open transaction, and adds none."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    partitions: Sequence[TopicPartition]
    verify_only: bool = False
    client_version: int = 0


class PartitionsAdded(NamedTuple):
    """`errors` has the partitions that were refused while others were not; a refused request has `error` alone."""

    error: LogError | None
    errors: Sequence[tuple[TopicPartition, LogError]] = ()


class EndTransaction(NamedTuple):
    """`spare_producer_id` as in InitProducer: with version 2 the epochs of an id can run out here."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    commit: bool
    client_version: int
    spare_producer_id: int


class TransactionEnded(NamedTuple):
    """`producer` is the one to go on with, NO_PRODUCER below version 2."""

    error: LogError | None
    producer: ProducerIdAndEpoch = NO_PRODUCER


class Markers(NamedTuple):
    """The markers that end a transaction in its partitions. `version` is the transaction's."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    commit: bool
    partitions: Sequence[TopicPartition]
    version: int


class DescribedTransaction(NamedTuple):
    """`state` is Kafka's name. `start_ms` is -1 outside a transaction."""

    error: LogError | None
    transactional_id: str
    state: str = ""
    producer: ProducerIdAndEpoch = NO_PRODUCER
    timeout_ms: int = 0
    start_ms: int = -1
    partitions: Sequence[TopicPartition] = ()


class ListTransactions(NamedTuple):
    """Empty filters let all pass. `duration_ms` (-1: any) is the least age of an open transaction. `pattern` is a regular
    expression for the whole transactional id."""

    states: frozenset[str] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    duration_ms: int = -1
    pattern: str | None = None


class ListedTransaction(NamedTuple):
    transactional_id: str
    producer_id: int
    state: str
