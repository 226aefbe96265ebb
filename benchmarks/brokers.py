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

#: The module that a cleaner process runs.
CLEANER = b"storage_tiers.compaction.main"


class Broker(Protocol):
    """`spawn` returns at once, `kill` once the process is gone. All of a broker's starts are on one directory and port."""

    @property
    def address(self) -> str: ...

    @property
    def pid(self) -> int | None:
        """Of its process; None where it is not known."""

    def spawn(self) -> None: ...

    def kill(self) -> None: ...

    def stop(self) -> None: ...

    def resident_megabytes(self, *, children: bool = True) -> float | None:
        """Of the broker's process, and of those that it started unless they are left out."""

    def processor_seconds(self) -> float | None:
        """That it has used so far, with its children."""

    def stored_bytes(self) -> float | None:
        """That it has written to an object store so far; None where it has none."""

    def partition_dir(self, topic: str) -> Path | None:
        """Of partition 0; None where its files cannot be seen."""


class Tidelog:
    """`settings` are broker configs."""

    def __init__(self, directory: Path, settings: Mapping[str, str | int | bool] | None = None) -> None:
        self._node = Node(directory, store=f"file://{directory}/store", settings=settings)
        # Takes its ports before a start is timed.
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

    def kill(self) -> None:
        self._node.kill()

    def stop(self) -> None:
        if self._node.running:
            self._node.stop()

    def resident_megabytes(self, *, children: bool = True) -> float | None:
        return resident_megabytes(self._node.pid, children=children)

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


#: What kafka-server-start.sh and kafka-run-class.sh give to Java, but for their log of collections.
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
    """As Kafka comes: its scripts' heap of 1 GiB and their other options for Java. `settings` are broker configs."""

    def __init__(self, directory: Path, settings: Mapping[str, str | int | bool] | None = None) -> None:
        # Deletes rows' topics as soon as tidelog does: Kafka waits for a minute.
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
            with suppress(KafkaFailed):  # it was killed then
                self._node.stop()

    def resident_megabytes(self, *, children: bool = True) -> float | None:
        return resident_megabytes(self._node.pid, children=children)

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

    def processor_seconds(self) -> float | None:
        return None if self._process is None else processor_seconds(self._process.pid)

    def stored_bytes(self) -> float | None:
        return None

    def partition_dir(self, topic: str) -> Path | None:
        return None


class Rival:
    """A foreign broker that already runs and is left running."""

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

    def processor_seconds(self) -> float | None:
        return None

    def stored_bytes(self) -> float | None:
        return None

    def partition_dir(self, topic: str) -> Path | None:
        return None


def stored_bytes(node: Node) -> float:
    """That the node has written to its object store since it started."""
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
    """Of the process, and of its children unless they are left out, in 10^6 bytes."""
    try:
        own = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
        if not children:
            return own
        found = children_of(pid)
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # a process or thread that has just ended
    return own + sum(resident_megabytes(child) for child in found)


def children_of(pid: int) -> list[int]:
    """Each child stands with the thread that started it. FileNotFoundError, ProcessLookupError for a process that ended."""
    return [
        int(child) for listed in Path(f"/proc/{pid}/task").glob("*/children") for child in listed.read_text().split()
    ]
