"""A member of a consumer group: reads its assigned partitions, and commits the records that its program has processed.

Invariants: an automatic commit covers only records that the program has processed (`delivered_records.py`). Before the member
joins a rebalance it tries to commit them. Records of a lost partition are never delivered. As in Kafka's consumers, a rebalance
waits until the program asks for records, at most `processing_s`.

A record may be read twice: after a crash, or a rebalance before a commit, the partition's next owner begins at the last commit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress

from grpc_api.channel import NodeChannel
from grpc_api.contract.log import Isolation, OffsetQuery, OffsetSpec
from grpc_api.remote import RemoteCore
from grpc_api.sdk.checking import checked_offsets
from grpc_api.sdk.delivered_records import Handover
from grpc_api.sdk.membership import MemberIdentity, Membership
from grpc_api.sdk.reader import Reader
from grpc_api.sdk.retries import Patience
from grpc_api.sdk.values import ConsumerOptions, Message
from storage_tiers.errors import InvalidRequest, LogError, UnknownTopicOrPartition
from storage_tiers.types import TimestampOffset, TopicPartition

#: Records that are taken from a topic's reader at a time.
RECORDS_A_TURN = 500

Positions = dict[TopicPartition, int]


class GroupConsumer:
    """Made by `Client.consumer`: `async for message in consumer`. `position` is the next offset of each partition, below which
    the program has processed everything."""

    def __init__(
        self, node: NodeChannel, core: RemoteCore, group: str, topics: Sequence[str], options: ConsumerOptions
    ) -> None:
        self._node = node
        self._core = core
        self._options = options
        self._membership = Membership(
            node, core.groups, core.topics, group=group, topics=topics, options=options, on_change=self._notice
        )
        self.handover = Handover()
        self._reading = _AssignedReaders(self._notice)
        self._changed = asyncio.Event()
        self._joining: asyncio.Task[Positions] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._committing: asyncio.Task[None] | None = None
        self._committed: Mapping[TopicPartition, int] = {}
        #: Positions that a join in progress has to commit first.
        self._uncommitted: Mapping[TopicPartition, int] = {}
        self._asking = self._closed = False
        self._asked_at = self._committed_at = node.clock.monotonic()

    # --- for programs -------------------------------------------------------------------------------------------------
    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        message = None if self.is_disturbed else self.handover.next()
        while message is None:
            await self.fill()
            message = self.handover.next()
        return message

    async def take(self, most: int = RECORDS_A_TURN, timeout_s: float | None = None) -> list[Message]:
        """Up to `most` records, as soon as there is at least one; an empty list if none arrives within `timeout_s`."""
        if self.is_disturbed or not self.handover:
            try:
                async with asyncio.timeout(timeout_s):
                    await self.fill()
            except TimeoutError:
                return []
        return self.handover.take(most)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this member reads now."""
        return sorted(self.handover.position)

    @property
    def position(self) -> Mapping[TopicPartition, int]:
        return dict(self.handover.position)

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commits the offsets of all records taken so far, or these offsets, each the next one to read. After
        IllegalGeneration or UnknownMemberId the partitions belong to another member."""
        if offsets is None:
            self.handover.processed()
            offsets = self.position
        offsets = checked_offsets(offsets)
        if None in offsets.values():
            raise InvalidRequest("a commit has an offset for each partition; None is for Client.alter_group_offsets")
        if offsets:
            await self._membership.commit(offsets)
            self._committed = {**self._committed, **offsets}

    def taken(self) -> tuple[MemberIdentity, Mapping[TopicPartition, int]]:
        """Member identity and offsets for a transactional commit of all records taken so far. Raises InvalidRequest if
        automatic commits are on, and IllegalGeneration if this client is not a member."""
        if self._options.auto_commit_s is not None:
            raise InvalidRequest("automatic commits are on: set auto_commit_s=None to commit offsets in a transaction")
        identity = self._membership.identity
        self.handover.processed()
        return identity, self.position

    # --- asking for records -------------------------------------------------------------------------------------------
    @property
    def is_disturbed(self) -> bool:
        """Whether the member has to join, is joining, or has failed: then `fill` must run before held records are taken."""
        return self._membership.must_join or self._membership.failure is not None or self._joining is not None

    async def fill(self) -> None:
        """Returns once the program has records to take. The records that it has taken then count as processed. May be cancelled
        and called again."""
        if self._closed:
            raise InvalidRequest("this consumer is closed")
        self.handover.processed()
        self._asking = True
        try:
            while True:
                self._changed.clear()
                self._raise_failure()
                if self._membership.must_join or self._joining is not None:
                    await self._joined()
                elif self._reading.held or self.handover:
                    self.handover.add(self._reading.taken())
                    return
                else:
                    await self._changed.wait()
        finally:
            self._asking = False
            self._asked_at = self._node.clock.monotonic()

    def _notice(self) -> None:
        self._changed.set()

    def _raise_failure(self) -> None:
        failure: Exception | None
        failure, self._membership.failure = self._membership.failure, None
        if failure is None and self._reading.failure is not None:
            failure = self._reading.failure
            self._read(self.handover.position)  # for a program that continues after the error
        if failure is not None:
            raise failure

    # --- rebalances ---------------------------------------------------------------------------------------------------
    async def _joined(self) -> None:
        """Joins in a separate task, which continues if the program stops waiting. Nothing is held or read meanwhile."""
        if self._joining is None:
            self._keep_up()
            position = self._uncommitted = self.position
            self._read({})
            self._joining = asyncio.get_running_loop().create_task(self._join(position))
        await asyncio.wait([self._joining])
        joining, self._joining = self._joining, None
        try:
            positions = joining.result()
        except Exception:
            self._membership.must_join = True
            raise
        self._read(positions)
        if self._beating is None:
            self._beating = asyncio.get_running_loop().create_task(self._beat())

    async def _join(self, position: Mapping[TopicPartition, int]) -> Positions:
        """Joins the next generation. Returns the next offset to read in each partition that the member then has."""
        if self._committing is not None:
            await asyncio.wait([self._committing])
        if self._options.auto_commit_s is not None and self._membership.is_member and position:
            with suppress(LogError):  # the partitions' next owner then reads these records again
                await self._membership.commit(position, retry=False)
        self._uncommitted = {}
        stayed = await self._membership.join()
        owned = self._membership.owned
        await self._wait_for_metadata(owned)
        kept = {each: position[each] for each in owned if each in stayed and each in position}
        new = [each for each in owned if each not in kept]
        committed = await self._membership.committed(new) if new else {}
        self._committed = {**committed, **{each: at for each, at in self._committed.items() if each in kept}}
        starts = await self._starts([each for each in new if each not in committed])
        return {**kept, **committed, **starts}

    async def _wait_for_metadata(self, partitions: Sequence[TopicPartition]) -> None:
        """Returns once this client's metadata has the partitions. The metadata of the group's leader may be newer."""
        patience = Patience(self._node, self._options.retry_s)
        for each in partitions:
            while each.partition >= self._core.topics.partition_counts.get(each.topic, 0):
                await patience.pause(UnknownTopicOrPartition(f"the group assigned {each}, which does not exist"))

    async def _starts(self, partitions: Sequence[TopicPartition]) -> Positions:
        """The first offsets of partitions without a committed offset."""
        isolation = Isolation.READ_COMMITTED if self._options.committed_only else Isolation.READ_UNCOMMITTED
        wanted = OffsetSpec[self._options.start.upper()]
        patience = Patience(self._node, self._options.retry_s)
        found: Positions = {}
        while rest := [each for each in partitions if each not in found]:
            try:
                answers = await self._core.log.list_offsets(
                    [OffsetQuery(each, wanted, isolation=isolation) for each in rest]
                )
                _add_starts(found, rest, answers)
            except LogError as error:
                await patience.pause(error)
        return found

    # --- reading ------------------------------------------------------------------------------------------------------
    def _read(self, positions: Mapping[TopicPartition, int]) -> None:
        """Reads these partitions from these positions, and no others."""
        self._reading.stop()
        self.handover.restart(dict(positions))
        by_topic: dict[str, dict[int, int]] = {}
        for partition, offset in positions.items():
            by_topic.setdefault(partition.topic, {})[partition.partition] = offset
        for topic, start in by_topic.items():
            self._reading.start(
                topic,
                Reader(
                    self._core.routes,
                    self._core.log,
                    self._core.topics,
                    topic=topic,
                    partitions=list(start),
                    start=start,
                    options=self._options.reader(),
                ),
            )

    def _keep_up(self) -> None:
        """Moves positions past transaction markers once all records before them are processed."""
        if self._reading.held or not self.handover.is_idle:
            return
        for partition, offset in self._reading.positions().items():
            if partition in self.handover.position:
                self.handover.position[partition] = max(offset, self.handover.position[partition])

    # --- in the background --------------------------------------------------------------------------------------------
    async def _beat(self) -> None:
        clock, options = self._node.clock, self._options
        while True:
            await clock.sleep(options.heartbeat_s)
            if self._joining is not None or not self._membership.is_member:
                continue
            if not self._asking and clock.monotonic() - self._asked_at > options.processing_s:
                await self._membership.leave()  # other members continue with the partitions
                self._membership.must_join = True
                continue
            await self._membership.beat()
            if self._asking:
                self._keep_up()
            self._commit_if_due()

    def _commit_if_due(self) -> None:
        """Begins an automatic commit of the processed records."""
        now = self._node.clock.monotonic()
        every = self._options.auto_commit_s
        if every is None or now - self._committed_at < every or self.is_disturbed:
            return
        if self._committing is not None and not self._committing.done():
            return
        position = self.position
        if position != self._committed:
            self._committed_at = now
            self._committing = asyncio.get_running_loop().create_task(self._commit_quietly(position))

    async def _commit_quietly(self, position: Mapping[TopicPartition, int]) -> None:
        with suppress(LogError):  # the next commit covers the same records; a heartbeat detects a lost membership
            await self._membership.commit(position, retry=False)
            self._committed = position

    async def close(self, *, processed: bool = True) -> None:
        """Commits, if commits are automatic, and leaves the group. `processed` says that the program has processed all records
        that it took; otherwise those that it took last do not count."""
        if self._closed:
            return
        self._closed = True
        if processed:
            self.handover.processed()
        self._keep_up()
        # If a join is cancelled before its commit, this commit replaces that one: the generation has not ended yet.
        position = self.position if self._joining is None else self._uncommitted
        was_member = self._membership.is_member
        self._reading.stop()
        self._membership.close()
        for task in (self._beating, self._joining, self._committing):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        if was_member and self._options.auto_commit_s is not None and position and position != self._committed:
            with suppress(LogError):
                await self._membership.commit(position, retry=False)
        await self._membership.leave()


def _add_starts(
    found: Positions, partitions: Sequence[TopicPartition], answers: Sequence[TimestampOffset | LogError | None]
) -> None:
    """Adds the answers' offsets, up to the first error, which it raises."""
    for partition, answer in zip(partitions, answers, strict=True):
        if isinstance(answer, LogError):
            raise answer
        found[partition] = 0 if answer is None else answer.offset


