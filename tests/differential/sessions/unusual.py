"""Requests that no current client sends, but another client might: repeats, future fields, odd headers, changes during a
wait."""

from __future__ import annotations

import struct
from typing import Any

from tests.differential import message_trees
from tests.differential.batches import batch
from tests.differential.judge import SERVED, Setup, session
from tests.differential.peer import Peer
from tests.differential.sessions.common import UNKNOWN_ID, contents, ends, idempotent, of, to
from tests.differential.sessions.groups import coordinated
from tests.differential.sessions.transactions import adding, begun, naming

_NOWHERE = [{"name": "nowhere", "partitions": [0]}]
#: Fields without which a request gets no response, or one that differs between any two brokers.
NEEDED: dict[str, dict[str, Any]] = {
    "produce": {"acks": -1},
    "api_versions": {"client_software_name": "judge", "client_software_version": "1"},
    "init_producer_id": {"transactional_id": None},
    "metadata": {"topics": []},
    "describe_log_dirs": {"topics": []},
    "unregister_broker": {"broker_id": 7},
    "fetch": {"max_wait": 0},
    "elect_leaders": {"topic_partitions": []},
    "describe_cluster": {"endpoint_type": 1},
    "add_raft_voter": {"cluster_id": "another"},
    "remove_raft_voter": {"cluster_id": "another"},
    "describe_topic_partitions": {"topics": [{"name": "nowhere"}]},
    "add_partitions_to_txn": {"v3_and_below_topics": _NOWHERE, "transactions": [{"topics": _NOWHERE}]},
    "list_config_resources": {"resource_types": [16]},
}
#: An unknown tagged field (KIP-482): number 100, three bytes.
TAG = b"\x01\x64\x03abc"


def whole(name: str, version: int) -> bytes:
    return message_trees.request(name, version, 7, NEEDED.get(name, {}))


def head_bytes(name: str, version: int) -> int:
    flexible = bool(message_trees.message(name, version, "request").__flexible__)
    return 10 + len(message_trees.CLIENT_ID) + (1 if flexible else 0)


@session("api_versions", versions=(0,))
def fields_of_tomorrow(peer: Peer, version: int) -> None:
    """Unknown tagged fields are skipped, in headers and in bodies."""
    coordinated(peer)
    begun(peer)
    idempotent(peer)
    for name, (_, _, high) in SERVED.items():
        request = whole(name, high)
        if not message_trees.message(name, high, "request").__flexible__:
            continue
        body = head_bytes(name, high)
        tagged_head = request[: body - 1] + TAG + request[body:]
        peer.raw(f"{name}: in the header", message_trees.framed(tagged_head), api=name, version=high)
        peer.raw(f"{name}: in the body", message_trees.framed(request[:-1] + TAG), api=name, version=high)


@session("api_versions", versions=(0,))
def bytes_behind(peer: Peer, version: int) -> None:
    coordinated(peer)
    begun(peer)
    idempotent(peer)
    idempotent(peer)  # the first id may be 0, which is compared as no id
    for name, (_, low, high) in SERVED.items():
        lowest = 1 if name == "metadata" else low  # in version 0, no topic means all topics
        for at in sorted({lowest, high}):
            peer.raw(f"{name} v{at}", message_trees.framed(whole(name, at) + b"\0\0\0"), api=name, version=at)


@session("metadata", versions=(1, 9))
def headers(peer: Peer, version: int) -> None:
    flexible = version >= 9
    body = b"\x01\x00\x00\x00\x00" if flexible else b"\0\0\0\0"

    def ask(label: str, client: bytes, correlation: int = 7) -> None:
        head = struct.pack(">hhi", 3, version, correlation) + client + (b"\0" if flexible else b"")
        peer.raw(label, message_trees.framed(head + body), api="metadata", version=version)

    ask("no client id", b"\xff\xff")
    ask("an empty client id", b"\0\0")
    ask("a long client id", b"\x7f\xff" + b"x" * 32767)
    ask("a client id that is no UTF-8", b"\0\3\xff\xfe\xfd")
    ask("a null in the client id", b"\0\3a\0b")
    ask("a client id of length -2", b"\xff\xfe")
    ask("correlation id of -1", b"\0\1x", -1)
    ask("the lowest correlation id", b"\0\1x", -(2**31))


@session("produce", versions=(3, 9, 13))
def partitions_twice(peer: Peer, version: int) -> None:
    topic = peer.create(partitions=2)
    rows = [{"index": 0, "records": batch(b"a")}, {"index": 1, "records": batch(b"b")}]
    named = {"name": topic[0], "topic_id": topic[1]}
    peer.ask("produce", version, "a topic twice", acks=-1, topic_data=[{**named, "partition_data": [r]} for r in rows])
    contents(peer, topic, 2, "of it")


@session("fetch", versions=(4, 12, 13, 18))
def fetched_twice(peer: Peer, version: int) -> None:
    topic = peer.create(partitions=2)
    peer.fill(topic[1], batch(b"a"), batch(b"b"))
    now: dict[str, Any] = {"max_wait": 0, "min_bytes": 0}
    peer.ask("fetch", version, "a topic twice", **now, topics=of(topic, {0: 0}) + of(topic, {1: 0}))


