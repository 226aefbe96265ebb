"""Produces at a steady rate in its own process. A thread would take the interpreter lock from the measuring client, and that
delay would look like a slow broker.

python -m benchmarks.background HOST:PORT TOPIC BYTES_A_SECOND      prints `up` once a batch is accepted; ends when its
                                                                    standard input is closed
"""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks import load

#: Records of a batch, and bytes of each record's value.
BATCH = (256, 1000)
#: Seconds that the process may take to end, including its last request.
END_S = 60.0


@contextmanager
def produced(address: str, topic: str, bytes_a_second: int) -> Iterator[None]:
    """Produces while the block runs. Raises LoadFailed if producing fails."""
    words = [sys.executable, "-m", "benchmarks.background", address, topic, str(bytes_a_second)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "up\n":
            raise load.LoadFailed(f"{address}: producing to {topic} in the background did not start")
        yield
        process.stdin.close()
        if process.wait(END_S) != 0:
            raise load.LoadFailed(f"{address}: producing to {topic} in the background failed")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def main(address: str, topic: str, bytes_a_second: int) -> None:
    batch = load.record_batch(*BATCH)
    request, c = load.produce_frame(topic, batch), load.Connection(address)
    load.accepted(c, request, topic)
    print("up", flush=True)
    began, sent = time.perf_counter(), 0
    while not select.select([sys.stdin], [], [], max(0.0, began + sent / bytes_a_second - time.perf_counter()))[0]:
        c.send(request)
        load.check_produced(c.receive(), topic)
        sent += len(batch)
    c.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