class _AssignedReaders:
    """One reader for each topic, in a task that stays one turn ahead of the program."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._readers: dict[str, Reader] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._has_room = asyncio.Event()
        self.held: deque[list[Message]] = deque()
        self.failure: Exception | None = None

    def start(self, topic: str, reader: Reader) -> None:
        self._readers[topic] = reader
        self._tasks.append(asyncio.get_running_loop().create_task(self._run(reader)))

    async def _run(self, reader: Reader) -> None:
        try:
            while True:
                messages = await reader.take(RECORDS_A_TURN)
                self.held.append(messages)
                self._has_room.clear()
                self._on_change()
                await self._has_room.wait()
        except Exception as error:  # noqa: BLE001 - the waiting program gets the error
            self.failure = error
            self._on_change()
        finally:
            await reader.close()

    def taken(self) -> list[Message]:
        """The records that one topic's reader fetched in one turn; empty if there are none."""
        messages = self.held.popleft() if self.held else []
        if not self.held:
            self._has_room.set()
        return messages

    def positions(self) -> Positions:
        """The next offset that each partition's reader returns."""
        return {
            TopicPartition(topic, partition): offset
            for topic, reader in self._readers.items()
            for partition, offset in reader.position.items()
        }

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        self._readers.clear()
        self.held.clear()
        self.failure = None
