"""Appends clients' batches: at once, by threads (`append_queues.py`), or after a request to a coordinator
(`append_lane.py`)."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence

from grpc_api.contract.coordinator_errors import InvalidProducerIdMapping
from grpc_api.contract.log import Append, Appended
from grpc_api.contract.ready import Ready
from grpc_api.contract.transactions import ProducerTransaction
from service.broker.appending.append_lane import AppendLane, BatchProducer, transactional_producer
from service.broker.appending.append_queues import AppendQueues, Done
from service.broker.appending.disk import DiskGuard
from service.broker.appending.verification_requests import AsksCoordinator
from service.broker.partition.counts import AppendTotals
from service.broker.partition.partition import WRITTEN_BY_THREAD, Partition
from service.broker.partition.partitions import Partitions
from service.broker.partition.validating import TakesLong
from storage_tiers import events
from storage_tiers.errors import (
    CorruptRecord,
    InvalidTopic,
    LeaderNotAvailable,
    LogError,
    NotLeader,
    RecordBatchTooLarge,
    RecordTooLarge,
    StorageError,
    as_value,
)

log = logging.getLogger(__name__)

#: Errors that are answered without the log start (Kafka: ReplicaManager.appendRecordsToLeader).
_WITHOUT_LOG_START = (
    CorruptRecord,
    InvalidTopic,
    LeaderNotAvailable,
    NotLeader,
    RecordBatchTooLarge,
    RecordTooLarge,
    StorageError,
)

_NO_PRODUCERS: Sequence[BatchProducer | None] = ()

#: Placeholder for a result that is not known yet.
_UNKNOWN = LogError("the broker did not answer")


class _DelayedAnswers:
    """The answers of an append request that cannot be answered yet, because some of its batches are with threads or wait for a
    coordinator, or because a filling disk slows producers. The work in threads completes even if the caller has
    disconnected."""

    __slots__ = ("_disk", "_future", "_refusal", "answers", "left")

    def __init__(
        self,
        answers: list[Appended | LogError],
        disk: DiskGuard,
        refusal: Callable[[LogError, Partition, memoryview], LogError],
    ) -> None:
        self.answers = answers
        #: Number of answers that are not known yet.
        self.left = 0
        self._disk = disk
        self._refusal = refusal
        self._future: asyncio.Future[Sequence[Appended | LogError]] | None = None

    def wait(self, partition: Partition, index: int) -> Done:
        """Reserves the answer at `index`; returns the function to call with its result."""
        self.left += 1
        return functools.partial(self._known, partition, index)

    def refused(self, partition: Partition, index: int) -> Done:
        """Returns the function to call with the error of a batch that never reached the log. Use it instead of the function
        that `wait` returned. The answer then has no log start."""
        return functools.partial(self._known, partition, index, tells_log_start=False)

    def begin(self) -> asyncio.Future[Sequence[Appended | LogError]]:
        """Returns the future of all answers. It is done when all are known and the disk's delay is over."""
        self._future = asyncio.get_running_loop().create_future()
        if not self.left:
            self._all_known(self._future)
        return self._future

    def _known(
        self,
        partition: Partition,
        index: int,
        result: Appended | LogError,
        batch: memoryview,
        *,
        tells_log_start: bool = True,
    ) -> None:
        self.left -= 1
        if isinstance(result, LogError):
            result = self._refusal(result, partition, batch)
            if not tells_log_start:
                result.log_start_offset = -1
        self.answers[index] = result
        if not self.left and self._future is not None:
            self._all_known(self._future)

    def _all_known(self, future: asyncio.Future[Sequence[Appended | LogError]]) -> None:
        if self._disk.throttle_s:
            self._disk.throttled += 1
            asyncio.get_running_loop().call_later(self._disk.throttle_s, self._give, future)
        else:
            self._give(future)

    def _give(self, future: asyncio.Future[Sequence[Appended | LogError]]) -> None:
        if not future.done():
            future.set_result(self.answers)


