"""A start names a store that cannot be used, before it prints the commands to try."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.serve.announcing import command_here
from tests.support.clients import until
from tests.support.node import Node
from tests.support.s3_proxy import S3Proxy, hang_up_before
from tests.support.s3_servers import BUCKET, S3Server

INVITED = "Talk to it:"


@pytest.fixture
def node(tmp_path: Path, versitygw: S3Server) -> Iterator[Node]:
    """A stopped node that has used its store."""
    store = f"s3://{BUCKET}/{tmp_path.name}"
    with Node(tmp_path, store=store, flags=["--s3-endpoint", versitygw.endpoint]) as node:
        assert node.stop() == 0
        node.output_path.unlink()
        yield node


def test_a_usable_store_is_not_mentioned(node: Node) -> None:
    node.start()
    until(lambda: INVITED in node.output(), "the output says what to try")
    assert "cannot be used" not in node.output()


def test_a_store_that_does_not_answer_is_named_before_the_commands(node: Node, versitygw: S3Server) -> None:
    with S3Proxy(versitygw.endpoint) as proxy:
        proxy.always(hang_up_before())
        node.flags = ["--s3-endpoint", proxy.endpoint]
        node.spawn()
        until(lambda: INVITED in node.output(), "the output says what to try")
        before = node.output().partition(INVITED)[0]
        assert "\nThe store cannot be used yet: does not answer: " in before
        node.kill()


def test_a_store_that_is_refused_gets_no_commands(node: Node) -> None:
    node.store = "s3://no-such-bucket/prefix"
    node.spawn()
    assert node.wait() == 1
    said = node.output()
    assert "no-such-bucket" in said
    assert INVITED not in said


def test_the_commands_name_a_path_that_works_where_the_output_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service runs in `/`, and its output is read elsewhere."""
    program = tmp_path / "own environment" / "bin" / "tidelog"
    program.parent.mkdir(parents=True)
    program.touch()
    monkeypatch.setattr(sys, "executable", str(program.parent / "python"))
    monkeypatch.setenv("PATH", "")
    for directory in (tmp_path, Path("/")):
        monkeypatch.chdir(directory)
        (named,) = shlex.split(command_here())
        assert (directory / named).samefile(program)
    assert Path(named).is_absolute()
