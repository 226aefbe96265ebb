"""The contract's `Log` over the partitions of this node; `grpc_api.contract.log` documents the methods and their errors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from grpc_api.contract.log import (
    Append,
    Appended,
    Fetch,
    Fetched,
    Isolation,
    OffsetQuery,
    OffsetSpec,
    SealedPartition,
)
from grpc_api.contract.ready import Ready
from grpc_api.contract.transactions import ProducerTransaction
from service.broker.appending.appending import Appending
from service.broker.background.tiering import Tiering
from service.broker.coordinators.producer_ids import ProducerIds
from service.broker.fetching.fetch_rechecks import FetchRechecks
from service.broker.fetching.fetching import BytesRead, fetch_records
from service.broker.fetching.many_partitions import MANY, ManyFetch
from service.broker.partition.partition import Partition
from service.broker.partition.partitions import Partitions
from service.broker.partition.phase import Use
from service.metadata.following import Metadata
from storage_tiers.errors import (
    InvalidTopic,
    LogError,
    OffsetNotAvailable,
    OffsetOutOfRange,
    PolicyViolation,
    UnknownTopicOrPartition,
    UnsupportedVersion,
    as_value,
)
from storage_tiers.turns import TurnScheduler
from storage_tiers.types import NO_EPOCH, NO_TIMESTAMP, TimestampOffset, TopicId, TopicPartition


class LogService:
    """Appends, fetches, offset lookups and deletion of records. A LogError is the answer for one partition and does not affect
    the others. `fetch_max_bytes` bounds a fetch's answer in bytes."""

    def __init__(
        self,
        partitions: Partitions,
        metadata: Metadata,
        *,
        producer_ids: ProducerIds,
        tiering: Tiering,
        appending: Appending,
        fetch_max_bytes: int,
    ) -> None:
        self._partitions = partitions
        self._producer_ids = producer_ids
        self._tiering = tiering
        self._metadata = metadata
        self._fetch_max_bytes = fetch_max_bytes
        self._scheduler = TurnScheduler()
        self._rechecks = FetchRechecks()
        self.bytes_read = BytesRead()
        self._append = appending.append
        self.appended = appending.appended

    def append(
        self, appends: Sequence[Append], *, transaction: ProducerTransaction | None = None
    ) -> Ready[Sequence[Appended | LogError]]:
        return self._append(appends, transaction=transaction)

    def fetch(self, fetch: Fetch) -> Ready[Sequence[Fetched]]:
        most = min(fetch.max_bytes, self._fetch_max_bytes)
        if most < fetch.max_bytes or most < fetch.min_bytes:
            # As in Kafka, a fetch never waits for more bytes than its answer may hold.
            fetch = fetch._replace(max_bytes=most, min_bytes=min(fetch.min_bytes, most))
        if len(fetch.partitions) > MANY:
            many = ManyFetch(fetch, self._partitions.get, self.bytes_read, self._scheduler)
            return asyncio.ensure_future(many.answers())
        return fetch_records(fetch, self._partitions.get, self.bytes_read, self._rechecks)

    async def list_offsets(self, queries: Sequence[OffsetQuery]) -> Sequence[TimestampOffset | LogError | None]:
        answers: list[TimestampOffset | LogError | None] = []
        by_time: list[int] = []
        for index, query in enumerate(queries):
            try:
                partition = self._readable(query)
                if query.timestamp >= 0 or query.timestamp == OffsetSpec.MAX_TIMESTAMP:
                    by_time.append(index)
                    answers.append(None)
                else:
                    answers.append(_offset(partition, query.timestamp, query.isolation))
            except LogError as error:
                answers.append(as_value(error))
        # These lookups run concurrently, because each may query the bucket and the client's timeout covers all of them.
        found = await asyncio.gather(*(self._offset_by_time(queries[index]) for index in by_time))
        for index, answer in zip(by_time, found, strict=True):
            answers[index] = answer
        return answers

    def _readable(self, query: OffsetQuery) -> Partition:
        partition = self._partitions.get(query.partition)
        if query.timestamp == OffsetSpec.LATEST_TIERED:
            self._tiering.lineage.check(partition)
        partition.check_epoch(query.current_leader_epoch)  # before `check_readable`, as in Kafka
        partition.check_readable()
        return partition

    async def _offset_by_time(self, query: OffsetQuery) -> TimestampOffset | LogError | None:
        try:
            partition = self._readable(query)
            upto = partition.readable_end(query.isolation)
            if query.timestamp == OffsetSpec.MAX_TIMESTAMP:
                found = await partition.log.max_timestamp(upto_offset=upto)
            else:
                found = await partition.log.offset_for_timestamp(query.timestamp, upto_offset=upto)
            if found is None:
                _check_not_behind_epoch(partition)
            return found
        except LogError as error:
            return as_value(error)

    async def delete_records(self, partition: TopicPartition, before_offset: int) -> int:
        led = self._partitions.get(partition)
        led.check(Use.ADMIN)
        if led.is_internal:
            raise InvalidTopic(f"Cannot delete records of internal topic {partition.topic}")
        watermark = led.state.high_watermark
        target = watermark if before_offset == -1 else before_offset
        if not 0 <= target <= watermark:
            raise OffsetOutOfRange(
                f"{partition}: cannot delete below {before_offset}; the high watermark is {watermark} (or use -1 for it)"
            )
        if "delete" not in led.log.hot.settings.cleanup_policy:
            raise PolicyViolation(f"{partition}: cleanup.policy has no `delete`, so only compaction removes records")
        self._tiering.lineage.check(led)
        await self._partitions.raise_log_starts({led: target})
        led.check_readable()
        await self._tiering.log_start_raised(led)
        return led.log.log_start_offset

    async def epoch_end_offset(
        self, partition: TopicPartition, leader_epoch: int, current_leader_epoch: int = NO_EPOCH
    ) -> tuple[int, int]:
        led = self._partitions.get(partition)
        led.check_epoch(current_leader_epoch)
        led.check_readable()
        return await led.log.epoch_end_offset(leader_epoch)

    def topic_name(self, topic_id: TopicId) -> str | None:
        topic = self._metadata.image.topic_by_id(topic_id)
        return None if topic is None else topic.name

    async def init_producer_id(self) -> tuple[int, int]:
        return await self._producer_ids.next(), 0

    async def seal(self, topic: str, *, wait: bool, timeout_ms: int) -> Sequence[SealedPartition]:
        if self._metadata.image.topic(topic) is None:
            raise UnknownTopicOrPartition(f"there is no topic {topic!r}")
        # A failed partition is included, so that the error names it. The present leader seals a partition that is moving to
        # this node.
        served = [p for p in self._partitions.of_topic(topic) if p.leads or p.life.is_failed]
        return await self._tiering.seal(served, wait=wait, timeout_ms=timeout_ms)


