"""The command line as a whole: help, versions, exit codes, and errors when the server cannot be reached."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from service.cli.client.sealing import Sealing
from service.cli.errors import Unreachable
from tests.service.cli.support import ROOT, tidelog, tidelog_process
from tests.support.ports import free_port

HEAVY = (
    "aiobotocore",
    "aiohttp",
    "boto3",
    "confluent_kafka",
    "grpc",
    "kio",
    "pyarrow",
    "pydantic",
    "uvloop",
    "asyncio",
)


def test_help_names_every_command() -> None:
    ran = tidelog_process("--help")

    assert ran.code == 0
    for command in ("serve", "topic", "produce", "consume", "log", "cold"):
        assert f" {command} " in ran.out


def test_without_the_server_distribution_the_command_names_it() -> None:
    program = "import sys; sys.modules['typer'] = None; import service.cli.main"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == "tidelog: this command needs typer; in a clone: pip install -e packaging/server\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("group", "reset-offsets", "g", "--to-latest"), "No such option: --to-latest; write --to end"),
        (("group", "reset-offsets", "g", "--dry-run"), "--dry-run; leave it out: nothing is changed without --execute"),
        (("cold", "repair", "t", "--dry-run"), "--dry-run; leave it out: nothing is changed without --apply"),
        (("group", "describe", "--group", "g"), "write the name after the command, without an option"),
        (("group", "describe", "g", "--members"), "leave it out: members are always shown"),
        (("topic", "describe", "--topic", "t"), "write the name after the command, without an option"),
        (("consume", "t", "--from-beginning"), "write --from beginning, the default"),
        (("group", "reset-offsets", "g", "--to-curent"), "(Possible options: --to-current)"),
        (("fsck", "--dry-run"), "No such option: --dry-run"),
    ],
)
def test_an_option_of_kafkas_tools_is_answered_with_the_words_for_it(words: tuple[str, ...], said: str) -> None:
    ran = tidelog(*words)
    assert ran.code == 2 and said in " ".join(ran.err.replace("│", " ").split())


def test_help_prints_every_word() -> None:
    """Text in brackets could pass for markup and vanish."""
    ran = tidelog_process("serve", "--help")
    said = " ".join(ran.out.replace("│", " ").split())
    for words in ("(default: 127.0.0.1:9093)", "(default: data/node)", "in a table named broker"):
        assert words in said


@pytest.mark.parametrize(
    "path", sorted((ROOT / "service" / "cli").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_no_help_text_holds_brackets(path: Path) -> None:
    assert re.findall(r'help="[^"]*\[[^"]*"', path.read_text()) == []


def test_the_option_version_prints_the_version() -> None:
    assert tidelog("--version").out.startswith("tidelog 0.")


def test_the_command_imports_nothing_heavy_before_it_is_needed() -> None:
    script = f"import sys, service.cli.main; print([name for name in {HEAVY!r} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)

    assert ran.stdout.strip() == "[]"


def test_the_start_of_a_node_loads_no_other_command() -> None:
    script = (
        "import sys, service.cli.main; print([name for name in sys.modules if name.startswith('service.cli.client')])"
    )
    ran = subprocess.run([sys.executable, "-c", script, "serve"], capture_output=True, text=True, cwd=ROOT, check=True)

    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "create", "t"),
        ("topic", "list"),
        ("topic", "describe", "t"),
        ("topic", "alter", "t", "--partitions", "2"),
        ("topic", "delete", "t"),
        ("topic", "seal", "t", "--wait"),
        ("produce", "t"),
        ("consume", "t"),
    ],
    ids=" ".join,
)
def test_an_unreachable_node_is_one_line_and_exit_code_2(words: tuple[str, ...]) -> None:
    address = f"127.0.0.1:{free_port()}"

    ran = tidelog(*words, "--bootstrap-server", address, stdin="")

    assert ran.code == 2
    assert ran.out == ""
    assert len(ran.err.splitlines()) == 1
    assert f"cannot reach a node at {address}" in ran.err


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "list", "--bootstrap-server", "nowhere"),
        ("topic", "list", "--bootstrap-server", "host:99999"),
        ("topic", "create", "t", "--partitions", "0"),
        ("topic", "create", "t", "--config", "novalue", "--bootstrap-server", "127.0.0.1:1"),
        ("topic", "create", "t", "--partitions", "100001"),
        ("topic", "create", "t", "--replication-factor", "99999999999"),
        ("topic", "alter", "t"),
        ("topic", "alter", "t", "--config", "retention.ms=1", "--partitions", "99999999999"),
        ("topic", "seal", "t", "--wait", "--timeout", "inf"),
        ("produce", "t", "--partition", "99999999999"),
        ("produce", "t", "--header", "novalue"),
        ("produce", "t", "--key-separator", ""),
        ("produce", "t", "--compression", "rar"),
        ("produce", "t", "--file", "/nowhere/at/all"),
        ("consume", "t", "--from", "yesterday"),
        ("consume", "t", "--from", "9223372036854775808"),
        ("consume", "t", "--from", "@9223372036854775808"),
        ("consume", "t", "--max-messages", "0"),
        ("top", "--once", "--interval", "nan"),
        ("top", "--once", "--interval", "1e30"),
        ("cold", "ls"),
        ("cold", "ls", "--store", "ftp://elsewhere"),
        ("cold", "ls", "--store", "memory://m", "no/topic"),
        ("log", "dump"),
        ("surf",),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_exit_code_2(words: tuple[str, ...]) -> None:
    assert tidelog(*words, stdin="").code == 2


def test_a_missing_store_is_one_line_and_exit_code_2() -> None:
    ran = tidelog("cold", "ls", "--store", "file:///nowhere/at/all")

    assert ran.code == 2
    assert ran.err.startswith("tidelog: there is no directory /nowhere/at/all")


def test_a_grpc_listener_that_is_not_there_is_unreachable_too() -> None:
    with pytest.raises(Unreachable, match=r"cannot seal flights through 127\.0\.0\.1"):
        address = f"127.0.0.1:{free_port()}"
        Sealing(address, "flights", lambda: "").seal([address], wait=True, timeout=1)
