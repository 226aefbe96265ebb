"""The node that a command talks to, given by option, environment or profile; and the errors that a wrong profile gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.cli.support import Ran, tidelog
from tests.support.node import Node
from tests.support.ports import free_port

pytestmark = pytest.mark.xdist_group("cli-profiles")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node started from a shell that exports the variables of the client commands."""
    exported = {"TIDELOG_BOOTSTRAP_SERVER": "elsewhere:9092", "TIDELOG_PROFILE": "prod"}
    with Node(tmp_path_factory.mktemp("node"), environment=exported) as running:
        assert tidelog("topic", "create", "t", "-b", running.kafka).code == 0
        yield running


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path where the command looks for the profiles file; the file does not exist yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("TIDELOG_BOOTSTRAP_SERVER", raising=False)
    monkeypatch.delenv("TIDELOG_PROFILE", raising=False)
    path = tmp_path / "tidelog" / "profiles.toml"
    path.parent.mkdir()
    return path


def nobody() -> str:
    return f"127.0.0.1:{free_port()}"


def reaches(ran: Ran) -> bool:
    return ran.code == 0 and "TOPIC ID" in ran.out


def test_the_command_line_precedes_the_environment_and_the_default(
    node: Node, profiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, nowhere = f'bootstrap-server = "{node.kafka}"\n', f'bootstrap-server = "{nobody()}"\n'
    profiles.write_text(f"[default]\n{here}\n[near]\n{here}\n[far]\n{nowhere}")

    assert reaches(tidelog("topic", "list"))
    monkeypatch.setenv("TIDELOG_PROFILE", "far")
    lost = tidelog("topic", "list")
    assert (lost.code, f"(the address is from profile far of {profiles})" in lost.err) == (2, True)
    monkeypatch.setenv("TIDELOG_BOOTSTRAP_SERVER", node.kafka)
    assert reaches(tidelog("topic", "list"))
    assert "from profile far" in tidelog("topic", "list", "--profile", "far").err
    monkeypatch.setenv("TIDELOG_BOOTSTRAP_SERVER", nobody())
    assert "(the address is from TIDELOG_BOOTSTRAP_SERVER)" in tidelog("topic", "list").err
    assert reaches(tidelog("topic", "list", "--profile", "near"))
    assert reaches(tidelog("topic", "list", "--profile", "far", "-b", node.kafka))
    typed = tidelog("topic", "list", "-b", nobody())
    assert (typed.code, "the address is from" in typed.err) == (2, False)


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "describe", "t"),
        ("topic", "alter", "t", "-c", "retention.ms=1"),
        ("topic", "seal", "t"),
        ("configs", "describe"),
        ("configs", "alter", "--set", "log.retention.ms=1", "--validate-only"),
        ("produce", "t"),
        ("consume", "t", "-e"),
        ("cold", "repair", "t"),
        ("top", "--once", "--interval", "0.2"),
    ],
    ids=" ".join,
)
def test_every_command_with_a_node_accepts_both(
    node: Node, profiles: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles.write_text(f'[near]\nbootstrap-server = "{nobody()},{node.kafka}"\n')

    ran = tidelog(*words, "--profile", "near", stdin="")
    assert ran.code == 0, ran.err
    monkeypatch.setenv("TIDELOG_BOOTSTRAP_SERVER", node.kafka)
    ran = tidelog(*words, stdin="")
    assert ran.code == 0, ran.err


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (
            None,
            "prod",
            "there is no profile prod: {path} does not exist; write the table [prod] with bootstrap-server = ",
        ),
        ("", "prod", "{path} has no profile prod, nor any other; write the table [prod] with "),
        ("[near]\n[far]\n", "prod", "{path} has no profile prod, only far, near; write the table [prod] with "),
        ("[proud]\n", "prod", "{path} has no profile prod (did you mean proud?)"),
        ("[near]\n", "my prod", 'write the table ["my prod"] with bootstrap-server = "HOST:PORT" there'),
        ("prod = 1\n", "prod", "{path}: [prod] is not a table but 1"),
        ("[prod]\n", "prod", "{path}: [prod] has no bootstrap-server"),
        (
            "[prod]\nbootstrap_server='h:1'\n",
            "prod",
            "{path}: [prod] has the unknown setting bootstrap_server; the only",
        ),
        ("[prod]\nbootstrap-server=9092\n", "prod", "{path}: [prod] bootstrap-server is not a string but 9092"),
        (
            "[prod]\nbootstrap-server='h'\n",
            "prod",
            "{path}: [prod] bootstrap-server: 'h' is not an address: write HOST:PORT",
        ),
        ("[default]\nbootstrap-server='h'\n", None, "{path}: [default] bootstrap-server: 'h' is not an address"),
        ("[prod\n", "prod", "{path} is not TOML: "),
        ("[prod\n", None, "{path} is not TOML: "),
        (b"\xff", "prod", "{path} is not TOML: byte 0 is not"),
    ],
)
def test_an_unusable_profile_is_one_line(profiles: Path, text: str | bytes | None, name: str | None, said: str) -> None:
    if text is not None:
        profiles.write_bytes(text if isinstance(text, bytes) else text.encode())

    ran = tidelog("topic", "list", *(() if name is None else ("--profile", name)))

    assert ran.code == 2
    assert ran.err.startswith("tidelog: ") and len(ran.err.splitlines()) == 1
    assert said.format(path=profiles) in ran.err


def test_an_unreadable_file_is_reported(profiles: Path) -> None:
    profiles.mkdir()
    ran = tidelog("topic", "list")
    assert (ran.code, ran.err) == (2, f"tidelog: cannot read {profiles}: Is a directory\n")


def test_a_profile_is_added_as_the_error_advises(node: Node, profiles: Path) -> None:
    told = tidelog("topic", "list", "--profile", "prod").err
    line = 'write the table [prod] with bootstrap-server = "HOST:PORT" there'
    assert line in told
    profiles.write_text('[prod]\nbootstrap-server = "HOST:PORT"\n'.replace("HOST:PORT", node.kafka))
    assert reaches(tidelog("topic", "list", "--profile", "prod"))


def test_a_wrong_profile_stops_no_command_that_uses_another(node: Node, profiles: Path) -> None:
    profiles.write_text(f'[wrong]\nserver = 1\n[right]\nbootstrap-server = "{node.kafka}"\n')
    assert reaches(tidelog("topic", "list", "--profile", "right"))


def test_an_invalid_address_in_the_environment_names_its_variable(
    monkeypatch: pytest.MonkeyPatch, profiles: Path
) -> None:
    monkeypatch.setenv("TIDELOG_BOOTSTRAP_SERVER", "nonsense")
    ran = tidelog("topic", "list")
    assert ran.code == 2
    assert "Invalid value for TIDELOG_BOOTSTRAP_SERVER: 'nonsense' is not an address" in ran.err
