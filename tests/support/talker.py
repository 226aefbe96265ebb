"""A process in another language that answers lines of JSON. Its start costs more than its work, so one serves many tests.

    with Talker(["node", "driver.js"]) as talker:
        talker.ask(command="produce", topic="t", records=[...])

It answers each line with one line: `{"result": ...}`, or `{"error": "..."}`, which is raised as Refused. Closing its
standard input ends it; if it does not end, it is killed by its id.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from tests.support.children import start_child
from tests.support.node import ROOT
from tests.support.processes import readable

ANSWER_SECONDS = 120.0
END_SECONDS = 10.0


class Refused(AssertionError):
    """The other process answered with an error; `str` is its message."""


class Talker:
    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._process = start_child(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            env=dict(environment) if environment is not None else None,
            cwd=ROOT,
        )

    def __enter__(self) -> Talker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._complaints.close()

    def ask(self, *, seconds: float = ANSWER_SECONDS, **question: Any) -> Any:
        """Returns the result. Refused if the answer is an error, the process ended, or no answer came within `seconds`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline() if readable([self._process.stdout], seconds) else b""
        if not line:
            raise Refused(f"{question.get('command')}: no answer within {seconds} s\n{self.complaints()}")
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["result"]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def complaints(self) -> str:
        """The end of its standard error."""
        self._complaints.seek(0)
        return self._complaints.read().decode(errors="replace")[-4000:]
