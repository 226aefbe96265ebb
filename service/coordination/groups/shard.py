"""A group shard: the groups and offsets of one partition of `__consumer_offsets`.

Pure. The runtime passes in requests and times, writes the outcome's records in order, and releases each answer once all records
written before it are committed. During a load the runtime passes in the partition's records and markers instead. Readers'
requests (OffsetFetch, ListGroups, DescribeGroup) are answered immediately, from committed state.

Invariants: decisions never depend on whether a record is committed, because a shard whose write fails is dropped and loaded
again. `written` counts the records that it has passed to the runtime.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

from grpc_api.contract.caller import Caller
from grpc_api.contract.coordinator_errors import GroupIdNotFound, NonEmptyGroup
from grpc_api.contract.groups import (
    DeleteGroup,
    DescribedGroup,
    DescribeGroup,
    GroupDeleted,
    Heartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    Left,
    ListedGroup,
    ListGroups,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OffsetsFetched,
    SyncGroup,
    TxnOffsetCommit,
)
from service.coordination.commit_fields import OffsetChange
from service.coordination.committed_views import CommittedViews, names_of
from service.coordination.counts import GroupCounts
from service.coordination.deadlines import Deadlines, Timer
from service.coordination.group_records import (
    GroupKey,
    OffsetKey,
    UnknownKey,
    decode_group_in_steps,
    decode_key,
    decode_offset,
    encode_key,
    encode_offset,
)
from service.coordination.groups.classic_group import (
    ClassicGroup,
    GroupState,
    GroupView,
    JoinWait,
    Session,
    SyncWait,
)
from service.coordination.groups.classic_groups import ClassicGroups
from service.coordination.groups.committed_offsets import CommittedOffsets, shared
from service.coordination.groups.group_offsets import GroupOffsets, OffsetSettings
from service.coordination.groups.member_memory import GroupMemory, node_memory
from service.coordination.groups.readers import GroupFigures, WantedGroups, described, figures_of
from service.coordination.groups.rebalancing import GroupSettings
from service.coordination.groups.unfinished import MEMBERS_A_STEP, Steps
from service.coordination.outcome import Outcome, PlannedDecision
from storage_tiers.errors import LogError
from storage_tiers.types import NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    from storage_tiers.clock import Rng

#: Requests that change the shard.
GroupEvent = (
    JoinGroup | SyncGroup | Heartbeat | LeaveGroup | OffsetCommit | TxnOffsetCommit | OffsetDelete | DeleteGroup
)
#: The number of groups in one share of `list` or `figures`. The caller checks the clock between two shares.
LISTED = 200
#: The maximum number of timers that one tick examines. Thousands of members may be due at once, and each that expires adds a
#: line to the log.
TIMERS_A_TICK = 30
#: Records after which a tick decides no more of the waiting requests.
RECORDS_A_TICK = 200
#: A deadline that has passed.
AT_ONCE_MS = 0


class HeldTimer(NamedTuple):
    """A timer of a group that changes in steps. It was due at `at_ms`, and waits for its turn among the group's requests.
    Meanwhile an earlier request may move or stop it."""

    timer: Timer
    at_ms: int


class GroupShard:
    """The groups and committed offsets of one partition. All shards of a node share `memory` and `counts`."""

    def __init__(
        self,
        rng: Rng,
        groups: GroupSettings,
        offsets: OffsetSettings,
        memory: GroupMemory | None = None,
        counts: GroupCounts | None = None,
    ) -> None:
        self._counts = counts = counts or GroupCounts()
        self._deadlines = Deadlines()
        self._groups = ClassicGroups(self._deadlines, rng, groups, memory or node_memory(), counts)
        self._memory = self._groups.memory
        self._unfinished = self._groups.rebalancing.unfinished
        self._committed = CommittedOffsets()
        self._offsets = GroupOffsets(self._groups, self._committed, offsets, counts)
        #: The number of the next record.
        self.written = 0
        #: The number of committed records.
        self._settled = 0
        #: The number of loaded records.
        self.loaded_records = 0
        #: The committed state, for readers, of groups with an uncommitted record.
        self._views: CommittedViews[GroupView] = CommittedViews()
        #: During a load, the newest committed record of each group with its time, and the uncommitted records in order.
        self._records: dict[str, tuple[bytes, int]] = {}
        self._later: list[tuple[int, str, bytes | None, int]] = []

    def __del__(self) -> None:
        # The steps refer to the object that keeps them. Without this reference cycle the shard's memory is released with its
        # last reference.
        self._unfinished.groups.clear()

    def configure(self, groups: GroupSettings, offsets: OffsetSettings) -> None:
        self._groups.rebalancing.settings = groups
        self._offsets.settings = offsets

    def bound(self, max_batch_bytes: int) -> None:
        rebalancing, offsets = self._groups.rebalancing, self._offsets
        rebalancing.settings = rebalancing.settings._replace(max_record_bytes=max_batch_bytes)
        offsets.settings = offsets.settings._replace(max_record_bytes=max_batch_bytes)

    # --- events -------------------------------------------------------------------------------------------------------
    def handle(self, event: GroupEvent, caller: Caller, waiter: object, now_ms: int) -> Outcome:
        """Decides the event. The answer to `waiter` may belong to a later outcome."""
        if isinstance(event, Heartbeat):
            # Heartbeats are the most frequent events. They wait for no step, because they write nothing. They are answered even
            # on a full disk.
            outcome = Outcome()
            outcome.answer(waiter, self._groups.heartbeat(event, now_ms))
            return outcome
        unfinished = self._unfinished
        # A transaction's commit does not wait, because its record belongs to its producer's batch, and it only reads the
        # generation.
        if unfinished.groups and event.group in unfinished.groups and not isinstance(event, TxnOffsetCommit):
            unfinished.wait(event.group, (event, caller, waiter))
            return Outcome()
        return self._decide(event, caller, waiter, now_ms)

    def plan_commit(self, event: OffsetCommit, now_ms: int) -> PlannedDecision | None:
        """Decides the usual commit; the shard does not change. None for any other, which `handle` decides."""
        return None if self._unfinished.groups else self._offsets.plan(event, self.written, now_ms)

    def wrote_commit(self, changes: Sequence[OffsetChange], is_committed: bool) -> int:
        """Applies the changes of `plan_commit`, whose records are in the log. Returns `written`."""
        self.written += len(changes)
        self._counts.commits += len(changes)
        if is_committed and self._committed.put_all(changes):
            self._settled = self.written
            self._views.commit(self.written)
        else:
            self._committed.write_all(changes[0][0], changes)
            if is_committed:
                self.committed(self.written)
        return self.written

    def _decide(self, event: GroupEvent, caller: Caller, waiter: object, now_ms: int) -> Outcome:
        outcome = Outcome()
        before = self._groups.groups.get(event.group)
        if before is not None and isinstance(event, OffsetCommit):  # changes no member, and replaces no view
            outcome.answer(waiter, self._offsets.commit(event, self.written, now_ms, outcome))
            self.written += len(outcome.records)
            return outcome
        kept = 0 if before is None else before.kept_bytes
        match event:
            case OffsetCommit():
                outcome.answer(waiter, self._offsets.commit(event, self.written, now_ms, outcome))
            case JoinGroup():
                self._groups.join(event, caller, waiter, now_ms, outcome)
            case SyncGroup():
                self._groups.sync(event, waiter, now_ms, outcome)
            case LeaveGroup():
                self._groups.leave(event, waiter, now_ms, outcome)
            case TxnOffsetCommit():
                outcome.answer(waiter, self._offsets.commit_in_transaction(event, self.written, now_ms, outcome))
            case OffsetDelete():
                outcome.answer(waiter, self._offsets.delete(event, self.written, outcome))
            case DeleteGroup():
                self._unfinished.begin(event.group, self._delete(event.group, waiter, outcome))
        after = self._groups.groups.get(event.group)
        self._memory.add((0 if after is None else after.kept_bytes) - kept)
        if before is None and after is not None:
            self._views.keep(event.group, None, self.written)
        return self._counted(outcome)

    def _counted(self, outcome: Outcome) -> Outcome:
        """Counts the outcome's records as passed to the runtime."""
        for name, view, position in outcome.views:
            self._views.keep(name, view, self.written + position)
        self.written += len(outcome.records)
        return outcome

    def may_write(self, event: GroupEvent) -> bool:
        """Whether the answer may need a record. A heartbeat's answer never does."""
        return not isinstance(event, Heartbeat)

    def next_deadline_ms(self) -> int | None:
        """The time at which `tick` may have something to do; None if there is none."""
        return AT_ONCE_MS if self._unfinished.groups else self._deadlines.next_ms()

    def tick(self, now_ms: int) -> Outcome:
        """Handles due timers: expired sessions and rebalance timeouts. Continues a change that is made in steps."""
        unfinished = self._unfinished
        if not unfinished.groups:
            return self._end_timers(now_ms)
        outcome, group_id = Outcome(), next(iter(unfinished.groups))
        kept = self._kept_bytes(group_id)
        unfinished.step(outcome, now_ms)
        self._memory.add(self._kept_bytes(group_id) - kept)
        self._counted(outcome)
        for waiting in unfinished.requests(lambda: _is_large(outcome)):
            if isinstance(waiting, HeldTimer):
                outcome.add(self._end_held(waiting, now_ms))
            else:
                event, caller, waiter = waiting
                outcome.add(self._decide(event, caller, waiter, now_ms))
        outcome.add(self._end_timers(now_ms))
        return outcome

    def _end_timers(self, now_ms: int) -> Outcome:
        outcome = Outcome()
        for timer in self._deadlines.due(now_ms, TIMERS_A_TICK):
            group_id = _group_of(timer).group_id
            if group_id in self._unfinished.groups:
                self._deadlines.hold(timer, now_ms)
                self._unfinished.wait(group_id, HeldTimer(timer, now_ms))
            else:
                self._end_timer(timer, now_ms, outcome)
        return self._counted(outcome)

    def _end_held(self, held: HeldTimer, now_ms: int) -> Outcome:
        outcome = Outcome()
        if self._deadlines.is_still_due(*held):
            self._end_timer(held.timer, now_ms, outcome)
        return self._counted(outcome)

    def _end_timer(self, timer: Timer, now_ms: int, outcome: Outcome) -> None:
        group = _group_of(timer)
        kept = group.kept_bytes
        self._groups.due(timer.owner, now_ms, outcome)
        self._memory.add(group.kept_bytes - kept)

    def _kept_bytes(self, group_id: str) -> int:
        group = self._groups.groups.get(group_id)
        return 0 if group is None else group.kept_bytes

    def group_ids(self) -> list[str]:
        """The ids of all groups, for a caller that divides the work itself."""
        return list(self._groups.groups)

    def offset_shares(self, group_id: str) -> list[Sequence[TopicPartition]]:
        """The partitions for which a group may have an offset, in shares of one step each. The last share may be empty."""
        return self._committed.shares(group_id)

    def expire(self, group_id: str, partitions: Sequence[TopicPartition], now_ms: int, *, is_last: bool) -> Outcome:
        """Removes a group's offsets of these partitions whose retention has ended. With the last of its shares, also removes
        the group if nothing is left of it. A group that is changing in steps is not touched."""
        outcome = Outcome()
        group = self._groups.groups.get(group_id)
        if group is None or group_id in self._unfinished.groups:
            return outcome
        self._offsets.expire(group, partitions, self.written, now_ms, outcome)
        if is_last and not self._committed.has_any(group_id):
            self._groups.count(group, has_offsets=False)
            is_empty = group.state is GroupState.EMPTY and not group.pending_joins
            if is_empty and self._offsets.tombstone_error(group_id) is None:
                self._remove(group, outcome)
        return self._counted(outcome)

    def lower_offsets(
        self, group_id: str, ends: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int]
    ) -> Outcome:
        """Lowers the group's offsets above these ends, because the partitions have lost their newest records. With `epochs`,
        lowers the offsets whose leader epoch is below the partition's; otherwise, the offsets that were loaded."""
        outcome, loaded = Outcome(), 0 if epochs else self.loaded_records
        self._offsets.lower(group_id, ends, epochs, loaded=loaded, record_number=self.written, outcome=outcome)
        self.written += len(outcome.records)
        return outcome

    def pending_above(
        self, group_id: str, ends: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int]
    ) -> set[TopicPartition]:
        """The partitions in which `lower_offsets` may have more to do once the group's open transactions have ended."""
        return self._offsets.pending_above(group_id, ends, epochs, loaded=0 if epochs else self.loaded_records)

    def has_offset_of(self, group_id: str, partitions: Set[TopicPartition]) -> bool:
        """Whether a group has an offset of any of these partitions, including in open transactions."""
        return bool(partitions) and not self._committed.has_none_of(group_id, partitions)

    def forget_partitions(self, group_id: str, before: Mapping[TopicPartition, int]) -> Outcome:
        """Removes the group's offsets of deleted topics. The values of `before` are the shard's `written` at the deletion. An
        offset that was committed later stays, because it belongs to a new topic with that name."""
        outcome = Outcome()
        for partition, record_number in before.items():
            is_older = self._committed.newest_record_number(group_id, partition) < record_number
            if not is_older or not self._committed.has(group_id, partition):
                continue
            if self._offsets.tombstone_error(group_id, (partition.topic,)) is None:
                self._offsets.remove(group_id, partition, self.written + len(outcome.records), outcome)
        self.written += len(outcome.records)
        return outcome

    def has_pending_beside(self, group_id: str, before: Mapping[TopicPartition, int]) -> bool:
        """Whether `forget_partitions` leaves an older offset because a newer one is in an open transaction. The tombstone would
        drop the newer one as well."""
        return any(
            self._committed.has_pending_beside(group_id, each, record_number) for each, record_number in before.items()
        )

    def _delete(self, group_id: str, waiter: object, outcome: Outcome) -> Steps:
        """Deletes a group in steps, and answers after the last one. A crash between two steps leaves some of the offsets."""
        group, shares = self._groups.groups.get(group_id), self._committed.shares(group_id)
        error = self._deletion_error(group_id, group, shares)
        if group is not None and error is None:
            for number, partitions in enumerate(shares):
                if number:
                    outcome, _ = yield
                self._offsets.remove_all(group_id, partitions, self.written, outcome)
            # Transactions do not wait for these steps, so this removes the offsets that they have committed meanwhile.
            rest = self._committed.partitions(group_id)
            self._offsets.remove_all(group_id, rest, self.written + len(outcome.records), outcome)
            self._remove(group, outcome)
        outcome.answer(waiter, GroupDeleted(group_id, error))

    def _deletion_error(
        self, group_id: str, group: ClassicGroup | None, shares: Sequence[Sequence[TopicPartition]]
    ) -> LogError | None:
        if group is None:
            return GroupIdNotFound(f"Group {group_id} not found.")
        if group.state is not GroupState.EMPTY:
            return NonEmptyGroup(f"group {group_id} has {len(group.members)} members; stop them first")
        return self._offsets.tombstone_error(group_id, (each.topic for some in shares for each in some))

    def _remove(self, group: ClassicGroup, outcome: Outcome) -> None:
        for timer in group.pending_joins.values():
            self._deadlines.clear(timer)
        self._groups.remove(group.group_id)
        outcome.replace(group.group_id, group.view())
        outcome.write(encode_key(GroupKey(group.group_id)), None)

    # --- after writing ------------------------------------------------------------------------------------------------
    def committed(self, written: int) -> None:
        """Called when the shard's first `written` records are committed."""
        self._settled = written
        self._committed.commit_through(written - 1)
        self._views.commit(written)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Called when the producer's marker is written, which counts as a record."""
        ended = self._committed.end_transaction(producer_id, commit=commit, record_number=self.written)
        self.written += 1
        for group_id in ended if not commit else ():
            if (group := self._groups.groups.get(group_id)) is not None:
                self._groups.count(group, has_offsets=self._committed.has_any(group_id))

    # --- loading ------------------------------------------------------------------------------------------------------
    def load(
        self,
        key: bytes,
        value: bytes | None,
        now_ms: int,
        *,
        is_committed: bool = True,
        producer_id: int = NO_PRODUCER_ID,
        written_ms: int = NO_TIMESTAMP,
    ) -> None:
        """Loads one record of the log, in order; `producer_id` is set inside a transaction. Raises CorruptRecord if it is not
        readable. `loaded` decodes only the newest committed record of each group, and the uncommitted ones.

        `written_ms` is the record's own time, by the wall clock. If a process started with a wrong clock, the times in its
        values are wrong, too, even after its wall clock was corrected. The later of the two times counts, so that no offset
        expires early."""
        parsed, record_number = decode_key(key), self.written
        self.written += 1
        if isinstance(parsed, UnknownKey):
            return
        if isinstance(parsed, GroupKey):
            if not is_committed:
                self._later.append((record_number, parsed.group, value, written_ms))
            elif value is None:
                self._records.pop(parsed.group, None)
            else:
                self._records[parsed.group] = value, written_ms
        else:
            if value is not None and (found := decode_offset(value)).commit_timestamp < written_ms:
                value = encode_offset(found.not_before(written_ms))
            self._load_offset(parsed, value, record_number, producer_id, is_committed=is_committed)

    def _load_offset(
        self, key: OffsetKey, value: bytes | None, record_number: int, producer_id: int, *, is_committed: bool
    ) -> None:
        partition = shared(key.topic, key.partition)
        if value is not None and producer_id != NO_PRODUCER_ID:
            self._committed.write_in_transaction(producer_id, key.group, partition, value, record_number)
        elif is_committed:
            self._committed.load(key.group, partition, value, record_number)
        else:
            self._committed.write(key.group, partition, value, record_number)

    def loaded(self, now_ms: int) -> Generator[None, None, Outcome]:
        """Called after all records are read, and after `committed`. No request is allowed before the last step."""
        outcome = Outcome()
        for group_id, (value, written_ms) in self._records.items():
            yield from self._restore(group_id, value, written_ms, now_ms)
        for record_number, group_id, newer, written_ms in self._later:
            known = self._groups.groups.get(group_id)
            if known is None and self._committed.has_record_before(group_id, self._settled):
                known = ClassicGroup(group_id, now_ms)  # readers know it by its offsets
            self._views.keep(group_id, None if known is None else known.view(), record_number)
            yield from self._restore(group_id, newer, written_ms, now_ms)
        self._records, self._later = {}, []
        for group_id in self._committed.names():
            yield
            if group_id in self._groups.groups:
                continue
            group = ClassicGroup(group_id, now_ms)
            is_seen = self._settled == self.written or self._committed.has_record_before(group_id, self._settled)
            if self._committed.has_any(group_id):
                self._groups.put(group, has_offsets=True)
                if not is_seen:
                    self._views.keep(group_id, None, self.written - 1)
            elif is_seen and group_id not in self._views:  # its tombstones are not committed yet
                self._views.keep(group_id, group.view(), self.written - 1)
        yield from self._groups.loaded(now_ms, outcome)
        self.loaded_records = self.written
        return self._counted(outcome)

    def _restore(self, group_id: str, value: bytes | None, written_ms: int, now_ms: int) -> Generator[None, None, None]:
        """Restores the group from this record; a tombstone removes it."""
        self._memory.add(-self._kept_bytes(group_id))
        self._groups.remove(group_id)
        if value is None:
            return
        recorded = yield from decode_group_in_steps(value)
        group = yield from ClassicGroup.loaded(group_id, recorded, now_ms)
        group.state_timestamp = max(group.state_timestamp, written_ms)
        group.recorded_bytes = len(value)
        self._groups.put(group, has_offsets=self._committed.has_any(group_id))
        self._memory.add(group.kept_bytes)
        yield

    # --- readers ------------------------------------------------------------------------------------------------------
    def fetch_offsets(self, request: OffsetFetch) -> Generator[None, None, OffsetsFetched]:
        """Fetches committed offsets in steps. A request for few partitions is one step."""
        return self._offsets.fetch(request)

    def list(self, request: ListGroups) -> Iterator[Sequence[ListedGroup]]:
        """Yields the groups in shares of LISTED, between which other tasks may run. The request's names are in lower case."""
        wanted = WantedGroups(request)
        ids = () if wanted.is_nothing else names_of(self._groups.groups, self._views)
        for at in range(0, len(ids), LISTED):
            yield wanted.rows((group_id, self._seen(group_id)) for group_id in ids[at : at + LISTED])

    def _seen(self, group_id: str) -> ClassicGroup | GroupView | None:
        """The group as readers see it; None if they do not see it."""
        return self._views[group_id] if group_id in self._views else self._groups.groups.get(group_id)

    def figures(self) -> Iterator[Sequence[GroupFigures]]:
        """Yields the values for metrics in shares, as `list` does."""
        groups = tuple(self._groups)
        for at in range(0, len(groups), LISTED):
            yield figures_of(groups[at : at + LISTED], self._committed)

    def describe(self, request: DescribeGroup) -> DescribedGroup:
        return described(request.group, self._seen(request.group))


def _group_of(timer: Timer) -> ClassicGroup:
    owner = timer.owner
    assert isinstance(owner, JoinWait | SyncWait | Session)
    return owner.group


def _is_large(outcome: Outcome) -> bool:
    """Whether no further request should be decided in this tick, because there are many records, or the last answer has many
    members, like the answer to the leader of a large group."""
    last = outcome.answers[-1].answer if outcome.answers else None
    return len(outcome.records) >= RECORDS_A_TICK or (
        isinstance(last, Joined | Left) and len(last.members) > MEMBERS_A_STEP
    )
