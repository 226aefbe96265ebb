"""The count of a message's fields equals that of protobuf's tree, and stops soon above a bound."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpc_api.messages import field_count
from grpc_api.proto import log_pb2, records_pb2, topics_pb2
from grpc_api.servicers.parsing import layout_of
from tests.storage_tiers.records.twins import twins_of

TWINS = twins_of(field_count)
SEND = records_pb2.SendRequest


def in_twin(module: Any, layout: Any) -> Any:
    """Copies the layout into the classes of `module`, one form of the kernel."""
    made = module.Layout(len(layout.inner))
    for number, inner in enumerate(layout.inner):
        made.inner[number] = None if inner is None else in_twin(module, inner)
        made.packed[number] = layout.packed[number]
    return made


def counted(kind: Any, data: bytes, most: int = 1 << 40) -> int:
    """The number of fields; asserts that all forms of the kernel agree."""
    layout = layout_of(kind.FromString)
    counts = {module.count_fields(data, in_twin(module, layout), most) for module in TWINS.values()}
    (count,) = counts
    return int(count)


def test_nested_fields_count() -> None:
    header = records_pb2.RecordHeader(name="n", value=b"v")
    record = records_pb2.RecordToSend(key=b"k", value=b"v" * 300, headers=[header, header])
    request = SEND(topic="t", records=[record] * 3)
    # The counted fields: the topic; each record, its key, value and two headers; each header's name and value.
    assert counted(SEND, request.SerializeToString()) == 1 + 3 * (1 + 2 + 2 + 4)
    batch = log_pb2.ProduceRequest(appends=[log_pb2.Append(topic="t", batch=bytes(1 << 20))])
    assert counted(log_pb2.ProduceRequest, batch.SerializeToString()) == 3


def test_numbers_of_a_packed_array_count_by_their_bytes() -> None:
    assignment = topics_pb2.ReplicaAssignment(node_ids=[1] * 800)
    request = topics_pb2.CreatePartitionsRequest(topic="t", assignments=[assignment])
    assert counted(topics_pb2.CreatePartitionsRequest, request.SerializeToString()) == 1 + 1 + 1 + 200


@pytest.mark.parametrize("inside", [False, True])
def test_empty_elements_count_wherever_they_are(inside: bool) -> None:
    empty = [records_pb2.RecordHeader()] * 5_000 if inside else []
    records = [records_pb2.RecordToSend(headers=empty)] * (2 if inside else 5_000)
    count = counted(SEND, SEND(records=records).SerializeToString())
    assert count == (2 + 10_000 if inside else 5_000)
    assert 100 < counted(SEND, SEND(records=records).SerializeToString(), most=100) <= 110


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=60))
def test_any_bytes_are_counted_alike_by_all_forms(data: bytes) -> None:
    assert 0 <= counted(SEND, data) <= len(data)
