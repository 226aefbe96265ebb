"""A cluster of several brokers as a session sees it: each request goes to the broker that a client would ask.

Batches and reads go to the leader of the request's first partition, groups and transactional ids to their coordinator, configs
of a broker to that broker. All other requests of a session go to one broker, its *desk*. Every topic that a session creates is
on one broker, its *home*, which also answers for its disk. Home and desk follow from the session's name alone, so they are the
same brokers in Kafka's cluster and in ours, and over all sessions each broker is both.

A request about groups or transactional ids of several coordinators goes to the first one's, and both sides refuse the others.
"""

from __future__ import annotations

import socket
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tests.differential.message_trees import Tree
from tests.differential.peer import _PAUSE_S, ANSWER_SECONDS, Peer, PeerFailed

_LED = frozenset(
    (
        "produce",
        "fetch",
        "list_offsets",
        "delete_records",
        "offset_for_leader_epoch",
        "describe_producers",
        "write_txn_markers",
    )
)
_GROUPED = frozenset(
    ("join_group", "sync_group", "heartbeat", "leave_group", "offset_commit", "offset_fetch", "offset_delete",
     "describe_groups", "delete_groups", "txn_offset_commit")
)  # fmt: skip
_TRANSACTIONAL = frozenset(
    ("init_producer_id", "add_partitions_to_txn", "add_offsets_to_txn", "end_txn", "describe_transactions")
)
_OF_BROKERS = frozenset(("describe_configs", "alter_configs", "incremental_alter_configs"))
_OF_DISKS = frozenset(("describe_log_dirs", "alter_replica_log_dirs"))
_BROKER = 4
_GROUP, _TRANSACTION = 0, 1
#: Number of partitions of each coordinators' topic, by default.
PARTITIONS = 50
COMPACTED = [{"name": "cleanup.policy", "value": "compact"}]
INTERNAL = ("__consumer_offsets", "__transaction_state")


