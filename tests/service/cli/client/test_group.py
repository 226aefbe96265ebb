"""`tidelog group` on a node, with real members: the list, the lag and its part in the bucket, and every way to move offsets."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from service.cli.client.group_offsets import parse_csv, parse_scope
from service.cli.errors import CommandError
from tests.service.cli.support import Ran, tidelog, tidelog_process
from tests.support.clients import TIERED, create, produce, until
from tests.support.node import Node

FIRST_MS = 1_700_000_000_000  # the timestamp of the first record that `produce` makes
SOON: dict[str, str | int | bool] = {"group.initial.rebalance.delay.ms": 0}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("groups"), settings=SOON) as started:
        create(started, "orders", 1, TIERED)
        create(started, "other", 2, {})
        produce(started, "orders", 30)
        assert tidelog("topic", "seal", "orders", "--wait", "-b", started.kafka).code == 0
        produce(started, "orders", 10, first=30)
        yield started


@pytest.fixture
def group(node: Node, request: pytest.FixtureRequest) -> Iterator[Callable[..., Ran]]:
    """Runs `tidelog group WORD GROUP ...` for a group of this test's own."""
    name = request.node.name

    def run(word: str, *words: str | Path, stdin: str | None = None) -> Ran:
        return tidelog("group", word, name, *words, "-b", node.kafka, stdin=stdin)

    yield run


def moved(ran: Ran) -> list[Any]:
    assert ran.code == 0, ran.err
    return [(row["topic"], row["partition"], row["now"], row["offset"]) for row in ran.json]


def test_a_group_is_described_with_its_lag_and_the_part_of_it_in_the_bucket(
    node: Node, group: Callable[..., Ran], request: pytest.FixtureRequest
) -> None:
    assert group("reset-offsets", "--topic", "orders", "--to", "5", "--execute").code == 0
    found = group("describe", "--json").json
    assert (found["state"], found["members"]) == ("Empty", [])
    assert found["partitions"] == [
        {"topic": "orders", "partition": 0, "offset": 5, "end": 40, "lag": 35, "in_bucket": 25}
    ]
    several = tidelog("group", "describe", request.node.name, "--json", "-b", f"{node.kafka},{node.kafka}")
    assert several.json == found
    printed = group("describe").out.splitlines()
    assert printed[0].endswith("Empty  0 members")
    assert printed[2].split() == ["orders", "0", "5", "40", "35", "25", "-", "-"]


