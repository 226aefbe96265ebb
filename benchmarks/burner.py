"""Uses a share of a processor in bursts: shows the effect on a producer of processes unrelated to its broker.

python -m benchmarks.burner SHARE BURST_MS        until it is killed
"""

from __future__ import annotations

import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

#: Bytes that are summed between two looks at the clock: 10 µs.
PIECE = bytes(16 << 10)
#: Minimum share of a core, and ms, that get a process.
LEAST_SHARE = 0.005
LEAST_BURST_MS = 0.05


@dataclass(frozen=True, slots=True)
class Used:
    """By a process so far: processor seconds, and how often it went to sleep by itself."""

    seconds: float
    sleeps: int

    @classmethod
    def by(cls, pid: int) -> Used:
        """With all threads that run, without children. Nothing where it has ended."""
        seconds, sleeps = 0.0, 0
        for task in Path(f"/proc/{pid}/task").glob("*"):
            try:
                seconds += int((task / "schedstat").read_text().split()[0]) / 1e9
                status = (task / "status").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue  # a thread that has just ended
            sleeps += int(status.split("\nvoluntary_ctxt_switches:", 1)[1].split(None, 1)[0])
        return cls(seconds, sleeps)


@dataclass(frozen=True, slots=True)
class Burn:
    """A share of a core, in bursts of so many ms."""

    share: float
    burst_ms: float

    @classmethod
    def between(cls, before: Used, after: Used, elapsed_s: float, *, less: float = 0.0) -> Burn:
        """What a process used in that time, without a share of `less` that it uses anyway."""
        seconds, sleeps = after.seconds - before.seconds, after.sleeps - before.sleeps
        return cls(max(0.0, seconds / elapsed_s - less), max(LEAST_BURST_MS, seconds / max(1, sleeps) * 1e3))


@contextmanager
def burning(burns: Sequence[Burn]) -> Iterator[None]:
    """A process for each while the block runs."""
    started = [
        subprocess.Popen([sys.executable, "-m", "benchmarks.burner", str(burn.share), str(burn.burst_ms)])
        for burn in burns
        if burn.share >= LEAST_SHARE
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def main(share: float, burst_ms: float) -> None:
    began, used = time.monotonic(), time.process_time()
    while True:
        due = began + (time.process_time() - used) / share
        time.sleep(max(0.0, due - time.monotonic()))
        until = time.process_time() + burst_ms / 1e3
        while time.process_time() < until:
            zlib.crc32(PIECE)


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]))
