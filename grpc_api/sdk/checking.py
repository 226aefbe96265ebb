"""Checks a program's arguments when it calls, so that a mistake fails that call and affects no other record.

Records of many calls share a batch, so a record that cannot be encoded must not reach a batch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from grpc_api.sdk.values import Header
from storage_tiers.errors import InvalidConfig, InvalidRecord, InvalidRequest
from storage_tiers.types import TopicPartition

#: The largest timestamp of a record: an int64.
MAX_TIMESTAMP_MS = (1 << 63) - 1

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\],]+):([0-9]{1,5})")


def checked_timestamp(timestamp: Any) -> int:
    """Refuses a negative timestamp, as Java's `ProducerRecord` does: -1 would mean no timestamp."""
    if type(timestamp) is not int or not 0 <= timestamp <= MAX_TIMESTAMP_MS:
        raise InvalidRecord(f"a timestamp is a number of ms since 1970, from 0 to 2^63-1, not {timestamp!r}")
    return timestamp


def checked_bytes(part: str, data: Any) -> bytes | None:
    """`data` as immutable bytes. Raises InvalidRecord, which names the part, for other types."""
    if data is None or type(data) is bytes:
        return data
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise InvalidRecord(f"the {part} is {_kind(data)}: records hold bytes, or None; encode it first")


def checked_headers(headers: Any) -> Sequence[Header]:
    try:
        return [(_name(name), checked_bytes("value of a header", content)) for name, content in headers]
    except (TypeError, ValueError):
        raise InvalidRecord(
            "headers are pairs of a name (str) and a value (bytes or None), as in [('shop', b'12')]"
        ) from None


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise InvalidRecord(f"the name of a header is {_kind(name)}; it must be text")
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise InvalidRecord(f"the name of a header cannot be encoded: {error}") from None
    return name


def checked_topic(name: Any) -> str:
    """A plain `str`, the only type of text that the native kernels take. Raises InvalidRequest for anything but
    text."""
    if not isinstance(name, str):
        raise InvalidRequest(f"the name of a topic is {_kind(name)}; it must be text")
    return str.__str__(name)


def checked_group(name: Any) -> str:
    if not isinstance(name, str):
        raise InvalidRequest(f"the name of a group is {_kind(name)}; it must be text")
    return str.__str__(name)


def checked_offsets(offsets: Any) -> dict[TopicPartition, Any]:
    """Offsets by partition, from 0 to 2^63-1, or None."""
    found = {}
    for key, offset in offsets.items():
        try:
            topic, number = key
        except (TypeError, ValueError):
            topic = number = None
        if not isinstance(topic, str) or type(number) is not int or not 0 <= number < 1 << 31:
            raise InvalidRequest(f"{key!r} is not a partition such as TopicPartition('orders', 0)")
        if offset is not None and (type(offset) is not int or not 0 <= offset < 1 << 63):
            raise InvalidRequest(f"an offset is a number from 0 to 2^63-1, not {offset!r}")
        found[TopicPartition(topic, number)] = offset
    return found


def checked_addresses(given: Any) -> list[str]:
    """The addresses of a text that separates them with commas, each once. Raises InvalidRequest unless each is HOST:PORT: a
    channel would keep resolving an invalid address until its timeout."""
    addresses = [each.strip() for each in given.split(",")] if isinstance(given, str) else [given]
    for address in addresses:
        found = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
        if found is None or not 0 < int(found[2]) < 1 << 16:
            raise InvalidRequest(
                f"{address!r} is not the address of a node: HOST:PORT of its gRPC listener, as in 127.0.0.1:9093"
            )
    return list(dict.fromkeys(addresses))


def checked_configs(configs: Any) -> dict[str, str | None]:
    """Configs by name. Values are text, as everywhere in Kafka."""
    for name, value in configs.items():
        if not isinstance(name, str) or not (value is None or isinstance(value, str)):
            raise InvalidConfig(f"config {name!r} is given as {_kind(value)}: values are text, as in {str(value)!r}")
    return dict(configs)


def _kind(data: Any) -> str:
    return f"of the type {type(data).__name__}"
