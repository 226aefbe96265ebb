"""Leader hints (KIP-951): the leader, its epoch and its address, in an answer that refuses a partition because another broker
leads it or because the client's epoch is old. The client then needs no Metadata request.

Hints exist from Produce 10 and Fetch 16 on. As in Kafka, the address is the leader's address for the listener that the client
uses; it is missing if the leader does not have this listener. UNKNOWN_LEADER_EPOCH has no hint, because the client's metadata
may be newer than the broker's.

Invariants: one object serves one answer; an answer without such an error costs nothing. The hinted leader may have changed
meanwhile.
"""

from __future__ import annotations

import struct

from grpc_api.contract.core import Core
from kafka_gateway.answer_primitives import array_size, nullable_text, text, varint
from kafka_gateway.errors import ErrorCode, code_of
from storage_tiers.types import TopicId, TopicPartition

PRODUCE_FROM, FETCH_FROM = 10, 16
#: The first version of Produce and of Fetch that names topics by id.
_BY_ID_FROM = 13
_HINTED = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH))
_UNKNOWN = (-1, -1)
_LEADER = struct.Struct(">ii")
_INT32 = struct.Struct(">i")


class LeaderHints:
    """The hints of one answer of `version` to a client of `listener`. `listener` is None for a replica, which gets no
    addresses."""

    def __init__(self, core: Core, listener: str | None, version: int) -> None:
        self._topics = core.topics
        self._name_of = core.log.topic_name
        self._listener = listener
        self._by_id = version >= _BY_ID_FROM
        self._leaders: set[int] = set()

    def of(self, error: BaseException | None, key: bytes, index: int) -> bytes | None:
        """The value of CurrentLeader for a partition; `key` is its topic's name or id in the request. None if the error has no
        hint or the cluster has no such partition."""
        if error is None or code_of(error) not in _HINTED:
            return None
        name = self._name_of(TopicId(key)) if self._by_id else key.decode()
        leader = _UNKNOWN if name is None else self._topics.leader(TopicPartition(name, index))
        if leader == _UNKNOWN:
            return None
        self._leaders.add(leader[0])
        return _LEADER.pack(*leader) + b"\0"

    def tags(self) -> bytes:
        """The tagged fields at the end of the answer: NodeEndpoints, the leaders that `of` has named, as tag 0."""
        rows: list[bytes] = []
        listener = self._listener
        if listener is None or not self._leaders:
            return b"\0"
        for broker in self._topics.cluster().brokers:
            at = broker.at(listener)
            if at is not None and broker.node_id in self._leaders:
                rack = nullable_text(None if broker.rack is None else broker.rack.encode(), flexible=True)
                host = text(at.host.encode(), flexible=True)
                rows.append(_INT32.pack(broker.node_id) + host + _INT32.pack(at.port) + rack + b"\0")
        if not rows:
            return b"\0"
        return b"\1" + tag(0, array_size(len(rows), flexible=True) + b"".join(rows))


def tag(number: int, value: bytes) -> bytes:
    """One tagged field, with its size."""
    return varint(number) + varint(len(value)) + value
