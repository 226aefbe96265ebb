"""`tidelog consume --group` on a node: members share partitions, and the offsets of printed records are committed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.service.cli.support import ROOT, tidelog, tidelog_process
from tests.support.children import start_child
from tests.support.clients import create, produce
from tests.support.node import Node
from tests.support.processes import readable

SOON: dict[str, str | int | bool] = {"group.initial.rebalance.delay.ms": 0}
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("members"), settings=SOON) as started:
        create(started, "orders", 2, {})
        produce(started, "orders", 30)
        create(started, "one", 1, {})
        yield started


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


def numbers(printed: bytes) -> list[int]:
    return [int(each) for each in re.findall(rb"^value-(\d+)-", printed, re.MULTILINE)]


def committed(node: Node, group: str) -> int:
    """The number of records below the group's committed offsets, over all partitions."""
    found = tidelog("group", "describe", group, "--json", "-b", node.kafka).json
    return sum(each["offset"] for each in found["partitions"])


@contextmanager
def member(node: Node, group: str, topic: str) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-m", "service.cli.main", "consume", topic, "--group", group, "-b", node.kafka]
    process = start_child(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def interrupted(process: subprocess.Popen[bytes], by: signal.Signals = signal.SIGINT) -> tuple[bytes, bytes]:
    process.send_signal(by)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    return out, err


def state_of(node: Node, group: str) -> str | None:
    listed = tidelog("group", "list", "--json", "-b", node.kafka).json
    return next((str(row["state"]) for row in listed if row["group"] == group), None)


def members(node: Node, group: str) -> list[int]:
    """The number of partitions of each member, in ascending order; empty unless the group is stable."""
    if state_of(node, group) != "Stable":
        return []
    described = tidelog("group", "describe", group, "--json", "-b", node.kafka).json
    return sorted(len(each["partitions"]) for each in described["members"])


def until_members(node: Node, group: str, wanted: list[int]) -> None:
    end = time.monotonic() + PATIENCE_S
    while members(node, group) != wanted:
        assert time.monotonic() < end


def has_only_waited(said: str) -> bool:
    """Whether the command reports nothing but waits, which other members or a slow machine may cause."""
    return all(line.startswith("tidelog: no records for ") for line in said.splitlines())


def test_the_next_run_resumes_where_the_last_one_ended(node: Node, group: str) -> None:
    first = tidelog_process("consume", "orders", "--group", group, "--max-messages", "7", "-b", node.kafka)
    assert first.code == 0
    assert has_only_waited(first.err)
    assert committed(node, group) == len(numbers(first.stdout)) == 7
    second = tidelog_process("consume", "orders", "-g", group, "--exit-at-end", "-b", node.kafka)
    assert sorted(numbers(first.stdout) + numbers(second.stdout)) == list(range(30))
    assert committed(node, group) == 30
    third = tidelog_process("consume", "orders", "-g", group, "-e", "--json", "-b", node.kafka)
    assert (third.code, third.stdout) == (0, b"")
    assert has_only_waited(third.err)


def test_the_option_from_applies_to_partitions_without_a_committed_offset(node: Node, group: str) -> None:
    ran = tidelog_process("consume", "orders", "-g", group, "-e", "--from", "end", "-b", node.kafka)
    assert (ran.code, ran.stdout) == (0, b"")
    assert (
        tidelog("group", "reset-offsets", group, "--topic", "orders:0", "--to", "0", "--execute", "-b", node.kafka).code
        == 0
    )
    ran = tidelog_process("consume", "orders", "-g", group, "-e", "--from", "end", "-f", "%p ", "-b", node.kafka)
    assert set(ran.out.split()) == {"0"}


def test_members_share_the_partitions_and_commit_when_they_are_interrupted(node: Node, group: str) -> None:
    with member(node, group, "orders") as one, member(node, group, "orders") as two:
        until_members(node, group, [1, 1])
        out, _ = interrupted(one)
        until_members(node, group, [2])
        rest, _ = interrupted(two)
    assert set(numbers(out) + numbers(rest)) == set(range(30))
    assert committed(node, group) == 30


def test_a_member_that_is_terminated_commits_and_leaves(node: Node, group: str) -> None:
    with member(node, group, "orders") as one:
        until_members(node, group, [2])
        out, _ = interrupted(one, signal.SIGTERM)
    assert committed(node, group) == len(numbers(out))
    assert state_of(node, group) == "Empty"


def test_a_member_without_a_partition_says_why_nothing_comes(node: Node, group: str) -> None:
    with member(node, group, "one") as first:
        until_members(node, group, [1])
        with member(node, group, "one") as second:
            said = said_by(first, second)
            assert (
                f"group {group} has assigned no partition to this member: it has more members than partitions" in said
            )


def said_by(*processes: subprocess.Popen[bytes]) -> str:
    """The first line that any of the processes writes to standard error."""
    streams = [each.stderr for each in processes if each.stderr is not None]
    return readable(streams, PATIENCE_S)[0].readline().decode()


def test_a_topic_that_does_not_exist_is_refused(node: Node, group: str) -> None:
    ran = tidelog("consume", "nothing", "--group", group, "-b", node.kafka)
    assert ran.code == 1
    assert "nothing" in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-g", "g", "-p", "0"), "leave --partition out"),
        (("-g", "g", "--to", "end"), "leave --to out, or use --exit-at-end"),
        (("-g", "g", "--from", "-10"), "with --group only beginning or end"),
        (("-g", ""), "the name of the group is empty"),
    ],
)
def test_words_that_a_group_contradicts_are_refused(node: Node, words: tuple[str, ...], said: str) -> None:
    ran = tidelog("consume", "orders", *words, "-b", node.kafka)
    assert ran.code == 2
    assert said in " ".join(re.sub(r"[│\n]", " ", ran.err).split())
