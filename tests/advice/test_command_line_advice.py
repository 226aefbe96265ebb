"""Errors about command lines, settings and configs, with their advice followed: the words that a message advises are accepted.

One table covers plain validation: refused words, the message, and the advised words, which end with code 0.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from service.configs.removed import REMOVED_FROM_BROKERS, REMOVED_FROM_TOPICS
from service.configs.resolve import check_static
from service.settings.node_settings import NodeSettings, load_settings
from storage_tiers.errors import InvalidConfig
from tests.service.cli.support import tidelog
from tests.support.node import Node
from tests.support.ports import free_port

pytestmark = pytest.mark.xdist_group("advice-command-line")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with a topic `t` of ten records in its store, and with a directory `empty` beside its data."""
    directory = tmp_path_factory.mktemp("node")
    (directory / "empty").mkdir()
    with Node(directory, settings={"log.local.retention.ms": 1}) as running:
        at = ("--bootstrap-server", running.kafka)
        assert tidelog("topic", "create", "t", *at).code == 0
        assert tidelog("produce", "t", *at, stdin="record\n" * 10).code == 0
        assert tidelog("topic", "seal", "t", "--wait", *at).code == 0
        yield running


#: Rows of: refused words; the message; accepted words. Placeholders: {kafka}, {http}, {store}, {data}, {empty}, {nobody}.
ALTER_NOTHING, ASK_WHAT = (
    "give --set, --delete, --append or --subtract",
    "give --config, --delete-config or --partitions",
)
ADVISED: list[tuple[str, str, Sequence[str]]] = [
    (
        "cold repair -b {kafka}",
        "name one topic, or give --cluster for all",
        ["cold repair t -b {kafka}", "cold repair --cluster -b {kafka}"],
    ),
    (
        "configs describe --broker 1 --topic t -b {kafka}",
        "give one of --broker, --topic and --all-brokers",
        [f"configs describe {one} -b {{kafka}}" for one in ("--broker 1", "--topic t", "--all-brokers")],
    ),
    (
        "configs alter -b {kafka}",
        ALTER_NOTHING,
        [
            f"configs alter {one} -b {{kafka}}"
            for one in ("--set log.retention.ms=86400000", "--delete log.retention.ms")
        ],
    ),
    (
        "configs alter -b {kafka} --set max.connections.per.ip.overrides=many",
        "write address:count, several separated by commas",
        ["configs alter -b {kafka} --set max.connections.per.ip.overrides=127.0.0.2:5,127.0.0.3:6"],
    ),
    (
        "configs describe --broker 1 log.retenton.ms -b {kafka}",
        "`tidelog configs describe --all` lists all",
        ["configs describe --all -b {kafka}"],
    ),
    (
        "consume t --from yesterday -b {kafka}",
        "write beginning, end, an offset, -10 for ten before the end, a time such as 2013-01-01T05:15:00Z, -1h for an hour ago "
        "(ms, s, m, h, d, w), or @ and ms since 1970",
        [
            f"consume t --from {start} --exit-at-end -b {{kafka}}"
            for start in ("beginning", "end", "3", "-10", "2013-01-01T05:15:00Z", "-1h", "-1w", "@1357017300000")
        ],
    ),
    (
        "consume t --json --key-separator : -b {kafka}",
        "give one of --format, --key-separator and --json",
        [f"consume t -e {one} -b {{kafka}}" for one in ("--format %s", "--key-separator :", "--json")],
    ),
    (
        "produce t --json --key-separator : -b {kafka}",
        "omit --key-separator",
        ["produce t --json -b {kafka}"],
    ),
    (
        "produce -b {kafka}",
        "name the topic, or give --json with lines that name it",
        ["produce t -b {kafka}", "produce --json -b {kafka}"],
    ),
    (
        "fsck --store {store} --data-dir {data} --quick",
        "leave --quick out",
        ["fsck --store {store} --data-dir {data}"],
    ),
    ("fsck --store {empty}", "correct its bucket or prefix", ["fsck --store {store}"]),
    ("topic list -b nowhere", "write HOST:PORT, several separated by commas", ["topic list -b {kafka},{kafka}"]),
    (
        "topic list -b {nobody}",
        "start one with `tidelog serve`, or give another address with --bootstrap-server",
        ["topic list --bootstrap-server {kafka}"],
    ),
    (
        "consume t --from 99 -e -b {kafka}",
        "give --from an offset between them, beginning or end",
        [f"consume t --from {position} -e -b {{kafka}}" for position in ("5", "beginning", "end")],
    ),
    (
        "topic create u --config novalue -b {kafka}",
        "write KEY=VALUE",
        ["topic create u --config retention.ms=1 -b {kafka}"],
    ),
    (
        "topic alter t -b {kafka}",
        ASK_WHAT,
        [
            f"topic alter t {one} -b {{kafka}}"
            for one in ("--config retention.ms=-1", "--delete-config retention.ms", "--partitions 2")
        ],
    ),
    ("log dump {empty}", "name a partition's directory", ["log dump {data}/t-0"]),
    (
        "cold ls --store file://{empty}/missing",
        "create it, or correct the store's URL",
        ["cold ls --store {store}", "cold ls --store file://{empty}"],
    ),
]


