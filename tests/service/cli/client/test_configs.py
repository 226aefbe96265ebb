"""`tidelog configs` on a real node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.service.cli.support import Ran, tidelog
from tests.support.node import Node
from tests.support.ports import free_port

pytestmark = pytest.mark.xdist_group("cli-configs")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    directory = tmp_path_factory.mktemp("node")
    with Node(directory, store="none", settings={"log.retention.hours": 24}) as running:
        yield running


def at(node: Node, *words: str) -> Ran:
    return tidelog("configs", *words, "--bootstrap-server", node.kafka)


def set_by(node: Node, *words: str) -> dict[str, tuple[str | None, str]]:
    return {entry["key"]: (entry["value"], entry["set_by"]) for entry in at(node, "describe", *words, "--json").json}


def test_every_source_is_listed_and_the_nearest_one_wins(node: Node) -> None:
    assert set_by(node)["log.retention.hours"] == ("24", "start")
    assert "log.retention.ms" not in set_by(node)
    assert at(node, "alter", "--set", "log.retention.ms=5000").out == "changed all brokers\n"
    assert set_by(node)["log.retention.ms"] == ("5000", "all brokers")
    assert set_by(node, "--all-brokers") == {"log.retention.ms": ("5000", "all brokers")}
    assert at(node, "alter", "--broker", "1", "--set", "log.retention.ms=6000").out == "changed broker 1\n"
    assert set_by(node, "--broker", "1")["log.retention.ms"] == ("6000", "broker")
    tidelog("topic", "create", "told", "--bootstrap-server", node.kafka)
    assert set_by(node, "--topic", "told") == {"retention.ms": ("6000", "broker")}
    tidelog("topic", "alter", "told", "--config", "retention.ms=7000", "--bootstrap-server", node.kafka)

    lines = at(node, "describe", "retention.ms", "--topic", "told").out.splitlines()

    assert lines[0] == "retention.ms=7000  (topic)"
    assert lines[1].startswith("  Age in milliseconds")
    assert lines[2:] == [
        "  topic: retention.ms=7000",
        "  broker: log.retention.ms=6000",
        "  all brokers: log.retention.ms=5000",
        "  start: log.retention.hours=24",
        "  default: log.retention.hours=168",
    ]
    assert at(node, "alter", "--delete", "log.retention.ms").code == 0
    assert at(node, "alter", "--broker", "1", "--delete", "log.retention.ms").code == 0
    assert set_by(node, "log.retention.ms") == {"log.retention.ms": (None, "default")}


def test_a_throttle_is_shown_only_while_it_is_set(node: Node) -> None:
    rate = "leader.replication.throttled.rate"
    assert rate not in at(node, "describe", "--all").out
    assert at(node, "alter", "--set", f"{rate}=1000").code == 0
    assert set_by(node)[rate] == ("1000", "all brokers")
    assert at(node, "alter", "--delete", rate).code == 0
    assert rate not in set_by(node)


def test_lists_grow_and_shrink(node: Node) -> None:
    at(node, "alter", "--append", "log.cleanup.policy=compact")
    assert set_by(node)["log.cleanup.policy"] == ("delete,compact", "all brokers")
    at(node, "alter", "--subtract", "log.cleanup.policy=delete")
    assert set_by(node)["log.cleanup.policy"] == ("compact", "all brokers")
    at(node, "alter", "--delete", "log.cleanup.policy")
    assert "log.cleanup.policy" not in set_by(node)


def test_all_configs_are_listed_with_their_effect(node: Node) -> None:
    entries = {entry["key"]: entry for entry in at(node, "describe", "--all", "--json").json}
    assert len(entries) > 320
    assert entries["num.io.threads"]["documentation"].endswith(
        "(Accepted: one event loop serves all connections and requests.)"
    )
    assert entries["ssl.keystore.password"] == {
        **entries["ssl.keystore.password"],
        "value": None,
        "sensitive": True,
    }
    table = at(node, "describe", "--all").out.splitlines()
    assert table[0].split() == ["KEY", "VALUE", "SET", "BY"]
    assert len(table) == len(entries) + 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("alter", "--set", "num.partitions=3"), "Cannot update these configs dynamically: Set(num.partitions)"),
        (("alter", "--set", "num.partitions=3"), "Set it when the node starts: tidelog serve --set KEY=VALUE"),
        (("describe", "retention.ms"), "did you mean log.retention.ms"),
        (("describe", "retention.ms"), "--topic T shows a topic's"),
        (("alter", "--set", "log.retention.ms=soon"), "Not a number of type LONG"),
        (("alter", "--set", "log.retension.ms=1"), "did you mean log.retention.ms"),
        (("alter", "--delete", "log.retension.ms"), "did you mean log.retention.ms"),
        (("alter", "--broker", "9", "--set", "log.retention.ms=1"), "Unexpected broker id"),
        (("describe", "--topic", "nowhere"), "there is no topic nowhere; `tidelog topic list` shows all"),
        (("describe", "no.such.key"), "a broker has no config no.such.key"),
    ],
)
def test_impossible_alterations_are_reported(node: Node, words: tuple[str, ...], said: str) -> None:
    ran = at(node, *words)
    assert ran.code == 1
    assert said in ran.err


def test_secrets_are_neither_shown_nor_printed_nor_logged(node: Node) -> None:
    ran = at(node, "alter", "--broker", "1", "--set", "ssl.keystore.password=hunter2")
    assert ran.code == 1
    assert "[hidden]" in ran.err
    assert "hunter2" not in ran.err + ran.out + node.output()
    assert all(b"hunter2" not in path.read_bytes() for path in node.data_dir.rglob("*") if path.is_file())


def test_validating_changes_nothing(node: Node) -> None:
    assert at(node, "alter", "--set", "log.retention.ms=5000", "--validate-only").out == "could change all brokers\n"
    assert set_by(node, "--all-brokers") == {}


def test_command_lines_that_say_too_little_or_too_much_are_refused(node: Node) -> None:
    assert at(node, "alter").code == 2
    assert at(node, "alter", "--set", "novalue").code == 2
    assert at(node, "describe", "--broker", "1", "--topic", "t").code == 2
    assert tidelog("configs", "describe", "--bootstrap-server", f"127.0.0.1:{free_port()}").code == 2
