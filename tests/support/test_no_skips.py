"""In continuous integration a skipped or expected-to-fail test is a failure, unless the list explains it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.no_skips import ALLOWED
from tests.support.node import ROOT

#: A way to skip a test, and what the plugin reports for it.
WAYS = (
    ("def test_a():\n    pytest.skip('no terraform')\n", "test_0.py::test_a: Skipped: no terraform"),
    ("@pytest.mark.skipif(True, reason='glibc')\ndef test_a(): pass\n", "test_1.py::test_a: Skipped: glibc"),
    ("@pytest.fixture\ndef f(): pytest.skip('away')\ndef test_a(f): pass\n", "test_2.py::test_a: Skipped: away"),
    ("pytest.importorskip('no_such_module')\n", "test_3.py: Skipped: could not import 'no_such_module'"),
    ("@pytest.mark.xfail(reason='flaky')\ndef test_a(): assert 0\n", "test_4.py::test_a: flaky"),
    ("@pytest.mark.xfail(reason='odd')\ndef test_a(): pass\n", "test_5.py::test_a: odd"),
)


def run(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.support.no_skips", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("words", [("-p", "no:xdist"), ("-n", "1")], ids=["one process", "workers"])
def test_a_skipped_test_fails_the_run(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "test_sound.py").write_text("def test_sound(): pass\n")
    assert run(tmp_path, *words).returncode == 0
    for number, (text, _) in enumerate(WAYS):
        (tmp_path / f"test_{number}.py").write_text("import pytest\n" + text)
    done = run(tmp_path, *words)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    told = done.stdout.partition("no row of tests/support/no_skips.py allows it")[2]
    assert [said for _, said in WAYS if said not in told] == []


def test_every_row_has_a_reason_and_names_existing_tests() -> None:
    sources = "\n".join(f"/{path.name}::" for path in (ROOT / "tests").rglob("test_*.py"))
    for row in ALLOWED:
        assert row.why and row.said
        assert re.search(row.test.partition("::")[0] + "::", sources), row


def test_continuous_integration_runs_with_it() -> None:
    assert 'PYTEST_ADDOPTS="-p tests.support.no_skips"' in (ROOT / ".ci" / "run").read_text()