class RoutedPeer(Peer):
    """`addresses` are by broker id; `restart` restarts a broker."""

    def __init__(
        self, name: str, addresses: Mapping[int, str], prefix: str, restart: Callable[[int], object] | None = None
    ) -> None:
        chance, brokers = zlib.crc32(prefix.encode()), sorted(addresses)
        self.home = brokers[chance % len(brokers)]
        self.desk = brokers[chance // len(brokers) % len(brokers)]
        home = self.home
        super().__init__(name, addresses[home], prefix, None if restart is None else lambda: restart(home))
        self.addresses = dict(addresses)
        self._asked = home
        self._only: int | None = None
        #: The brokers on which `create` places the next topic's partitions; None places all of them at home.
        self._places: Sequence[int] | None = None
        self._sockets: dict[int, socket.socket | None] = {}
        #: Leaders by topic name or id, and partition, as Metadata told them.
        self._leaders: dict[str, dict[int, int]] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        for topic in INTERNAL:
            self.learn(topic)

    def spread(self, name: str = "t", /, **configs: str) -> tuple[str, str]:
        """As `create`, with partition 0 on the first broker, 1 on the second, and so on."""
        self._places = sorted(self.addresses)
        try:
            return self.create(name, partitions=len(self.addresses), **configs)
        finally:
            self._places = None

    # --- asking -------------------------------------------------------------------------------------------------------
    @contextmanager
    def only(self, broker: int) -> Iterator[None]:
        """Within the context, all requests go to that broker."""
        before, self._only = self._only, broker
        try:
            yield
        finally:
            self._only = before

    def everywhere(self, api: str, version: int, /, **values: Any) -> list[Tree]:
        return [self.quietly_at(broker, api, version, **values) for broker in self.addresses]

    def quietly_at(self, broker: int, api: str, version: int, /, **values: Any) -> Tree:
        with self.only(broker):
            return self.quietly(api, version, **values)

    def close_connection(self) -> None:
        super().close_connection()
        for broker, kept in self._sockets.items():
            if kept is not None:
                kept.close()
                self._sockets[broker] = None

    def learn(self, topic: str) -> None:
        """Asks Metadata for the topic's leaders."""
        asked = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
        (found,) = self.quietly_at(self.home, "metadata", 12, **asked)["topics"]
        self._leaders[topic] = {row["partition_index"]: row["leader_id"] for row in found["partitions"]}
        self._leaders[found["topic_id"]] = self._leaders[topic]

    def await_partitions(self, topic: str, partitions: int) -> None:
        """Waits until every broker shows the partitions, and the leader of each returns its log end offset."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while not self._are_led(topic, partitions):
            if time.monotonic() > deadline:
                raise PeerFailed(f"{self.name}: {topic} has no {partitions} partitions")
            time.sleep(_PAUSE_S)

    def _are_led(self, topic: str, partitions: int) -> bool:
        for answer in self.everywhere("metadata", 12, topics=[{"name": topic}], allow_auto_topic_creation=False):
            rows = answer["topics"][0]["partitions"]
            if len(rows) < partitions or any(row["error_code"] != "NONE" for row in rows):
                return False
        self.learn(topic)
        for index, leader in self._leaders[topic].items():
            rows = [{"partition_index": index, "timestamp": -1}]
            asked = {"replica_id": -1, "topics": [{"name": topic, "partitions": rows}]}
            (found,) = self.quietly_at(leader, "list_offsets", 6, **asked)["topics"]
            if found["partitions"][0]["error_code"] != "NONE":
                return False
        return True

    # --- which broker -------------------------------------------------------------------------------------------------
    def _placed(self, partitions: int) -> dict[str, Any]:
        places = [self.home] * partitions if self._places is None else self._places
        rows = [{"partition_index": index, "broker_ids": [broker]} for index, broker in enumerate(places)]
        return {"num_partitions": -1, "replication_factor": -1, "assignments": rows}

    def _turn(self, api: str, values: Mapping[str, Any]) -> None:
        broker = self._route(api, values)
        if broker != self._asked:
            self._sockets[self._asked], self._socket = self._socket, self._sockets.get(broker)
            self._asked = broker
            self.host, _, port = self.addresses[broker].rpartition(":")
            self.port = int(port)

    def _route(self, api: str, values: Mapping[str, Any]) -> int:
        if self._only is not None:
            return self._only
        if api in _LED:
            return self._leader(values)
        if api in _GROUPED:
            return self._coordinator(_GROUP, _group(values))
        if api in _TRANSACTIONAL:
            return self._coordinator(_TRANSACTION, _transactional_id(values))
        if api in _OF_DISKS:
            return self.home
        if api in _OF_BROKERS:
            return self._named_broker(values)
        return self.desk

    def _leader(self, values: Mapping[str, Any]) -> int:
        """The leader of the first partition whose leader is known from Metadata; home if none is known."""
        for topic, partition in _partitions(values):
            leader = self._leaders.get(topic, {}).get(partition, -1)
            if leader >= 0:
                return leader
        return self.home

    def _coordinator(self, kind: int, key: str | None) -> int:
        if not key:
            return self.desk
        if (kind, key) not in self._coordinators:
            asked = {"key_type": kind, "coordinator_keys": [key]}
            (found,) = self.quietly_at(self.desk, "find_coordinator", 4, **asked)["coordinators"]
            if found["error_code"] != "NONE":
                return self.desk
            self._coordinators[kind, key] = found["node_id"]
        return self._coordinators[kind, key]

    def _named_broker(self, values: Mapping[str, Any]) -> int:
        for row in values.get("resources", ()):
            name = row["resource_name"]
            if row["resource_type"] == _BROKER and name.isdigit() and int(name) in self.addresses:
                return int(name)
        return self.desk


def place_internal_topics(name: str, addresses: Mapping[int, str]) -> None:
    """Creates the coordinators' topics with their partitions on all brokers in turn, so that two clusters have the coordinator
    of a name on the same broker."""
    brokers = sorted(addresses)
    rows = [{"partition_index": index, "broker_ids": [brokers[index % len(brokers)]]} for index in range(PARTITIONS)]
    peer = RoutedPeer(name, addresses, "internal-topics")
    for topic in INTERNAL:
        wanted = {
            "name": topic,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": rows,
            "configs": COMPACTED,
        }
        (made,) = peer.quietly("create_topics", 7, topics=[wanted])["topics"]
        if made["error_code"] != "NONE":
            raise PeerFailed(f"{name}: {topic} was not created: {made}")
        peer.await_partitions(topic, PARTITIONS)
    peer.close_connection()


def _partitions(values: Mapping[str, Any]) -> list[tuple[str, int]]:
    """The topic (id or name) and the number of each partition in a request."""
    rows: Sequence[Mapping[str, Any]] = values.get("topic_data") or values.get("topics") or ()
    rows = [*rows, *(row for marker in values.get("markers", ()) for row in marker["topics"])]
    found = []
    for row in rows:
        inner = row.get("partition_data") or row.get("partitions") or row.get("partition_indexes") or ()
        for each in inner:
            number = each
            if isinstance(each, Mapping):
                number = next(each[name] for name in ("index", "partition", "partition_index") if name in each)
            found += [(row[name], number) for name in ("name", "topic", "topic_id") if row.get(name)]
    return found


def _group(values: Mapping[str, Any]) -> str | None:
    if values.get("group_id"):
        return str(values["group_id"])
    several = values.get("groups") or values.get("groups_names")
    if not several:
        return None
    return str(several[0]["group_id"] if isinstance(several[0], Mapping) else several[0])


def _transactional_id(values: Mapping[str, Any]) -> str | None:
    named = values.get("transactional_id") or values.get("v3_and_below_transactional_id")
    if named:
        return str(named)
    if values.get("transactions"):
        return str(values["transactions"][0].get("transactional_id", ""))
    return str(next(iter(values.get("transactional_ids") or ()), ""))
