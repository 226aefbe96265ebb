"""Hands partitions over, through the bucket, to the brokers to which the metadata moves them (KIP-455).

The leader offloads its log while it serves. Then it holds the log: it refuses appends, offloads the rest, and sends a command
with its consent to the new leader. The new leader begins at the log end, which the metadata has, with the producers and epochs
that the bucket has.

Invariants: after a consent with an unknown outcome, the log stays held, because the target may lead already. It is released
when the metadata shows the outcome: the end of this leadership, or a later partition epoch. If such a move cannot be completed,
it is cancelled, which raises the partition epoch. Every acknowledged record is in the bucket when the target begins. A move
that waits has no slot, so partitions that cannot move do not delay others.

Only tiered partitions move; the controller refuses moves of others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from service.broker.background.move_steps import HOLD_LIMIT_MS, MoveStep, MoveView, next_step
from service.broker.background.partition_work import PartitionWork
from service.broker.background.tiering import Tiering
from service.broker.partition.partition import Partition
from service.broker.partition.partitions import Partitions
from service.broker.partition.phase import Phase
from service.metadata.commands import HandOver, Reassign
from service.metadata.controller import Commands
from service.metadata.following import Metadata
from service.metadata.image import MetadataImage
from service.metadata.parts import NO_LEADER, Changes, PartitionImage
from storage_tiers import events
from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.clock import Clock, Rng
from storage_tiers.errors import (
    Advice,
    InvalidReplicaAssignment,
    InvalidRequest,
    LogError,
    NoReassignmentInProgress,
    NotEnoughReplicas,
    RequestTimedOut,
)
from storage_tiers.types import TopicPartition

log = logging.getLogger(__name__)

#: Partitions that a broker hands over at the same time, and partitions that refuse new transactions at the same time.
MAX_MOVES, MAX_DRAINS = 4, 4
#: Seconds between two checks of a move that waits for an open transaction.
LOOK_S = 0.1
#: The pauses between two checks of a move that cannot begin. Thousands may wait, some of them for days.
LOOKS = BackoffSettings(LOOK_S, 1.0)
OFFLOAD_TIMEOUT_MS = 60_000
#: Answers of the controller that prove that the consent has no effect. Errors about the broker's registration prove nothing:
#: the controller checks the registration first, even if it has carried out the command before.
REFUSALS = (InvalidRequest, InvalidReplicaAssignment)


@dataclass(slots=True)
class Since:
    """Times of one attempt to move a partition; each is None before its event. `open_ms`: an open transaction first delayed the
    move. `drained_ms`: the refusal of new transactions began. `held_ms`: the log was held, or the attempt began with a held
    log."""

    open_ms: int | None = None
    drained_ms: int | None = None
    held_ms: int | None = None


class Moving:
    """Follows the metadata, and is a leadership listener of the assignment."""

    def __init__(
        self,
        partitions: Partitions,
        tiering: Tiering,
        metadata: Metadata,
        commands: Commands,
        *,
        node_id: int,
        clock: Clock,
        rng: Rng,
        on_fatal: Callable[[LogError], None],
    ) -> None:
        self._partitions = partitions
        self._tiering = tiering
        self._metadata = metadata
        self._commands = commands
        self._node_id = node_id
        self._clock = clock
        self._rng = rng
        self._work = PartitionWork("moving", self._move, clock=clock, rng=rng, on_fatal=on_fatal)
        self._slots = asyncio.Semaphore(MAX_MOVES)
        self._drain_slots = asyncio.Semaphore(MAX_DRAINS)
        #: Partitions with a consent whose outcome is not known, and the partition epoch that it names.
        self._unanswered: dict[Partition, int] = {}
        metadata.subscribe(self._changed)

    def _changed(self, image: MetadataImage, changes: Changes) -> None:
        for topic_id in changes.topics:
            topic = image.topics.get(topic_id)
            for placed in () if topic is None else topic.partitions:
                if placed.leader != self._node_id or topic is None or not (placed.adding or self._unanswered):
                    continue
                found = self._partitions.find(TopicPartition(topic.name, placed.index))
                if found is not None and (placed.adding or found in self._unanswered):
                    self._work.request(found)

    def gained(self, partition: Partition, leader_epoch: int) -> None:
        """Resumes a move that began under another leader epoch, or before this start."""
        self._unanswered.pop(partition, None)  # a consent under an earlier epoch is refused
        if self._placed(partition) is not None:
            self._work.request(partition)
        if partition.is_recovering and partition.log.hot.end_offset < partition.moved_end:
            self._tiering.kick(partition)  # at once, because it serves no client before it is compared with the bucket

    def lost(self, partition: Partition, leader_epoch: int) -> None:
        if self._unanswered.pop(partition, None) is not None:
            leader, epoch = self._leader(partition)
            if leader not in (NO_LEADER, self._node_id):
                end = partition.log.hot.end_offset
                events.info(
                    log,
                    "partition.handed_over",
                    partition=partition.partition,
                    end_offset=end,
                    leader=leader,
                    epoch=epoch,
                )
        self._work.forget(partition)

    def _leader(self, partition: Partition) -> tuple[int, int]:
        placed = self._metadata.image.partition(*partition.partition)
        return (NO_LEADER, -1) if placed is None else (placed.leader, placed.leader_epoch)

    async def close(self) -> None:
        await self._work.close()

    def _placed(self, partition: Partition) -> PartitionImage | None:
        """The partition in the metadata while it moves away from this node; else None."""
        topic = self._metadata.image.topics.get(partition.topic_id)
        if topic is None or not partition.leads:
            return None
        placed = topic.partitions[partition.partition.partition]
        return placed if placed.adding and placed.leader == self._node_id else None

    async def _move(self, partition: Partition) -> None:
        try:
            await self._until_moved(partition)
        except LogError as error:
            if error.advice is not Advice.STOP:  # STOP ends the node, without a back-off
                self._work.request(partition)  # the next attempt waits for the back-off of this failure
            raise
        finally:
            if self._may_release(partition):
                partition.release()

    def _may_release(self, partition: Partition) -> bool:
        """Whether no consent can still take effect: each was refused, or the metadata has a later partition epoch."""
        named = self._unanswered.get(partition)
        if named is None:
            return True
        placed = self._metadata.image.partition(*partition.partition)
        if placed is None or placed.leader != self._node_id or placed.partition_epoch == named:
            return False
        del self._unanswered[partition]
        return True

    async def _until_moved(self, partition: Partition) -> None:
        since = Since()
        if partition.phase is Phase.HANDING_OVER:
            # The log is still held, after an unanswered consent. Its move proceeds without a slot, so that its clients wait for
            # no other move.
            since.held_ms = self._clock.steady_ms()
            await self._proceed(partition, since, may_drain=False)
        while (step := await self._until_ready(partition, since)) is not None:
            # A move that refuses transactions keeps a drain slot to its end, so that it never refuses them while it queues for
            # a slot.
            may_drain = step is MoveStep.DRAIN
            async with self._drain_slots if may_drain else self._slots:
                await self._proceed(partition, since, may_drain=may_drain)

    async def _until_ready(self, partition: Partition, since: Since) -> MoveStep | None:
        """Waits for the next step other than WAIT and returns it; None if the partition does not move."""
        looks = Backoff(LOOKS, self._rng)
        while self._placed(partition) is not None:
            view = self._view(partition, since)
            step = next_step(view)
            if step is not MoveStep.WAIT:
                return step
            if not self._tiering.has_compared(partition):
                self._tiering.kick(partition)  # without an offload the partition may not have been compared yet
            await self._clock.sleep(LOOK_S if view.may_begin else looks.next_delay())
        return None

    async def _proceed(self, partition: Partition, since: Since, *, may_drain: bool) -> None:
        """Takes steps until the move has to wait without a slot, or has ended."""
        try:
            while (placed := self._placed(partition)) is not None:
                step = next_step(self._view(partition, since))
                if step is MoveStep.WAIT or (step is MoveStep.DRAIN and not may_drain):
                    return
                await self._take(step, partition, placed, since)
        finally:
            partition.verifications.refusal = since.drained_ms = None

    async def _take(self, step: MoveStep, partition: Partition, placed: PartitionImage, since: Since) -> None:
        if step is MoveStep.OFFLOAD:
            await self._offload(partition, OFFLOAD_TIMEOUT_MS)
        elif step is MoveStep.DRAIN:
            if since.drained_ms is None:
                since.drained_ms = self._clock.steady_ms()
                partition.verifications.refusal = NotEnoughReplicas(
                    f"{partition.partition} moves to another broker once its open transactions have ended; retry"
                )
            await self._clock.sleep(LOOK_S)
        elif step is MoveStep.HOLD:
            partition.hold()
            since.held_ms = self._clock.steady_ms()
        elif step is MoveStep.FINISH:
            await self._offload(partition, HOLD_LIMIT_MS)
            self._check_all_offloaded(partition)
        elif step is MoveStep.HAND_OVER:
            await self._hand_over(partition, placed)
        else:
            await self._give_up(partition)

    async def _give_up(self, partition: Partition) -> None:
        if partition in self._unanswered:
            await self._cancel(partition)
        if self._placed(partition) is not None:
            raise RequestTimedOut(f"{partition.partition} cannot be handed over yet; it is tried again")

    def _view(self, partition: Partition, since: Since) -> MoveView:
        hot, tier, now = partition.log.hot, partition.log.tier, self._clock.steady_ms()
        tier_end = 0 if tier is None else tier.end
        is_held = partition.phase is Phase.HANDING_OVER
        in_transaction = hot.end.producers.first_unstable_offset is not None
        may_begin = (
            (is_held or partition.phase is Phase.LEADING)
            and partition not in self._tiering.lineage
            and self._tiering.has_compared(partition)
            and partition.recovered_end is None
        )
        if may_begin and in_transaction and since.open_ms is None:
            since.open_ms = now
        return MoveView(
            may_begin=may_begin,
            log_end=hot.end_offset,
            tier_end=tier_end,
            tail_bytes=sum(each.size_bytes for each in hot.segments() if each.end > tier_end),
            in_transaction=in_transaction,
            waited_ms=0 if since.open_ms is None else now - since.open_ms,
            drained_ms=None if since.drained_ms is None else now - since.drained_ms,
            held_ms=now - since.held_ms if is_held and since.held_ms is not None else None,
        )

    async def _offload(self, partition: Partition, timeout_ms: int) -> None:
        await self._tiering.seal([partition], wait=True, timeout_ms=timeout_ms)

    def _check_all_offloaded(self, partition: Partition) -> None:
        """Raises RequestTimedOut if the bucket ends below the log end although nothing is left to offload."""
        hot, tier = partition.log.hot, partition.log.tier
        if hot.log_start_offset >= hot.end_offset > (0 if tier is None else tier.end):
            raise RequestTimedOut(
                f"{partition.partition}: its newest records were deleted before they were offloaded, so that the bucket ends "
                "below the log end; it moves once it has a new record"
            )

    async def _hand_over(self, partition: Partition, placed: PartitionImage) -> None:
        """Consents to the new leader. Returns once this node's metadata has the outcome. Raises if the consent is refused or
        not answered. Usually the loss of the leadership, which is the consent's effect, cancels this call earlier."""
        broker = self._metadata.image.brokers.get(self._node_id)
        consent = HandOver(
            partition.topic_id,
            placed.index,
            self._node_id,
            -1 if broker is None else broker.broker_epoch,
            placed.leader_epoch,
            placed.partition_epoch,
            partition.log.hot.end_offset,
        )
        was_unanswered = partition in self._unanswered
        self._unanswered[partition] = placed.partition_epoch
        try:
            await self._commands.execute(consent)
        except REFUSALS:
            if was_unanswered:
                await self._cancel(partition)
            else:
                del self._unanswered[partition]
            raise

    async def _cancel(self, partition: Partition) -> None:
        """Cancels the move. An earlier consent that may still be in flight is void then, because it names an earlier partition
        epoch. If there is no move to cancel, that consent may have ended it, and this node's metadata will show it."""
        topic, index = partition.partition
        if self._metadata.image.topic_ids.get(topic) != partition.topic_id:
            return  # another topic has the name now, perhaps with a move of its own
        try:
            await self._commands.execute(Reassign(topic, index, None))
        except NoReassignmentInProgress:
            return
        events.info(log, "partition.move_cancelled", partition=partition.partition)
