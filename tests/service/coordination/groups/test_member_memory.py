"""The bytes that are counted for a member."""

from __future__ import annotations

from collections.abc import Sequence
from sys import getsizeof

import pytest

from grpc_api.contract.groups import MemberProtocol
from service.coordination.groups.member_memory import MEMBER_BYTES, PROTOCOL_BYTES, kept_bytes, smallest_subscription

RANGE, STICKY = MemberProtocol("range", b"12345"), MemberProtocol("sticky", b"123")


@pytest.mark.parametrize(("protocols", "size"), [((), 0), ((RANGE,), 5), ((RANGE, STICKY), 3), ([STICKY, RANGE], 3)])
def test_the_smallest_subscription_is_that_of_any_protocol(protocols: Sequence[MemberProtocol], size: int) -> None:
    assert smallest_subscription(protocols) == size


def test_a_member_counts_its_names_twice_and_its_protocols_once() -> None:
    names = 2 * (getsizeof("member") + getsizeof(None) + getsizeof("client"))
    protocols = 2 * PROTOCOL_BYTES + getsizeof("range") + getsizeof("sticky") + 5 + 3
    assert kept_bytes((RANGE, STICKY), "member", None, "client") == MEMBER_BYTES + names + protocols


def test_a_member_without_names_and_protocols_counts_its_own_bytes() -> None:
    assert kept_bytes(()) == MEMBER_BYTES
