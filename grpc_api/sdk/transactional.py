"""A transactional producer: either all records and offsets of a transaction are committed together, or none of them.

    async with producer.transaction() as transaction:
        await transaction.send("copies", message.value)
        await transaction.send_offsets(consumer)

Invariants: a transaction is committed only if all its records are in the log and all its offsets were accepted. Otherwise it is
aborted, and the block ends with the first failure. Each transaction has an epoch of its own (KIP-890), under which sequences
begin at 0. A producer that was fenced, or does not know the outcome of its transaction, begins no other transaction. A new
producer of the same transactional id can begin one; its start ends the open transaction.

The outcome of a commit without an answer is unknown, and the error says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from grpc_api.channel import NodeChannel
from grpc_api.contract.caller import Caller
from grpc_api.contract.coordinator_errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    ProducerFenced,
    TransactionAbortable,
)
from grpc_api.contract.groups import NO_GENERATION, UNKNOWN_MEMBER, TxnOffsetCommit
from grpc_api.contract.transactions import (
    EPOCH_PER_TRANSACTION,
    NO_PRODUCER,
    EndTransaction,
    InitProducer,
    ProducerIdAndEpoch,
    ProducerTransaction,
)
from grpc_api.remote import RemoteCore
from grpc_api.sdk.checking import checked_group, checked_offsets
from grpc_api.sdk.consumer import GroupConsumer
from grpc_api.sdk.membership import MemberIdentity, topic_commits
from grpc_api.sdk.producer import Producer, ThreadedUse, Transactional
from grpc_api.sdk.retries import COORDINATOR_AWAY, from_coordinator
from grpc_api.sdk.values import Header, ProducerOptions, Sent
from storage_tiers.errors import InvalidConfig, InvalidProducerEpoch, InvalidRequest, InvalidTransactionState, LogError
from storage_tiers.types import TopicPartition

#: Errors that pass once the coordinator is available and has decided the previous transaction.
_PASSING = (*COORDINATOR_AWAY, ConcurrentTransactions)
_CALLER = Caller("User:ANONYMOUS", "tidelog", "")
#: Errors of a fenced producer, from partitions and from coordinators.
_FENCED = (ProducerFenced, InvalidProducerEpoch, InvalidProducerIdMapping, InvalidTransactionState)


Answer = TypeVar("Answer")


class OngoingTransaction:
    """Made by `TransactionalProducer.transaction`; over at the end of its block."""

    def __init__(self, producer: TransactionalProducer) -> None:
        self._producer = producer

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> asyncio.Future[Sent]:
        """As `Producer.send`. Readers of committed records see the record once the transaction is committed."""
        self.check()
        return await self._producer.records.send(
            topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp
        )

    async def send_offsets(
        self, group: str | GroupConsumer, offsets: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Commits a group's offsets with the transaction, each the next one to read. Without `offsets`, commits the
        offsets of all records taken from the consumer. Refuses a consumer that is no longer a member."""
        self.check()
        await self._producer.send_offsets(group, offsets)

    def check(self) -> None:
        """Raises the failure for which the transaction will be aborted, and InvalidRequest once the transaction is over."""
        self._producer.check(self)


