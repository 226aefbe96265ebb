"""Starts and ends the processes of a broker: always a fresh interpreter (exec), never a fork that shares the broker's state."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple


class ChildProcess:
    """A process that ends once its socket is closed."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def process_id(self) -> int | None:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    async def ended(self, grace_s: float) -> None:
        """Waits until the process ends, and kills it after `grace_s` seconds. The caller has closed its socket."""
        await asyncio.to_thread(self._wait, grace_s)

    def _wait(self, grace_s: float) -> None:
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Started(NamedTuple):
    """A started process, and this process's end of their socket pair."""

    socket: socket.socket
    process: ChildProcess


async def start_child(module: str, arguments: Sequence[str] = ()) -> Started:
    """Starts `python -P -m <module> --socket <fd> <arguments>` with this process's environment and stderr. Raises OSError if
    the system cannot start a process now. Without -P Python searches the current directory first, and would run a folder there
    that has the name of one of our packages."""
    # Popen blocks until the child has executed the new interpreter, so it runs in a thread.
    return await asyncio.to_thread(_start, module, arguments)


def _start(module: str, arguments: Sequence[str]) -> Started:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    command = [sys.executable, "-P", "-m", module, "--socket", str(theirs.fileno()), *arguments]
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),))
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return Started(ours, ChildProcess(process))
