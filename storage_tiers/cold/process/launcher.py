"""Starts a tier process, and waits for its end."""

from __future__ import annotations

import socket
from typing import NamedTuple, Protocol

from storage_tiers.child_process import start_child
from storage_tiers.errors import TierUnavailable


class TierHandle(Protocol):
    """A tier that was started: a process, or in tests a thread."""

    @property
    def process_id(self) -> int | None:
        """The pid of the tier process; None if the tier runs inside this process."""

    async def ended(self, grace_s: float) -> None:
        """Waits for its end, and kills it after `grace_s` seconds. The caller has closed its socket."""


class Launched(NamedTuple):
    """A tier that was started, and the broker's end of its socket."""

    socket: socket.socket
    handle: TierHandle


class TierLauncher(Protocol):
    """Starts tiers."""

    async def launch(self) -> Launched:
        """Starts a tier. TierUnavailable if the system cannot start a process now."""


class ExecLauncher:
    """The launcher in production: `storage_tiers.cold.process.main`, with this environment (credentials) and stderr, where it
    logs in the form `log_format`."""

    def __init__(self, log_format: str = "text") -> None:
        self._log_format = log_format

    async def launch(self) -> Launched:
        try:
            started = await start_child("storage_tiers.cold.process.main", ["--log-format", self._log_format])
        except OSError as error:
            raise TierUnavailable(f"the tier process cannot be started: {error.strerror}; retry") from error
        return Launched(started.socket, started.process)
