"""Measures reads of cold data: the node's history is only in versitygw, an S3 server on the same machine, not on local disk.

There are rows for
- a scan from offset 0 through the broker, beside a download of the same bytes without a broker, and the scan's GETs;
- the latency of a producer beside a scan, and beside unrelated processes that use the processors as much as the scan does;
- the memory that a hundred consumers with fetches of 50 MiB add.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import burner, load
from benchmarks.brokers import resident_megabytes
from benchmarks.burner import Burn, Used
from benchmarks.table import Table
from storage_tiers.cold.process.settings import TierSettings
from storage_tiers.cold.read.fetcher import MAX_SIDECAR_BYTES
from tests.support.clients import local_bytes
from tests.support.node import ROOT, Node
from tests.support.s3_servers import BUCKET, ENVIRONMENT, S3Server, versitygw_missing, versitygw_server

TOPIC = "cold"
#: Records of a batch, and bytes of each record's value.
BATCH = (64, 1000)
RATE = 1000
IDLE_S = 5.0
BURNERS_S = 5.0
CONSUMERS = 100
CONSUMER_BYTES = 50 << 20
LIMIT_S = 600.0
#: An answer of more bytes than this contains records.
LEAST_ANSWER = 1000
#: The number of answers with records that each consumer receives.
ANSWERS = 2


def measure(table: Table, directory: Path, *, rounds: int, gibibytes: float) -> None:
    """Adds the part's rows to the table. Raises LoadFailed if versitygw is not available."""
    problem = versitygw_missing()
    if problem is not None:
        raise load.LoadFailed(problem)
    wanted = int(gibibytes * (1 << 30))
    settings = {"log.local.retention.bytes": 1, "log.local.retention.ms": 1000}
    # Rounded up, because `_fill` writes only whole batches.
    wanted += -wanted % len(load.record_batch(*BATCH))
    with versitygw_server(directory / "s3") as server:
        url = f"s3://{BUCKET}/bench"
        flags = ("--s3-endpoint", server.endpoint)
        with Node(directory / "node", store=url, settings=settings, flags=flags, environment=ENVIRONMENT) as node:
            _fill(node, wanted)
            # Otherwise the kernel would write these gibibytes to the disk during the first rows.
            os.sync()
            for n in range(rounds):
                _one_round(table, node, server, url, directory, wanted, n)
            # The node is restarted, because memory left by the scans would hide the memory that the consumers add.
            node.stop()
            node.start()
            _many_consumers(table, node)
            node.stop()


def _one_round(table: Table, node: Node, server: S3Server, url: str, directory: Path, wanted: int, number: int) -> None:
    gets = _gets(node)
    alone = _finished(_reader(node))
    gets = _gets(node) - gets
    table.add("tidelog", "cold consume", "MB/s", alone)
    with tempfile.TemporaryDirectory(dir=directory) as files:
        direct = _finished(_module("benchmarks.ranged_gets", url, server.endpoint, files, str(wanted)))
    table.add("ranged GETs", "cold consume", "MB/s", direct)
    table.add("tidelog", "GETs per GiB scanned", "GETs", gets / (wanted / (1 << 30)))
    topic = f"beside-{number}"
    load.create_topic(node.kafka, topic)
    without = Used.by(node.pid)
    idle = load.latency(node.kafka, topic, RATE, IDLE_S)
    alone_share = (Used.by(node.pid).seconds - without.seconds) / IDLE_S
    scan = _reader(node)
    scanned = _Scanned((node.pid, *_children(node.pid), server.process.pid, scan.pid))
    beside: list[float] = []
    while scan.poll() is None:
        beside += load.latencies(node.kafka, topic, RATE, 1.0)
        scanned.look()
    rate = _finished(scan)
    beside.sort()
    with burner.burning(scanned.burns(less=alone_share)):
        burners = load.latency(node.kafka, topic, RATE, BURNERS_S)
    row = "produce p99 beside a cold scan"
    table.add("tidelog", row, "ms", beside[int(len(beside) * 0.99)])
    table.add("idle", row, "ms", idle["p99"])
    table.add("burners", row, "ms", burners["p99"])
    table.add("tidelog", "cold consume beside produce", "MB/s", rate)
    table.add("alone", "cold consume beside produce", "MB/s", alone)


