"""Parses requests within a bound on their fields: protobuf parses a message in one go, and the event loop waits meanwhile."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from grpc_api.messages.field_count import Layout, count_fields
from storage_tiers.errors import InvalidRequest

#: The most fields of a request, including those of nested messages: they are parsed in about ten milliseconds.
#: MAX_SENT_RECORDS with eight headers each have fewer.
MAX_FIELDS = 300_000
#: Smaller requests are not counted: they have at most half as many fields as bytes.
COUNTED_BYTES = 64 << 10

Parse = Callable[[bytes], Any]


def parsed(parse: Parse, data: bytes) -> Any:
    """Raises InvalidRequest for too many fields, and for malformed bytes: gRPC would report a server error and log a traceback
    each time."""
    check_fields(parse, data, MAX_FIELDS)
    try:
        return parse(data)
    except DecodeError as error:
        raise InvalidRequest(f"the request ({len(data)} bytes) cannot be parsed: {error}") from None


def check_fields(parse: Parse, data: bytes, most: int) -> None:
    """Raises InvalidRequest if the message that `parse` makes of the bytes has more than `most` fields."""
    if len(data) >= COUNTED_BYTES and count_fields(data, layout_of(parse), most) > most:
        raise InvalidRequest(
            f"the request ({len(data)} bytes) has more than {most} fields: split it into smaller requests"
        )


@functools.cache
def layout_of(parse: Parse) -> Layout:
    """The layout of the message that `parse`, a class's `FromString`, makes."""
    return _layout(parse.__self__.DESCRIPTOR, {})  # type: ignore[attr-defined]


def _layout(message: Descriptor, known: dict[str, Layout]) -> Layout:
    layout = known.get(message.full_name)
    if layout is None:
        layout = known[message.full_name] = Layout(max((each.number for each in message.fields), default=0) + 1)
        for field in message.fields:
            if field.message_type is not None:
                layout.inner[field.number] = _layout(field.message_type, known)
            elif field.is_repeated and field.cpp_type != FieldDescriptor.CPPTYPE_STRING:
                layout.packed[field.number] = True
    return layout
