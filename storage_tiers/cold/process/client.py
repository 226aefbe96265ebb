"""The broker's client of the tier process: starts the process for the first question, sends questions, and ends the process
when it is idle.

Runs on the broker's event loop and imports no store library. Invariants: at most one process runs at a time; the next one
starts only after the last has ended. Every question gets an answer: the process's, or `TierUnavailable` after the process has
ended or the deadline has passed. No question is lost to a process that exits because it is idle. A process that hangs is killed
within seconds, not only at a question's deadline.

With several brokers on a machine, a *process* here is this broker's session in their shared tier process
(`session_listener.py`).

A question whose answer was lost may have had its effect. Every operation may be repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from storage_tiers import events
from storage_tiers.backoff import Backoff, BackoffSettings
from storage_tiers.clock import Clock, Rng
from storage_tiers.cold.process.launcher import ExecLauncher, TierHandle, TierLauncher
from storage_tiers.cold.process.operations import Stats, TierCounters
from storage_tiers.cold.process.protocol import Ask, Configure, Forget, Frame, Idle, Reply, encode, read_frame
from storage_tiers.cold.process.question import Deadline, Question
from storage_tiers.cold.process.settings import TierSettings
from storage_tiers.cold.process.table import row_of
from storage_tiers.cold.process.value_json import ProtocolError, from_json
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.errors import InvalidRequest, LogError, StoreRefused, TierUnavailable

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

#: Seconds between the loss of a process and the start of the next one. A process that lived for STEADY_S resets the back-off.
RESTART = BackoffSettings(first=0.1, longest=10.0)
STEADY_S = 60.0
#: Seconds a process, or a session in a shared one, may take to end once its socket is closed.
END_GRACE_S = 5.0
#: The question number of every heartbeat; other questions are numbered from 1.
HEARTBEAT = 0
#: Seconds that the broker waits beyond the process's own deadlines, for the process's start and for its queues of downloads and
#: offloads.
SLACK_S = 30.0


@dataclass(frozen=True, slots=True)
class StoreTotals:
    """Sums of `TierCounters` over processes. `calls` and `ended` are counts and `seconds` durations, by kind of store call;
    `failures` are counts by kind and error."""

    calls: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    seconds: Mapping[str, float] = field(default_factory=dict)
    bytes_downloaded: int = 0
    bytes_uploaded: int = 0
    retries: int = 0

    def plus(self, more: TierCounters) -> StoreTotals:
        return StoreTotals(
            self.calls + Counter(more.store_calls),
            self.failures + Counter(more.store_failures),
            self.ended + Counter(more.store_ended),
            {
                call: self.seconds.get(call, 0.0) + more.store_seconds.get(call, 0.0)
                for call in self.seconds.keys() | more.store_seconds.keys()
            },
            self.bytes_downloaded + more.bytes_downloaded,
            self.bytes_uploaded + more.bytes_uploaded,
            self.retries + more.retries,
        )


@dataclass(slots=True)
class TierClientStats:
    """`starts` counts processes, `lost` those that hung or exited unexpectedly. `asked` counts questions by kind, `failed`
    their failures by error. `counters` are the newest counters of the current or last process, `past` the sums over all earlier
    processes; counts that a lost process had not reported are in neither."""

    starts: int = 0
    lost: int = 0
    asked: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    counters: TierCounters | None = None
    past: StoreTotals = field(default_factory=StoreTotals)

    def totals(self) -> StoreTotals:
        """Totals over all tier processes since the broker's start."""
        return self.past if self.counters is None else self.past.plus(self.counters)

    def begin_process(self) -> None:
        """Adds the last process's counters to `past`: the next process counts from 0."""
        self.starts += 1
        self.past, self.counters = self.totals(), None


