"""The tier process behind its sockets: runs questions concurrently, answers them, and ends when the last socket closes.

Each socket is a session of one broker. Sessions share stores, budgets and decoded pages (`shared_work.py`) and nothing else: a
session that ends, breaks the protocol or does not read its answers delays no other. The process reads and begins no further
question of a broker that does not read its answers, so the broker's unsent answers are at most those of the `operations`
questions under way. A broker has at most MAX_SESSIONS_OF_ONE sessions, and configures each within FIRST_FRAME_S.

A thin shell: `table.py` has the function for each question, TierSettings the bounds. Every question is answered exactly once,
unless it is forgotten or the socket closes. Any exception other than a LogError is a bug: it is logged with its traceback and
answered as an error, and the process continues.

A socket that closes cancels the work under way: offloads and commits may be interrupted at any point.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import Counter
from functools import partial
from typing import Any

from storage_tiers import events
from storage_tiers.clock import Clock, Rng
from storage_tiers.cold.process.context import TierContext
from storage_tiers.cold.process.operations import Stats, TierCounters
from storage_tiers.cold.process.protocol import (
    MAX_QUESTION_BYTES,
    Ask,
    Configure,
    Forget,
    Frame,
    Idle,
    Reply,
    Unknown,
    encode,
    read_frame,
)
from storage_tiers.cold.process.question import Question
from storage_tiers.cold.process.shared_work import OpenStore, SharedWork
from storage_tiers.cold.process.table import perform
from storage_tiers.cold.process.value_json import ProtocolError, to_json
from storage_tiers.cold.stores.counting import CountingStore
from storage_tiers.errors import LogError, TierUnavailable
from storage_tiers.peak_memory import peak_resident_bytes
from storage_tiers.session_listener import SessionSockets, accepted

log = logging.getLogger(__name__)

#: The most sessions of one broker in a shared process; further ones end at once. A broker opens its next session once the last
#: one has ended, or after a few seconds.
MAX_SESSIONS_OF_ONE = 8
#: Seconds within which a session has to be configured. A broker that was suspended meanwhile opens another session.
FIRST_FRAME_S = 30.0
#: The least seconds between two messages about an idle session.
LEAST_IDLE_S = 0.01


class TierServer:
    """Answers brokers until their sockets close or `stop` is called."""

    def __init__(self, open_store: OpenStore, clock: Clock, rng: Rng) -> None:
        self._shared = SharedWork(open_store)
        self._clock = clock
        self._rng = rng
        self._stopped = asyncio.Event()
        self._opened = 0

    async def run(self, sock: socket.socket) -> None:
        """Answers one broker. Raises ProtocolError if it breaks the protocol."""
        try:
            await self._serve(sock)
        finally:
            await self._shared.close()

    async def run_listener(self, listener: socket.socket) -> None:
        """Answers all brokers that request a session, until the last session ends. Later requests wait for the next process."""
        loop = asyncio.get_running_loop()
        serving: set[asyncio.Task[None]] = set()
        of_one: Counter[int] = Counter()

        def accept() -> None:
            for session in () if self._stopped.is_set() else accepted(listener):
                if of_one[session.pid] >= MAX_SESSIONS_OF_ONE:
                    session.close()
                    continue
                of_one[session.pid] += 1
                task = loop.create_task(self._serve_session(session))
                task.add_done_callback(partial(leave, session.pid))
                serving.add(task)

        def leave(pid: int, _: asyncio.Task[None]) -> None:
            of_one[pid] -= 1
            if not of_one[pid]:
                del of_one[pid]

        loop.add_reader(listener, accept)
        try:
            accept()
            while serving:
                done, _ = await asyncio.wait(serving, return_when=asyncio.FIRST_COMPLETED)
                serving -= done
                accept()
        finally:
            loop.remove_reader(listener)
            await self._shared.close()

    def stop(self) -> None:
        self._stopped.set()

    async def _serve_session(self, sockets: SessionSockets) -> None:
        with sockets.lifeline:
            try:
                sockets.lifeline.send(b"%d" % os.getpid())
            except OSError:  # the broker has left
                sockets.session.close()
                return
            try:
                await self._serve(sockets.session)
            except ProtocolError as error:
                events.error(log, "tier_process.misunderstood", error=error)
            except Exception as error:  # noqa: BLE001 - the other sessions continue
                events.error(log, "tier_process.defect", asked="a session", defect=error)

    async def _serve(self, sock: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        try:
            first = await self._first_frame(reader)
            if first is None:
                return
            if not isinstance(first, Configure):
                raise ProtocolError(f"the first frame must be Configure, not {type(first).__name__}")
            self._opened += 1
            session = TierSession(self._opened, first, writer, self._shared, self._clock, self._rng)
            listening = asyncio.create_task(session.listen(reader))
            stopping = asyncio.create_task(self._stopped.wait())
            try:
                await asyncio.wait((listening, stopping), return_when=asyncio.FIRST_COMPLETED)
            finally:
                stopping.cancel()
                listening.cancel()
                await session.close()
                await asyncio.gather(listening, stopping, return_exceptions=True)
            if not listening.cancelled():
                listening.result()
        finally:
            writer.close()

    async def _first_frame(self, reader: asyncio.StreamReader) -> Frame | None:
        """The session's first frame. None if the socket closes, if no frame arrives in time, or if the process is stopped."""
        reading, stopping = (
            asyncio.create_task(read_frame(reader, MAX_QUESTION_BYTES)),
            asyncio.create_task(self._stopped.wait()),
        )
        try:
            await asyncio.wait((reading, stopping), timeout=FIRST_FRAME_S, return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else None
        finally:
            reading.cancel()
            stopping.cancel()


class TierSession:
    """The work under way for one configured socket. `number` identifies the session in its process."""

    def __init__(
        self,
        number: int,
        configure: Configure,
        writer: asyncio.StreamWriter,
        shared: SharedWork,
        clock: Clock,
        rng: Rng,
    ) -> None:
        settings = configure.settings
        self._configure = configure
        self._settings = settings
        self._writer = writer
        self._clock = clock
        self._shared = shared
        self._store: CountingStore | None = None
        shared.sessions += 1
        self._context = TierContext(
            shared, number, self._get_store, settings, configure.cache_directory, clock, rng, counters=self.counters
        )
        self._working: dict[int, asyncio.Task[None]] = {}
        self._asked: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._wait_idle()

    # --- frames -------------------------------------------------------------------------------------------------------
    async def listen(self, reader: asyncio.StreamReader) -> None:
        """Reads frames until the socket closes. ProtocolError if the broker breaks the protocol."""
        while (frame := await read_frame(reader, MAX_QUESTION_BYTES)) is not None:
            match frame:
                case Ask(number, Stats() as question):
                    await self._work(number, question)
                case Ask(number, question):
                    self._take(number, question)
                case Unknown(number, name):
                    advice = "the program was replaced while the node ran; restart the node"
                    self._fail(number, TierUnavailable(f"the tier process knows no question {name!r}: {advice}"))
                case Forget(number):
                    task = self._working.get(number)
                    if task is not None:
                        task.cancel()
                case _:
                    raise ProtocolError(f"a broker sends no {type(frame).__name__} here")
            await self._until_read()

    def _take(self, number: int, question: Question[Any]) -> None:
        self._asked[type(question).__name__] += 1
        if len(self._working) >= self._settings.operations:
            self._fail(number, TierUnavailable(f"{len(self._working)} operations are under way already; retry"))
            return
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        task = asyncio.create_task(self._work(number, question))
        self._working[number] = task
        task.add_done_callback(lambda _: self._worked(number))

    async def _work(self, number: int, question: Question[Any]) -> None:
        try:
            await self._until_read()
            answer = to_json(await perform(self._context, question))
            self._send(Reply(number, answer))
        except LogError as error:
            self._fail(number, error)
        except Exception as error:  # noqa: BLE001 - every question gets an answer
            events.error(log, "tier_process.defect", asked=type(question).__name__, defect=error)
            self._fail(
                number, LogError(f"{type(question).__name__} failed in the tier process: {error!r}; see its log")
            )

    def _fail(self, number: int, error: LogError) -> None:
        self._failed[type(error).__name__] += 1
        self._send(Reply(number, error=error))

    def _send(self, frame: Reply | Idle) -> None:
        # The write is not awaited: an answer that waits in the transport needs no more memory than one that waits in a task.
        self._writer.write(encode(frame))

    async def _until_read(self) -> None:
        """Waits while the answers that the broker has not read exceed the transport's limit."""
        try:
            await self._writer.drain()
        except ConnectionError:
            pass  # the end of the socket ends `listen`

    # --- idleness -----------------------------------------------------------------------------------------------------
    def _worked(self, number: int) -> None:
        del self._working[number]
        if not self._working:
            self._wait_idle()

    def _wait_idle(self) -> None:
        self._idle_timer = asyncio.get_running_loop().call_later(
            max(self._settings.idle_s, LEAST_IDLE_S), self._say_idle
        )

    def _say_idle(self) -> None:
        if not self._writer.transport.get_write_buffer_size():  # a suspended broker gets one frame
            self._send(Idle(self.counters()))
        self._wait_idle()

    # --- the store ----------------------------------------------------------------------------------------------------
    async def _get_store(self) -> CountingStore:
        """The first question that needs the store opens it. A failure answers that question; the next one tries again."""
        opened = await self._shared.store(self._configure.location)
        if self._store is None:
            self._store = CountingStore(opened, self._clock.monotonic)
        return self._store

    def counters(self) -> TierCounters:
        store = self._store
        return TierCounters(
            operations=dict(self._asked),
            failures=dict(self._failed),
            store_calls=dict(store.calls) if store is not None else {},
            store_failures=dict(store.failures) if store is not None else {},
            store_ended=dict(store.ended) if store is not None else {},
            store_seconds=dict(store.seconds) if store is not None else {},
            bytes_downloaded=store.bytes_downloaded if store is not None else 0,
            bytes_uploaded=store.bytes_uploaded if store is not None else 0,
            retries=self._context.reads.repeated,
            most_bytes_in_flight=self._context.downloads.budget.most_held_bytes,
            peak_resident_bytes=peak_resident_bytes(),
        )

    async def close(self) -> None:
        """Ends all work of this session; stores stay open for the others."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        working = list(self._working.values())
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._shared.sessions -= 1
