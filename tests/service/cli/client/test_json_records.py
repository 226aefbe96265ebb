"""JSON lines of records: `produce --json` accepts what `consume --json` prints, through a real node and without loss."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from service.cli.client.json_records import JsonRecord, from_json, to_json
from service.cli.client.record_format import ShownRecord
from tests.service.cli.support import Ran, tidelog
from tests.support.clients import create
from tests.support.node import Node

pytestmark = pytest.mark.xdist_group("cli-json")

PARTITIONS = 3
#: From librdkafka's least timestamp to one in the past: by default a topic refuses those over an hour ahead.
TIMESTAMPS = st.integers(1, 1_700_000_000_000)
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
CONTENT = st.none() | st.binary(max_size=20) | TEXT.map(str.encode)
#: librdkafka for Python cuts a header's key at a zero byte.
HEADERS = st.lists(st.tuples(TEXT.filter(lambda key: "\0" not in key), CONTENT), max_size=3)
RECORDS = st.builds(
    JsonRecord, st.none(), st.integers(0, PARTITIONS - 1), TIMESTAMPS, CONTENT, CONTENT, HEADERS.map(tuple)
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("node")) as running:
        yield running


def at(node: Node, *words: str, stdin: bytes = b"") -> Ran:
    return tidelog(*words, "--bootstrap-server", node.kafka, stdin=stdin)


def without_topic(ran: Ran) -> list[dict[str, Any]]:
    """The JSON lines sorted by partition and offset, because partitions arrive in any order."""
    lines = ran.json_lines
    for line in lines:
        del line["topic"]
    return sorted(lines, key=lambda line: (line["partition"], line["offset"]))


_names = (f"round-trip-{number}" for number in itertools.count())


# No shrinking, and few examples with many records: each creates two topics and starts three processes.
@settings(max_examples=5, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(records=st.lists(RECORDS, min_size=1, max_size=60))
def test_a_topic_is_copied_with_nothing_lost(node: Node, records: list[JsonRecord]) -> None:
    """A plain client produces, `consume --json` reads, `produce --json` writes a second topic: both hold the same records."""
    first, second = next(_names), next(_names)
    for name in (first, second):
        create(node, name, PARTITIONS, {"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": node.kafka})
    for record in records:
        headers: Any = list(record.headers)
        assert record.partition is not None and record.timestamp is not None
        producer.produce(first, record.value, record.key, record.partition, timestamp=record.timestamp, headers=headers)
    assert producer.flush(30) == 0

    read = at(node, "consume", first, "-e", "--json")
    written = at(node, "produce", second, "--json", stdin=read.stdout)
    copied = at(node, "consume", second, "-e", "--json")

    assert written.code == 0, written.err
    assert without_topic(copied) == without_topic(read)
    for number in range(PARTITIONS):
        sent = [record for record in records if record.partition == number]
        came = [from_json(line) for line in copied.stdout.splitlines() if json.loads(line)["partition"] == number]
        assert [each._replace(topic=None, headers=tuple(each.headers)) for each in came] == sent


def test_lines_name_their_topics_unless_the_command_does(node: Node) -> None:
    for name in ("a", "b", "c"):
        create(node, name, 2, {})
    lines = b'{"topic":"a","partition":1,"value":"x"}\n{"topic":"b","key":"k","value":null,"headers":null}\n'

    own = at(node, "produce", "--json", "--summary", stdin=lines)
    assert own.json["records"] == 2 and set(own.json["offsets"]) == {"a", "b"}
    assert own.json["offsets"]["a"] == {"1": [0, 0]}
    assert at(node, "produce", "--json", stdin=lines).err == "2 records written to a, b\n"
    given_ = at(node, "produce", "c", "--json", "-p", "0", "-H", "via=test", stdin=lines)
    assert given_.err == "2 records written to c\n"
    found = at(node, "consume", "c", "-e", "--json").json_lines
    assert [(line["partition"], line["key"], line["value"]) for line in found] == [(0, None, "x"), (0, "k", None)]
    assert [line["headers"] for line in found] == [[{"key": "via", "value": "test"}]] * 2


def test_a_line_that_is_not_a_record_stops_and_earlier_records_stay(node: Node) -> None:
    create(node, "partly", 1, {})
    ran = at(node, "produce", "partly", "--json", stdin=b'{"value":"one"}\n{"vaule":"two"}\n{"value":"three"}\n')
    assert ran.code == 1
    assert ran.err.startswith("tidelog: line 2: a record has no field 'vaule'; it has headers, key, ")
    assert ran.err.endswith("; all lines before it were written\n")
    assert at(node, "consume", "partly", "-e").out == "one\n"
    nowhere = at(node, "produce", "--json", stdin=b'{"value":"one"}\n')
    assert (nowhere.code, "line 1: neither the line nor the command names a topic" in nowhere.err) == (1, True)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "it is not JSON: "),
        ("[]", "it is not a JSON object but []"),
        ("{}", 'it has no value; for a tombstone write "value": null'),
        ('{"value":1}', "value is not text or null, but 1"),
        ('{"value":{"a":1}}', 'value is not text or null, but {"a": 1}'),
        ('{"value":"a","value_base64":"YQ=="}', "it has both value and value_base64"),
        ('{"value_base64":"a"}', 'value_base64 is not base64 but "a"'),
        ('{"value_base64":"YQ==\\n"}', "value_base64 is not base64"),
        ('{"value_base64":null}', "value_base64 is not base64 but null"),
        ('{"value":null,"key":["k"]}', 'key is not text or null, but ["k"]'),
        ('{"value":"\\ud800"}', "value has half of a surrogate pair"),
        ('{"value":"a","partition":-1}', "partition is -1: 0 to 2147483647 are allowed"),
        ('{"value":"a","partition":true}', "partition is not a number, but true"),
        ('{"value":"a","partition":"1"}', 'partition is not a number, but "1"'),
        (
            '{"value":"a","timestamp":0}',
            "timestamp is 0 (librdkafka reads 0 as the time of sending): 1 to ",
        ),
        ('{"value":"a","timestamp":1.5}', "timestamp is not a number or a time, but 1.5"),
        (
            '{"value":"a","timestamp":"noon"}',
            'timestamp is not a time such as 2013-01-01T05:15:00Z, nor ms since 1970, but "noon"',
        ),
        (
            '{"value":"a","timestamp":"1970-01-01"}',
            "timestamp is 0 (librdkafka reads 0 as the time of sending): 1 to ",
        ),
        ('{"value":"a","timestamp":"1969-12-31"}', "timestamp is -86400000: 1 to "),
        ('{"value":"a","headers":{}}', "headers is not a list, but {}"),
        ('{"value":"a","headers":["h"]}', 'a header is an object with "key" and "value", not "h"'),
        ('{"value":"a","headers":[{"value":"h"}]}', "a header has no key"),
        ('{"value":"a","headers":[{"key":"h"}]}', "the header 'h' has no value"),
        (
            '{"value":"a","headers":[{"key":"h","val":1}]}',
            "a header has no field 'val'; it has key, value, value_base64",
        ),
        ('{"value":"a","headers":[{"key":"a\\u0000b","value":"1"}]}', "the header's key 'a\\x00b' has a zero byte"),
        ('{"value":"a","topic":1}', "topic is not text, but 1"),
    ],
)
def test_lines_that_are_not_records_are_reported(line: str, said: str) -> None:
    with pytest.raises(ValueError) as refused:
        from_json(line.encode())
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("written", "ms"),
    [
        ("1357017300000", 1357017300000),
        ('"2013-01-01T05:15:00Z"', 1357017300000),
        ('"2013-01-01T06:15:00.5+01:00"', 1357017300500),
        ('"2013-01-01"', 1356998400000),
        ("null", None),
    ],
)
def test_a_timestamp_is_a_number_or_an_iso_time(written: str, ms: int | None) -> None:
    assert from_json(b'{"value":"a","timestamp":%s}' % written.encode()).timestamp == ms


def test_a_record_without_a_timestamp_leaves_it_to_the_producer() -> None:
    line = to_json(ShownRecord("t", 0, 1, -1, None, None, b"", ()))
    assert json.loads(line)["timestamp"] is None
    assert from_json(line) == JsonRecord("t", 0, None, None, b"", [])