def _offset(partition: Partition, spec: int, isolation: Isolation) -> TimestampOffset:
    """The offset for a special timestamp other than MAX_TIMESTAMP."""
    log, hot = partition.log, partition.log.hot
    match spec:
        case OffsetSpec.LATEST:
            _check_not_behind_epoch(partition)
            return TimestampOffset(NO_TIMESTAMP, partition.readable_end(isolation), partition.state.leader_epoch)
        case OffsetSpec.EARLIEST:
            return _position(partition, hot.log_start_offset)
        case OffsetSpec.EARLIEST_LOCAL:
            return _position(partition, max(hot.log_start_offset, hot.local_start_offset))
        case OffsetSpec.LATEST_TIERED:
            if log.tier is None or log.tier.end <= hot.log_start_offset:
                return TimestampOffset(NO_TIMESTAMP, -1, NO_EPOCH)
            return _position(partition, log.tier.end - 1)
        case OffsetSpec.EARLIEST_PENDING_UPLOAD:
            if log.cold is None:
                return TimestampOffset(NO_TIMESTAMP, -1, NO_EPOCH)
            return _position(partition, max(log.tiered_end, hot.log_start_offset))
    raise UnsupportedVersion(f"{partition.partition}: no offset is known for the special timestamp {spec}")


def _check_not_behind_epoch(partition: Partition) -> None:
    """As in Kafka, raises OffsetNotAvailable while offsets that a former leader may have returned are not committed here."""
    if partition.state.is_behind_epoch:
        raise OffsetNotAvailable(
            f"{partition.partition}: its followers have not reached offset {partition.state.epoch_start}, where this leader "
            "began; retry"
        )


def _position(partition: Partition, offset: int) -> TimestampOffset:
    return TimestampOffset(NO_TIMESTAMP, offset, partition.log.hot.epoch_at(offset))
