"""`tidelog cluster up`: one command runs three brokers, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from service.cli.main import app
from tests.faults.clients import until
from tests.support.children import start_child
from tests.support.node import ROOT


@pytest.mark.parametrize("kept", [False, True])
def test_brokers_start_and_leave_nothing_unless_a_directory_is_given(kept: bool, tmp_path: Path) -> None:
    output, data = tmp_path / "output", tmp_path / "kept"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    words = ["cluster", "up", "--port", "0", *(["--data-dir", str(data)] if kept else [])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary), "TIDELOG_BROKERS": "5"}
    with output.open("wb") as file:
        process = start_child(
            [sys.executable, "-m", "service.cli.main", *words], stdout=file, stderr=file, env=environment
        )
    try:
        until(lambda: "Talk to it" in output.read_text(), "the addresses are printed")
        bootstrap = output.read_text().partition("Kafka")[2].split()[0]
        client = AdminClient({"bootstrap.servers": bootstrap})
        until(lambda: set(client.list_topics(timeout=30).brokers) == {1, 2, 3}, "three brokers")
        shown = CliRunner().invoke(app, ["cluster", "status", "-b", bootstrap])
        assert [line.split()[2] for line in shown.stdout.splitlines()[1:]] == ["ready"] * 3
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert list(temporary.iterdir()) == []
    assert data.exists() == kept
    assert "WARN" not in output.read_text()
    assert "ERROR" not in output.read_text()


def test_a_wrong_number_of_brokers_is_refused() -> None:
    ran = CliRunner().invoke(app, ["cluster", "up", "--brokers", "many"])
    assert ran.exit_code == 1
    assert "tidelog: the command line: brokers:" in ran.output
