"""Starts a tier process, and waits for its end. `shared_launcher.py` is for brokers that share one."""

from __future__ import annotations

import socket
from typing import NamedTuple, Protocol

from storage_tiers.child_process import start_child
from storage_tiers.errors import TierUnavailable


class TierHandle(Protocol):
    """A started tier process, or a session in a shared one."""

    @property
    def process_id(self) -> int | None:
        """The pid of the tier process; None if the tier runs inside this process."""

    def kill(self) -> None:
        """Kills a process that hangs."""

    async def ended(self, grace_s: float) -> None:
        """Waits until the process, or this session in a shared process, has ended. After `grace_s` seconds a process that is
        not shared is killed; a shared one continues. The caller has closed its socket."""


class Launched(NamedTuple):
    """A started tier process, and the broker's end of its socket."""

    socket: socket.socket
    handle: TierHandle


class TierLauncher(Protocol):
    """Starts tier processes, or sessions in a shared one."""

    async def launch(self) -> Launched:
        """Starts a process or a session. Raises TierUnavailable if that is impossible now."""


class ExecLauncher:
    """Runs `storage_tiers.cold.process.main` for this broker alone, with this process's environment, which has the credentials.
    The process logs to this process's stderr, in the format `log_format`."""

    def __init__(self, log_format: str = "text") -> None:
        self._log_format = log_format

    async def launch(self) -> Launched:
        try:
            started = await start_child("storage_tiers.cold.process.main", ["--log-format", self._log_format])
        except OSError as error:
            raise TierUnavailable(f"the tier process cannot be started: {error.strerror}; retry") from error
        return Launched(started.socket, started.process)
