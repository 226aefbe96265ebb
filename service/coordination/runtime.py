"""Runs coordinator shards on the event loop. Each shard has the state of one partition of an internal topic that this node
leads.

A shard decides, and this module writes its decisions. Records of several requests of one turn form one batch, or more if they
do not fit. If a turn has few requests, the records of each are written at once (`turn_writes.py`). Each commit in a transaction
has its own batch. An answer is released once all records written before the answer are committed, so no answer contains a
decision that a crash could undo. While no record is pending, answers are released at once.

`shard_state.py` has the lifecycle of a shard. When a shard is dropped or closed, every waiting request fails.

Invariants: requests of a group or a transactional id are decided in the order of their arrival, except that heartbeats may pass
waiting requests. A shard whose write failed makes no further decision. Loading takes at most SLICE_S of a turn. The decision of
a failed request may be in the log nevertheless; clients retry.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from grpc_api.contract.caller import Caller
from grpc_api.contract.coordinator_errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    NotCoordinator,
)
from grpc_api.contract.log import Appended
from grpc_api.contract.transactions import ProducerIdAndEpoch
from service.coordination.answer_queue import AnswerQueue, FailedRequest, give
from service.coordination.commit_timeout import CommitTimeout
from service.coordination.loading import load
from service.coordination.outcome import CoordinatorRecord, Outcome, PlannedDecision
from service.coordination.ports import CoordinatorLog, Shard
from service.coordination.record_batches import encode_batch, in_batches
from service.coordination.shard_state import ShardEvent, ShardState, state_after
from service.coordination.turn_writes import GatheredWrites, TurnWrites
from service.coordination.uncommitted_batches import UncommittedBatches
from service.coordination.write_errors import as_coordinator_error
from storage_tiers import events
from storage_tiers.backoff import Backoff
from storage_tiers.clock import Clock
from storage_tiers.errors import LeaderNotAvailable, LogError
from storage_tiers.turns import TurnScheduler
from storage_tiers.types import TopicPartition

log = logging.getLogger(__name__)

#: A tick that is this late means that the process was paused. The requests in the sockets' buffers are then served first.
PAUSED_MS = 1_000
#: Milliseconds for which sockets are served after a pause before sessions may end.
AFTER_PAUSE_MS = 500

# Looking up an enum member takes 0.1 µs in Python 3.11.
_ACTIVE = ShardState.ACTIVE

State = TypeVar("State", bound=Shard)
Result = TypeVar("Result")


class ShardHost(Generic[State]):
    """One shard with its partition. `state` is read by metrics and the admin API."""

    def __init__(
        self,
        partition: TopicPartition,
        log: CoordinatorLog,
        new: Callable[[], State],
        *,
        clock: Clock,
        scheduler: TurnScheduler,
        backoff: Callable[[], Backoff],
        writes: TurnWrites,
        after: Callable[[ShardHost[State]], None] | None = None,
    ) -> None:
        """`after` is called whenever the shard is loaded or some of its records are committed. It must not call `ask`
        directly."""
        self.partition = partition
        self._enter(ShardState.LOADING, _loading(partition))
        #: Duration of the last completed load; None before it.
        self.load_ms: int | None = None
        #: The reason why the last load failed; empty if none has failed since the shard was last loaded.
        self.unreadable = ""
        self._log = log
        self._new = new
        self._clock = clock
        self._scheduler = scheduler
        self._backoff = backoff
        #: The back-off of loads after consecutive failed writes.
        self._drops = backoff()
        self._gathering = GatheredWrites(writes, self._flush)
        self._after = after
        self._loop = asyncio.get_running_loop()
        self._timeout = CommitTimeout(self._loop, log.writing.timeout_ms, self._overdue)
        self._release = AnswerQueue(self._loop)
        self._uncommitted = UncommittedBatches(self._loop, scheduler, self._committed, self._fail)
        self._begin(new())
        self._loading: asyncio.Task[None] = self._loop.create_task(self._load(), name=f"load {partition}")

    def _apply(self, event: ShardEvent, why: LogError) -> None:
        """Changes the state after the event. From then on requests fail with `why`, unless the shard is active."""
        self._enter(state_after(self.state, event), why)

    def _enter(self, state: ShardState, why: LogError) -> None:
        """The only place that sets the state."""
        self.state, self._why = state, why

    def _begin(self, shard: State) -> None:
        self._shard = shard
        #: The bound last passed to the shard.
        self._max_batch_bytes = 0
        #: Records of this turn.
        self._records: list[CoordinatorRecord] = []
        #: Answers that wait for records to be committed, each with the shard's `written` at the time of its decision.
        self._answers: deque[tuple[int, object, object]] = deque()
        #: Requests whose answer is not decided yet, and the waiters of `settled`.
        self._waiting: set[asyncio.Future[Any]] = set()
        #: The next tick, and the deadline for which it is planned.
        self._timer: asyncio.TimerHandle | None = None
        self._planned_ms = 0
        #: The loop's time before which no session ends.
        self._resumes_s = 0.0

    # --- requests -----------------------------------------------------------------------------------------------------
    def ask(self, event: object, caller: Caller, producer: ProducerIdAndEpoch | None = None) -> asyncio.Future[Any]:
        """Decides `event`. The future gets the answer when the answer may be released, or a LogError if the decision may not
        have been written. Raises LogError if the event was not decided, also the errors of the log's `check_transaction`."""
        if self.state is not _ACTIVE:
            self._check()
        if self._log.no_room is not None and self._shard.may_write(event):
            raise self._log.no_room
        if producer is not None:
            self._write()  # a batch belongs to one producer
            self._check()
            self._log.check_transaction(*producer)
        waiter: asyncio.Future[Any] = self._loop.create_future()
        outcome = self._decided(self._shard.handle, event, caller, waiter, self._clock.steady_ms())
        if len(outcome.answers) != 1 or outcome.answers[0].waiter is not waiter:
            # The request waits for others. A request that waits only for its record is in `_answers`, because a callback would
            # cost a call of the loop for each commit.
            self._waiting.add(waiter)
            waiter.add_done_callback(self._waiting.discard)
        self._take(outcome, producer)
        return waiter

    def write_first(
        self,
        plan: Callable[[State, Any, int], PlannedDecision | None],
        wrote: Callable[[State, Any, bool], int],
        event: object,
        caller: Caller,
    ) -> asyncio.Future[Any]:
        """Does the same as `ask` at less cost, if nothing waits to be written or committed, and if `plan` finds a decision.

        `plan` gets the shard, the event and the steady time in ms. `wrote` gets the shard, the changes, and whether they are
        committed already. It is called once the records are in the log, applies the changes, and returns `written`."""
        if (
            self.state is _ACTIVE
            and not self._records
            and not self._uncommitted.batches
            and self._gathering.writes_at_once
            and self._log.no_room is None
            and self._log.max_batch_bytes == self._max_batch_bytes
        ):
            try:
                planned = plan(self._shard, event, self._clock.steady_ms())
                if planned is not None:
                    records, changes, answer = planned
                    batch = encode_batch(records, self._clock.unix_ms(), None, self._log.writing.codec)
                    if len(batch) <= self._max_batch_bytes:
                        committed = self._write_planned(batch)
                        through = wrote(self._shard, changes, committed is None)
                        return self._answer_planned(committed, through, answer)
            except LogError:
                raise
            except Exception as defect:  # noqa: BLE001 - a defect of the shard
                raise self._broken(defect) from None
        return self.ask(event, caller)

    def _write_planned(self, batch: bytes) -> asyncio.Future[None] | None:
        """Appends the batch. Returns the future of its commit; None if it is committed already. Raises LogError, and the shard
        is dropped, if it is not written."""
        self._gathering.wrote()
        try:
            appended = self._log.append(batch)
        except LogError as error:
            self._fail(error)
            raise as_coordinator_error(self.partition, error) from None
        self._drops.succeeded()
        return appended.committed

    def _answer_planned(
        self, committed: asyncio.Future[None] | None, through: int, answer: object
    ) -> asyncio.Future[Any]:
        waiter: asyncio.Future[Any] = self._loop.create_future()
        if committed is not None:
            self._answers.append((through, waiter, answer))
            self._appended(committed, through)
            return waiter
        self._uncommitted.begin_at(through)
        waiter.set_result(answer)
        if self._after is not None:
            self._after(self)
        return waiter

    def look(self, read: Callable[[State], Result]) -> Result:
        """Calls `read` with the shard. Raises the errors of `ask`."""
        self._check()
        return read(self._shard)

    def change(self, decide: Callable[[State, int], Outcome]) -> None:
        """Applies a change without a client request, such as expiry. Raises the errors of `ask`."""
        self._check()
        if self._log.no_room is not None:
            raise self._log.no_room
        self._take(self._decided(lambda: decide(self._shard, self._clock.steady_ms())))

    def settled(self) -> asyncio.Future[None]:
        """Returns a future that is done once all decisions so far are committed. It fails with LogError if they may not have
        been written. Raises the errors of `ask`."""
        self._check()
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.add(waiter)
        waiter.add_done_callback(self._waiting.discard)
        outcome = Outcome()
        outcome.answer(waiter, None)
        self._take(outcome)
        return waiter

    async def is_settled(self, shard: State) -> bool:
        """Whether all decisions so far are committed, and `shard` is still in use. A reloaded shard may lack them."""
        try:
            await self.settled()
            return self.look(lambda now: now) is shard
        except LogError:
            return False

    def end_transaction(self, append: Callable[[], Appended], producer_id: int, *, commit: bool) -> Appended:
        """Writes a marker with `append` into the shard's partition, after all earlier decisions, and ends the producer's
        transaction in the shard. Raises LogError if nothing was written."""
        self._check()
        self._write()
        self._check()
        appended = append()
        self._shard.end_transaction(producer_id, commit=commit)
        self._appended(appended.committed, self._shard.written)
        return appended

    def _decided(self, decide: Callable[..., Outcome], *arguments: object) -> Outcome:
        """Calls `decide`. Raises the LogError of a refused decision, and CoordinatorNotAvailable after a defect. A defect may
        leave half a decision behind, so the shard is dropped and reloaded. Other groups and background work then continue."""
        most = self._log.max_batch_bytes
        if most != self._max_batch_bytes:
            self._max_batch_bytes = most
            self._shard.bound(most)
        try:
            return decide(*arguments)
        except LogError:
            raise
        except Exception as defect:  # noqa: BLE001 - a defect of the shard
            raise self._broken(defect) from None

    def _broken(self, defect: Exception) -> CoordinatorNotAvailable:
        events.error(log, "coordinator.defect", partition=self.partition, defect=defect)
        error = CoordinatorNotAvailable(f"{self.partition}: the coordinator failed and is being reloaded; retry")
        self._fail(error)
        return error

    def _check(self) -> None:
        if self.state is not _ACTIVE:
            raise self._why.with_traceback(None)

    # --- writing ------------------------------------------------------------------------------------------------------
    def _take(self, outcome: Outcome, producer: ProducerIdAndEpoch | None = None) -> None:
        for note in outcome.notes:
            events.info(log, note.event, **note.fields)
        if outcome.records:
            self._records += outcome.records
        if self._records or self._uncommitted.batches:
            written = self._shard.written
            for waiter, answer in outcome.answers:
                self._answers.append((written, waiter, answer))
            if outcome.answers and not self._records and not self._timeout.covers(written):
                # These answers have no record, and the batch that they wait for is already overdue.
                self._timeout.appended(written)
        else:
            self._release.answers(outcome.answers)
        self._arm()
        if producer is not None:
            self._write(producer)
        elif outcome.records:
            self._gathering.decided()  # last, because it may write at once

    def _flush(self) -> None:
        if self.state is _ACTIVE:
            self._write()

    def _write(self, producer: ProducerIdAndEpoch | None = None) -> None:
        """Appends the decisions. If that fails, even by a defect, the shard makes no further decision and is reloaded."""
        try:
            self._append_all(producer)
        except Exception as defect:  # noqa: BLE001 - a defect of the shard's records
            self._broken(defect)

    def _append_all(self, producer: ProducerIdAndEpoch | None) -> None:
        records, self._records = self._records, []
        through = self._shard.written - len(records)
        for some in [records] if len(records) == 1 else in_batches(records, self._log.max_batch_bytes):
            if self.state is not _ACTIVE:
                return
            through += len(some)
            self._append(some, through, producer)

    def _append(self, records: list[CoordinatorRecord], through: int, producer: ProducerIdAndEpoch | None) -> None:
        batch = encode_batch(records, self._clock.unix_ms(), producer, self._log.writing.codec)
        try:
            appended = self._log.append(batch)
        except LogError as error:
            self._fail(error)
            return
        self._drops.succeeded()
        self._appended(appended.committed, through)

    def _appended(self, committed: asyncio.Future[None] | None, through: int) -> None:
        """Called when the shard's first `through` records are in the log. They are committed when the future is done, or
        already if it is None."""
        if committed is not None or self._uncommitted.batches:
            self._timeout.appended(through)
        self._uncommitted.add(through, committed)

    def _committed(self, through: int) -> None:
        self._timeout.committed(through)
        self._shard.committed(through)
        if len(self._answers) == 1 and self._answers[0][0] <= through:  # a single commit
            _, waiter, answer = self._answers.popleft()
            give(waiter, answer)
        elif self._answers:
            self._release.answers(self._answers_to(through))
        if self._after is not None:
            self._after(self)

    def _answers_to(self, through: int) -> list[tuple[object, object]]:
        """Removes and returns the answers that wait for no record beyond the shard's first `through`."""
        answers = []
        while self._answers and self._answers[0][0] <= through:
            answers.append(self._answers.popleft()[1:])
        return answers

    def _overdue(self, through: int) -> None:
        """Called when records in the log are not committed in time. They may be committed later, so the shard continues."""
        why = f"{self.partition}: the change is not committed after {self._log.writing.timeout_ms} ms; retry"
        late = [(waiter, FailedRequest(CoordinatorNotAvailable(why))) for waiter, _ in self._answers_to(through)]
        self._release.answers(late)

    # --- time ---------------------------------------------------------------------------------------------------------
    def _arm(self) -> None:
        """Schedules the next tick, no earlier than the end of the grace period after a pause."""
        due_ms = self._shard.next_deadline_ms()
        if due_ms is None or (self._timer is not None and self._planned_ms <= due_ms):
            return
        now_ms, now_s = self._clock.steady_ms(), self._loop.time()
        at_s = max(now_s + (due_ms - now_ms) / 1000, now_s, self._resumes_s)
        if self._timer is not None:
            self._timer.cancel()
        self._planned_ms = due_ms
        self._timer = self._loop.call_at(at_s, self._fired, now_ms + int((at_s - now_s) * 1000))

    def _fired(self, planned_ms: int) -> None:
        """Queues the tick, because timers of all the node's shards may be due now."""
        self._scheduler.soon(partial(self._tick, self._timer, planned_ms))

    def _tick(self, timer: asyncio.TimerHandle | None, planned_ms: int) -> None:
        if timer is not self._timer:
            return  # another tick is planned, or the shard has ended
        self._timer = None
        if self.state is not ShardState.ACTIVE:
            return
        now_ms = self._clock.steady_ms()
        if now_ms - planned_ms > PAUSED_MS or self._log.no_room is not None:
            # Either the process was paused, and the heartbeats that arrived meanwhile must be served first. Or decisions cannot
            # be written, and no session may end before there is room.
            self._resumes_s = self._loop.time() + AFTER_PAUSE_MS / 1000
            self._arm()
            return
        try:
            outcome = self._decided(self._shard.tick, now_ms)
        except LogError as error:
            if self.state is _ACTIVE:  # otherwise it is being reloaded already
                self._broken(error)  # no request gets this error, and no further tick would be planned
            return
        self._take(outcome)

    # --- loading and ending -------------------------------------------------------------------------------------------
    async def _load(self, pause_s: float = 0.0) -> None:
        """Loads the shard after a pause. Without the pause, a disk that refuses every write would cause a load at every
        request."""
        if pause_s:
            await self._clock.sleep(pause_s)
        backoff = self._backoff()
        while self.state in (ShardState.LOADING, ShardState.UNREADABLE):
            try:
                await self._load_once()
            except LeaderNotAvailable:
                # The partition is first compared with the store. This is not a failure; clients wait as during a load.
                await self._clock.sleep(backoff.next_delay())
                self._begin(self._new())
            except Exception as error:  # noqa: BLE001 - the load is retried after a defect, too, and the log says so
                if self.state is ShardState.LOADING:
                    events.error(log, "coordinator.unreadable", partition=self.partition, error=error)
                self.unreadable = str(error)
                why = NotCoordinator(f"{self.partition} cannot be loaded: {error}; find the coordinator again")
                self._apply(ShardEvent.LOAD_FAILED, why)
                await self._clock.sleep(backoff.next_delay())
                self._begin(self._new())

    async def _load_once(self) -> None:
        began_ms = self._clock.steady_ms()
        turn = self._scheduler.turn()
        try:
            found = await load(self._shard, self._log, turn, began_ms)
        finally:
            turn.leave()
        rest = self._log.until_committed(found.end)
        self._apply(ShardEvent.LOADED, _loading(self.partition))
        self.load_ms = self._clock.steady_ms() - began_ms
        self.unreadable = ""
        events.info(log, "coordinator.loaded", partition=self.partition, records=found.records, ms=self.load_ms)
        self._uncommitted.begin_at(found.committed)
        self._appended(rest, found.through)
        self._take(found.outcome)
        if self._after is not None:
            self._after(self)

    def _fail(self, error: LogError) -> None:
        """Reloads the shard after a record could not be written, because the shard is ahead of its log."""
        events.warning(log, "coordinator.dropped", partition=self.partition, error=error)
        self._apply(ShardEvent.DROPPED, _loading(self.partition))
        self._end(as_coordinator_error(self.partition, error))
        self._begin(self._new())
        load = self._load(self._drops.next_delay())
        self._loading = self._loop.create_task(load, name=f"load {self.partition}")

    def _end(self, error: LogError) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._records.clear()
        self._uncommitted.begin_at(0)
        waiting: list[object] = [*(waiter for _, waiter, _ in self._answers), *self._waiting]
        self._timeout.clear()
        self._answers.clear()
        self._release.answers([(waiter, FailedRequest(error)) for waiter in waiting])

    async def close(self, error: LogError) -> None:
        """Ends the shard because this node no longer coordinates it. Waiting and later requests get the error."""
        self._apply(ShardEvent.CLOSED, error)
        self._end(error)
        self._loading.cancel()
        await asyncio.wait({self._loading})


def _loading(partition: TopicPartition) -> CoordinatorLoading:
    return CoordinatorLoading(f"{partition} is being loaded; retry")