class Appending:
    """The appends of all clients. `appended` counts batches, and refused ones by error, since the start."""

    def __init__(
        self,
        partitions: Partitions,
        *,
        disk: DiskGuard,
        queues: AppendQueues,
        appended: AppendTotals,
        transactions: AsksCoordinator,
    ) -> None:
        self._partitions = partitions
        self._disk = disk
        self._queues = queues
        self._lane = AppendLane(transactions, self._append_later)
        self.appended = appended

    def append(
        self, appends: Sequence[Append], *, transaction: ProducerTransaction | None = None
    ) -> Ready[Sequence[Appended | LogError]]:
        """Implements the contract's `Log.append`."""
        answers: list[Appended | LogError] = []
        delayed: _DelayedAnswers | None = None
        self.appended.batches += len(appends)
        producers = _NO_PRODUCERS if transaction is None else _producers_of(appends)
        for wanted in appends:
            answers.append(_UNKNOWN)
            partition = None
            try:
                self._disk.admit()
                partition = self._partitions.get(wanted.partition)
                partition.counts.appends += 1
                producer = producers[len(answers) - 1] if producers else None
                if transaction is not None and producer is not None and self._lane.must_wait(partition, producer):
                    _check_takes_clients(partition)
                    partition.check_writable()
                    delayed = delayed or _DelayedAnswers(answers, self._disk, self._refusal)
                    done = delayed.wait(partition, len(answers) - 1)
                    refused = delayed.refused(partition, len(answers) - 1)
                    self._lane.add(partition, wanted.batch, producer, transaction, done, refused)
                    continue
                appended = self._at_once(partition, wanted.batch)
                if appended is not None:
                    answers[-1] = appended
                    continue
                _check_takes_clients(partition)
                delayed = delayed or _DelayedAnswers(answers, self._disk, self._refusal)
                self._queues.append(partition, wanted.batch, delayed.wait(partition, len(answers) - 1))
            except LogError as error:
                answers[-1] = self._refusal(error, partition, wanted.batch)
        self._lane.begin()
        if self._disk.throttle_s or (delayed is not None and delayed.left):
            return (delayed or _DelayedAnswers(answers, self._disk, self._refusal)).begin()
        return answers

    def _at_once(self, partition: Partition, batch: memoryview) -> Appended | None:
        """Appends the batch. None if it has to go through the queues."""
        if partition.queues:
            return None
        try:
            if len(batch) < WRITTEN_BY_THREAD:
                return partition.append(batch)
            return self._queues.at_once(partition, batch)
        except TakesLong:
            return None

    def _append_later(self, partition: Partition, batch: memoryview, done: Done) -> None:
        """Appends a batch whose transaction was verified meanwhile."""
        try:
            appended = self._at_once(partition, batch)
        except LogError as error:
            done(error, batch)
            return
        except Exception as error:  # noqa: BLE001 - the batches behind it must have their turn
            events.error(log, "append.defect", partition=partition.partition, defect=error)
            done(LogError(f"{partition.partition}: the batch could not be appended ({error!r})"), batch)
            return
        if appended is not None:
            done(appended, batch)
        else:
            self._queues.append(partition, batch, done)

    def _refusal(self, error: LogError, partition: Partition | None, batch: memoryview) -> LogError:
        as_value(error)
        if partition is not None and not isinstance(error, _WITHOUT_LOG_START):
            error.log_start_offset = partition.log.log_start_offset
        self.appended.failed += 1
        if partition is not None:
            self.appended.refused.add(error, batch, compacted=partition.log.hot.settings.cleanup_compact)
            partition.counts.failed_appends += 1
            if isinstance(error, RecordTooLarge | RecordBatchTooLarge):
                partition.counts.rejected_bytes += len(batch)
        return error


def _check_takes_clients(partition: Partition) -> None:
    if partition.is_internal:
        raise InvalidTopic(f"Cannot append to internal topic {partition.partition.topic}")


def _producers_of(appends: Sequence[Append]) -> Sequence[BatchProducer | None]:
    """Returns the producer of each batch, None if it is not transactional. Raises InvalidProducerIdMapping if the transactional
    batches of a request have several producers, as Kafka does (ReplicaManager.handleProduceAppend)."""
    if len(appends) == 1:
        return (transactional_producer(appends[0].batch),)
    producers = [transactional_producer(each.batch) for each in appends]
    if len({(each.id, each.epoch) for each in producers if each is not None}) > 1:
        raise InvalidProducerIdMapping("Transactional records contained more than one producer ID")
    return producers
