"""Ends a process when its parent ends, for any reason.

Linux kills the process (PR_SET_PDEATHSIG of prctl(2)). A pipe to the parent would not suffice: a hanging or stopped process
does not notice the end of the pipe, keeps its directory locked and its ports bound, and blocks the next start. A log survives
SIGKILL as it survives any crash of the process.

On systems without prctl(2) a process outlives its parent, unless the parent has ended before `end_with`.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Arranges that this process is killed when its parent, the process `parent`, ends. Kills it immediately if the parent has
    ended."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the call
        os.kill(os.getpid(), signal.SIGKILL)
