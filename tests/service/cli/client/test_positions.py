"""Positions in partitions as users write them: parsed, then resolved on a real node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
import typer
from confluent_kafka import Consumer, Producer, TopicPartition

from service.cli.client.positions import Position, Unit, find_offsets, parse_position
from tests.service.cli.support import Ran, tidelog
from tests.support.clients import create
from tests.support.node import Node

pytestmark = pytest.mark.xdist_group("cli-positions")

NOW_MS = 1_000_000_000_000
HOUR_MS = 3_600_000
#: The numbers of records in `t-0` and `t-1`.
COUNTS = (10, 4)


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("beginning", Unit.TIME, -2),
        ("end", Unit.TIME, -1),
        ("17", Unit.OFFSET, 17),
        ("-10", Unit.FROM_END, 10),
        ("-0", Unit.FROM_END, 0),
        ("-1h", Unit.TIME, NOW_MS - HOUR_MS),
        ("-1d12h", Unit.TIME, NOW_MS - 36 * HOUR_MS),
        ("-2w", Unit.TIME, NOW_MS - 14 * 24 * HOUR_MS),
        ("-1m30s500ms", Unit.TIME, NOW_MS - 90_500),
        ("-99999w", Unit.TIME, 0),
        ("@1372636800000", Unit.TIME, 1_372_636_800_000),
        ("2013-07-01T00:00:00Z", Unit.TIME, 1_372_636_800_000),
        ("2013-07-01T02:00:00+02:00", Unit.TIME, 1_372_636_800_000),
        ("2013-07-01", Unit.TIME, 1_372_636_800_000),
        ("1960-01-01", Unit.TIME, 0),
    ],
)
def test_positions_are_parsed(text: str, unit: Unit, value: int) -> None:
    assert parse_position(text, NOW_MS, "--from") == Position(unit, value)


class KnownEnds:
    """A consumer of partitions that begin at 3 and end at 10."""

    def offsets_for_times(self, asked: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return [TopicPartition(each.topic, each.partition, {-2: 3, -1: 10}[each.offset]) for each in asked]


@pytest.mark.parametrize(("before_end", "offset"), [(0, 10), (4, 6), (7, 3), (8, 3), (11, 3)])
def test_records_before_the_end_are_counted_down_to_the_first_that_is_kept(before_end: int, offset: int) -> None:
    found = find_offsets("unused", cast(Consumer, KnownEnds()), [("t", 0)], Position(Unit.FROM_END, before_end))
    assert found == {("t", 0): offset}


@pytest.mark.parametrize(
    "text",
    ["", "-", "yesterday", "-1y", "1h", "-1h30", "-h", "٣", "-٣", "@", "@-1", "+5", "9223372036854775808", "--5"],
)
def test_invalid_positions_are_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        parse_position(text, NOW_MS, "--to")
    assert refused.value.param_hint == "--to"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """`t-0` holds 0 to 9 and `t-1` 0 to 3, their timestamps a minute apart in 2013; `u-0` holds "u0" to "u2"."""
    with Node(tmp_path_factory.mktemp("node")) as running:
        create(running, "t", 2, {"retention.ms": "-1"})
        create(running, "u", 1, {})
        create(running, "empty", 1, {})
        producer = Producer({"bootstrap.servers": running.kafka})
        for partition, count in enumerate(COUNTS):
            for number in range(count):
                at = 1_372_636_800_000 + number * 60_000
                producer.produce("t", b"%d.%d" % (partition, number), partition=partition, timestamp=at)
        for number in range(3):
            producer.produce("u", b"u%d" % number)
        assert producer.flush(30) == 0
        yield running


def consumed(node: Node, *words: str) -> list[str]:
    ran = at(node, "consume", *words)
    assert ran.code == 0, ran.err
    return sorted(ran.out.split())


def at(node: Node, *words: str) -> Ran:
    return tidelog(*words, "--bootstrap-server", node.kafka)


def of(partition: int, first: int, beyond: int) -> list[str]:
    return [f"{partition}.{number}" for number in range(first, beyond)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--from", "-2", "-e"), of(0, 8, 10) + of(1, 2, 4)),
        (("--from", "-6", "-e"), of(0, 4, 10) + of(1, 0, 4)),
        (("-o", "-0", "-e"), []),
        (("-p", "0", "--from", "3", "--to", "6"), of(0, 3, 6)),
        (("--from", "1", "--to", "-2"), of(0, 1, 8) + of(1, 1, 2)),
        (("--to", "end"), of(0, 0, 10) + of(1, 0, 4)),
        (("--to", "beginning"), []),
        (("--to", "1000000"), of(0, 0, 10) + of(1, 0, 4)),
        (("--from", "1000000", "--to", "2000000"), []),
        (("--from", "6", "--to", "3"), []),
        (("--from", "2013-07-01T00:02:00Z", "--to", "2013-07-01T00:05:00Z"), of(0, 2, 5) + of(1, 2, 4)),
        (("--from", "2013-07-01T00:04:00Z", "--exit-at-end"), of(0, 4, 10)),
        (("--from", "-1h", "-e"), []),
        (("--to", "-1h"), of(0, 0, 10) + of(1, 0, 4)),
        (("--from", "-1d", "--to", "end"), []),
        (("--to", "-2", "-n", "1", "-p", "1"), of(1, 0, 1)),
    ],
    ids=" ".join,
)
def test_records_between_two_positions_are_printed(node: Node, words: tuple[str, ...], expected: list[str]) -> None:
    assert consumed(node, "t", *words) == sorted(expected)


def test_several_topics_are_read_together(node: Node) -> None:
    assert consumed(node, "t", "u", "empty", "-e") == sorted(of(0, 0, 10) + of(1, 0, 4) + ["u0", "u1", "u2"])
    assert consumed(node, "u", "u", "--from", "-1", "--to", "end", "-f", r"%t:%s\n") == ["u:u2"]
    assert consumed(node, "u", "t", "-p", "0", "-o", "-1", "-e") == ["0.9", "u2"]
    missing = at(node, "consume", "t", "absent", "-e")
    assert (missing.code, "there is no topic absent" in missing.err) == (1, True)
    partition = at(node, "consume", "t", "u", "-p", "1", "-e")
    assert (partition.code, "u has no partition 1, only 0 to 0" in partition.err) == (1, True)


def test_an_offset_outside_the_log_is_answered_with_the_log(node: Node) -> None:
    ran = at(node, "consume", "u", "--from", "99", "-e")
    said = "u-0 does not have that offset: its log starts at offset 0 and ends at 3"
    advice = "give --from an offset between them, beginning or end"
    assert (ran.code, ran.err) == (1, f"tidelog: {said}; {advice}\n")


def test_a_range_ends_where_the_log_did_when_it_began(node: Node) -> None:
    """Reading does not wait for offsets beyond that end, and stops before the log end where the range ends earlier."""
    assert consumed(node, "empty", "--to", "5") == []
    assert consumed(node, "t", "-p", "0", "--from", "8", "--to", "9") == of(0, 8, 9)


# --- delete-records ----------------------------------------------------------------------------------------------------
def test_records_before_a_place_are_deleted(node: Node) -> None:
    create(node, "d", 2, {})
    producer = Producer({"bootstrap.servers": node.kafka})
    for partition in (0, 1):
        for number in range(10):
            producer.produce("d", b"%d.%d" % (partition, number), partition=partition)
    assert producer.flush(30) == 0

    dry = at(node, "topic", "delete-records", "d", "--before", "-3", "--dry-run")
    assert (dry.code, dry.err) == (0, "14 offsets would be deleted\n")
    assert len(consumed(node, "d", "-e")) == 20
    one = at(node, "topic", "delete-records", "d", "--before", "4", "-p", "1", "--json")
    assert one.json == {
        "topic": "d",
        "deleted": True,
        "partitions": [{"partition": 1, "start_before": 0, "start": 4, "end": 10}],
    }
    assert consumed(node, "d", "-e") == of(0, 0, 10) + of(1, 4, 10)
    ran = at(node, "topic", "delete-records", "d", "--before", "-3")
    assert (ran.code, ran.err) == (0, "10 offsets deleted\n")
    assert [line.split() for line in ran.out.splitlines()[1:]] == [["0", "0", "7", "10"], ["1", "4", "7", "10"]]
    assert consumed(node, "d", "-e") == of(0, 7, 10) + of(1, 7, 10)
    assert at(node, "topic", "delete-records", "d", "--before", "2").err == "0 offsets deleted\n"
    assert at(node, "topic", "delete-records", "d", "--before", "end", "-p", "0").code == 0
    assert consumed(node, "d", "-e") == of(1, 7, 10)


def test_undeletable_records_are_reported(node: Node) -> None:
    beyond = at(node, "topic", "delete-records", "u", "--before", "4")
    assert (beyond.code, beyond.err) == (1, "tidelog: 4 is beyond the end of u-0 (3); nothing was deleted\n")
    create(node, "compact", 1, {"cleanup.policy": "compact"})
    producer = Producer({"bootstrap.servers": node.kafka})
    producer.produce("compact", b"v", b"k")
    assert producer.flush(30) == 0
    refused = at(node, "topic", "delete-records", "compact", "--before", "end")
    assert refused.code == 1
    assert "cannot delete records of compact-0: " in refused.err and "POLICY_VIOLATION" in refused.err


# --- cluster info ------------------------------------------------------------------------------------------------------
def test_the_cluster_and_its_node_are_described(node: Node) -> None:
    found = at(node, "cluster", "info", "--json").json
    (only,) = found["nodes"]
    assert only == {
        "id": 1,
        "kafka": node.kafka,
        "grpc": node.grpc,
        "http": node.http,
        "rack": None,
        "controller": True,
    }
    assert f"cluster_id={found['cluster_id']}" in node.output()
    lines = at(node, "cluster", "info").out.splitlines()
    assert lines[0].startswith(f"cluster {found['cluster_id']}: 1 node, {found['topics']} topics, ")
    assert lines[1].split() == ["NODE", "KAFKA", "GRPC", "HTTP", "RACK", "CONTROLLER"]
    assert lines[2].split() == ["1", node.kafka, node.grpc, node.http, "-", "yes"]
