"""A broker's sessions in the tier process that the brokers of a machine share."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket

from storage_tiers.cold.process.launcher import Launched
from storage_tiers.errors import TierUnavailable
from storage_tiers.session_listener import request_session


class SharedLauncher:
    """Opens sessions in the tier process of `listener`, an inherited descriptor. The supervisor starts that process."""

    def __init__(self, listener: int) -> None:
        self._listener = socket.socket(fileno=listener)

    async def launch(self) -> Launched:
        """Returns before the process has answered. Raises TierUnavailable if too many requests wait."""
        with contextlib.ExitStack() as kept, contextlib.ExitStack() as given:
            try:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
                kept.enter_context(ours)
                given.enter_context(theirs)
                near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
                kept.enter_context(near)
                given.enter_context(far)
                request_session(self._listener, theirs, far)
            except OSError as error:
                raise TierUnavailable(f"the tier process cannot be reached: {error.strerror}; retry") from error
            kept.pop_all()
        return Launched(ours, SessionHandle(near))


class SessionHandle:
    """One broker's session in the shared process."""

    def __init__(self, lifeline: socket.socket) -> None:
        lifeline.setblocking(False)
        self._lifeline = lifeline
        self._process_id: int | None = None
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    @property
    def process_id(self) -> int | None:
        """None before the process has accepted the session."""
        return self._process_id

    def kill(self) -> None:
        """Kills the process, and with it every session; the supervisor starts another. If the process has never accepted
        the session, the supervisor, which watches the listener, kills it."""
        # The open lifeline shows that the process lives, so no other process can have its id.
        if self._process_id is not None and not self._watching.done():
            os.kill(self._process_id, signal.SIGKILL)

    async def ended(self, grace_s: float) -> None:
        """Waits for the session's end, at most `grace_s` seconds: the process continues for the other brokers."""
        await asyncio.wait((self._watching,), timeout=grace_s)
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        with self._lifeline:
            try:
                while written := await loop.sock_recv(self._lifeline, 64):
                    self._process_id = int(written)
            except OSError:
                pass
