"""The tier process behind its socket: runs questions concurrently, answers them, and ends when the socket closes.

A thin shell: `table.py` has the function for each question, TierSettings the bounds. Every question is answered exactly once,
unless it is forgotten or the socket closes. Any exception other than a LogError is a bug: it is logged with its traceback and
answered as an error, and the process continues.

Not promised: that work under way is finished when the socket closes. Offloads and commits may be interrupted at any point.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from storage_tiers import events
from storage_tiers.clock import Clock, Rng
from storage_tiers.cold.process.context import TierContext
from storage_tiers.cold.process.operations import Stats, TierCounters
from storage_tiers.cold.process.protocol import Ask, Configure, Forget, Idle, Reply, Unknown, encode, read_frame
from storage_tiers.cold.process.question import Question
from storage_tiers.cold.process.table import perform
from storage_tiers.cold.process.value_json import ProtocolError, to_json
from storage_tiers.cold.stores.counting import CountingStore
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.port import ObjectStore
from storage_tiers.errors import LogError, TierUnavailable

log = logging.getLogger(__name__)

OpenStore = Callable[[StoreLocation], Awaitable[ObjectStore]]
#: Seconds for connections to the store to close once the socket to the broker is gone.
CLOSE_S = 2.0


class TierServer:
    """Answers one broker over one socket. `run` ends when the socket closes or `stop` is called."""

    def __init__(self, open_store: OpenStore, clock: Clock, rng: Rng) -> None:
        self._open_store = open_store
        self._clock = clock
        self._rng = rng
        self._stopped = asyncio.Event()

    async def run(self, sock: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        try:
            first = await read_frame(reader)
            if first is None:
                return
            if not isinstance(first, Configure):
                raise ProtocolError(f"the first frame must be Configure, not {type(first).__name__}")
            session = TierSession(first, writer, self._open_store, self._clock, self._rng)
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

    def stop(self) -> None:
        self._stopped.set()


def _peak_resident_bytes() -> int:
    """The peak memory of this process; 0 without /proc. `ru_maxrss` would include the broker's, which called exec."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return 0


class TierSession:
    """The work under way for one configured socket."""

    def __init__(
        self, configure: Configure, writer: asyncio.StreamWriter, open_store: OpenStore, clock: Clock, rng: Rng
    ) -> None:
        settings = configure.settings
        self._configure = configure
        self._settings = settings
        self._writer = writer
        self._clock = clock
        self._open_store = open_store
        self._opening = asyncio.Lock()
        self._store: CountingStore | None = None
        self._context = TierContext(
            self._get_store, settings, configure.cache_directory, clock, rng, counters=self.counters
        )
        self._working: dict[int, asyncio.Task[None]] = {}
        self._asked: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._wait_idle()

    # --- frames -------------------------------------------------------------------------------------------------------
    async def listen(self, reader: asyncio.StreamReader) -> None:
        """Reads frames until the socket closes. ProtocolError if the broker breaks the protocol."""
        while (frame := await read_frame(reader)) is not None:
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
        # The write is not awaited: unsent data is bounded by the number of questions that the broker may have open.
        self._writer.write(encode(frame))

    # --- idleness -----------------------------------------------------------------------------------------------------
    def _worked(self, number: int) -> None:
        del self._working[number]
        if not self._working:
            self._wait_idle()

    def _wait_idle(self) -> None:
        self._idle_timer = asyncio.get_running_loop().call_later(self._settings.idle_s, self._say_idle)

    def _say_idle(self) -> None:
        self._send(Idle(self.counters()))
        self._wait_idle()

    # --- the store ----------------------------------------------------------------------------------------------------
    async def _get_store(self) -> CountingStore:
        """The first question that needs the store opens it. A failure answers that question; the next one tries again."""
        async with self._opening:
            if self._store is None:
                opened = await self._open_store(self._configure.location)
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
            peak_resident_bytes=_peak_resident_bytes(),
        )

    async def close(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        working = list(self._working.values())
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._store is not None:
            try:
                async with asyncio.timeout(CLOSE_S):
                    await self._store.close()
            except (LogError, TimeoutError) as error:
                events.warning(log, "store.not_closed", error=error)