class TierClient:
    """Asks the tier process of the store at `location`. `cache_directory` exists and belongs to the caller. `on_end` is called
    after each process has ended; files in the cache directory that the process never announced may then be deleted."""

    def __init__(
        self,
        location: StoreLocation,
        cache_directory: str,
        *,
        clock: Clock,
        rng: Rng,
        settings: TierSettings | None = None,
        launcher: TierLauncher | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        self._settings = settings if settings is not None else TierSettings()
        self._configure = Configure(location, cache_directory, self._settings)
        self._clock = clock
        self._launcher: TierLauncher = launcher if launcher is not None else ExecLauncher()
        self._backoff = Backoff(RESTART, rng)
        self._slots = asyncio.Semaphore(self._settings.operations)
        self._life: _TierLife | None = None
        self._starting: asyncio.Task[_TierLife] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._pause_s = 0.0
        self._pausing: asyncio.Future[None] | None = None
        self._closed = False
        self._unanswered: tuple[float, LogError] | None = None
        self._away_since = 0.0
        self.on_end = on_end
        self.stats = TierClientStats()

    @property
    def process_id(self) -> int | None:
        """Pid of the running process; None if there is none."""
        return self._life.handle.process_id if self._life is not None else None

    @property
    def running(self) -> bool:
        return self._life is not None

    @property
    def trouble(self) -> str | None:
        """A clause to follow "the store", with the store's error, if the store did not answer the last question or refused it;
        None if it answered."""
        if self._unanswered is None:
            return None
        asked_at, error = self._unanswered
        return f"did not answer when it was last asked, {self._clock.monotonic() - asked_at:.0f} s ago: {error}"

    # --- asking -------------------------------------------------------------------------------------------------------
    async def refresh_counters(self) -> TierCounters | None:
        """The newest counters: the running process's, or the last one's if none runs. Starts no process."""
        if self._life is not None:
            self.stats.counters = await self.ask(Stats())
        return self.stats.counters

    async def ask(self, question: Question[Answer]) -> Answer:
        """The process's answer, or the LogError that it raised. TierUnavailable if the process ended or did not answer in time.
        This deadline is longer than the process's own, so it passes only if the process hangs or its queues are long."""
        name = type(question).__name__
        self.stats.asked[name] += 1
        settings = self._settings
        deadline_s = max(settings.read_deadline_s, settings.commit_deadline_s) + SLACK_S + question.extra_s(settings)
        try:
            async with asyncio.timeout(deadline_s), self._slots:
                life = await self._running_life()
                answer: Answer = await life.ask(question)
                self._track_store(question, None)
                return answer
        except TimeoutError as error:
            self.stats.failed["TierUnavailable"] += 1
            late = TierUnavailable(f"the tier process did not answer {name} within {deadline_s:g} s; retry")
            self._track_store(question, late)
            raise late from error
        except LogError as error:
            self.stats.failed[type(error).__name__] += 1
            self._track_store(question, error)
            raise

    def _track_store(self, question: Question[Any], failure: LogError | None) -> None:
        if row_of(question).deadline is Deadline.NONE or self._closed:
            return
        now, before = self._clock.monotonic(), self._unanswered
        if isinstance(failure, TierUnavailable | StoreRefused):
            self._unanswered = (now, failure)
            if before is None:
                self._away_since = now
                events.warning(log, "store.failing", asked=type(question).__name__, error=failure)
        elif before is not None:
            self._unanswered = None
            events.info(log, "store.back", ms=round((now - self._away_since) * 1000))

    async def close(self) -> None:
        """Ends the process; open and later questions get TierUnavailable."""
        self._closed = True
        if self._pausing is not None:
            self._pausing.cancel()
        if self._starting is not None:
            await asyncio.wait((self._starting,))
        if self._life is not None:
            self._part(self._life, "the node is stopping")
        if self._ending is not None:
            await self._ending

    # --- lives --------------------------------------------------------------------------------------------------------
    async def _running_life(self) -> _TierLife:
        if self._closed:
            raise TierUnavailable("the node is stopping; retry")
        if self._life is not None:
            return self._life
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
            self._starting.add_done_callback(self._started)
        return await asyncio.shield(self._starting)

    async def _start(self) -> _TierLife:
        if self._ending is not None:
            await self._ending
        pause, self._pause_s = self._pause_s, 0.0
        if pause:
            self._pausing = asyncio.ensure_future(self._clock.sleep(pause))
            await asyncio.wait((self._pausing,))
        if self._closed:
            raise TierUnavailable("the node is stopping; retry")
        launched = await self._launcher.launch()
        reader, writer = await asyncio.open_unix_connection(sock=launched.socket)
        life = _TierLife(reader, writer, launched.handle, self._clock.monotonic())
        life.send(self._configure)
        self.stats.begin_process()
        self._life = life
        life.listening = asyncio.create_task(self._listen(life))
        self._await_beat(life)
        return life

    def _started(self, task: asyncio.Task[_TierLife]) -> None:
        self._starting = None
        if not task.cancelled() and task.exception() is not None:
            self._pause_s = self._backoff.next_delay()

    async def _listen(self, life: _TierLife) -> None:
        """Reads frames until the process ends, breaks the protocol, or is idle without an open question."""
        reason = "the tier process ended before it answered; it is being restarted; retry"
        try:
            while (frame := await read_frame(life.reader)) is not None:
                life.silent_beats = 0
                if isinstance(frame, Reply):
                    life.answered(frame)
                    continue
                if not isinstance(frame, Idle):
                    raise ProtocolError(f"a tier process sends no {type(frame).__name__}")
                self.stats.counters = frame.counters
                if not life.waiting:
                    self._part(life, "")
                    return
        except ProtocolError as error:
            reason = f"the tier process broke the protocol ({error}); it is being restarted; retry"
        if self._life is life:
            self._lost(life, reason)

    # --- heartbeats ---------------------------------------------------------------------------------------------------
    def _await_beat(self, life: _TierLife) -> None:
        life.beat = asyncio.get_running_loop().call_later(self._settings.heartbeat_s, self._beat, life)

    def _beat(self, life: _TierLife) -> None:
        """Sends a heartbeat, or replaces a silent process. Counts heartbeats of this event loop, not seconds, because a broker
        that was suspended must not declare its process dead."""
        if self._life is not life or life.writer.is_closing():
            return
        patience = self._settings.silent_beats if life.has_answered else self._settings.starting_beats
        if life.silent_beats >= patience:
            silent_s = patience * self._settings.heartbeat_s
            life.handle.kill()
            self._lost(life, f"the tier process hung for {silent_s:g} s; it is being restarted; retry")
            return
        if life.waiting:
            life.silent_beats += 1
            life.send(Ask(HEARTBEAT, Stats()))
        else:
            life.silent_beats = 0
        self._await_beat(life)

    def _lost(self, life: _TierLife, reason: str) -> None:
        self.stats.lost += 1
        events.error(log, "tier_process.lost", pid=life.handle.process_id, waiting=len(life.waiting), error=reason)
        if self._clock.monotonic() - life.since >= STEADY_S:
            self._backoff.succeeded()
        self._pause_s = self._backoff.next_delay()
        self._part(life, reason)

    def _part(self, life: _TierLife, reason: str) -> None:
        """Closes the process's socket, which ends the process. The next process starts only after that end."""
        if life.beat is not None:
            life.beat.cancel()
        self._life = None
        life.fail_all(reason)
        life.writer.close()
        self._ending = asyncio.create_task(self._await_end(life))

    async def _await_end(self, life: _TierLife) -> None:
        await life.handle.ended(END_GRACE_S)
        if life.listening is not None and life.listening is not asyncio.current_task():
            await asyncio.gather(life.listening, return_exceptions=True)
        if self.on_end is not None:
            try:
                self.on_end()
            except LogError as error:
                events.warning(log, "cache.strays_left", error=error)


@dataclass(slots=True)
class _Open:
    """A question that the process has not answered yet, and the future of its caller."""

    question: Question[Any]
    answer: asyncio.Future[Any]


class _TierLife:
    """One process from start to end, and its open questions."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handle: TierHandle, since: float
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.handle = handle
        self.since = since
        self.beat: asyncio.TimerHandle | None = None
        self.silent_beats = 0
        self.has_answered = False
        self.listening: asyncio.Task[None] | None = None
        self.waiting: dict[int, _Open] = {}
        self._last_number = 0

    def send(self, frame: Frame) -> None:
        # The write is not awaited: unsent data is bounded by `operations` frames.
        self.writer.write(encode(frame))

    async def ask(self, question: Question[Any]) -> Any:
        if self.writer.is_closing():
            # The process has just ended, and `_listen` has not run yet. Some event loops refuse a write now.
            raise TierUnavailable("the tier process has exited; it is being restarted; retry")
        self._last_number += 1
        number = self._last_number
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            self.send(Ask(number, question))
        except ProtocolError as error:
            # Nothing was sent: the fault is the question's, not the process's.
            raise InvalidRequest(f"{type(question).__name__} cannot be asked of the tier process: {error}") from error
        self.waiting[number] = _Open(question, answer)
        try:
            return await answer
        except asyncio.CancelledError:
            if self.waiting.pop(number, None) is not None and not self.writer.is_closing():
                self.send(Forget(number))
            raise

    def answered(self, reply: Reply) -> None:
        """Hands an answer to its waiter, or drops it if the waiter has gone. ProtocolError if its value has the wrong type."""
        self.has_answered = self.has_answered or reply.number != HEARTBEAT
        asked = self.waiting.pop(reply.number, None)
        if asked is None or asked.answer.done():
            return
        if reply.error is not None:
            asked.answer.set_exception(reply.error)
            return
        try:
            asked.answer.set_result(from_json(row_of(asked.question).answer, reply.value))
        except ProtocolError as error:
            asked.answer.set_exception(TierUnavailable(f"the tier process broke the protocol ({error}); retry"))
            raise

    def fail_all(self, reason: str) -> None:
        for asked in self.waiting.values():
            if not asked.answer.done():
                asked.answer.set_exception(TierUnavailable(reason))
        self.waiting.clear()