@session("produce", versions=(3, 8, 13))
def too_few_replicas(peer: Peer, version: int) -> None:
    topic = peer.create(min_insync_replicas="2")
    for acks in (-1, 1):
        peer.ask("produce", version, f"acks={acks}", acks=acks, topic_data=to(topic, {0: batch(b"x")}))
    damaged = to(topic, {0: batch(b"x", flip=-1)})
    peer.ask("produce", version, "damaged too", acks=-1, topic_data=damaged)
    ends(peer, topic, 1)


@session("produce", versions=(3, 13))
def the_longest_name(peer: Peer, version: int) -> None:
    name = "x" * (249 - len(peer.prefix) - 1)
    for life in ("first", "second"):
        topic = peer.create(name)
        peer.ask("produce", version, life, acks=-1, topic_data=to(topic, {0: batch(b"x")}))
        ends(peer, topic, 1, life)
        peer.delete(topic[0])


@session("fetch", versions=(4, 12, 13, 18))
def waits_that_end(peer: Peer, version: int) -> None:
    """Waits end long before their timeout, because the partition has changed."""
    long: dict[str, Any] = {"max_wait": 60_000, "min_bytes": 1}
    topic = peer.create()
    waiting = peer.begin("fetch", version, **long, topics=of(topic, {0: 0}))
    peer.fill(topic[1], batch(b"x"))
    waiting.end("records came")
    waiting = peer.begin("fetch", version, **{**long, "min_bytes": 120}, topics=of(topic, {0: 1}))
    peer.fill(topic[1], batch(b"y" * 20), batch(b"z" * 20))
    waiting.end("enough records came")
    waiting = peer.begin("fetch", version, **long, topics=of(topic, {0: 3}))
    peer.settle_same("list_offsets", 6, "while one waits", replica_id=-1, topics=[])
    peer.delete(topic[0])
    waiting.end("the topic was deleted")


@session("elect_leaders")
def every_leader(peer: Peer, version: int) -> None:
    name, _ = peer.create(partitions=2)

    def own(answer: Any) -> Any:
        kept = [row for row in answer["replica_election_results"] if row["topic"] == name]
        return {**answer, "replica_election_results": kept}

    peer.ask_for("elect_leaders", version, "all", own, topic_partitions=None)
    for label, partitions in (("twice", [0, 0]), ("negative", [-1])):
        topics = [{"topic": name, "partitions": partitions}]
        peer.ask("elect_leaders", version, label, topic_partitions=topics)
    topics = [{"topic": name, "partitions": [0]}, {"topic": name, "partitions": [1]}]
    peer.ask("elect_leaders", version, "a topic twice", topic_partitions=topics)


@session("describe_log_dirs")
def every_log(peer: Peer, version: int) -> None:
    """Reported sizes equal the segments' sizes to the byte."""
    name, topic_id = peer.create(partitions=2)
    peer.fill(topic_id, batch(b"x" * 1000), batch(b"y"))
    peer.fill(topic_id, batch(b"z" * 77, codec="gzip"), partition=1)

    def own(answer: Any) -> Any:
        results = [{**row, "topics": [t for t in row["topics"] if t["name"] == name]} for row in answer["results"]]
        return {**answer, "results": results}

    peer.ask_for("describe_log_dirs", version, "all", own, topics=None)
    for label, partitions in (("twice", [0, 0]), ("negative", [-1, 1])):
        peer.ask("describe_log_dirs", version, label, topics=[{"topic": name, "partitions": partitions}])
    peer.quietly("delete_records", 2, topics=[{"name": name, "partitions": [{"partition_index": 0, "offset": 2}]}])
    peer.ask("describe_log_dirs", version, "records deleted", topics=[{"topic": name, "partitions": [0]}])


@session("describe_topic_partitions")
def every_topic_from_a_cursor(peer: Peer, version: int) -> None:
    peer.create("a", partitions=3)
    peer.create("b")

    def own(answer: Any) -> Any:
        cursor = answer["next_cursor"]
        if cursor is not None and not cursor["topic_name"].startswith(f"{peer.prefix}-"):
            cursor = "another topic"
        kept = [row for row in answer["topics"] if row["name"].startswith(f"{peer.prefix}-")]
        return {**answer, "topics": kept, "next_cursor": cursor}

    for label, name, index, limit in (
        ("the first two", "a", 0, 2),
        ("gone on", "a", 2, 2),
        ("at the second", "b", 0, 1),
        ("before the first", "", 0, 1),
    ):
        cursor = {"topic_name": peer.named(name), "partition_index": index}
        given: dict[str, Any] = {"topics": [], "cursor": cursor, "response_partition_limit": limit}
        peer.ask_for("describe_topic_partitions", version, label, own, **given)


@session("create_topics", versions=(5, 7))
def many_partitions(peer: Peer, version: int) -> None:
    for label, count in (("10,001", 10_001), ("the most there are numbers for", 2**31 - 1)):
        rows = [{"name": peer.named(f"t{count}"), "num_partitions": count, "replication_factor": 1}]
        peer.ask("create_topics", version, label, topics=rows)
        peer.ask("create_topics", version, f"{label}, only tried", topics=rows, validate_only=True)
    topic = peer.create()[0]
    rows = [{"name": topic, "count": 20_000, "assignments": None}]
    peer.ask("create_partitions", 3, "20,000, only tried", topics=rows, validate_only=True)