class TransactionalProducer:
    """Made by `Client.transactional_producer`. One transaction at a time."""

    def __init__(
        self,
        node: NodeChannel,
        core: RemoteCore,
        transactional_id: str,
        options: ProducerOptions,
        *,
        timeout_s: float,
        threads: ThreadedUse | None = None,
    ) -> None:
        if not isinstance(transactional_id, str) or not transactional_id:
            raise InvalidRequest(f"a transactional id is a text of one character or more, not {transactional_id!r}")
        if not options.idempotent:
            raise InvalidConfig("a transactional producer is idempotent: leave idempotent=False out")
        if not 0 < timeout_s < 2**31 / 1000:
            raise InvalidConfig(f"timeout_s must be above 0 and below {2**31 // 1000}, not {timeout_s}")
        self._node = node
        self._core = core
        self._id = transactional_id
        self._timeout_s = timeout_s
        self._identity = NO_PRODUCER
        self._open: OngoingTransaction | None = None
        self._ending = self._used = False
        self._failure: Exception | None = None
        #: The error that keeps this producer from beginning another transaction.
        self._over: LogError | None = None
        self.records = Producer(
            core.routes, core.topics, options, threads, Transactional(transactional_id, self._use, self._failed)
        )

    async def start(self) -> None:
        """Takes over the transactional id: fences the earlier producer and aborts its open transaction."""
        asked = InitProducer(self._id, round(self._timeout_s * 1000))

        async def begun() -> ProducerIdAndEpoch:
            await self._core.transactions.coordinator(self._id, _CALLER)
            done = await self._core.transactions.init_producer(asked, _CALLER)
            if done.error is not None:
                raise done.error
            return done.producer

        self._identity = await self._retried(begun)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[OngoingTransaction]:
        """A transaction for the block: committed at its end, aborted if the block raises. Raises the first failure of a
        record if there is one, and ProducerFenced if another producer has taken the transactional id over."""
        opened = self.begin()
        try:
            yield opened
        except BaseException as error:
            await self.abort()
            if isinstance(error, _FENCED) and self._over is not None:
                raise self._over from error
            raise
        await self.commit()

    # --- steps of a block ---------------------------------------------------------------------------------------------
    def begin(self) -> OngoingTransaction:
        if self._over is not None:
            raise self._over
        if self._open is not None:
            raise InvalidRequest("this producer's last transaction is still open; a producer has one at a time")
        self._ending, self._used, self._failure = False, False, None
        self._open = OngoingTransaction(self)
        self.records.begin(self._identity)
        return self._open

    async def commit(self) -> None:
        """Commits, or else aborts and raises the error that prevented the commit."""
        self._ending = True
        await self.records.flush()
        failure = self._failure
        if failure is None:
            failure = await self._committed()
        if failure is not None:
            await self.abort()
            raise self._over or failure
        self._open = None

    async def _committed(self) -> LogError | None:
        """Commits. Returns the error that requires an abort, or None. Raises a LogError if this producer was fenced or the
        outcome is unknown."""
        try:
            await self._end(commit=True)
        except TransactionAbortable as error:
            return error
        except LogError as error:
            self._open = None
            self._over = self._last_error(error, "it is unknown whether its last transaction was committed")
            raise self._over from None
        return None

    async def abort(self) -> None:
        """Aborts the transaction. Never raises. If the abort fails, the coordinator aborts it after the timeout, or when the
        next producer starts."""
        self._open = None
        await self.records.drop(InvalidRequest("the record was not sent: its transaction is aborted"))
        if self._over is not None:
            return
        try:
            await self._end(commit=False)
        except LogError as error:
            self._over = self._last_error(error, "its last transaction is not committed")

    async def _end(self, *, commit: bool) -> None:
        if not self._used:
            return
        asked = EndTransaction(self._id, self._identity, commit, EPOCH_PER_TRANSACTION)

        async def ended() -> ProducerIdAndEpoch:
            done = await self._core.transactions.end(asked, _CALLER)
            if done.error is not None:
                raise done.error
            return done.producer

        self._identity = await self._retried(ended)

    def _last_error(self, error: LogError, outcome: str) -> LogError:
        if isinstance(error, _FENCED):
            return ProducerFenced(
                f"another producer of the transactional id {self._id} has begun, or a transaction was open for more than "
                f"{self._timeout_s:g} s; create a new producer: {error}"
            )
        return type(error)(f"{error}; {outcome}")

    async def close(self) -> None:
        if self._open is not None:
            await self.abort()
        await self.records.close()

    # --- contents of a transaction ------------------------------------------------------------------------------------
    def check(self, transaction: OngoingTransaction) -> None:
        if self._open is not transaction or self._ending:
            raise InvalidRequest("this transaction is over; begin another with `transaction()`")
        if self._failure is not None:
            raise self._failure

    def _use(self) -> None:
        """Records that the coordinator may know of the transaction from now on."""
        self._used = True

    def _failed(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error

    async def send_offsets(self, group: str | GroupConsumer, offsets: Mapping[TopicPartition, int] | None) -> None:
        if isinstance(group, GroupConsumer):
            member, taken = group.taken()
            offsets = taken if offsets is None else offsets
        else:
            member = MemberIdentity(checked_group(group), NO_GENERATION, UNKNOWN_MEMBER, None)
        if offsets is None:
            raise InvalidRequest("a group that is given by its name needs its offsets: send_offsets('billing', {...})")
        offsets = checked_offsets(offsets)
        if None in offsets.values():
            raise InvalidRequest("a transaction commits an offset for each partition, not None")
        if not offsets:
            return
        asked = TxnOffsetCommit(
            member.group,
            ProducerTransaction(self._id, EPOCH_PER_TRANSACTION, knows_abortable=True),
            *self._identity,
            member.generation,
            member.member_id,
            member.instance_id,
            topic_commits(offsets),
        )

        async def committed() -> None:
            await self._core.groups.coordinator(member.group, _CALLER)
            done = await self._core.groups.commit_offsets_in_transaction(asked, _CALLER)
            errors = [each.error for topic in done.topics for each in topic.partitions if each.error is not None]
            if errors:
                raise errors[0]

        self._use()
        try:
            await self._retried(committed)
        except LogError as error:
            self._failed(error)
            raise

    async def _retried(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """The answer of `ask`. Retries while the coordinator is unavailable, or busy with the previous transaction."""
        return await from_coordinator(self._node, ask, passing=_PASSING)