class _Scanned:
    """The processor use of each process of a scan, from the object's creation until the last `look` at which all of them still
    ran."""

    def __init__(self, pids: Sequence[int]) -> None:
        """`pids` begins with the broker's."""
        self._began = self._looked_at = time.monotonic()
        self._first = {pid: Used.by(pid) for pid in pids}
        self._last = dict(self._first)

    def look(self) -> None:
        found = {pid: Used.by(pid) for pid in self._first}
        if all(used.seconds for used in found.values()):
            self._last, self._looked_at = found, time.monotonic()

    def burns(self, *, less: float) -> list[Burn]:
        """Returns the use of each process. The broker's is reduced by `less`, the share that it uses without a scan."""
        elapsed = self._looked_at - self._began
        if elapsed == 0:
            raise load.LoadFailed("the scan ended within a second, before its processor use was measured")
        broker = next(iter(self._first))
        return [
            Burn.between(used, self._last[pid], elapsed, less=less if pid == broker else 0.0)
            for pid, used in self._first.items()
        ]


def _fill(node: Node, wanted: int) -> None:
    """Produces the records, offloads all of them, and returns once the disk has none of them."""
    load.create_topic(node.kafka, TOPIC)
    load.produce_bytes(node.kafka, TOPIC, *BATCH, wanted)
    command = [sys.executable, "-m", "service.cli.main", "topic", "seal", TOPIC, "--wait", "--timeout", str(LIMIT_S)]
    subprocess.run([*command, "--bootstrap-server", node.kafka], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + LIMIT_S
    while local_bytes(node, TOPIC, 1) > 0:
        if time.monotonic() > deadline:
            raise load.LoadFailed(f"{node.partition_dir(TOPIC)} still has records after {LIMIT_S:g} s")
        time.sleep(0.1)


# --- a hundred consumers ----------------------------------------------------------------------------------------------
def _many_consumers(table: Table, node: Node) -> None:
    """Each consumer requests 50 MiB at an offset of its own until it has received records twice."""
    high_watermark = load.high_watermark(node.kafka, TOPIC)
    # Reads one chunk first, to start the tier process, which runs only while there is work.
    _served(node.kafka, high_watermark, consumers=1, answers=1, answer_bytes=1)
    before = resident_megabytes(node.pid)
    with _peak(node) as peak:
        received = _served(node.kafka, high_watermark)
    statistics = json.loads(node.get("/stats")[1])
    cache, tier = statistics["chunk_cache"], statistics["tier_process"]["counters"]
    budget = TierSettings().download_bytes_in_flight
    row = f"{CONSUMERS} cold consumers of 50 MiB"
    for part, used, limit in (
        ("downloads in flight", tier["most_bytes_in_flight"], budget),
        ("chunks on disk", cache["used_bytes"], cache["limit_bytes"]),
        # Besides the downloads in flight, only cached sidecars grow with the number of cold readers.
        ("memory they add", (peak["all"] - before) * 1e6, budget + MAX_SIDECAR_BYTES),
    ):
        table.add("tidelog", f"{row}: {part}", "MB", used / 1e6)
        table.add("budget", f"{row}: {part}", "MB", limit / 1e6)
    table.add("tidelog", f"{row}: peak resident memory", "MB", peak["all"])
    table.notes.append(
        f"{row}: {received / 1e6:,.0f} MB served; resident memory {before:.0f} MB before, {peak['all']:.0f} MB at the peak "
        f"({peak['node']:.0f} MB in the broker and {peak['tier']:.0f} MB in the tier process)."
    )


class _Consumer:
    """One of the hundred consumers: the number of answers left, and the bytes received so far."""

    def __init__(self, address: str, offset: int, answers: int, answer_bytes: int) -> None:
        self.connection = load.Connection(address)
        self.request = load.fetch_frame(TOPIC, offset, answer_bytes)
        self.left = answers
        self.total = self._size = self._got = 0
        self.connection.send(self.request)

    def readable(self, scratch: bytearray) -> None:
        sock = self.connection.socket
        if self._size == 0:
            self._size, self._got = 4 + struct.unpack(">i", sock.recv(4, socket.MSG_WAITALL))[0], 4
        self._got += sock.recv_into(scratch, min(len(scratch), self._size - self._got))
        if self._got < self._size:
            return
        self.total += self._size
        self.left -= self._size > LEAST_ANSWER
        self._size = 0
        if self.left:
            self.connection.send(self.request)


def _served(
    address: str,
    high_watermark: int,
    *,
    consumers: int = CONSUMERS,
    answers: int = ANSWERS,
    answer_bytes: int = CONSUMER_BYTES,
) -> int:
    """Runs the consumers; returns the bytes that all of them received."""
    poll, waiting, total = select.epoll(), dict[int, _Consumer](), 0
    for n in range(consumers):
        consumer = _Consumer(address, high_watermark * n // consumers, answers, answer_bytes)
        waiting[consumer.connection.socket.fileno()] = consumer
        poll.register(consumer.connection.socket.fileno(), select.EPOLLIN)
    deadline, scratch = time.monotonic() + LIMIT_S, bytearray(1 << 20)
    while waiting:
        if time.monotonic() > deadline:
            raise load.LoadFailed(f"{len(waiting)} of {consumers} cold consumers were not served in {LIMIT_S:g} s")
        for fd, _ in poll.poll(1):
            consumer = waiting[fd]
            consumer.readable(scratch)
            if not consumer.left:
                total += consumer.total
                poll.unregister(fd)
                consumer.connection.close()
                del waiting[fd]
    return total


@contextmanager
def _peak(node: Node) -> Iterator[dict[str, float]]:
    """Yields the peak resident memory while the block runs: of the broker, of the tier process, and of both together."""
    seen, ended = {"all": 0.0, "node": 0.0, "tier": 0.0}, threading.Event()

    def look() -> None:
        while not ended.wait(0.02):
            everything = resident_megabytes(node.pid)
            own = resident_megabytes(node.pid, children=False)
            for name, value in (("all", everything), ("node", own), ("tier", everything - own)):
                seen[name] = max(seen[name], value)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        ended.set()
        looking.join()


# --- processes --------------------------------------------------------------------------------------------------------
def _gets(node: Node) -> int:
    """The number of GETs of the running tier process; 0 if none runs."""
    counters: dict[str, Any] | None = json.loads(node.get("/stats")[1])["tier_process"]["counters"]
    return 0 if counters is None else int(counters["store_calls"].get("get", 0))


def _children(pid: int) -> list[int]:
    """The children of a process. The broker's child is its tier process, which keeps running for some time after a scan."""
    listed = (task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/children"))
    return [int(child) for children in listed for child in children.split()]


def _reader(node: Node) -> subprocess.Popen[str]:
    return _module("benchmarks.cold_reader", node.kafka, TOPIC)


def _module(*words: str) -> subprocess.Popen[str]:
    environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT), "PATH": ""}
    return subprocess.Popen(
        [sys.executable, "-m", *words], stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    )


def _finished(process: subprocess.Popen[str]) -> float:
    """Waits for the process to end; returns the figure that it printed."""
    printed, _ = process.communicate(timeout=LIMIT_S)
    if process.returncode != 0:
        raise load.LoadFailed(f"{process.args!r} ended with {process.returncode}")
    return float(printed)