def words(text: str, node: Node) -> Sequence[str]:
    places = {
        "kafka": node.kafka,
        "http": node.http,
        "store": node.store,
        "data": node.data_dir,
        "empty": node.directory / "empty",
        "nobody": f"127.0.0.1:{free_port()}",
    }
    return text.format(**places).split()


@pytest.mark.parametrize(("refused", "said", "taken"), ADVISED, ids=[row[0] for row in ADVISED])
def test_the_advised_words_of_a_command_are_accepted(node: Node, refused: str, said: str, taken: Sequence[str]) -> None:
    ran = tidelog(*words(refused, node))
    assert ran.code in (1, 2)
    assert said in unboxed(ran.err)
    for advised in taken:
        done = tidelog(*words(advised, node))
        assert done.code == 0, (advised, done.err)
    assert len(tidelog("consume", "t", "--exit-at-end", "-b", node.kafka).out.splitlines()) == 10


def unboxed(text: str) -> str:
    """The text without the box that a terminal gets around it."""
    return " ".join(re.sub(r"[│╭╰─╮╯]", " ", text).split())


def test_top_accepts_the_advised_http_address(node: Node) -> None:
    assert tidelog("top", "--once", "--interval", "0.2", "--http", node.http).code == 0


# --- starting ---------------------------------------------------------------------------------------------------------
FREE = "--listeners PLAINTEXT://127.0.0.1:0 --grpc-listener 127.0.0.1:0 --http-listener 127.0.0.1:0"
STARTS: list[tuple[str, str]] = [
    (f"{FREE} --new-cluster --take-over c --store memory://s", "give one of them"),
    (f"{FREE} --take-over c --store none", "give its --store"),
    (
        f"{FREE} --listeners PLAINTEXT://0.0.0.0:0",
        "write PLAINTEXT://HOST:PORT in advertised.listeners, with a name or address of this machine that clients reach",
    ),
    ("--listeners 127.0.0.1:9092", "write NAME://HOST:PORT, as in PLAINTEXT://127.0.0.1:9092"),
    ("--listeners ,", "write NAME://HOST:PORT, as in PLAINTEXT://127.0.0.1:9092"),
    ("--listeners INSIDE://:0", "add INSIDE:PLAINTEXT to listener.security.protocol.map"),
    (
        "--listeners SSL://:0",
        "write SSL:PLAINTEXT in listener.security.protocol.map, and restrict who can reach that address",
    ),
    ("--listener-security-protocol-map INSIDE", "write INSIDE:PLAINTEXT"),
    ("--advertised-listeners INSIDE://h:1", "add it there, or take it out here"),
    (
        "--listeners PLAINTEXT://:0,SSL://:0 --listener-security-protocol-map PLAINTEXT:PLAINTEXT,SSL:PLAINTEXT "
        "--advertised-listeners SSL://h:1",
        "add it, or take it out of listeners",
    ),
    ("--grpc-listener nowhere", "write HOST:PORT, or :PORT for every address of this machine"),
    ("--set novalue", "write KEY=VALUE, for example --set log.retention.ms=86400000"),
    (
        f"{FREE} --listeners PLAINTEXT://127.0.0.1:{{taken}}",
        "stop the process using it, or choose another address in --listeners",
    ),
    (f"{FREE} --http-listener 127.0.0.1:{{taken}}", "stop the process using it, or choose another --http-listener"),
    (f"{FREE} --grpc-listener 127.0.0.1:{{taken}}", "stop the process using it, or choose another --grpc-listener"),
]


