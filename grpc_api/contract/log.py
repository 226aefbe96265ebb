"""Appending to and reading from partitions: the hot path of the contract.

Clients' reads are bounded by the isolation level (high watermark or last stable offset), never by the log end. Record batches
pass as opaque bytes: v2 batches in, slices of files (or bytes, across a channel) out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from storage_tiers.errors import LogError
from storage_tiers.types import NO_EPOCH, AbortedTransaction, FileSlice, TimestampOffset, TopicId, TopicPartition

if TYPE_CHECKING:
    import asyncio

    from grpc_api.contract.ready import Ready
    from grpc_api.contract.transactions import ProducerTransaction


class Isolation(IntEnum):
    """The offset at which a reader stops: the high watermark, the last stable offset, or the log end."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1
    #: For a replica's fetches inside the broker. Neither Kafka's protocol nor gRPC lets a caller request it.
    LOG_END = 2


#: The levels that callers may request, by number.
ISOLATIONS = {int(level): level for level in (Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED)}


class ProduceAcks(IntEnum):
    """The condition under which an append is answered, with Kafka's numbers of `acks`: never, once the leader has the records,
    or once all in-sync replicas have them."""

    NONE = 0
    LEADER = 1
    ALL = -1


class Append(NamedTuple):
    """One record batch for one partition. `batch` must stay unchanged until `Log.append` returns; if it has more than 4 MiB,
    until the append is answered."""

    partition: TopicPartition
    batch: memoryview


@dataclass(slots=True)
class Appended:
    """The position of an appended batch. `log_append_time_ms` is in milliseconds since 1970, -1 under CreateTime.

    `committed` is None if the records are already below the high watermark, and flushed as the topic requires. Otherwise it is
    a future that completes then, or fails with the LogError that producers with acks=all get.
    """

    base_offset: int
    leader_epoch: int
    log_append_time_ms: int
    log_start_offset: int
    committed: asyncio.Future[None] | None = None


class FetchPartition(NamedTuple):
    """One partition to read, from `offset`, at most `max_bytes`. An epoch is -1 if the client does not know it; `topic_id` is
    None below Fetch 13."""

    partition: TopicPartition
    offset: int
    max_bytes: int
    current_leader_epoch: int = NO_EPOCH
    last_fetched_epoch: int = NO_EPOCH
    topic_id: TopicId | None = None


class Fetch(NamedTuple):
    """Reads several partitions in order: at most `max_bytes` in all, but at least one batch. Waits at most `max_wait_ms`
    milliseconds for `min_bytes`."""

    partitions: Sequence[FetchPartition]
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: Isolation = Isolation.READ_UNCOMMITTED


class Fetched(NamedTuple):
    """One partition's part of the answer.

    The receiver owns a reference to every slice's file and must release it (`release_all`). `aborted` is None under
    read_uncommitted. The last batch may be cut off, as in Kafka's answers. `diverging`, as (epoch, end offset), is set without
    records if `last_fetched_epoch` shows that the caller's log has another history (KIP-595).
    """

    error: LogError | None
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    slices: Sequence[FileSlice] = ()
    aborted: Sequence[AbortedTransaction] | None = None
    diverging: tuple[int, int] | None = None

    @property
    def size(self) -> int:
        return sum(s.length for s in self.slices)

    def release_all(self) -> None:
        for piece in self.slices:
            piece.file.release()


class OffsetSpec(IntEnum):
    """Special timestamps of ListOffsets (KIP-79, KIP-734, KIP-405, KIP-1005)."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


class OffsetQuery(NamedTuple):
    """A lookup of an offset. `timestamp` is in milliseconds since 1970, or an OffsetSpec."""

    partition: TopicPartition
    timestamp: int
    current_leader_epoch: int = NO_EPOCH
    isolation: Isolation = Isolation.READ_UNCOMMITTED


class Log(Protocol):
    """Records of partitions. Errors of one partition are in its answer; a raised LogError concerns the whole request."""

    def append(
        self, appends: Sequence[Append], *, transaction: ProducerTransaction | None = None
    ) -> Ready[Sequence[Appended | LogError]]:
        """Validates, assigns offsets and appends each partition separately, in the order given. A partition answered with a
        LogError is unchanged. A transactional batch needs `transaction` unless its transaction is open in the partition;
        otherwise its answer is InvalidTransactionState. With `transaction`, raises InvalidProducerIdMapping if the
        transactional batches have several producers."""

    def fetch(self, fetch: Fetch) -> Ready[Sequence[Fetched]]:
        """Answers in the order of `fetch.partitions`. Cancel the future to end a waiting read."""

    async def list_offsets(self, queries: Sequence[OffsetQuery]) -> Sequence[TimestampOffset | LogError | None]:
        """One answer per query, in order; None if the log has no such record. The timestamp is -1 if the query names a
        position, not a time."""

    async def delete_records(self, partition: TopicPartition, before_offset: int) -> int:
        """Moves the log start up to `before_offset` (-1: the high watermark) in both tiers. Returns the log start. Raises
        OffsetOutOfRange for an offset above the high watermark, InvalidTopic for an internal topic, and PolicyViolation if
        `cleanup.policy` lacks `delete`."""

    async def epoch_end_offset(
        self, partition: TopicPartition, leader_epoch: int, current_leader_epoch: int = NO_EPOCH
    ) -> tuple[int, int]:
        """Returns (largest known epoch <= `leader_epoch`, its end offset), over both tiers; (-1, -1) if unknown (KIP-101)."""

    def topic_name(self, topic_id: TopicId) -> str | None:
        """The name of the live topic with that id, from the newest metadata that this process has seen."""

    async def init_producer_id(self) -> tuple[int, int]:
        """A new producer id with its epoch, for an idempotent producer. `Transactions` serves transactional
        producers."""

    async def seal(self, topic: str, *, wait: bool, timeout_ms: int) -> Sequence[SealedPartition]:
        """Closes each partition's active segment and offloads all records so far; with `wait`, returns once they are in
        the bucket."""


class SealedPartition(NamedTuple):
    """`end` is the log end when the request arrived; `tiered_end` is the durable manifest's end when the request was
    answered."""

    partition: int
    end: int
    tiered_end: int
