"""Uses a share of a processor in bursts, to show how processes unrelated to the broker affect a producer.

python -m benchmarks.burner SHARE BURST_MS        runs until it is killed
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

#: The data whose CRC-32 is computed between two readings of the clock, in about 10 µs.
PIECE = bytes(16 << 10)
#: The smallest share of a core for which a process is started.
LEAST_SHARE = 0.005
#: The shortest burst, in ms.
LEAST_BURST_MS = 0.05


@dataclass(frozen=True, slots=True)
class Used:
    """A process's use of the processor so far: seconds, and the number of voluntary context switches."""

    seconds: float
    sleeps: int

    @classmethod
    def by(cls, pid: int) -> Used:
        """Adds up the process's living threads, without its child processes. Both figures are 0 if the process has ended."""
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
    """A share of a core, 0 to 1, used in bursts of `burst_ms`."""

    share: float
    burst_ms: float

    @classmethod
    def between(cls, before: Used, after: Used, elapsed_s: float, *, less: float = 0.0) -> Burn:
        """The use by one process during `elapsed_s`, reduced by `less`, the share that the process uses without the measured
        load."""
        seconds, sleeps = after.seconds - before.seconds, after.sleeps - before.sleeps
        return cls(max(0.0, seconds / elapsed_s - less), max(LEAST_BURST_MS, seconds / max(1, sleeps) * 1e3))


@contextmanager
def burning(burns: Sequence[Burn]) -> Iterator[None]:
    """Runs one process for each burn of at least LEAST_SHARE, until the block ends."""
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
