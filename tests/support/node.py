"""A real node in its own process, which tests start, await, stop, kill and restart on its directory.

    with Node(tmp_path) as node:                      # data in tmp_path/data, store in tmp_path/store
        Producer({"bootstrap.servers": node.kafka})
        node.kill()                                   # SIGKILL, as a crash
        node.start()                                  # the same directory, the same ports

A node is ready when its own `endpoints.json` is there and `/readyz` answers 200. The process's output goes to
`node.output_path`; a failed start shows its end. The process is always ended by its id, even when the test fails.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.support.children import start_child
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
_PAUSE_S = 0.02


def _environment() -> dict[str, str]:
    """This process's environment without the variables for tests: a node refuses settings that it does not know."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TIDELOG_FAULT_")}


class NodeFailed(AssertionError):
    """The process ended, or was not ready in time. The message has the reason and the end of its output."""


class Node:
    """`settings` are broker configs (`--set`), `flags` further command-line words; `environment` is added to this process's.

    `store` is a URL or None for `file://<directory>/store`. All of them may be changed between two starts.
    """

    def __init__(
        self,
        directory: Path,
        *,
        store: str | None = None,
        settings: Mapping[str, str | int | bool] | None = None,
        flags: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.data_dir = directory / "data"
        self.store = store or f"file://{directory / 'store'}"
        self.settings = dict(settings or {})
        self.flags = list(flags)
        self.environment = dict(environment or {})
        self.output_path = directory / "node.output"
        self.kafka = ""
        self.grpc = ""
        self.http = ""
        self.process: subprocess.Popen[bytes] | None = None

    # --- life ---------------------------------------------------------------------------------------------------------
    def __enter__(self) -> Node:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def start(self, *, timeout: float = START_TIMEOUT_S) -> Node:
        """Starts the process and returns once it is ready. It keeps the ports of an earlier start."""
        self.spawn()
        try:
            self.wait_ready(timeout)
        except BaseException:
            self.kill()
            raise
        return self

    def spawn(self) -> None:
        """Starts the process and returns at once: for tests of what happens before a node is ready."""
        if self.running:
            raise NodeFailed(f"the node on {self.data_dir} runs already")
        self.directory.mkdir(parents=True, exist_ok=True)
        self.kafka, self.grpc, self.http = (
            address or f"127.0.0.1:{free_port()}" for address in (self.kafka, self.grpc, self.http)
        )
        with self.output_path.open("ab") as output:
            self.process = start_child(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**_environment(), "PYTHONPATH": str(ROOT), **self.environment},
                cwd=self.directory,
            )

    def command(self) -> list[str]:
        words = [sys.executable, "-m", "service.cli.main", "serve"]
        words += ["--data-dir", str(self.data_dir), "--store", self.store]
        words += [
            "--listeners",
            f"PLAINTEXT://{self.kafka}",
            "--grpc-listener",
            self.grpc,
            "--http-listener",
            self.http,
        ]
        for key, value in self.settings.items():
            words += ["--set", f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
        return [*words, *self.flags]

    def wait_ready(self, timeout: float = START_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout
        while not (self._read_endpoints() and self.readyz() == 200):
            self._still_running()
            if time.monotonic() > deadline:
                raise NodeFailed(f"the node was not ready after {timeout} s:\n{self.output_tail()}")
            time.sleep(_PAUSE_S)

    def stop(self, *, timeout: float = STOP_TIMEOUT_S) -> int:
        """Sends SIGTERM and returns the exit code. If the process does not end in time, kills it and raises NodeFailed."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout=timeout)

    def kill(self) -> None:
        """Sends SIGKILL if the process runs; returns once it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def restart(self) -> Node:
        """A clean stop, then a start on the same directory and ports."""
        code = self.stop()
        if code != 0:
            raise NodeFailed(f"SIGTERM ended the node with {code}:\n{self.output_tail()}")
        return self.start()

    def signal(self, number: int) -> None:
        """Sends a signal; SIGSTOP makes the node hang until SIGCONT."""
        if self.process is None:
            raise NodeFailed("the node was never started")
        self.process.send_signal(number)

    def wait(self, *, timeout: float = STOP_TIMEOUT_S) -> int:
        """Waits until the process ends on its own; returns the exit code."""
        if self.process is None:
            raise NodeFailed("the node was never started")
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise NodeFailed(f"the node did not end within {timeout} s:\n{self.output_tail()}") from None

    # --- state --------------------------------------------------------------------------------------------------------
    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        if self.process is None:
            raise NodeFailed("the node was never started")
        return self.process.pid

    @property
    def store_path(self) -> Path:
        """The directory of a `file://` store."""
        return Path(self.store.removeprefix("file://"))

    def partition_dir(self, topic: str, partition: int = 0) -> Path:
        return self.data_dir / f"{topic}-{partition}"

    def get(self, path: str, *, timeout: float = 5.0) -> tuple[int, str]:
        """Status and body of an HTTP GET. OSError if nothing listens."""
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=timeout) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def readyz(self) -> int | None:
        """The status of `/readyz`, None while nothing listens."""
        try:
            return self.get("/readyz")[0]
        except OSError:
            return None

    def output(self) -> str:
        """All output of the node, over all of its starts."""
        return self.output_path.read_text(errors="replace") if self.output_path.exists() else ""

    def output_tail(self, lines: int = 40) -> str:
        return "\n".join(self.output().splitlines()[-lines:])

    def _read_endpoints(self) -> bool:
        """Takes the addresses if this process wrote them, not an earlier one."""
        try:
            endpoints = json.loads((self.data_dir / "endpoints.json").read_text())
        except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
            return False
        if endpoints["pid"] != self.pid:
            return False
        self.kafka, self.grpc, self.http = next(iter(endpoints["kafka"].values())), endpoints["grpc"], endpoints["http"]
        return True

    def _still_running(self) -> None:
        if not self.running:
            code = None if self.process is None else self.process.returncode
            raise NodeFailed(f"the node ended with {code} before it was ready:\n{self.output_tail()}")
