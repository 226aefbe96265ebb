"""Starts a node as users do, with the `tidelog` command in its own process, and runs other `tidelog` commands."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

#: The command in the environment of the running Python. It works even if that environment is not activated.
TIDELOG = Path(sys.executable).parent / "tidelog"
START_S = STOP_S = 60.0
FREE_PORTS = (
    *("--listeners", "PLAINTEXT://127.0.0.1:0"),
    *("--grpc-listener", "127.0.0.1:0"),
    *("--http-listener", "127.0.0.1:0"),
)


class CommandFailed(RuntimeError):
    """A `tidelog` command ended with an error, or its node did not become ready."""


class LocalLog(NamedTuple):
    """A segment file on the node's own disk."""

    partition: int
    base_offset: int
    size: int


class RunningNode:
    """A node that runs until `stop` is called."""

    def __init__(self, process: subprocess.Popen[bytes], data_dir: Path, kafka: str, http: str) -> None:
        self.process = process
        self.data_dir = data_dir
        self.kafka = kafka
        self._http = http

    def stats(self) -> dict[str, Any]:
        """The node's counters since its start."""
        with urllib.request.urlopen(f"http://{self._http}/stats", timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def local_logs(self, topic: str) -> list[LocalLog]:
        """The `.log` files of a topic that are on local disk now."""
        found = []
        for path in sorted(self.data_dir.glob(f"{topic}-*/*.log")):
            try:
                size = path.stat().st_size
            except FileNotFoundError:
                continue  # the segment was evicted after the listing
            found.append(LocalLog(int(path.parent.name.rpartition("-")[2]), int(path.stem), size))
        return found

    def stop(self) -> None:
        """Sends SIGTERM and waits for the exit. Raises CommandFailed if the exit code is not 0."""
        self.process.terminate()
        code = self.process.wait(STOP_S)
        if code != 0:
            raise CommandFailed(f"the node ended with exit code {code}")


@contextmanager
def running_node(directory: Path, store: str, extra: Sequence[str] = ()) -> Iterator[RunningNode]:
    """A node on free ports of this machine, with its data in `directory`. It stops when the block ends, even after an error."""
    data_dir, output = directory / "data", directory / "node.log"
    command = [str(TIDELOG), "serve", *FREE_PORTS, "--data-dir", str(data_dir), "--store", store, *extra]
    with output.open("wb") as sink:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT)
    try:
        kafka, http = _wait_ready(process, data_dir, output)
        yield RunningNode(process, data_dir, kafka, http)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_ready(process: subprocess.Popen[bytes], data_dir: Path, output: Path) -> tuple[str, str]:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise CommandFailed(f"the node ended with exit code {process.returncode}:\n{output.read_text()}")
        try:
            endpoints = json.loads((data_dir / "endpoints.json").read_text())
            with urllib.request.urlopen(f"http://{endpoints['http']}/readyz", timeout=5):
                return endpoints["kafka"]["PLAINTEXT"], endpoints["http"]
        except (OSError, urllib.error.URLError):
            time.sleep(0.05)
    raise CommandFailed(f"the node was not ready after {START_S:.0f} s:\n{output.read_text()}")


def tidelog(*words: str) -> str:
    """Runs a `tidelog` command and returns its output. Raises CommandFailed if its exit code is not 0."""
    done = subprocess.run([str(TIDELOG), *words], capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        raise CommandFailed(f"tidelog {' '.join(words)} ended with {done.returncode}:\n{done.stderr or done.stdout}")
    return done.stdout
