"""Requests with one changed byte: both brokers give the same response, or both close the connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.differential import message_trees
from tests.differential.judge import SERVED, Setup, session
from tests.differential.peer import Peer
from tests.differential.sessions.common import UNKNOWN_ID
from tests.differential.sessions.groups import coordinated
from tests.differential.sessions.transactions import begun

_PARTITION: dict[str, Any] = {"partition_index": 0}
#: Requests that change nothing, whichever byte is damaged (so not Metadata, which creates topics), and that do
#: not cover other sessions' topics (as ElectLeaders of null does). None of these topics exists.
REQUESTS: dict[str, dict[str, Any]] = {
    "fetch": {"max_wait": 0, "topics": [{"topic": "no", "topic_id": UNKNOWN_ID, "partitions": [{"partition": 0}]}]},
    "list_offsets": {"replica_id": -1, "topics": [{"name": "no", "partitions": [{**_PARTITION, "timestamp": -1}]}]},
    "delete_topics": {"topic_names": ["no"], "topics": [{"name": "no"}]},
    "delete_records": {"topics": [{"name": "no", "partitions": [{**_PARTITION, "offset": 1}]}]},
    "offset_for_leader_epoch": {
        "replica_id": -1,
        "topics": [{"topic": "no", "partitions": [{"partition": 0, "leader_epoch": 0}]}],
    },
    "describe_configs": {"resources": [{"resource_type": 2, "resource_name": "no", "configuration_keys": ["k"]}]},
    "describe_log_dirs": {"topics": [{"topic": "no", "partitions": [0]}]},
    "describe_quorum": {"topics": [{"topic_name": "no", "partitions": [_PARTITION]}]},
    "describe_cluster": {"endpoint_type": 1},
    "describe_producers": {"topics": [{"name": "no", "partition_indexes": [0]}]},
    "describe_topic_partitions": {"topics": [{"name": "no"}], "cursor": None},
    "list_partition_reassignments": {"topics": [{"name": "no", "partition_indexes": [0]}]},
    "create_partitions": {"topics": [{"name": "no", "count": 2, "assignments": None}], "validate_only": True},
    "api_versions": {"client_software_name": "judge", "client_software_version": "1"},
}
_NOBODY: dict[str, Any] = {"transactional_id": "no", "producer_id": 7, "producer_epoch": 0}
_MEMBER: dict[str, Any] = {"group_id": "no", "member_id": "m", "generation_id": 1}
#: The same for coordinators, which must have loaded. No such group or transactional id exists.
COORDINATORS: dict[str, dict[str, Any]] = {
    "find_coordinator": {"key": "no", "coordinator_keys": ["no"]},
    "heartbeat": _MEMBER,
    "leave_group": {"group_id": "no", "member_id": "m", "members": [{"member_id": "m"}]},
    "sync_group": {**_MEMBER, "protocol_type": "c", "protocol_name": "r", "assignments": []},
    "offset_delete": {"group_id": "no", "topics": [{"name": "no", "partitions": [_PARTITION]}]},
    "describe_groups": {"groups": ["no"]},
    "delete_groups": {"groups_names": ["no"]},
    "add_offsets_to_txn": {**_NOBODY, "group_id": "no"},
    "end_txn": {**_NOBODY, "committed": True},
    "describe_transactions": {"transactional_ids": ["no"]},
}
BYTES = (0x00, 0x02, 0x7F, 0xFF)
PATIENCE_S = 2.0


@session("api_versions", versions=(0,))
def damaged_bytes(peer: Peer, version: int) -> None:
    damaged(peer, REQUESTS)


@session("api_versions", versions=(0,), setup=Setup.GROUPS)
def damaged_bytes_for_coordinators(peer: Peer, version: int) -> None:
    coordinated(peer)
    begun(peer)
    damaged(peer, COORDINATORS)


def damaged(peer: Peer, requests: Mapping[str, dict[str, Any]]) -> None:
    for name, values in requests.items():
        _, low, high = SERVED[name]
        for at in sorted({low, high}):
            request = message_trees.request(name, at, 7, values)
            flexible = bool(message_trees.message(name, at, "request").__flexible__)
            for place in range(10 + len(message_trees.CLIENT_ID) + (1 if flexible else 0), len(request)):
                for byte in BYTES:
                    if request[place] == byte:
                        continue
                    changed = request[:place] + bytes([byte]) + request[place + 1 :]
                    label = f"{name} v{at}: byte {place} is {byte}"
                    peer.raw(label, message_trees.framed(changed), api=name, version=at, patience=PATIENCE_S)
