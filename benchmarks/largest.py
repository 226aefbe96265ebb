"""Builds the largest requests that clients can send to each API of a node.

An API whose requests contain rows gets up to three requests. The first has as many rows as the gateway accepts, with names that
do not exist. The second has the same number of rows, all with one name. If rows contain rows, the third has a single row with
that number of rows inside. Other APIs get one plain request. Requests known to be expensive are added by hand.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import struct
import typing
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from benchmarks import load
from kafka_gateway.message_reader import ROWS_A_REQUEST
from kafka_gateway.registry import APIS, Api
from tests.kafka_gateway.kio_frames import entity, message, request_frame

#: The most bytes of all rows, a little below the largest request that the gateway reads into objects.
BYTES = 4_100_000
#: The most rows of one request.
ROWS = ROWS_A_REQUEST
#: The largest frame that a node accepts (`socket.request.max.bytes`).
PRODUCED_BYTES = 100 << 20
#: The last versions with topic names; later ones have topic ids.
_BY_NAME = {"Produce": 12, "Fetch": 12}


class Case(NamedTuple):
    """A framed request. It is sent more than once only if `is_repeatable`."""

    name: str
    schema: str
    request: bytes
    is_repeatable: bool = False


def cases(topics: Sequence[str]) -> Iterator[Case]:
    """Yields all requests. `topics` are existing topics with one partition each."""
    for api in APIS:
        yield from _generic(api)
    yield from _reading(topics)
    yield from _configs(topics)
    yield from _hot(topics)


def schema_of(api: Api) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", api.name).lower()


def _generic(api: Api) -> Iterator[Case]:
    schema = schema_of(api)
    version = _BY_NAME.get(api.name, api.highest)
    make = functools.partial(_filled, schema, version)
    arrays = [field for field in dataclasses.fields(message(schema, version, "request")) if _inner(field)]
    if not arrays:
        yield Case(f"{api.name}", schema, request_frame(schema, version, metrics=b""), True)
        return
    yield Case(f"{api.name}, {ROWS:,} unknown names", schema, make(lambda n: f"unknown-{n}", 1), True)
    yield Case(f"{api.name}, one name {ROWS:,} times", schema, make(lambda n: "unknown", 1))
    if any(_inner(inner) for field in arrays for inner in _fields(_inner(field))):
        yield Case(f"{api.name}, {ROWS:,} rows in one", schema, make(lambda n: f"unknown-{n}", ROWS))


def _inner(field: Any) -> Any:
    """The type of an array field's elements; None if the field is not an array."""
    for kind in (field.type, *typing.get_args(field.type)):
        if typing.get_origin(kind) is tuple:
            return typing.get_args(kind)[0]
    return None


def _fields(kind: Any) -> Sequence[Any]:
    return dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()