def test_members_are_shown_and_keep_their_offsets(node: Node, group: Callable[..., Ran], request: Any) -> None:
    name = request.node.name
    consumer = Consumer(
        {"bootstrap.servers": node.kafka, "group.id": name, "client.id": "reader", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders"])
    try:
        end, first = time.monotonic() + 60, None
        while first is None and time.monotonic() < end:
            first = consumer.poll(0.5)
        assert first is not None
        consumer.commit(asynchronous=False)
        listed = {row["group"]: row["state"] for row in tidelog("group", "list", "--json", "-b", node.kafka).json}
        assert listed[name] == "Stable"
        found = group("describe", "--json").json
        assert [(m["client_id"], m["host"], m["partitions"]) for m in found["members"]] == [
            ("reader", "/127.0.0.1", [{"topic": "orders", "partition": 0}])
        ]
        assert group("describe").out.splitlines()[-1].split()[-2:] == ["reader", "/127.0.0.1"]
        refused = group("reset-offsets", "--topic", "orders", "--to", "end", "--execute")
        assert refused.code == 1 and "stop the members first" in refused.err
        refused = group("delete-offsets", "--topic", "orders")
        assert refused.code == 1 and "cannot delete the offsets of orders-0: a member" in refused.err
        assert (
            "stop the members first; those that were killed, and static ones, leave only session.timeout.ms"
            in refused.err
        )
        refused = group("delete")
        assert refused.code == 1 and f"group {name} has members; stop the members first" in refused.err
    finally:
        consumer.close()
    # The advice works: without members all three commands succeed.
    assert moved(group("reset-offsets", "--topic", "orders", "--to", "end", "--execute", "--json"))[0][3] == 40
    assert group("delete-offsets", "--topic", "orders").out == "deleted the offsets of 1 partition\n"
    assert group("delete-offsets", "--topic", "orders").out == "deleted the offsets of 0 partitions\n"
    assert group("delete-offsets", "--topic", "orders", "--json").json == []
    assert group("delete").out == f"deleted group {name}\n"


def test_several_groups_are_deleted_at_once(
    node: Node, group: Callable[..., Ran], request: pytest.FixtureRequest
) -> None:
    """An unknown group among them is named, and the others are deleted."""
    first, second = request.node.name, f"{request.node.name}-2"

    def commit_both() -> None:
        for name in (first, second):
            words = ("reset-offsets", name, "--topic", "orders", "--to", "5", "--execute")
            assert tidelog("group", *words, "-b", node.kafka).code == 0

    commit_both()
    assert group("delete", second, "--json").json == {"deleted": [first, second]}
    commit_both()
    ran = group("delete", "unknown", second)
    assert ran.code == 1 and "unknown" in ran.err
    assert ran.out == f"deleted group {first}\ndeleted group {second}\n"
    listed = {row["group"] for row in tidelog("group", "list", "--json", "-b", node.kafka).json}
    assert not listed & {first, second}


def test_members_without_commits_or_partitions_are_shown(
    node: Node, group: Callable[..., Ran], request: pytest.FixtureRequest
) -> None:
    name = request.node.name
    create(node, name, 1, {})
    with contextlib.ExitStack() as members:
        consumers = [member(node, name, client) for client in ("first", "second")]
        for consumer in consumers:
            members.callback(consumer.close)
            consumer.subscribe(["other", name])
        refused = described_once_shared(group, consumers, 3), group("delete-offsets", "--topic", "other")
        assert refused[1].err.startswith("tidelog: cannot delete the offsets of other-0 and 1 more: a member")
        assert refused[0]["partitions"] == [
            {"topic": topic, "partition": partition, "offset": None, "end": 0, "lag": None, "in_bucket": None}
            for topic, partition in (("other", 0), ("other", 1), (name, 0))
        ]
        printed = [line.split() for line in group("describe").out.splitlines()[2:]]
        assert [row[:6] for row in printed] == [
            ["other", "0", "-", "0", "-", "-"],
            ["other", "1", "-", "0", "-", "-"],
            [name, "0", "-", "0", "-", "-"],
        ]
        assert {row[6] for row in printed} == {"first", "second"} and {row[7] for row in printed} == {"/127.0.0.1"}
        # The members still own a deleted topic; then one member gets no partition.
        assert tidelog("topic", "delete", name, "-b", node.kafka).code == 0
        deleted = group("describe", "--json").json["partitions"]
        assert [row["end"] for row in deleted if row["topic"] == name] in ([], [None])
        for consumer in consumers:
            consumer.subscribe(["orders"])
        described_once_shared(group, consumers, 1)
        printed = [line.split() for line in group("describe").out.splitlines()[2:]]
        assert [row[:6] for row in printed] == [["orders", "0", "-", "40", "-", "-"], ["-"] * 6]
        assert {row[6] for row in printed} == {"first", "second"}
        dry = group("reset-offsets", "--topic", "orders", "--to", "end")
        assert dry.code == 0 and "stop the members first" in dry.out


def test_member_ids_are_shown_if_client_ids_are_equal(
    node: Node, group: Callable[..., Ran], request: pytest.FixtureRequest
) -> None:
    with contextlib.ExitStack() as members:
        consumers = [member(node, request.node.name, client) for client in ("same", "same", "own")]
        for consumer in consumers:
            members.callback(consumer.close)
            consumer.subscribe(["other"])
        found = described_once_shared(group, consumers, 2)["members"]
        shown = {line.split()[6] for line in group("describe").out.splitlines()[2:]}
        assert shown == {"own"} | {each["member_id"] for each in found if each["client_id"] == "same"}


def member(node: Node, group: str, client: str) -> Consumer:
    return Consumer(
        {"bootstrap.servers": node.kafka, "group.id": group, "client.id": client, "enable.auto.commit": False}
    )


def described_once_shared(group: Callable[..., Ran], consumers: Sequence[Consumer], partitions: int) -> Any:
    """`group describe --json` once the group is stable with all these members and this many partitions."""
    found: list[Any] = []

    def is_shared() -> bool:
        for consumer in consumers:
            consumer.poll(0.05)
        found[:] = [group("describe", "--json").json]
        shares = [len(each["partitions"]) for each in found[0]["members"]]
        busy = min(partitions, len(consumers))
        return (
            found[0]["state"] == "Stable"
            and len(shares) == len(consumers)
            and (sum(shares) == partitions and sum(map(bool, shares)) == busy)
        )

    until(is_shared, f"{partitions} partitions are not shared: {found}")
    return found[0]


def test_groups_are_listed_by_state_and_type(
    node: Node, group: Callable[..., Ran], request: pytest.FixtureRequest
) -> None:
    name = request.node.name
    assert group("reset-offsets", "--topic", "orders", "--to", "5", "--execute").code == 0

    def listed(*words: str) -> dict[str, tuple[str, str]]:
        ran = tidelog("group", "list", *words, "--json", "-b", node.kafka)
        assert ran.code == 0, ran.err
        return {row["group"]: (row["type"], row["state"]) for row in ran.json}

    assert listed()[name] == listed("--state", "EMPTY", "--type", "classic")[name] == ("Classic", "Empty")
    assert name in listed("--state", "stable", "--state", "empty")
    assert name not in listed("--state", "Stable")
    assert listed("--type", "consumer") == {}
    printed = tidelog("group", "list", "-b", node.kafka).out.splitlines()
    assert printed[0].split() == ["GROUP", "TYPE", "STATE"]
    for option, said in (("--state", "CompletingRebalance, Dead, Empty"), ("--type", "Classic, Consumer")):
        refused = tidelog("group", "list", option, "odd", "-b", node.kafka)
        assert refused.code == 2 and said in " ".join(refused.err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("to", "offset"),
    [
        ("beginning", 0),
        ("end", 40),
        ("7", 7),
        ("99", 40),
        ("-10", 30),
        (f"@{FIRST_MS + 12}", 12),
        ("2023-11-14T22:13:20.005Z", 5),
        ("-1m", 40),
    ],
)
def test_every_position_is_one_to_continue_from(group: Callable[..., Ran], to: str, offset: int) -> None:
    assert moved(group("reset-offsets", "--topic", "orders:0", f"--to={to}", "--json")) == [("orders", 0, None, offset)]


def test_offsets_are_moved_by_a_number_of_records_or_kept_or_read_from_a_file(
    group: Callable[..., Ran], tmp_path: Path
) -> None:
    reset = ("reset-offsets", "--topic", "orders")
    assert moved(group(*reset, "--to-current", "--json")) == [("orders", 0, None, 40)]
    assert "use --to" in group(*reset, "--shift-by", "1").err
    assert moved(group(*reset, "--to", "20", "--execute", "--json")) == [("orders", 0, None, 20)]
    assert moved(group(*reset, "--shift-by", "-5", "--json")) == [("orders", 0, 20, 15)]
    assert moved(group(*reset, "--shift-by", "-50", "--json")) == [("orders", 0, 20, 0)]
    assert moved(group(*reset, "--to-current", "--json")) == [("orders", 0, 20, 20)]
    exported = group("reset-offsets", "--all-topics", "--shift-by", "2", "--export").out
    assert exported == "orders,0,22\n"
    (tmp_path / "moves.csv").write_text(exported)
    assert moved(group("reset-offsets", "--from-file", tmp_path / "moves.csv", "--execute", "--json")) == [
        ("orders", 0, 20, 22)
    ]
    assert moved(group("reset-offsets", "--from-file", "-", "--json", stdin="orders,0,3\nother,1,0\n")) == [
        ("orders", 0, 22, 3),
        ("other", 1, None, 0),
    ]


def test_an_offset_outside_its_partition_is_replaced_and_named(group: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "moves.csv").write_text("orders,0,41\nother,0,1\nother,1,-1\n")
    ran = group("reset-offsets", "--from-file", tmp_path / "moves.csv", "--export")
    assert ran.out == "orders,0,40\nother,0,0\nother,1,0\n"
    assert ran.err.splitlines() == [
        "tidelog: the new offset would be below the log start of other-1; the log start is used instead",
        "tidelog: the new offset would be beyond the end of orders-0 and 1 more; the end is used instead",
    ]
    assert group("reset-offsets", "--topic", "orders", "--to", "40").err == ""


def test_without_execute_nothing_is_changed(group: Callable[..., Ran]) -> None:
    shown = group("reset-offsets", "--topic", "orders", "--topic", "other", "--to", "end")
    assert "Run it again with --execute" in shown.out and ": --execute creates it" in shown.out
    assert [line.split()[:2] for line in shown.out.splitlines()[1:4]] == [
        ["orders", "0"],
        ["other", "0"],
        ["other", "1"],
    ]
    assert group("describe").code == 1
    made = group("reset-offsets", "--topic", "orders", "--to", "end", "--execute")
    assert made.code == 0 and made.out.endswith(", which did not exist before.\n")
    assert "creates it" not in group("reset-offsets", "--topic", "orders", "--to", "end").out
    again = group("reset-offsets", "--topic", "orders", "--to", "end", "--execute")
    assert again.code == 0 and "Committed to group" in again.out and "before" not in again.out
    assert group("describe", "--json").json["partitions"][0]["lag"] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--topic", "orders"), "name one of --to"),
        (("--topic", "orders", "--to", "end", "--shift-by", "1"), "name one of --to"),
        (("--to", "end"), "either --topic or --all-topics"),
        (("--to", "end", "--topic", "orders", "--all-topics"), "either --topic or --all-topics"),
        (("--to", "end", "--all-topics"), "has committed no offsets; name the partitions with --topic"),
        (("--to", "end", "--topic", "nowhere"), "nowhere"),
        (("--to", "end", "--topic", "orders:7"), "orders has no partition 7, only 0 to 0"),
        (("--to", "end", "--topic", "orders:x"), "write TOPIC, or TOPIC:0,2"),
        (("--to", "whenever", "--topic", "orders"), "write beginning, end"),
    ],
)
def test_wrong_words_are_explained(group: Callable[..., Ran], words: tuple[str, ...], said: str) -> None:
    ran = group("reset-offsets", *words)
    assert ran.code != 0 and said in " ".join(ran.err.replace("│", " ").split())


