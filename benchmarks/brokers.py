"""The brokers of a run, with one interface: an address, a process to be measured, a start that can be timed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from benchmarks.load import LoadFailed
from benchmarks.processor import processor_seconds
from tests.support.apache_kafka import ApacheKafka, KafkaFailed
from tests.support.node import Node
from tests.support.ports import consecutive_ports

#: The module that a cleaner process runs.
CLEANER = b"storage_tiers.compaction.main"


class Broker(Protocol):
    """`spawn` returns at once; `kill` returns when the process is gone. Every start of a broker uses the same directory and
    port."""

    @property
    def address(self) -> str: ...

    @property
    def pid(self) -> int | None:
        """The id of the broker's process; None if it is unknown."""

    def spawn(self) -> None: ...

    def kill(self) -> None: ...

    def stop(self) -> None: ...

    def resident_megabytes(self, *, children: bool = True) -> float | None:
        """Resident memory of the broker's process and, with `children`, of its descendants."""

    def proportional_megabytes(self) -> float | None:
        """Memory of the broker and its descendants. A page that n processes share counts as 1/n for each (PSS)."""

    def processor_seconds(self) -> float | None:
        """Processor time that the broker and its descendants have used so far."""

    def stored_bytes(self) -> float | None:
        """Bytes that the broker has written to an object store so far; None without a store."""

    def partition_dir(self, topic: str) -> Path | None:
        """The directory of the topic's partition 0; None if this process cannot read the broker's files."""


class Tidelog:
    """`settings` are broker configs. `brokers` is the number of broker processes; with more than one, a supervisor runs
    them."""

    def __init__(
        self, directory: Path, settings: Mapping[str, str | int | bool] | None = None, brokers: int = 1
    ) -> None:
        flags = ["--brokers", str(brokers)] if brokers > 1 else []
        self._node = Node(directory, store=f"file://{directory}/store", settings=settings, flags=flags)
        if brokers > 1:
            self._node.kafka, self._node.grpc, self._node.http = (
                f"127.0.0.1:{port}" for port in consecutive_ports(3 + 3 * brokers)[:3]
            )
        # The node chooses its ports here, before a start is timed.
        self._node.start()
        self._node.stop()

    @property
    def address(self) -> str:
        return self._node.kafka

    @property
    def pid(self) -> int | None:
        return self._node.pid

    def spawn(self) -> None:
        self._node.spawn()

    def wait_ready(self) -> None:
        """Returns once every broker serves. The bootstrap port accepts connections earlier."""
        self._node.wait_ready()

    def kill(self) -> None:
        self._node.kill()

    def stop(self) -> None:
        if self._node.running:
            self._node.stop()

    def resident_megabytes(self, *, children: bool = True) -> float | None:
        return resident_megabytes(self._node.pid, children=children)

    def proportional_megabytes(self) -> float | None:
        return proportional_megabytes(self._node.pid)

    def processor_seconds(self) -> float | None:
        return processor_seconds(self._node.pid)

    def stored_bytes(self) -> float | None:
        return stored_bytes(self._node)

    def partition_dir(self, topic: str) -> Path | None:
        return self._node.partition_dir(topic)

    def cleaner_megabytes(self) -> float:
        """Resident memory of the node's cleaner process, 0 without one."""
        return sum(
            resident_megabytes(child, children=False) for child in children_of(self._node.pid) if _is_cleaner(child)
        )


def _is_cleaner(pid: int) -> bool:
    try:
        return CLEANER in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


#: The options that kafka-server-start.sh and kafka-run-class.sh give to Java, except those for the garbage collection log.
AS_SHIPPED = (
    "-Xms1g",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)


class Kafka:
    """Kafka as shipped: a heap of 1 GiB and the other Java options of its scripts. `settings` are broker configs."""

    def __init__(self, directory: Path, settings: Mapping[str, str | int | bool] | None = None) -> None:
        # With this setting Kafka deletes the files of a row's topic as soon as tidelog does. The default is a minute.
        deletion = {"log.segment.delete.delay.ms": 1000}
        self._node = ApacheKafka(directory, settings={**deletion, **(settings or {})}, heap="1g", jvm=AS_SHIPPED)

    @property
    def address(self) -> str:
        return self._node.address

    @property
    def pid(self) -> int | None:
        return self._node.pid

    def spawn(self) -> None:
        self._node.spawn()

    def kill(self) -> None:
        self._node.kill()

    def stop(self) -> None:
        if self._node.running:
            with suppress(KafkaFailed):  # the broker was killed before
                self._node.stop()

    def resident_megabytes(self, *, children: bool = True) -> float | None:
        return resident_megabytes(self._node.pid, children=children)

    def proportional_megabytes(self) -> float | None:
        return proportional_megabytes(self._node.pid)

    def processor_seconds(self) -> float | None:
        return processor_seconds(self._node.pid)

    def stored_bytes(self) -> float | None:
        return None

    def partition_dir(self, topic: str) -> Path | None:
        return self._node.data_dir / f"{topic}-0"


class Floor:
    """The minimal broker of `floor`, in its own process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self._port = int(taken.getsockname()[1])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def spawn(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.floor", str(self._port), str(self._directory)]
        )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        self.kill()

    def resident_megabytes(self, *, children: bool = True) -> float | None:
        return None if self._process is None else resident_megabytes(self._process.pid, children=children)

    def proportional_megabytes(self) -> float | None:
        return None if self._process is None else proportional_megabytes(self._process.pid)

    def processor_seconds(self) -> float | None:
        return None if self._process is None else processor_seconds(self._process.pid)

    def stored_bytes(self) -> float | None:
        return None

    def partition_dir(self, topic: str) -> Path | None:
        return None


class Rival:
    """A broker that was started outside of this run, and that this run does not stop."""

    def __init__(self, address: str) -> None:
        self._address = address

    @property
    def address(self) -> str:
        return self._address

    @property
    def pid(self) -> int | None:
        return None

    def spawn(self) -> None: ...

    def kill(self) -> None: ...

    def stop(self) -> None: ...

    def resident_megabytes(self, *, children: bool = True) -> float | None:
        return None

    def proportional_megabytes(self) -> float | None:
        return None

    def processor_seconds(self) -> float | None:
        return None

    def stored_bytes(self) -> float | None:
        return None

    def partition_dir(self, topic: str) -> Path | None:
        return None


def stored_bytes(node: Node) -> float:
    """Bytes that the node has written to its object store since it started."""
    name, (_, text) = "tidelog_store_uploaded_bytes_total ", node.get("/metrics")
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(name))


def wait_for_port(address: str, seconds: float = 180) -> None:
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host, int(port)), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise LoadFailed(f"nothing listens on {address} after {seconds} s")


def resident_megabytes(pid: int, *, children: bool = True) -> float:
    """Resident memory, in 10^6 bytes, of the process and, with `children`, of its descendants."""
    try:
        own = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
        if not children:
            return own
        found = children_of(pid)
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # a process or thread that has just ended
    return own + sum(resident_megabytes(child) for child in found)


def proportional_megabytes(pid: int) -> float:
    """Memory, in 10^6 bytes, of the process and its descendants. A page that n processes share counts as 1/n for each (PSS)."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        own = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6
        return own + sum(proportional_megabytes(child) for child in children_of(pid))
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # a process that has just ended


def children_of(pid: int) -> list[int]:
    """The ids of a process's children. Reads all threads, because /proc lists a child with the thread that started it. Raises
    FileNotFoundError or ProcessLookupError if the process has ended."""
    return [
        int(child) for listed in Path(f"/proc/{pid}/task").glob("*/children") for child in listed.read_text().split()
    ]
