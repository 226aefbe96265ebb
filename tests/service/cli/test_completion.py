"""The completions that Tab offers: topics of a real node and names of configs; without a node, no completion and no
error.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from socket import create_server

import pytest
from typer.testing import CliRunner

from service.cli.main import app
from tests.support.clients import create
from tests.support.node import Node
from tests.support.ports import free_port

pytestmark = pytest.mark.xdist_group("cli-completion")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("node")) as running:
        for topic in ("flights", "flowers", "orders"):
            create(running, topic, 1, {})
        yield running


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Isolates the test from the user's variables and profiles. Returns the path of the profiles file, which does not exist."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("TIDELOG_BOOTSTRAP_SERVER", "TIDELOG_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "tidelog" / "profiles.toml"


def offered(line: str, **environment: str) -> list[str]:
    """The completions that bash offers for the last word of `line`."""
    words = {"_TIDELOG_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    ran = CliRunner().invoke(app, [], env={**words, **environment}, prog_name="tidelog")
    assert (ran.exit_code, ran.stderr) == (0, ""), ran.stderr
    return ran.stdout.split()


@pytest.mark.parametrize(
    "line",
    [
        "tidelog consume -b {kafka} fl",
        "tidelog consume -b {kafka} orders fl",
        "tidelog produce -b {kafka} fl",
        "tidelog topic describe -b {kafka} fl",
        "tidelog topic alter -b {kafka} fl",
        "tidelog topic delete -b {kafka} fl",
        "tidelog topic delete-records -b {kafka} fl",
        "tidelog topic seal -b {kafka} fl",
        "tidelog configs describe -b {kafka} --topic fl",
        "tidelog perf produce -b {kafka} fl",
        "tidelog perf consume -b {kafka} fl",
    ],
)
def test_names_of_topics_are_completed(node: Node, line: str) -> None:
    assert offered(line.format(kafka=node.kafka)) == ["flights", "flowers"]


def test_names_of_groups_are_completed(node: Node) -> None:
    for group in ("billing", "bills", "other"):
        words = ["group", "reset-offsets", group, "--topic", "orders", "--to", "end", "--execute", "-b", node.kafka]
        assert CliRunner().invoke(app, words).exit_code == 0
    assert offered(f"tidelog group describe -b {node.kafka} bi") == ["billing", "bills"]
    assert offered(f"tidelog perf consume orders -b {node.kafka} --group bi") == ["billing", "bills"]


def test_the_node_is_found_as_by_other_commands(node: Node, alone: Path) -> None:
    assert offered("tidelog consume o", TIDELOG_BOOTSTRAP_SERVER=node.kafka) == ["orders"]
    alone.parent.mkdir()
    alone.write_text(f'[near]\nbootstrap-server = "{node.kafka}"\n')
    assert offered("tidelog consume --profile near o") == ["orders"]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("tidelog topic create t --config retention.", ["retention.bytes=", "retention.ms="]),
        ("tidelog topic alter t --config cleanup", ["cleanup.policy="]),
        ("tidelog topic alter t --delete-config retention.m", ["retention.ms"]),
        ("tidelog configs alter --set log.retention.m", ["log.retention.minutes=", "log.retention.ms="]),
        ("tidelog configs alter --delete log.retention.ms", ["log.retention.ms"]),
        ("tidelog configs describe log.retention.ms", ["log.retention.ms"]),
        ("tidelog configs describe --topic t retention.m", ["retention.ms"]),
        ("tidelog topic del", ["delete", "delete-records"]),
    ],
)
def test_names_of_configs_and_commands_need_no_node(line: str, names: list[str]) -> None:
    assert offered(line) == names


def test_without_an_answer_nothing_is_completed_or_printed(alone: Path) -> None:
    assert offered(f"tidelog consume -b 127.0.0.1:{free_port()} f") == []
    with create_server(("127.0.0.1", 0)) as silent:  # the kernel accepts, but nothing answers
        assert offered(f"tidelog consume -b 127.0.0.1:{silent.getsockname()[1]} f") == []
    assert offered("tidelog consume -b nonsense f") == []
    assert offered("tidelog consume --profile absent f") == []
    alone.parent.mkdir()
    alone.write_text("[default\n")
    assert offered("tidelog consume f") == []
