"""Sets the wall clock of a Python process ahead or back while it runs, if STEPPED_CLOCK names a file (`stepped_clock.py`).

Python imports this module before any other. A tier process signs its requests to the store with the stepped time, as on a
machine whose clock is wrong. The monotonic clocks do not change.
"""

from __future__ import annotations

import datetime
import mmap
import os
import struct
import sys
import time
from datetime import datetime as plain
from typing import Any


def _step(path: str) -> None:
    with open(path, "rb") as file:
        shared = mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)
    real, real_ns = time.time, time.time_ns

    def by_ns() -> int:
        (found,) = struct.unpack_from("<q", shared)
        return int(found)

    class Kind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, plain)

    class Stepped(plain, metaclass=Kind):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return plain.now(tz) + datetime.timedelta(microseconds=by_ns() // 1000)

        @classmethod
        def utcnow(cls) -> Any:
            return plain.now(datetime.UTC).replace(tzinfo=None) + datetime.timedelta(microseconds=by_ns() // 1000)

    time.time = lambda: real() + by_ns() / 1e9
    time.time_ns = lambda: real_ns() + by_ns()
    if any(
        "cold.process" in word for word in sys.orig_argv
    ):  # other processes have subclasses of datetime, which a replacement would break
        datetime.datetime = Stepped  # type: ignore[misc]


if "STEPPED_CLOCK" in os.environ:
    _step(os.environ["STEPPED_CLOCK"])
