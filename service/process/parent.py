"""Ends a process when its parent ends, for any reason.

Linux kills it (PR_SET_PDEATHSIG of prctl(2)). A pipe to the parent would not suffice: a hanging or stopped process does not
notice the end of the pipe, keeps its directory locked and its ports bound, and blocks the next start. A log survives SIGKILL as
it survives any crash of the process.

Not promised: anything on systems other than Linux.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Arranges that this process is killed when the process `parent` ends; immediately if it has ended already."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel knew
        os.kill(os.getpid(), signal.SIGKILL)
