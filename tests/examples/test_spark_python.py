"""Spark passes the path of its Python to a shell without quoting it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.flights.spark_python import python_for_spark


def test_a_plain_path_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    assert python_for_spark(tmp_path) == "/usr/bin/python3"
    assert list(tmp_path.iterdir()) == []


def test_a_path_with_a_space_is_found_as_spark_looks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / "a b.ü $HOME" / "python"
    odd.parent.mkdir()
    odd.symlink_to(os.path.realpath(sys.executable))
    monkeypatch.setattr(sys, "executable", str(odd))
    found = python_for_spark(tmp_path)
    assert subprocess.run(["sh", "-c", f"command -v {found}"], capture_output=True, check=False).returncode == 0
    program = "import sys; print(sys.executable, sys.argv[1:])"
    said = subprocess.run([found, "-c", program, "a b", "c"], capture_output=True, text=True, check=True).stdout
    assert said == f"{odd} ['a b', 'c']\n"
