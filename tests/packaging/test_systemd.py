"""The unit file: systemd accepts it, and its command starts a node that SIGTERM stops."""

from __future__ import annotations

import configparser
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.node import ROOT, Node

UNIT = ROOT / "packaging" / "systemd" / "tidelog.service"
COMMAND = "/opt/tidelog/bin/tidelog"


def unit() -> configparser.RawConfigParser:
    parsed = configparser.RawConfigParser(strict=False)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read(UNIT)
    return parsed


def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    # systemd-analyze requires the command to exist, and it is not installed here.
    here = tmp_path / UNIT.name
    here.write_text(UNIT.read_text().replace(COMMAND, sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", here], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_word_that_systemd_does_not_know_is_noticed(tmp_path: Path) -> None:
    wrong = tmp_path / UNIT.name
    wrong.write_text(UNIT.read_text().replace(COMMAND, sys.executable).replace("KillMode=", "KilMode="))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", wrong], capture_output=True, text=True, check=False)
    assert "KilMode" in done.stderr


def test_its_command_starts_a_node_and_its_signal_ends_it(tmp_path: Path) -> None:
    service = unit()["Service"]
    words = shlex.split(service["ExecStart"])
    assert words[0] == COMMAND
    config = tmp_path / "node.toml"
    config.write_text(f'store = "file://{tmp_path}/store"\nlog_format = "json"\n')
    places = {"/etc/tidelog/node.toml": str(config), "/var/lib/tidelog": str(tmp_path / "data")}

    class Unit(Node):
        def command(self) -> list[str]:
            given = super().command()
            ports = given[given.index("--listeners") :]
            return [*given[:3], *(places.get(word, word) for word in words[1:]), *ports]

    with Unit(tmp_path) as node:
        node.signal(getattr(signal, service.get("KillSignal", "SIGTERM")))
        assert node.wait(timeout=float(service["TimeoutStopSec"].removesuffix("s"))) == 0
    assert service["StateDirectory"] == "tidelog"