def _filled(schema: str, version: int, name_of: Any, inside: int) -> bytes:
    """Returns a request whose first array is as large as the bounds allow. The first array inside its elements has `inside`
    elements. If `inside` is above 1, the outer array has only one element."""
    kind = message(schema, version, "request")
    array = next(field for field in dataclasses.fields(kind) if _inner(field))
    count = 1 if inside > 1 else ROWS
    one = len(_framed(schema, version, array, [_row(_inner(array), 10**6, name_of, 1)])) - len(
        _framed(schema, version, array, [])
    )
    # The bounds count the elements of all arrays.
    count, inside = min(count, BYTES // one), min(inside, BYTES // one)
    count, inside = min(count, ROWS // _rows_in(_inner(array), 1)), min(inside, ROWS // _rows_in(_inner(array), 1))
    return _framed(schema, version, array, [_row(_inner(array), n, name_of, inside) for n in range(count)])


def _rows_in(kind: Any, own: int) -> int:
    """Counts the rows of one element: `own`, and those of one element of each array inside."""
    return own + sum(_rows_in(_inner(field), 1) for field in _fields(kind) if _inner(field) is not None)


def _framed(schema: str, version: int, array: Any, rows: list[Any]) -> bytes:
    values: dict[str, Any] = {"cursor": None, "allow_auto_topic_creation": False, array.name: rows}
    return request_frame(schema, version, **values)


def _row(kind: Any, number: int, name_of: Any, inside: int) -> Any:
    if not dataclasses.is_dataclass(kind):
        is_text = "str" in str(getattr(kind, "__mro__", kind))
        return name_of(number) if is_text else number % 100 if kind.__name__ == "i8" else number
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if _inner(field) is not None:
            values[field.name] = [_row(_inner(field), n, name_of, 1) for n in range(inside)]
            inside = min(inside, 1)
        elif field.metadata.get("kafka_type") == "string":
            values[field.name] = name_of(number)
        elif field.name == "port":
            values[field.name] = 9092
        elif field.metadata.get("kafka_type") == "int32":
            values[field.name] = number if "partition" in field.name or field.name == "index" else 1
    return entity(kind, values)


def _reading(topics: Sequence[str]) -> Iterator[Case]:
    say = f"{len(topics):,} topics"
    yield Case(f"Metadata, all of {say}", "metadata", request_frame("metadata", 12, topics=None), True)
    yield Case(
        f"Metadata, {say} by name",
        "metadata",
        request_frame("metadata", 12, topics=[{"name": name, "topic_id": None} for name in topics]),
        True,
    )
    yield Case(
        f"ElectLeaders, all of {say}", "elect_leaders", request_frame("elect_leaders", 2, topic_partitions=None), True
    )
    yield Case(
        f"DescribeLogDirs, all of {say}", "describe_log_dirs", request_frame("describe_log_dirs", 4, topics=None), True
    )
    yield Case(
        f"ListConfigResources, all of {say}",
        "list_config_resources",
        request_frame("list_config_resources", 1, resource_types=()),
        True,
    )
    yield Case(
        f"DescribeTopicPartitions, all of {say}",
        "describe_topic_partitions",
        request_frame("describe_topic_partitions", 0, response_partition_limit=2000, cursor=None),
        True,
    )
    for what, timestamp in (("the end", -1), ("a time", 1_000)):
        rows = [
            {"name": name, "partitions": [{"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}]}
            for name in topics
        ]
        yield Case(
            f"ListOffsets of {what}, {say}",
            "list_offsets",
            request_frame("list_offsets", 8, replica_id=-1, topics=rows),
            True,
        )
    rows = [{"name": name, "partitions": [{"partition_index": 0, "offset": 0}]} for name in topics]
    yield Case(f"DeleteRecords, {say}", "delete_records", request_frame("delete_records", 2, topics=rows), True)


def _configs(topics: Sequence[str]) -> Iterator[Case]:
    def described(count_as: str, names: Sequence[str], kind: int, **more: Any) -> Case:
        rows = [{"resource_type": kind, "resource_name": name, "configuration_keys": None} for name in names]
        frame = request_frame("describe_configs", 4, resources=rows, include_synonyms=True, **more)
        return Case(f"DescribeConfigs, {count_as}", "describe_configs", frame, True)

    yield described(f"{len(topics):,} topics", topics, 2)
    yield described(f"{len(topics):,} topics with documentation", topics, 2, include_documentation=True)
    yield described("one topic 50,000 times", [topics[0]] * 50_000, 2)
    yield described("the broker 500 times", ["1"] * 500, 4)
    rows = [
        {
            "name": f"new-{n}",
            "num_partitions": 1,
            "replication_factor": 1,
            "configs": [{"name": "retention.ms", "value": "1"}],
        }
        for n in range(9_000)
    ]
    yield Case(
        "CreateTopics, 9,000 to validate",
        "create_topics",
        request_frame("create_topics", 7, topics=rows, validate_only=True),
        True,
    )
    rows = [{"name": name, "count": 2, "assignments": None} for name in topics]
    yield Case(
        f"CreatePartitions, {len(topics):,} to validate",
        "create_partitions",
        request_frame("create_partitions", 3, topics=rows, validate_only=True),
        True,
    )
    rows = [
        {
            "resource_type": 2,
            "resource_name": name,
            "configs": [{"name": "retention.ms", "config_operation": 0, "value": "1000000"}],
        }
        for name in topics
    ]
    yield Case(
        f"IncrementalAlterConfigs, {len(topics):,} to validate",
        "incremental_alter_configs",
        request_frame("incremental_alter_configs", 1, resources=rows, validate_only=True),
        True,
    )


def _hot(topics: Sequence[str]) -> Iterator[Case]:
    asked = [
        {
            "topic": name,
            "partitions": [
                {
                    "partition": 0,
                    "current_leader_epoch": -1,
                    "fetch_offset": 0,
                    "log_start_offset": -1,
                    "partition_max_bytes": 1 << 20,
                }
            ],
        }
        for name in topics
    ]
    for what, wait in (("at once", 0), ("that wait", 500)):
        frame = request_frame(
            "fetch",
            11,
            replica_id=-1,
            max_wait=_wait(wait),
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=asked,
            rack_id="",
        )
        yield Case(f"Fetch, {len(topics):,} topics, {what}", "fetch", frame, True)
    batch = load.record_batch(1, (1 << 20) - 200)
    count = PRODUCED_BYTES // (len(batch) + 100)
    rows = [{"name": name, "partition_data": [{"index": 0, "records": batch}]} for name in topics[:count]]
    frame = request_frame("produce", 9, acks=1, transactional_id=None, topic_data=rows)
    yield Case(f"Produce, {count} batches of 1 MiB", "produce", frame)
    tiny = load.record_batch(1, 1)
    rows = [{"name": f"unknown-{n}", "partition_data": [{"index": 0, "records": tiny}]} for n in range(ROWS // 2)]
    frame = request_frame("produce", 9, acks=1, transactional_id=None, topic_data=rows)
    yield Case(f"Produce, {len(rows):,} batches of unknown topics", "produce", frame, True)


def _wait(count: int) -> Any:
    from tests.kafka_gateway.kio_frames import milliseconds

    return milliseconds(count)


def size_of(case: Case) -> int:
    (size,) = struct.unpack(">i", case.request[:4])
    return int(size)
