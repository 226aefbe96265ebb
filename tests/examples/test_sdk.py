"""The SDK's examples, run in order as a user would, and every code block of docs/sdk.md."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node import ROOT, Node

PAGE = (ROOT / "docs" / "sdk.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
#: The node's gRPC address and store in the page's examples.
ADDRESS, STORE = "127.0.0.1:9093", "data/store"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("sdk")) as started:
        yield started


def run(node: Node, *words: str) -> str:
    """Runs a program in the directory of the user's own files; returns its output."""
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=node.directory, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def example(node: Node, name: str, *arguments: str) -> str:
    return run(node, str(ROOT / "examples" / "sdk" / f"{name}.py"), *arguments)


@pytest.mark.xdist_group("sdk-examples")
def test_the_examples_do_what_they_say(node: Node) -> None:
    assert "1000 orders, the last one at offset" in example(node, "produce", node.grpc, "baskets")
    assert "baskets exists already" in example(node, "produce", node.grpc, "baskets")
    counted = example(node, "consume", node.grpc, "baskets")
    assert counted.splitlines()[:3] == ["alice: 668", "bob: 666", "carol: 666"]
    assert example(node, "consume", node.grpc, "baskets", "2100-01-01T00:00+00:00").startswith("read to {")
    assert "read b'a lamp' of b'bob'" in example(node, "blocking", node.grpc, "one-lamp")
    made = example(node, "topics", node.grpc, "numbers")
    assert re.search(r"refused: .*segment\.bytes", made)
    assert "partition 1: 5 records in the bucket" in made
    assert "offsets [0, 5) in " in made
    cold = example(node, "cold", str(node.store_path), "numbers")
    assert "numbers" in cold
    assert "10 records, 10 bytes of values" in cold


@pytest.mark.xdist_group("sdk-examples")
def test_a_copy_has_each_record_once_and_continues_where_it_was(node: Node) -> None:
    example(node, "produce", node.grpc, "originals")
    assert example(node, "transactions", node.grpc, "originals", "copies") == "copied 1000 records\n"
    assert example(node, "transactions", node.grpc, "originals", "copies", "2") == "copied 0 records\n"
    counts = example(node, "consume", node.grpc, "copies").splitlines()[:3]
    assert counts == ["alice: 334", "bob: 333", "carol: 333"]


@pytest.mark.parametrize("name", ["produce", "consume", "blocking", "topics", "transactions", "cold"])
def test_an_example_without_arguments_prints_its_usage(name: str) -> None:
    program = ROOT / "examples" / "sdk" / f"{name}.py"
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f"`{name}.py " in done.stderr
    assert "Traceback" not in done.stderr
    assert f"`{name}.py`" in PAGE


@pytest.mark.xdist_group("sdk-examples")
def test_every_code_block_of_the_page_runs(node: Node) -> None:
    assert len(BLOCKS) >= 6
    page = "".join(f"print('block {place}')\n{block}" for place, block in enumerate(BLOCKS))
    script = node.directory / "page.py"
    script.write_text(page.replace(ADDRESS, node.grpc).replace(STORE, str(node.store_path)))
    printed = run(node, str(script))
    assert "InvalidConfig True" in printed


@pytest.mark.xdist_group("sdk-examples")
def test_the_sdk_lives_beside_a_programs_own_files(node: Node, tmp_path: Path) -> None:
    for name in ("service", "spark", "lambdas", "client", "examples", "tests", "errors", "log"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the program its own file was taken for ours')")
    program = tmp_path / "main.py"
    program.write_text(
        "import sys\n"
        "import grpc_api.sdk.client, grpc_api.sdk.blocking, grpc_api.sdk.cold\n"
        "ours = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(ours & {'service', 'kafka_gateway', 'pyspark_tidelog', 'pyarrow', 'boto3', 'aiobotocore', 'kio'}))\n"
    )
    assert run(node, str(program)) == "[]\n"