def test_a_group_that_does_not_exist_is_refused(group: Callable[..., Ran]) -> None:
    ran = group("describe")
    assert ran.code == 1 and "there is no group" in ran.err
    for words in (("delete",), ("delete-offsets", "--topic", "orders")):
        ran = group(*words)
        assert ran.code == 1 and "there is no group" in ran.err and "`tidelog group list` shows all" in ran.err


def test_scopes_and_files_are_read() -> None:
    assert parse_scope("a") == ("a", None)
    assert parse_scope("a:3,1") == ("a", [3, 1])
    assert parse_csv(["a,0,5\n", "\n", '"b",1,6\n'], "g") == {("a", 0): 5, ("b", 1): 6}
    assert parse_csv(["g,a,0,5\n", "h,a,0,6\n", '"g","b",1,7\n'], "g") == {("a", 0): 5, ("b", 1): 7}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["a,0\n"], "line 1: 'a,0' is not TOPIC,PARTITION,OFFSET"),
        (["a,0,1\n", "a,x,1\n"], "line 2: 'a,x,1': partition and offset must be numbers"),
        (["TOPIC,PARTITION,OFFSET\n", "a,0,1\n"], "line 1: .* must be numbers; leave the header line out"),
        (["GROUP,TOPIC,PARTITION,OFFSET\n"], "line 1: .* must be numbers; leave the header line out"),
        (["a,0,1\n", "g,a,0,1\n"], "line 2: 'g,a,0,1' is not TOPIC"),
        (["g,a,0,1\n", "a,0,1\n"], "line 2: 'a,0,1' is not GROUP,TOPIC,PARTITION,OFFSET"),
        (["h,a,0,1\n"], "no line of group g"),
        ([], "names no partition"),
    ],
)
def test_wrong_files_are_explained(lines: list[str], said: str) -> None:
    with pytest.raises(CommandError, match=said):
        parse_csv(lines, "g")


def test_the_first_question_of_a_cluster_about_groups_is_answered(tmp_path: Path) -> None:
    """The commands run in processes of their own, because an error of a whole group can end a process with
    confluent-kafka in it. The node creates its coordinators meanwhile."""
    with Node(tmp_path, settings=SOON) as fresh:
        for words in (("describe", "g"), ("reset-offsets", "g", "--all-topics", "--to", "5")):
            ran = tidelog_process("group", *words, "-b", fresh.kafka)
            assert ran.code == 1
            assert "there is no group g" in ran.err or "group g has committed no offsets" in ran.err
