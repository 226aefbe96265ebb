"""The part `stalls`: how long each API's largest request delays other requests, and how much memory it leaves in use.

The node has thousands of topics. A connection sends one large request and waits for its response, or until the node closes the
connection. Meanwhile the probe, another process, sends small Produce requests one after another. The first row of a request
shows the probe's longest wait. The machine causes waits, too. So a second row shows the most processor time that the node's
event loop used during any one wait, which need not be the longest one. The first two rows of the table are those of an idle
node. The probe has a real-time priority where the system allows it. Without that priority the probe might wait for a core
although its answer has arrived, and the loop's work in that time would count as the cause.

A repeatable request is then sent again until it has been sent TIMES times, or has taken longer than LONG_S. The memory left is
the growth of the node's memory since the first answer.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks import load
from benchmarks.brokers import resident_megabytes
from benchmarks.largest import Case, cases
from benchmarks.processor import LoopTime
from benchmarks.table import MOST_IN_A_STALL, Table
from tests.kafka_gateway.kio_frames import request_frame, response
from tests.support.node import Node

TOPICS = 5_000
#: The most times that a repeatable request is sent before the memory left is measured.
TIMES = 6
#: Seconds after which the client stops waiting for an answer. The rows then cover the time until then.
PATIENCE_S = 180.0
#: Seconds to wait until the node has returned freed heap to the system, as it does every few seconds.
SETTLE_S = 12.0
#: A request that takes longer than this, in seconds, is not sent again.
LONG_S = 10.0
#: Seconds of the measurement on the idle node, long enough to contain the probe's own scheduling delays.
_IDLE_S = 3.0


def measure(table: Table, directory: Path, *, only: str = "") -> None:
    with Node(directory, settings={"auto.create.topics.enable": False}) as node:
        topics = [f"topic-{n:05d}" for n in range(TOPICS)]
        load.create_topic(node.kafka, "small")
        if not only:
            _row(table, node, Case("idle", "", b""))
        most = 0.0
        for case in _setup(topics):
            if not only:
                _row(table, node, case)
            else:
                _exchange(node, case.request)
        for case in cases(topics):
            if only in case.name:
                most = max(most, _row(table, node, case))
    table.add("tidelog", MOST_IN_A_STALL, "ms", most)


def _setup(topics: Sequence[str]) -> Iterator[Case]:
    """Yields the requests that create the topics, each of a size that an administrator might send."""
    for at in range(0, len(topics), 1_000):
        rows = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in topics[at : at + 1_000]]
        yield Case("CreateTopics, 1,000 topics", "create_topics", request_frame("create_topics", 7, topics=rows))


def _row(table: Table, node: Node, case: Case) -> float:
    """Adds a request's rows; returns the most processor time of the node's loop in one wait, in ms."""
    assert node.process is not None
    with Probe(node.kafka, node.process.pid) as probe:
        if case.request:
            said = _exchange(node, case.request)
        else:
            time.sleep(_IDLE_S)
            said = ""
        longest, processor = probe.result()
    table.add("tidelog", f"{case.name}: longest stall", "ms", longest)
    table.add("tidelog", f"{case.name}: processor time in a stall", "ms", processor)
    print(f"{case.name}: {longest:.1f} ms, processor {processor:.1f} ms; {said}", file=sys.stderr, flush=True)
    if case.is_repeatable:
        left = _left(node, case)
        table.add("tidelog", f"{case.name}: memory left by {TIMES}", "MB", left)
        print(f"  memory left: {left:.0f} MB", file=sys.stderr, flush=True)
    return processor


def _left(node: Node, case: Case) -> float:
    """Sends the request again, up to TIMES in all. Returns the growth of the node's memory since the first answer, in MB."""
    assert node.process is not None
    pid = node.process.pid
    before = resident_megabytes(pid) or 0.0
    for _ in range(TIMES - 1):
        began = time.monotonic()
        _exchange(node, case.request)
        if time.monotonic() - began > LONG_S:
            break
    deadline = time.monotonic() + SETTLE_S
    left = (resident_megabytes(pid) or 0.0) - before
    while left > 8 and time.monotonic() < deadline:
        time.sleep(0.5)
        left = min(left, (resident_megabytes(pid) or 0.0) - before)
    return max(0.0, left)


def _exchange(node: Node, request: bytes) -> str:
    """Sends the request and reads the response as fast as it arrives; returns a description of the response."""
    host, port = node.kafka.rsplit(":", 1)
    began = time.monotonic()
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as sock:
        sock.settimeout(PATIENCE_S)
        try:
            sock.sendall(request)
            head = _received(sock, 4)
            (size,) = struct.unpack(">i", head)
            _received(sock, size)
        except (ConnectionError, EOFError):
            return f"closed after {time.monotonic() - began:.2f} s"
        except TimeoutError:
            return f"no answer in {PATIENCE_S:.0f} s"
    return f"{size} bytes after {time.monotonic() - began:.2f} s"


def _received(sock: socket.socket, size: int) -> bytes:
    got, first = 0, b""
    while got < size:
        some = sock.recv(min(1 << 20, size - got))
        if not some:
            raise EOFError
        first = first or some
        got += len(some)
    return first if len(first) == size else first[:4]


class Probe:
    """A process that sends one small Produce request after another. `result` ends it."""

    def __init__(self, address: str, pid: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.stalls", address, str(pid)], stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # written when the probe has begun

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def result(self) -> tuple[float, float]:
        """Ends the probe. Returns the longest wait, and the most processor time of the node's loop in one wait, in ms."""
        self._process.send_signal(signal.SIGTERM)
        out, _ = self._process.communicate(timeout=PATIENCE_S)
        longest, processor = json.loads(out)
        return float(longest), float(processor)


def _probe(address: str, pid: int) -> None:
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    connection = load.Connection(address)
    request = load.produce_frame("small", load.record_batch(1, 100))
    load.base_offset(_asked(connection, request))
    for _ in range(20):
        _asked(connection, request)
    print("begun", flush=True)
    spent = LoopTime(pid)
    longest = processor = 0.0
    while not ended:
        before, began = spent.seconds(), time.perf_counter()
        connection.send(request)
        connection.receive()
        longest = max(longest, time.perf_counter() - began)
        processor = max(processor, spent.seconds() - before)
        select.select([], [], [], 0.0005)
    print(json.dumps([longest * 1000, processor * 1000]), flush=True)


def _asked(connection: load.Connection, request: bytes) -> bytes:
    connection.send(request)
    return connection.receive()


def parsed(case: Case, version: int, body: bytes) -> Any:
    return response(case.schema, version, body)


if __name__ == "__main__":
    _probe(sys.argv[1], int(sys.argv[2]))
