"""The cleaner process: reads and rewrites a broker's compacted segments, in an interpreter of its own.
`python -m storage_tiers.compaction.main`

The broker starts it with one inherited socket when a log is due, and closes the socket when none is. The process ends when the
socket closes. On Linux the kernel also kills it with the broker, because a process that is stopped, or starved on a busy
machine, sees a closed socket too late and would write beside a later broker on the same directory. The process ignores SIGINT:
a Ctrl-C in a terminal also reaches the broker, which closes the socket.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import BinaryIO

from storage_tiers import events
from storage_tiers.clock import Clock, SystemClock
from storage_tiers.compaction.batches import CleaningRules
from storage_tiers.compaction.protocol import (
    BEAT_S,
    CleanerAnswer,
    CleaningRequest,
    KeepAlive,
    KeysRead,
    SegmentNeeded,
    decode_path,
    decode_request,
    encode_answer,
)
from storage_tiers.compaction.rewriter import Rewriter, SourceSegment, offset_map
from storage_tiers.errors import LogError
from storage_tiers.files import OsFiles

#: Added to the broker's nice value: cleaning yields to serving.
NICENESS = 10
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Throttle:
    """Waits so that on average no more than `bytes_per_second` are spent from its creation on. 0 or less: unlimited."""

    def __init__(self, bytes_per_second: float, clock: Clock, wait: Callable[[float], object]) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._wait = wait
        self._began_ms = clock.steady_ms()
        self._spent = 0

    def spend(self, size: int) -> None:
        if self._rate <= 0:
            return
        self._spent += size
        ahead_s = self._spent / self._rate - (self._clock.steady_ms() - self._began_ms) / 1000
        if ahead_s > 0:
            self._wait(ahead_s)


class Heartbeats:
    """Calls `say` every BEAT_S during work and waits. `sleep` takes seconds."""

    def __init__(self, say: Callable[[], None], clock: Clock, sleep: Callable[[float], object] = time.sleep) -> None:
        self._say = say
        self._clock = clock
        self._sleep = sleep
        self._due_ms = clock.steady_ms() + _BEAT_MS

    def beat(self) -> None:
        now = self._clock.steady_ms()
        if now >= self._due_ms:
            self._due_ms = now + _BEAT_MS
            self._say()

    def wait(self, seconds: float) -> None:
        while seconds > 0:
            self._sleep(min(seconds, BEAT_S))
            self.beat()
            seconds -= BEAT_S


_BEAT_MS = int(BEAT_S * 1000)


def run(
    request: CleaningRequest, answer: Callable[[CleanerAnswer], None], next_line: Callable[[], bytes], clock: Clock
) -> None:
    """Runs one cleaning. `next_line` waits for the broker's reply to an answer. Each KeepAlive and the last answer get no
    reply."""
    cleaning = request.cleaning
    records = cleaning.segments[-1].end - cleaning.dirty_start
    keys = offset_map(records, request.map_bytes, request.map_load, request.key)
    heartbeats = Heartbeats(lambda: answer(KeepAlive()), clock)
    throttle = Throttle(request.bytes_per_second, clock, heartbeats.wait)

    def throttled(size: int) -> None:
        heartbeats.beat()
        throttle.spend(size)

    def fetch_segment(source: SourceSegment) -> str:
        answer(SegmentNeeded(source.base))
        return decode_path(next_line())

    rewriter = Rewriter(OsFiles(), cleaning, keys, throttled, fetch_segment if cleaning.is_remote else None)
    try:
        reached = rewriter.read_keys()
        answer(KeysRead(reached))
        next_line()
        rules = CleaningRules(
            request.now_ms, request.delete_retention_ms, reached - 1, request.drops_below, request.producers
        )
        for new in rewriter.rewrite(rules):
            if new is not None:
                answer(new)
                next_line()
    except LogError as error:
        answer(error)
    else:
        answer(rewriter.counted)


def serve(sock: socket.socket, clock: Clock) -> None:
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    reader, writer = sock.makefile("rb"), sock.makefile("wb")
    threading.Thread(target=_read, args=(reader, lines), daemon=True).start()

    def answer(said: CleanerAnswer) -> None:
        with contextlib.suppress(ConnectionError):  # a closed socket: the reading thread ends the process
            writer.write(encode_answer(said))
            writer.flush()

    while True:
        run(decode_request(lines.get()), answer, lines.get, clock)


def _read(reader: BinaryIO, lines: queue.SimpleQueue[bytes]) -> None:
    try:
        for line in reader:
            lines.put(line)
    finally:
        # Not sys.exit: the main thread may be in the middle of a file that a later broker's cleaner writes again.
        os._exit(0)


def end_with_parent() -> None:
    """Asks the kernel to kill this process when the thread that started it ends (Linux: prctl(2), PR_SET_PDEATHSIG): the
    broker's threads for blocking work end with the broker. Elsewhere the closed socket alone ends it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="storage_tiers.compaction.main", description="Started by a broker only.")
    parser.add_argument("--socket", type=int, required=True, metavar="FD", help="inherited socket to the broker")
    parser.add_argument("--log-format", choices=events.FORMS, default="text")
    parsed = parser.parse_args(arguments)
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    events.set_up(logging.WARNING, parsed.log_format)
    serve(socket.socket(fileno=parsed.socket), SystemClock())
    return 0


if __name__ == "__main__":
    sys.exit(main())
