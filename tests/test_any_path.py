"""A clone may lie anywhere: under names with dots, spaces and letters beyond ASCII."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.node import ROOT

FOLDERS = (
    *("tidelog", "storage_tiers", "grpc_api", "kafka_gateway", "service", "lambdas", "spark"),
    *("tests", "examples", "scripts"),
)
FILES = ("Makefile", "README.md", "constraints.txt", "pyproject.toml", "hatch_build.py")
#: Tests of things that depend on paths: kernels beside their sources, processes that are started, commands that are printed.
TESTS = (
    "tests/kafka_gateway/test_hot_parse.py::test_the_fast_answer_is_not_used_after_any_failure",
    "tests/storage_tiers/records/test_walker.py::test_this_run_has_a_compiled_walker",
    "tests/storage_tiers/records/test_columns.py::test_this_run_has_compiled_kernels",
    "tests/examples/test_readme.py::test_the_output_of_a_start_can_be_copied",
    "tests/service/cli/client/test_with_a_node.py::test_a_closed_output_is_no_error",
)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code with its kernels, and an environment of its own beside it, which borrows what is installed here."""
    clone = tmp_path_factory.mktemp("paths") / "a b.ü" / "walker.so" / "tidelog"
    for name in FOLDERS:
        shutil.copytree(ROOT / name, clone / name)
    for name in FILES:
        shutil.copy2(ROOT / name, clone / name)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(clone / ".venv")], check=True, timeout=60)
    (packages,) = (clone / ".venv" / "lib").glob("python*/site-packages")
    paths = (sysconfig.get_path("purelib"), str(clone), str(clone / "spark"))
    (packages / "borrowed.pth").write_text("".join(f"{path}\n" for path in paths), encoding="utf-8")
    command = clone / ".venv" / "bin" / "tidelog"
    command.write_text(f'#!/bin/sh\nexec "{command.parent}/python" -m service.cli.main "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    return clone


@pytest.mark.timeout(600)
def test_commands_built_from_paths_work_in_any_directory(clone: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    done = subprocess.run(
        [str(clone / ".venv" / "bin" / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS],
        cwd=clone,
        env={**environment, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout and "skipped" not in done.stdout


def test_make_passes_the_pinned_versions_to_pip(clone: Path) -> None:
    """pip splits the variable at spaces."""
    shown = ["make", "-s", '--eval=shown: ; @echo "$$PIP_CONSTRAINT"', "shown"]
    said = subprocess.run(shown, cwd=clone, capture_output=True, text=True, timeout=60, check=True).stdout
    assert [(clone / word).read_bytes() for word in said.split()] == [(ROOT / "constraints.txt").read_bytes()]