@pytest.fixture(scope="module")
def advised_start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node started with all words that the messages of STARTS advise."""
    plain, inside, over = free_port(), free_port(), free_port()
    listeners = f"PLAINTEXT://0.0.0.0:{plain},INSIDE://127.0.0.1:{inside},SSL://:{over}"
    advertised = f"PLAINTEXT://127.0.0.1:{plain},INSIDE://127.0.0.1:{inside},SSL://localhost:{over}"
    flags = ["--listeners", listeners, "--advertised-listeners", advertised]
    flags += ["--listener-security-protocol-map", "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT,SSL:PLAINTEXT"]
    flags += ["--set", "log.retention.ms=86400000", "--new-cluster"]
    with Node(tmp_path_factory.mktemp("start"), flags=flags) as node:
        yield node


@pytest.mark.parametrize(("flags", "said"), STARTS, ids=[row[0] for row in STARTS])
def test_the_advised_options_start_a_node(advised_start: Node, tmp_path: Path, flags: str, said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        ran = tidelog("serve", "--data-dir", tmp_path / "data", *flags.format(taken=taken).split())
    assert ran.code in (1, 2), ran
    assert said in unboxed(ran.err)
    assert not (tmp_path / "data").exists()
    described = tidelog("configs", "describe", "log.retention.ms", "--json", "-b", advised_start.kafka)
    assert [row["value"] for row in described.json] == ["86400000"]


# --- configs of earlier Kafkas ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "said"),
    [(name, said) for name, said in REMOVED_FROM_BROKERS.items() if said.startswith("write ") and "Update" not in said],
)
def test_the_replacement_of_a_removed_broker_config_is_accepted(name: str, said: str) -> None:
    with pytest.raises(InvalidConfig, match=re.escape(said)):
        check_static({name: "1"})
    own = said.partition("here the node's own setting")[2].removeprefix("s ")
    for setting in re.findall(r"[a-z_]+", own.replace(" and ", " ")):
        assert setting in NodeSettings.model_fields, setting
    if own:
        load_settings({"listeners": "P://:1", "advertised_listeners": "P://h:1", "node_id": 3}, environ={})
        return
    for wanted in re.findall(r"[a-z]+(?:\.[a-z]+)+", said):
        assert check_static({wanted: "1000"}) == {wanted: "1000"}


@pytest.mark.parametrize(
    ("name", "said"), [(name, said) for name, said in REMOVED_FROM_TOPICS.items() if said.startswith("write ")]
)
def test_the_replacement_of_a_removed_topic_config_is_accepted(node: Node, name: str, said: str) -> None:
    refused = tidelog("topic", "alter", "t", "--config", f"{name}=1", "-b", node.kafka)
    assert refused.code == 1 and said in refused.err
    for wanted in re.findall(r"[a-z]+(?:\.[a-z]+)+", said):
        assert tidelog("topic", "alter", "t", "--config", f"{wanted}=1000", "-b", node.kafka).code == 0
