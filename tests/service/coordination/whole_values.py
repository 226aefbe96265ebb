"""Decodes and encodes whole values of coordinators' records. Coordinators read them in steps and write groups in parts, because
a group may have thousands of members; tests have no turns to share.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from service.coordination.group_records import (
    GroupMetadata,
    decode_group_in_steps,
    encode_head,
    encode_members,
    encode_names,
)
from service.coordination.transaction_records import TransactionValue, decode_value_in_steps

Item = TypeVar("Item")


def finish(steps: Generator[None, None, Item]) -> Item:
    """Takes all steps at once and returns their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Item = end.value
            return result


def decode_group(data: bytes) -> GroupMetadata:
    """Raises CorruptRecord if the bytes are not a group of versions 0 to 4."""
    return finish(decode_group_in_steps(data))


def encode_group(value: GroupMetadata) -> bytes:
    """Encodes version 3, as Kafka does. Raises ValueError if a name does not fit."""
    return encode_head(value, len(value.members)) + encode_members(
        [
            (
                encode_names(each.member_id, each.group_instance_id, each.client_id, each.client_host),
                each.rebalance_timeout,
                each.session_timeout,
                each.subscription,
                each.assignment,
            )
            for each in value.members
        ],
    )


def decode_value(data: bytes) -> TransactionValue:
    """Raises CorruptRecord if the bytes are not a transaction of version 0 or 1, or its state is not one of Kafka's."""
    return finish(decode_value_in_steps(data))
