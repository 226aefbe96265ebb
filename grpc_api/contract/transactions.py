"""Transactions: the requests and answers of a transaction coordinator (KIP-98, KIP-360, KIP-890).

Every answer holds its error as a value. Times are in ms. A producer is an id and an epoch; it is NO_PRODUCER if the client has
none yet. `client_version` is the `transaction.version` that the client uses: with version 2 every transaction raises the
epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from grpc_api.contract.caller import Caller
from storage_tiers.errors import LogError
from storage_tiers.types import NO_PRODUCER_ID, TopicPartition

if TYPE_CHECKING:
    import asyncio


class ProducerIdAndEpoch(NamedTuple):
    """A producer as partitions know it. A higher epoch of the same id fences the lower ones."""

    id: int
    epoch: int


NO_PRODUCER = ProducerIdAndEpoch(NO_PRODUCER_ID, -1)


#: The `transaction.version` with which every transaction has an epoch of its own, and an append adds its partition (KIP-890).
EPOCH_PER_TRANSACTION = 2


class ProducerTransaction(NamedTuple):
    """The transaction of a transactional batch. `version` is the `transaction.version` that the client speaks.
    `knows_abortable`: whether the client knows the error TRANSACTION_ABORTABLE."""

    id: str
    version: int = 0
    knows_abortable: bool = False


class InitProducer(NamedTuple):
    """`expected` is the producer that the client wants to continue as (KIP-360), otherwise NO_PRODUCER. `spare_producer_id` is
    an id that was never issued; the node sets it, in case the coordinator needs a new one."""

    transactional_id: str
    timeout_ms: int
    expected: ProducerIdAndEpoch = NO_PRODUCER
    spare_producer_id: int = NO_PRODUCER_ID


class ProducerInitialized(NamedTuple):
    """`producer` is the client's id and epoch from now on; NO_PRODUCER if there is an error."""

    error: LogError | None
    producer: ProducerIdAndEpoch = NO_PRODUCER


class AddPartitions(NamedTuple):
    """With `verify_only`, a broker asks whether the partitions are in the producer's open transaction, and none is added."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    partitions: Sequence[TopicPartition]
    verify_only: bool = False
    client_version: int = 0


class PartitionsAdded(NamedTuple):
    """`errors` has the refused partitions if others were accepted. If the whole request is refused, only `error` is set."""

    error: LogError | None
    errors: Sequence[tuple[TopicPartition, LogError]] = ()


class AddOffsets(NamedTuple):
    """Adds the partition of `__consumer_offsets` that stores the offsets of `group`."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    group: str
    client_version: int = 0


class EndTransaction(NamedTuple):
    """`spare_producer_id` is as in InitProducer: with version 2 the end of a transaction can use up the epochs of an id."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    commit: bool
    client_version: int = 0
    spare_producer_id: int = NO_PRODUCER_ID


class TransactionEnded(NamedTuple):
    """`producer` is the id and epoch of the next transaction; NO_PRODUCER below version 2."""

    error: LogError | None
    producer: ProducerIdAndEpoch = NO_PRODUCER


class Markers(NamedTuple):
    """The markers that end a transaction in its partitions. `version` is the transaction's `transaction.version`."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    commit: bool
    partitions: Sequence[TopicPartition]
    version: int


class DescribedTransaction(NamedTuple):
    """`state` is Kafka's name. `start_ms` is the time when the last transaction began, -1 if there was none since
    InitProducerId. As in Kafka, numbers are 0 if there is an error."""

    error: LogError | None
    transactional_id: str
    state: str = ""
    producer: ProducerIdAndEpoch = ProducerIdAndEpoch(0, 0)
    timeout_ms: int = 0
    start_ms: int = 0
    partitions: Sequence[TopicPartition] = ()


#: Kafka's names of a transactional id's states.
STATES = frozenset(
    {
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    }
)


class ListTransactions(NamedTuple):
    """An empty filter excludes nothing. `duration_ms` selects transactions that are open for longer (-1: all). `pattern` is a
    regular expression for the whole transactional id."""

    states: frozenset[str] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    duration_ms: int = -1
    pattern: str | None = None


class ListedTransaction(NamedTuple):
    """`state` is one of STATES."""

    transactional_id: str
    producer_id: int
    state: str


class TransactionsListed(NamedTuple):
    """The transactions of the shards that this broker coordinates. `error` is that of the first shard that could not be read;
    the transactions of all other shards are listed."""

    error: LogError | None
    transactions: Sequence[ListedTransaction] = ()


class Transactions(Protocol):
    """Transaction coordinators.

    Every future ends with its answer, or with a LogError if the request was not decided or may not have been written:
    NotCoordinator (another broker coordinates the transactional id), CoordinatorLoading, CoordinatorNotAvailable.
    Cancelling a future undoes nothing. While the markers of the producer's last transaction are being written, its
    requests wait for them; other requests wait only for records to be committed."""

    async def coordinator(self, transactional_id: str, caller: Caller) -> int:
        """The id of the broker that coordinates the transactional id. Creates the internal topic if there is none. Raises
        CoordinatorNotAvailable while the coordinator's partition has no leader."""

    async def init_producer(self, request: InitProducer, caller: Caller) -> ProducerInitialized: ...

    def add_partitions(self, request: AddPartitions, caller: Caller) -> asyncio.Future[PartitionsAdded]:
        """If the cluster lacks some of the partitions, none is added: the missing ones get UnknownTopicOrPartition, and the
        others OperationNotAttempted."""

    async def add_offsets(self, request: AddOffsets, caller: Caller) -> PartitionsAdded:
        """Raises CoordinatorNotAvailable while `__consumer_offsets` does not exist, and begins to create the topic."""

    def end(self, request: EndTransaction, caller: Caller) -> asyncio.Future[TransactionEnded]:
        """The answer comes once the decision is committed; the markers follow."""

    async def write_markers(
        self, markers: Markers, coordinator_epoch: int, caller: Caller
    ) -> Sequence[tuple[TopicPartition, LogError]]:
        """Ends the producer's transaction in partitions of this broker, on behalf of a coordinator of that epoch. Returns the
        partitions without a committed marker, with the reasons. `transactional_id` is not used."""

    async def list(self, request: ListTransactions, caller: Caller) -> TransactionsListed: ...

    def describe(self, transactional_id: str, caller: Caller) -> asyncio.Future[DescribedTransaction]: ...
