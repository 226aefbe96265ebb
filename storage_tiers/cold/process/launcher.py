"""Starts and ends a tier process: always a fresh interpreter (exec), never a fork that shares the broker's state."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from typing import NamedTuple, Protocol

from storage_tiers.errors import TierUnavailable


class TierHandle(Protocol):
    @property
    def process_id(self) -> int | None:
        """None if the tier runs inside this process."""

    async def ended(self, grace_s: float) -> None:
        """Waits for its end, and kills it after `grace_s` seconds. The caller has closed its socket."""


class Launched(NamedTuple):
    socket: socket.socket
    handle: TierHandle


class TierLauncher(Protocol):
    async def launch(self) -> Launched:
        """TierUnavailable if the system cannot start a process now."""


class ExecHandle:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def process_id(self) -> int | None:
        return self._process.pid

    async def ended(self, grace_s: float) -> None:
        await asyncio.to_thread(self._wait, grace_s)

    def _wait(self, grace_s: float) -> None:
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class ExecLauncher:
    """The launcher in production: `python -P -m storage_tiers.cold.process.main`, with this environment (credentials) and
    stderr, to which it logs in the form `log_format`. Without -P Python searches the current directory first, and would run a
    folder there that has the name of one of our packages."""

    def __init__(self, log_format: str = "text") -> None:
        self._log_format = log_format

    async def launch(self) -> Launched:
        # In a thread: Popen waits until the new interpreter has replaced the child.
        return await asyncio.to_thread(_start, self._log_format)


def _start(log_format: str) -> Launched:
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        raise _unstartable(error) from error
    command = [sys.executable, "-P", "-m", "storage_tiers.cold.process.main", "--socket", str(theirs.fileno())]
    command += ["--log-format", log_format]
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),))
    except OSError as error:
        ours.close()
        raise _unstartable(error) from error
    finally:
        theirs.close()
    return Launched(ours, ExecHandle(process))


def _unstartable(error: OSError) -> TierUnavailable:
    return TierUnavailable(f"the tier process cannot be started: {error.strerror}; retry")
