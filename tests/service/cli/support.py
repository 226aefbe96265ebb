"""Runs the command line in this process, and in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from service.cli.main import app

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Ran:
    """The result of one run. `stdout` holds the bytes that `out` is decoded from; `out` replaces those that are not UTF-8."""

    code: int
    out: str
    err: str
    stdout: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.split("\n") if line]


def tidelog(*words: str | Path, stdin: str | bytes | None = None) -> Ran:
    """Runs one command in this process. An exception that the command does not handle is raised here."""
    result = CliRunner().invoke(app, [str(word) for word in words], input=stdin, catch_exceptions=False)
    stdout = result.stdout_bytes
    return Ran(result.exit_code, stdout.decode(errors="replace"), result.stderr, stdout)


def tidelog_process(*words: str | Path, stdin: bytes = b"", timeout: float = 60) -> Ran:
    """Runs one command in a process of its own, as a user does. TimeoutExpired after `timeout` seconds."""
    done = subprocess.run(
        [sys.executable, "-m", "service.cli.main", *map(str, words)],
        input=stdin,
        capture_output=True,
        timeout=timeout,
        cwd=ROOT,
        check=False,
    )
    return Ran(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(), done.stdout)