#: Names that no topic can have, or that only look valid.
NAMES = {
    "empty": "",
    "a dot": ".",
    "a slash": "a/b",
    "a path": "../../etc/passwd",
    "a null byte": "a\0b",
    "a line": "a\nb",
    "not ASCII": "th\u00e9",
    "250 letters": "x" * 250,
    "32,767 letters": "x" * 32767,
    "percent": "%s%n",
    "the metadata": "__cluster_metadata",
}


@session("offset_commit", versions=(8,), setup=Setup.GROUPS)
def names_that_are_none_for_coordinators(peer: Peer, version: int) -> None:
    """Invalid names of topics, and of groups in requests that store nothing."""
    group, producer = coordinated(peer), begun(peer)
    row = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    for label, name in NAMES.items():
        rows = [{"name": name, "partitions": [row]}]
        peer.ask("offset_commit", 8, f"commit: {label}", **outside(group), topics=rows)
        asked = [{"name": name, "partition_indexes": [0]}]
        peer.ask("offset_fetch", 8, f"fetch: {label}", groups=[{"group_id": group, "topics": asked}])
        peer.ask("offset_fetch", 8, f"fetch of a group: {label}", groups=[{"group_id": name, "topics": asked}])
        rows = [{"name": name, "partitions": [{"partition_index": 0}]}]
        peer.ask("offset_delete", 0, f"delete: {label}", group_id=group, topics=rows)
        peer.ask("describe_groups", 5, f"describe a group: {label}", groups=[name])
        peer.ask("delete_groups", 2, f"delete a group: {label}", groups_names=[name])
        peer.ask("find_coordinator", 4, f"find a group's: {label}", key_type=0, coordinator_keys=[name])
        peer.ask("add_partitions_to_txn", 3, f"add: {label}", **adding(producer, name, 0))
        rows = [{"name": name, "partitions": [row]}]
        within = {
            **naming(producer),
            "group_id": group,
            "member_id": "",
            "generation_id": -1,
            "group_instance_id": None,
        }
        peer.ask("txn_offset_commit", 3, f"commit in a transaction: {label}", **within, topics=rows)


def outside(group: str) -> dict[str, Any]:
    """The fields of an OffsetCommit by a client that is no member."""
    return {"group_id": group, "member_id": "", "generation_id_or_member_epoch": -1, "group_instance_id": None}


def by_name(name: str, topic: str) -> Any:
    """A request about partition 0 of the named topic."""
    index = {"partition_index": 0}
    return {
        "produce": {"acks": -1, "topic_data": to((topic, UNKNOWN_ID), {0: batch(b"x")})},
        "fetch": {"max_wait": 0, "topics": of((topic, UNKNOWN_ID), {0: 0})},
        "list_offsets": {"replica_id": -1, "topics": [{"name": topic, "partitions": [{**index, "timestamp": -1}]}]},
        "delete_records": {"topics": [{"name": topic, "partitions": [{**index, "offset": 0}]}]},
        "offset_for_leader_epoch": {
            "replica_id": -1,
            "topics": [{"topic": topic, "partitions": [{"partition": 0, "leader_epoch": 0}]}],
        },
        "describe_log_dirs": {"topics": [{"topic": topic, "partitions": [0]}]},
        "describe_producers": {"topics": [{"name": topic, "partition_indexes": [0]}]},
        "describe_topic_partitions": {"topics": [{"name": topic}]},
        "elect_leaders": {"topic_partitions": [{"topic": topic, "partitions": [0]}]},
        "create_partitions": {"topics": [{"name": topic, "count": 2, "assignments": None}]},
        "alter_partition_reassignments": {"topics": [{"name": topic, "partitions": [{**index, "replicas": [1]}]}]},
        "list_partition_reassignments": {"topics": [{"name": topic, "partition_indexes": [0]}]},
        "describe_configs": {"resources": [{"resource_type": 2, "resource_name": topic, "configuration_keys": []}]},
    }[name]


@session("api_versions", versions=(0,))
def names_that_are_none(peer: Peer, version: int) -> None:
    """Sends invalid topic names to every API that takes a topic by name."""
    for name in (
        "produce", "fetch", "list_offsets", "delete_records", "offset_for_leader_epoch", "describe_log_dirs",
        "describe_producers", "describe_topic_partitions", "elect_leaders", "create_partitions",
        "alter_partition_reassignments", "list_partition_reassignments", "describe_configs",
    ):  # fmt: skip
        _, low, high = SERVED[name]
        at = {"produce": 12, "fetch": 12}.get(name, high)
        for label, topic in NAMES.items():
            peer.ask(name, at, f"{name} v{at}: {label}", **by_name(name, topic))
            if low != at and label in ("empty", "250 letters"):
                peer.ask(name, low, f"{name} v{low}: {label}", **by_name(name, topic))
