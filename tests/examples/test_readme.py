"""The README can be copied from: its commands run against a node, its snippet runs in Spark, and its links resolve."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from service.configs.differences import DIFFERENCES
from service.configs.listeners import url_of
from service.settings.derived import listeners_of
from service.settings.node_settings import load_settings
from tests.spark.conftest import spark  # noqa: F401  (a fixture: the session that all Spark tests of a worker share)
from tests.support.clients import until
from tests.support.node import ROOT, Node

README = (ROOT / "README.md").read_text()
TIDELOG = Path(sys.executable).parent / "tidelog"


def blocks(language: str, heading: str) -> list[str]:
    """The code blocks of one language under a heading."""
    section = re.split(r"^##", re.split(rf"\n##+ {heading}\n", README)[1], maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(rf"^```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def here(text: str, node: Node) -> str:
    """The text with the README's directories and addresses replaced by the test node's."""
    text = text.replace("data/store", str(node.store_path)).replace("data/node", str(node.data_dir))
    return text.replace("127.0.0.1:9092", node.kafka).replace("127.0.0.1:9093", node.grpc)


def ran(command: str, node: Node) -> str:
    words = here(re.sub(r"\btidelog\b", shlex.quote(str(TIDELOG)), command), node)
    if re.search(r"\btidelog (topic|produce|consume|txn|perf)\b", command):
        words += f" --bootstrap-server {node.kafka}"
    done = subprocess.run(
        words, shell=True, capture_output=True, text=True, cwd=node.directory, timeout=60, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Node, dict[str, str]]:
    """A node that has stopped, and the output of each command and of the Kafka client and gRPC examples."""
    (block,) = blocks("sh", "The command line")
    commands = [line.split("#")[0].strip() for line in block.splitlines()]
    with Node(tmp_path_factory.mktemp("readme")) as node:
        outputs = {command: ran(command, node) for command in commands}
        for section in ("Kafka clients", "gRPC"):
            (example,) = blocks("python", section)
            done = subprocess.run(
                [sys.executable, "-c", here(example, node)], capture_output=True, text=True, timeout=60, check=False
            )
            outputs[section] = done.stdout + done.stderr
        assert node.stop() == 0
    return node, outputs


@pytest.mark.xdist_group("spark")  # in one worker with the snippet, so that the commands are run once
def test_the_commands_do_what_their_comments_say(printed: tuple[Node, dict[str, str]]) -> None:
    _, outputs = printed

    def said(part: str) -> str:
        (found,) = (text for command, text in outputs.items() if part in command)
        return found

    assert sorted(said("consume orders --exit-at-end --key-separator").split()) == [
        "alice:book",
        "alice:pen",
        "bob:lamp",
    ]
    assert said("--json --from").count('"value"') == 3
    assert "retention.ms=-1" in said("topic describe")
    assert "3 records" in said("cold ls")
    assert "lastOffset: 2" in said("log dump")
    assert said("fsck").startswith("sound")


@pytest.mark.xdist_group("spark")
def test_the_examples_of_kafka_and_grpc_print_what_the_page_shows(printed: tuple[Node, dict[str, str]]) -> None:
    _, outputs = printed
    assert outputs["Kafka clients"].splitlines() == ["0 b'alice' b'tea'", "1 b'alice' b'coffee'", "2 b'alice' b'water'"]
    assert outputs["gRPC"].splitlines() == ["0 3", "[b'tea', b'coffee', b'water', b'juice']"]


def test_the_output_of_a_start_can_be_copied(tmp_path: Path) -> None:
    """The copied lines work even if the node's virtual environment is not activated."""
    elsewhere = {"PATH": "/usr/bin:/bin"}
    with Node(tmp_path, environment=elsewhere) as node:
        until(lambda: "Stop it" in node.output(), "the output says what to try")
        told = node.output().split("Talk to it:\n")[1].split("Stop it")[0]
        done = subprocess.run(
            told, shell=True, capture_output=True, text=True, cwd=node.directory, timeout=60, check=False, env=elsewhere
        )
    assert done.stdout.split() == ["created", "demo", "hello"], done.stderr


@pytest.mark.xdist_group("spark")
def test_the_first_snippet_queries_the_bucket_with_sql(printed: tuple[Node, dict[str, str]]) -> None:
    """The node has stopped, so only the bucket can answer."""
    node, _ = printed
    (snippet,) = re.findall(r"^```python\n(.*?)^```", README.split("\n## ")[0], re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", here(snippet, node)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [drink for drink in ("tea", "coffee", "water", "juice") if drink in done.stdout] == [
        "tea",
        "coffee",
        "water",
        "juice",
    ]


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_the_snippet_reads_the_topic(
    printed: tuple[Node, dict[str, str]],
    spark: object,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    node, _ = printed
    (snippet,) = blocks("python", "PySpark")
    exec(compile(here(snippet, node), "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert shown.count("alice") == 3
    assert "juice" in shown


def test_the_configuration_file_is_accepted(tmp_path: Path) -> None:
    (block,) = blocks("toml", "Configuration")
    path = tmp_path / "node.toml"
    path.write_text(block)
    settings = load_settings({}, config_file=path, environ={})
    assert [url_of(each) for each in listeners_of(settings).advertised] == ["PLAINTEXT://logs.example.com:9092"]
    assert settings.broker["num.partitions"] == "6"


def test_the_table_of_differences_is_whole() -> None:
    rows = [line.split("|") for line in README.splitlines() if line.startswith("| `")]
    told = {name: (row[2].split()[0], row[3].strip()) for row in rows for name in re.findall(r"`([^`]+)`", row[1])}
    wanted = {d.key: (str(d.kafka).lower(), str(d.tidelog).lower()) for d in DIFFERENCES}
    assert {key: told.get(key) for key in wanted} == wanted
    assert {key for key in told if not key.startswith("make ")} == set(wanted)


def test_links_and_targets_exist() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"\bmake ([a-z-]+)\b", README))
    assert {target for target in named if f"\n{target}:" not in makefile} == set()


@pytest.mark.parametrize("page", ["README.md", *sorted(f"docs/{each.name}" for each in (ROOT / "docs").glob("*.md"))])
def test_named_modules_exist(page: str) -> None:
    names = re.findall(r"`([\w/]+\.py)`", (ROOT / page).read_text())
    folders = "benchmarks examples grpc_api kafka_gateway lambdas packaging scripts service spark storage_tiers tests"
    known = {str(path.relative_to(ROOT)) for folder in folders.split() for path in (ROOT / folder).rglob("*.py")}
    assert [name for name in names if not any(path == name or path.endswith("/" + name) for path in known)] == []
