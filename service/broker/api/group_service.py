"""The contract's `Groups`: sends each request to the shard that keeps its group, if this broker coordinates it.

Topics are resolved here, before a shard sees them: partitions that the cluster does not have are refused, and ids become names.
Most requests need no asyncio task. Their answer is the shard's future, or a future that completes with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from grpc_api.contract.caller import Caller
from grpc_api.contract.coordinator_errors import CoordinatorLoading, InvalidGroupId, NotCoordinator
from grpc_api.contract.groups import (
    DeleteGroup,
    DescribedGroup,
    DescribeGroup,
    FetchedOffset,
    FetchedTopic,
    GroupDeleted,
    GroupsListed,
    Heartbeat,
    HeartbeatAnswer,
    Joined,
    JoinGroup,
    LeaveGroup,
    Left,
    ListGroups,
    LowerOffsets,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OffsetsCommitted,
    OffsetsDeleted,
    OffsetsFetched,
    PartitionOutcome,
    Synced,
    SyncGroup,
    TopicCommit,
    TopicOutcome,
    TopicPartitionIndexes,
    TxnOffsetCommit,
)
from grpc_api.contract.transactions import ProducerIdAndEpoch
from service.broker.coordinators.listing import listed, lower_case
from service.broker.coordinators.ports import CoordinatorTopic, KnownTopics
from service.coordination.coordinator_runtime import CoordinatorRuntime
from service.coordination.groups.shard import GroupEvent, GroupShard
from service.coordination.runtime import ShardHost
from storage_tiers.errors import LogError, UnknownTopicId, UnknownTopicOrPartition, as_value
from storage_tiers.turns import TurnScheduler
from storage_tiers.types import TopicId, TopicPartition

#: Requests that are refused if the group id is empty. The other requests accept an empty id, for old clients.
_NAMED = (JoinGroup, SyncGroup, Heartbeat, LeaveGroup, TxnOffsetCommit, OffsetDelete)

Answer = TypeVar("Answer")
Found = TypeVar("Found")


class EntersTransaction(Protocol):
    """Begins producers' transactions in the groups' topic (`TransactionalOffsets`)."""

    async def enter(self, at: TopicPartition, commit: TxnOffsetCommit) -> None: ...


class LowersOffsets(Protocol):
    """Lowers the committed offsets of this broker's coordinators (`RecoveredOffsets`)."""

    async def lower(self, request: LowerOffsets) -> Collection[int]: ...


