"""The tier process that all brokers of a supervisor share. A broker that needs the process requests a session at
its listener, a socket that it has inherited (`storage_tiers/session_listener.py`), and the supervisor starts the process if
none runs. The process ends when the last broker has closed its session, which brokers do after an idle minute.

Invariants: at most one tier process runs. A process that fails is started again after a growing pause. The supervisor kills a
process that does not accept a waiting broker; a broker kills a process that does not answer in its session. The process ends
with the supervisor, even if the supervisor is killed.

Not promised: an orderly end. A process that still runs END_S after the end of the last broker is killed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Iterable

from service.observability.exposition import Exposition
from service.observability.process import resident_bytes_of
from service.settings.node_settings import environment_of_children
from service.supervisor.decisions import FIRST_PAUSE_S, LONGEST_PAUSE_S, STEADY_S
from storage_tiers import events
from storage_tiers.peak_memory import peak_resident_bytes
from storage_tiers.session_listener import make_listener, waiting_at

log = logging.getLogger(__name__)

#: Seconds between two checks of the listener, and the number of checks in a row after which a process that has not read the
#: waiting requests is killed: PATIENCE once it has read some, STARTING_PATIENCE before. A broker's heartbeats have the same
#: numbers.
LOOK_S = 1.0
PATIENCE, STARTING_PATIENCE = 8, 30
#: Seconds from the end of the last broker to SIGKILL.
END_S = 5.0


class SharedTier:
    """`keep_out` are inheritable descriptors that the tier process must not inherit."""

    def __init__(self, log_format: str, keep_out: Iterable[int]) -> None:
        self._log_format = log_format
        self._inside, self._outside = make_listener()
        self._outside.set_inheritable(True)
        self._keep_out = (*keep_out, self._outside.fileno())
        self._waiting: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._gone = asyncio.Event()
        self._gone.set()
        self._started_s = 0.0
        self._failures = self._deaf = 0
        self._has_opened = False
        #: The result of `waiting_at` at the last check of the listener: the first waiting bytes, and the number of all.
        self._waited = b"", 0
        self._peak_bytes = 0
        self.pid: int | None = None
        self.starts = self.lost = 0

    @property
    def listener(self) -> int:
        """The descriptor to which brokers send their requests, and which they inherit."""
        return self._outside.fileno()

    def watch(self) -> None:
        """Waits for a broker to request a session."""
        asyncio.get_running_loop().add_reader(self._inside, self._start)

    async def close(self) -> None:
        """Waits for the end of the process. All brokers must have ended."""
        self._stop_watching()
        try:
            async with asyncio.timeout(END_S):
                await self._gone.wait()
        except TimeoutError:
            self._kill("it did not end with the brokers")
            await self._gone.wait()
        self._stop_watching()  # `ended` has begun to watch again
        self._inside.close()
        self._outside.close()

    def ended(self, pid: int, code: int) -> None:
        """Called when the supervisor has reaped `pid`, which may be any process."""
        if pid != self.pid:
            return
        self.pid = None
        self._gone.set()
        if self._looking is not None:
            self._looking.cancel()
        if code == 0:
            self._failures = 0
            self.watch()
            return
        self.lost += 1
        again_in_s = self._pause()
        events.error(log, "supervisor.tier_process_ended", pid=pid, code=code, again_in_ms=round(again_in_s * 1000))

    def put_metrics(self, into: Exposition) -> None:
        resident = 0 if self.pid is None else resident_bytes_of(self.pid)
        if self.pid is not None:
            self._peak_bytes = peak_resident_bytes(self.pid) or self._peak_bytes
        into.put("tidelog_tier_process_running", int(self.pid is not None))
        into.put("tidelog_tier_process_resident_bytes", resident)
        into.put("tidelog_tier_process_peak_resident_bytes", self._peak_bytes)
        into.put("tidelog_tier_process_starts_total", self.starts)
        into.put("tidelog_tier_process_lost_total", self.lost)

    # --- the process --------------------------------------------------------------------------------------------------
    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._inside)
        # Descriptors that Python opens close on exec, but duplicates that posix_spawn makes stay open. A duplicate needs
        # another number than its original.
        listener = 3 if self._inside.fileno() != 3 else 4
        words = [sys.executable, "-P", "-m", "storage_tiers.cold.process.main", "--listener", str(listener)]
        words += ["--parent", str(os.getpid()), "--log-format", self._log_format]
        actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
        actions += [(os.POSIX_SPAWN_CLOSE, each) for each in self._keep_out]  # type: ignore[misc]
        actions += [(os.POSIX_SPAWN_DUP2, self._inside.fileno(), listener)]  # type: ignore[list-item]
        try:
            self.pid = os.posix_spawn(
                words[0], words, environment_of_children(), setpgroup=0, setsigmask=(), file_actions=actions
            )
        except OSError as error:
            self._pause()
            events.error(log, "supervisor.tier_process_not_started", error=error)
            return
        self._gone.clear()
        self.starts += 1
        self._started_s, self._deaf, self._has_opened, self._peak_bytes = loop.time(), 0, False, 0
        self._waited = b"", 0
        self._looking = loop.call_later(LOOK_S, self._look)
        events.info(log, "supervisor.tier_process_started", pid=self.pid)

    def _pause(self) -> float:
        """Delays the next start. Returns the delay in seconds."""
        loop = asyncio.get_running_loop()
        self._failures = 1 if loop.time() - self._started_s >= STEADY_S else self._failures + 1
        pause_s: float = min(FIRST_PAUSE_S * 2 ** min(self._failures - 1, 30), LONGEST_PAUSE_S)
        self._waiting = loop.call_later(pause_s, self.watch)
        return pause_s

    def _look(self) -> None:
        """Kills a process that has read none of the waiting requests between the last checks. Counts checks, not time,
        because a supervisor that was suspended must not kill its process."""
        (first, size), before = waiting_at(self._inside), self._waited
        self._waited = first, size
        # If the process has read, fewer bytes wait, or another request is the first. More bytes than before may then wait, too.
        if size and (not before[1] or (first == before[0] and size >= before[1])):
            self._deaf += 1
        else:
            self._deaf, self._has_opened = 0, True
        if self._deaf >= (PATIENCE if self._has_opened else STARTING_PATIENCE):
            self._kill("it lets no broker in")
        self._looking = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _kill(self, reason: str) -> None:
        """Kills the process. Its pid stays valid until the supervisor has reaped it and called `ended`."""
        if self.pid is not None:
            events.warning(log, "supervisor.tier_process_killed", pid=self.pid, reason=reason)
            os.kill(self.pid, signal.SIGKILL)

    def _stop_watching(self) -> None:
        asyncio.get_running_loop().remove_reader(self._inside)
        if self._waiting is not None:
            self._waiting.cancel()
