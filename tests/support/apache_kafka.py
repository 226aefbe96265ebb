"""Apache Kafka itself: one KRaft node on loopback, from the jars of `kafka_jars`, to compare tidelog with.

    with ApacheKafka(directory) as kafka:             # formats an empty node in `directory`, starts it, waits until it answers
        Producer({"bootstrap.servers": kafka.address})
        kafka.kill()                                  # SIGKILL, as a crash
        kafka.start()                                 # the same directory, the same port

As a command it runs in the foreground until SIGINT or SIGTERM:

    python -m tests.support.apache_kafka DIRECTORY [--port 19092] [--heap 1g] [KEY=VALUE ...]

Needs Java 17. The broker's output goes to `output_path`; a failed start shows its end. The process is always ended by its
id. The node listens in plain text without authentication, and holds only what was produced to it.
"""

from __future__ import annotations

import argparse
import atexit
import base64
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.support import kafka_jars
from tests.support.children import start_child
from tests.support.ports import free_port

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
NODE_ID = 1
_PAUSE_S = 0.05
_STORAGE_TOOL = "kafka.tools.StorageTool"
_BROKER = "kafka.Kafka"


class KafkaFailed(AssertionError):
    """The broker ended, or did not answer in time. The message says which, with the end of the broker's output."""


class ApacheKafka:
    """`settings` are broker configs, added to the few that a single node needs; `heap` is Java's -Xmx, `jvm` further options of
    the broker's Java. `port` 0 picks a free port. `classes` extend its class path, for plugins that the settings name. An empty
    `cluster_id` means a new one."""

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, str | int | bool] | None = None,
        port: int = 0,
        heap: str = "1g",
        jvm: Sequence[str] = (),
        classes: Sequence[Path] = (),
        cluster_id: str = "",
    ) -> None:
        self.directory = directory
        self.data_dir = directory / "data"
        self.output_path = directory / "kafka.output"
        self.settings = dict(settings or {})
        self.heap = heap
        self.jvm = list(jvm)
        self.classes = list(classes)
        self.cluster_id = cluster_id or self.new_cluster_id()
        self.process: subprocess.Popen[bytes] | None = None
        self._port, self._controller_port = _two_ports(port)

    # --- life ---------------------------------------------------------------------------------------------------------
    def __enter__(self) -> ApacheKafka:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def start(self, *, timeout: float = START_TIMEOUT_S, brokers: int = 1) -> ApacheKafka:
        """Formats the directory if it is new, starts the broker, and returns once it answers and its metadata names `brokers`
        brokers."""
        self.spawn()
        try:
            self._wait_until_answering(timeout, brokers)
        except BaseException:
            self.kill()
            raise
        return self

    def spawn(self) -> None:
        """Formats the directory if it is new, starts the broker, and returns at once."""
        if self.running:
            raise KafkaFailed(f"the broker on {self.data_dir} runs already")
        self.directory.mkdir(parents=True, exist_ok=True)
        properties = self.directory / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in self.configs().items()))
        if not (self.data_dir / "meta.properties").exists():
            self._format(properties)
        with self.output_path.open("ab") as output:
            self.process = start_child(
                [*self._java(*self.jvm), _BROKER, str(properties)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
            )
        atexit.register(self.kill)

    def stop(self, *, timeout: float = STOP_TIMEOUT_S) -> None:
        """Sends SIGTERM for a controlled shutdown. Sends SIGKILL and raises KafkaFailed if the broker does not end in time."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise KafkaFailed(f"the broker did not end within {timeout} s:\n{self.output_tail()}") from None
        atexit.unregister(self.kill)

    def kill(self) -> None:
        """Sends SIGKILL if the broker runs; returns once the process is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        atexit.unregister(self.kill)

    # --- state --------------------------------------------------------------------------------------------------------
    @staticmethod
    def new_cluster_id() -> str:
        # A leading dash would be read as an option.
        return "K" + base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")[1:]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        if self.process is None:
            raise KafkaFailed("the broker was never started")
        return self.process.pid

    def configs(self) -> dict[str, str]:
        """The content of `server.properties`."""
        ours: dict[str, str | int | bool] = {
            "process.roles": "broker,controller",
            "node.id": NODE_ID,
            "controller.quorum.voters": f"{NODE_ID}@127.0.0.1:{self._controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self._port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.data_dir),
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
        }
        merged = {**ours, **self.settings}
        return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in merged.items()}

    def output_tail(self, lines: int = 40) -> str:
        text = self.output_path.read_text(errors="replace") if self.output_path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    # --- parts --------------------------------------------------------------------------------------------------------
    def _java(self, *options: str) -> list[str]:
        level = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        path = ":".join([kafka_jars.class_path(), *map(str, self.classes)])
        return ["java", f"-Xmx{self.heap}", *options, level, "-cp", path]

    def _format(self, properties: Path) -> None:
        if "controller" not in self.configs()["process.roles"]:  # the tool would add a quorum, which is elsewhere
            self.data_dir.mkdir(parents=True, exist_ok=True)
            directory_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            rows = {"version": 1, "cluster.id": self.cluster_id, "node.id": self.configs()["node.id"]}
            text = "".join(f"{key}={value}\n" for key, value in {**rows, "directory.id": directory_id}.items())
            (self.data_dir / "meta.properties").write_text(text)
            return
        command = [
            *self._java(*kafka_jars.QUICK_START),
            _STORAGE_TOOL,
            "format",
            "-t",
            self.cluster_id,
            "-c",
            str(properties),
        ]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=START_TIMEOUT_S)
        if done.returncode != 0:
            raise KafkaFailed(f"StorageTool format ended with {done.returncode}:\n{done.stdout}{done.stderr}")

    def _wait_until_answering(self, timeout: float, brokers: int) -> None:
        deadline = time.monotonic() + timeout
        while _known_brokers(self._port) < brokers:
            if not self.running:
                code = None if self.process is None else self.process.returncode
                raise KafkaFailed(f"the broker ended with {code} before it answered:\n{self.output_tail()}")
            if time.monotonic() > deadline:
                raise KafkaFailed(f"the broker did not answer within {timeout} s:\n{self.output_tail()}")
            time.sleep(_PAUSE_S)


def _two_ports(first: int) -> tuple[int, int]:
    return first or free_port(), free_port()


def _known_brokers(port: int) -> int:
    """The number of brokers in a Metadata v1 response: the port opens before the controller admits the broker."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as client:
            client.settimeout(5)
            body = struct.pack(">hhihi", 3, 1, 0, -1, 0)
            client.sendall(struct.pack(">i", len(body)) + body)
            with client.makefile("rb") as answer:
                head = answer.read(12)
    except OSError:
        return 0
    return 0 if len(head) < 12 else int(struct.unpack(">iii", head)[2])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.apache_kafka", description="Apache Kafka, one node.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--port", type=int, default=19092)
    parser.add_argument("--heap", default="1g")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    given = parser.parse_args()
    settings = dict(setting.split("=", 1) for setting in given.settings)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    kafka = ApacheKafka(given.directory.resolve(), settings=settings, port=given.port, heap=given.heap).start()
    print(f"Apache Kafka {kafka_jars.VERSION} on {kafka.address}, process {kafka.pid}", flush=True)
    while kafka.running and not ended.wait(1):
        pass
    kafka.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