class GroupService:
    """The contract's `Groups`. It resolves topics, finds the shard of a group, and merges the shard's answers with refusals."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupShard],
        topic: CoordinatorTopic,
        topics: KnownTopics,
        transactional: EntersTransaction,
        scheduler: TurnScheduler,
        lowering: LowersOffsets,
    ) -> None:
        self._runtime = runtime
        self._lowering = lowering
        self._scheduler = scheduler
        self._transactional = transactional
        self._topic = topic
        self._topics = topics

    async def coordinator(self, group: str, caller: Caller) -> int:
        return await self._topic.coordinator(group)

    # --- members ------------------------------------------------------------------------------------------------------
    def join(self, request: JoinGroup, caller: Caller) -> asyncio.Future[Joined]:
        return self._ask(request, caller)

    def sync(self, request: SyncGroup, caller: Caller) -> asyncio.Future[Synced]:
        return self._ask(request, caller)

    def heartbeat(self, request: Heartbeat, caller: Caller) -> asyncio.Future[HeartbeatAnswer]:
        answer: asyncio.Future[HeartbeatAnswer] = self._ask(request, caller)
        if answer.done() and isinstance(answer.exception(), CoordinatorLoading):
            # As in Kafka, a heartbeat succeeds during the load. Sessions begin when the shard is loaded, so no member times
            # out.
            return _known(HeartbeatAnswer(None))
        return answer

    def leave(self, request: LeaveGroup, caller: Caller) -> asyncio.Future[Left]:
        return self._ask(request, caller)

    # --- offsets ------------------------------------------------------------------------------------------------------
    def commit_offsets(self, request: OffsetCommit, caller: Caller) -> asyncio.Future[OffsetsCommitted]:
        if self._are_known(request.topics):
            try:
                return self._host(request.group).write_first(
                    GroupShard.plan_commit, GroupShard.wrote_commit, request, caller
                )
            except LogError as error:
                return _refused(error)
        return self._commit(request, caller)

    async def commit_offsets_in_transaction(self, request: TxnOffsetCommit, caller: Caller) -> OffsetsCommitted:
        known, refusals = self._resolved(request.topics)
        if known and request.group:  # otherwise all commits are refused below, and no empty transaction may begin
            try:
                await self._transactional.enter(self._host(request.group).partition, request)
            except LogError as error:
                if not refusals:
                    raise
                return _with_refusals(request.topics, _all_refused(known, error), refusals)
        producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        return await self._commit(request, caller, producer)

    def _commit(
        self, request: OffsetCommit | TxnOffsetCommit, caller: Caller, producer: ProducerIdAndEpoch | None = None
    ) -> asyncio.Future[OffsetsCommitted]:
        known, refusals = self._resolved(request.topics)
        if not known:  # as in Kafka, such a request creates no group
            return _known(_with_refusals(request.topics, OffsetsCommitted(()), refusals))
        answer = self._ask(request._replace(topics=known), caller, producer)
        if not refusals:
            return answer
        return _then(
            answer,
            lambda done: _with_refusals(request.topics, done, refusals),
            lambda error: _with_refusals(request.topics, _all_refused(known, error), refusals),
        )

    def fetch_offsets(self, request: OffsetFetch, caller: Caller) -> asyncio.Future[OffsetsFetched]:
        topics = None if request.topics is None else [self._named(each) for each in request.topics]
        named = None if topics is None else [each for each in topics if not _is_unknown(each)]
        try:
            steps = self._host(request.group).look(lambda shard: shard.fetch_offsets(request._replace(topics=named)))
            next(steps)
        except StopIteration as fetched:
            return _known(self._with_ids(topics, fetched.value))
        except LogError as error:
            return _refused(error)
        return asyncio.ensure_future(self._fetch(topics, steps))

    async def _fetch(
        self, topics: Sequence[TopicPartitionIndexes] | None, steps: Generator[None, None, OffsetsFetched]
    ) -> OffsetsFetched:
        """Completes an answer of many partitions in slices of the event loop's time."""
        turn = self._scheduler.turn()
        try:
            await turn.begin()
            return self._with_ids(topics, await turn.through(steps))
        finally:
            turn.leave()

    def delete_offsets(self, request: OffsetDelete, caller: Caller) -> asyncio.Future[OffsetsDeleted]:
        """Refuses partitions that the cluster does not have. The request still goes to the group."""
        refusals: dict[tuple[int, int], LogError] = {}
        known = []
        for at, topic in enumerate(request.topics):
            kept = []
            for position, number in enumerate(topic.partitions):
                if self._topics.has(topic.topic, number):
                    kept.append(number)
                else:
                    refusals[at, position] = UnknownTopicOrPartition(f"{topic.topic}-{number} does not exist")
            if kept:
                known.append(topic._replace(partitions=kept))

        def finish(done: OffsetsDeleted) -> OffsetsDeleted:
            if done.error is not None:
                return done
            asked = [(topic.topic, topic.topic_id, topic.partitions) for topic in request.topics]
            return OffsetsDeleted(None, _merged(asked, done.topics, refusals))

        answer: asyncio.Future[OffsetsDeleted] = self._ask(request._replace(topics=known), caller)
        return _then(answer, finish) if refusals else answer

    # --- administration -----------------------------------------------------------------------------------------------
    async def list_groups(self, request: ListGroups, caller: Caller) -> GroupsListed:
        turn = self._scheduler.turn()
        try:
            wanted = ListGroups(await lower_case(request.states, turn), await lower_case(request.types, turn))
            return GroupsListed(*await listed(self._runtime, lambda shard: shard.list(wanted), turn))
        finally:
            turn.leave()

    def describe_group(self, request: DescribeGroup, caller: Caller) -> asyncio.Future[DescribedGroup]:
        return self._look(request.group, lambda shard: shard.describe(request))

    def delete_group(self, request: DeleteGroup, caller: Caller) -> asyncio.Future[GroupDeleted]:
        return self._ask(request, caller)

    async def lower_offsets(self, request: LowerOffsets, caller: Caller) -> Collection[int]:
        return await self._lowering.lower(request)

    # --- shards -------------------------------------------------------------------------------------------------------
    def _host(self, group: str) -> ShardHost[GroupShard]:
        partition = self._topic.partition_of(group)
        if partition is None:
            raise NotCoordinator("this cluster has no group coordinator yet; find the coordinator again")
        return self._runtime.host(partition)

    def _ask(
        self, event: GroupEvent, caller: Caller, producer: ProducerIdAndEpoch | None = None
    ) -> asyncio.Future[Any]:
        if not event.group and isinstance(event, _NAMED):  # as in Kafka, before the coordinator is looked up
            return _refused(InvalidGroupId("the group id is empty; set group.id"))
        try:
            return self._host(event.group).ask(event, caller, producer)
        except LogError as error:
            return _refused(error)

    def _look(self, group: str, read: Callable[[GroupShard], Found]) -> asyncio.Future[Found]:
        try:
            return _known(self._host(group).look(read))
        except LogError as error:
            return _refused(error)

    # --- topics -------------------------------------------------------------------------------------------------------
    def _are_known(self, topics: Sequence[TopicCommit]) -> bool:
        """Whether the request has topics, each with a name instead of an id, and all its partitions exist: the common case."""
        for topic, commits, topic_id in topics:
            if topic_id is not None or not commits:
                return False
            partitions = self._topics.partitions_of(topic)
            for commit in commits:
                if not 0 <= commit.partition < partitions:
                    return False
        return bool(topics)

    def _resolved(self, topics: Sequence[TopicCommit]) -> tuple[Sequence[TopicCommit], dict[tuple[int, int], LogError]]:
        """Returns the commits of existing partitions, under their topics' names, and the errors of the other commits, by their
        position in the request."""
        known: list[TopicCommit] = []
        refusals: dict[tuple[int, int], LogError] = {}
        for at, asked in enumerate(topics):
            name = asked.topic if asked.topic_id is None else self._topics.name_of(asked.topic_id)
            kept = []
            for position, commit in enumerate(asked.partitions):
                if name is None:
                    refusals[at, position] = UnknownTopicId(f"this cluster has no topic with the id {asked.topic_id}")
                elif not self._topics.has(name, commit.partition):
                    refusals[at, position] = UnknownTopicOrPartition(f"{name}-{commit.partition} does not exist")
                else:
                    kept.append(commit)
            if name is not None and kept:
                whole = asked.topic_id is None and len(kept) == len(asked.partitions)
                known.append(asked if whole else asked._replace(topic=name, partitions=kept))
        return known, refusals

    def _named(self, asked: TopicPartitionIndexes) -> TopicPartitionIndexes:
        """Returns the request with its topic's name, or with "" if no topic has the id."""
        if asked.topic_id is None:
            return asked
        return asked._replace(topic=self._topics.name_of(asked.topic_id) or "")

    def _with_ids(self, asked: Sequence[TopicPartitionIndexes] | None, done: OffsetsFetched) -> OffsetsFetched:
        """The answer with the topics' ids, and with a refusal for every id that no topic has."""
        if asked is None:
            return done._replace(
                topics=[each._replace(topic_id=self._topics.id_of(each.topic)) for each in done.topics]
            )
        if done.error is not None:
            return done
        found = iter(done.topics)
        return done._replace(
            topics=[_unknown(e) if _is_unknown(e) else next(found)._replace(topic_id=e.topic_id) for e in asked]
        )


def _is_unknown(asked: TopicPartitionIndexes) -> bool:
    """Whether no topic has the id asked for. Without an id, the empty name is an ordinary name that no topic has."""
    return asked.topic_id is not None and not asked.topic


def _unknown(asked: TopicPartitionIndexes) -> FetchedTopic:
    error = UnknownTopicId(f"this cluster has no topic with the id {asked.topic_id}")
    return FetchedTopic("", [FetchedOffset(number, error=error) for number in asked.partitions], asked.topic_id)


def _with_refusals(
    asked: Sequence[TopicCommit], done: OffsetsCommitted, refusals: Mapping[tuple[int, int], LogError]
) -> OffsetsCommitted:
    """The answer in the request's order, including the refusals of partitions that no shard saw."""
    rows = [(topic.topic, topic.topic_id, [each.partition for each in topic.partitions]) for topic in asked]
    return OffsetsCommitted(_merged(rows, done.topics, refusals))


def _all_refused(topics: Sequence[TopicCommit], error: LogError) -> OffsetsCommitted:
    """Expands a coordinator's refusal of a whole request to the request's partitions."""
    value = as_value(error)
    return OffsetsCommitted(
        [
            TopicOutcome(each.topic, [PartitionOutcome(row.partition, value) for row in each.partitions])
            for each in topics
        ]
    )


def _merged(
    asked: Sequence[tuple[str, TopicId | None, Sequence[int]]],
    done: Sequence[TopicOutcome],
    refusals: Mapping[tuple[int, int], LogError],
) -> list[TopicOutcome]:
    """Merges refusals (by position) with the coordinator's outcomes `done`, in the request's order."""
    found = (outcome for topic in done for outcome in topic.partitions)
    return [
        TopicOutcome(
            topic,
            [
                PartitionOutcome(number, refusals[at, position]) if (at, position) in refusals else next(found)
                for position, number in enumerate(partitions)
            ],
            topic_id,
        )
        for at, (topic, topic_id, partitions) in enumerate(asked)
    ]


def _known(answer: Answer) -> asyncio.Future[Answer]:
    future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    future.set_result(answer)
    return future


def _refused(error: LogError) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future


def _then(
    answer: asyncio.Future[Answer],
    finish: Callable[[Answer], Found],
    refused: Callable[[LogError], Found] | None = None,
) -> asyncio.Future[Found]:
    """Returns a future of `finish(answer)`, or of `refused(error)` if the answer fails. Without `refused` the future fails with
    the answer's error. Cancelling the future cancels the answer."""
    following: asyncio.Future[Found] = asyncio.get_running_loop().create_future()

    def pass_on(done: asyncio.Future[Answer]) -> None:
        if following.done():
            return
        if done.cancelled():
            following.cancel()
            return
        error = done.exception()
        try:
            if error is None:
                following.set_result(finish(done.result()))
            elif refused is not None and isinstance(error, LogError):
                following.set_result(refused(error))
            else:
                following.set_exception(error)
        except Exception as defect:  # noqa: BLE001 - every request must get an answer
            following.set_exception(defect)

    def give_up(done: asyncio.Future[Found]) -> None:
        if done.cancelled():
            answer.cancel()

    if answer.done():
        pass_on(answer)
    else:
        answer.add_done_callback(pass_on)
        following.add_done_callback(give_up)
    return following
