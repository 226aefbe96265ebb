"""Three brokers: their answers about the cluster, and the placement and the moves of partitions."""

from __future__ import annotations

import time
from typing import Any

from tests.differential.batches import batch
from tests.differential.judge import Setup, session
from tests.differential.message_trees import Tree
from tests.differential.peer import ANSWER_SECONDS, Peer
from tests.differential.sessions.topics import assigned, topic
from tests.differential.sessions.wrong_brokers import at_each, at_each_for, filled, routed

_THREE = Setup.THREE


# --- the cluster ------------------------------------------------------------------------------------------------------
@session("describe_cluster", setup=_THREE)
def cluster_at_each(peer: Peer, version: int) -> None:
    at_each(peer, "describe_cluster", version, "plain", include_cluster_authorized_operations=True)
    if version >= 2:
        at_each(peer, "describe_cluster", version, "fenced ones too", include_fenced_brokers=True)


@session("metadata", setup=_THREE)
def topics_at_each(peer: Peer, version: int) -> None:
    name, topic_id = filled(peer)
    at_each(peer, "metadata", version, "one", topics=[{"name": name}], allow_auto_topic_creation=False)
    if version >= 12:
        at_each(peer, "metadata", version, "by id", topics=[{"name": None, "topic_id": topic_id}])
    for internal in ("__consumer_offsets", "__transaction_state"):
        rows = [{"name": internal}]
        at_each(peer, "metadata", version, internal, topics=rows, allow_auto_topic_creation=False)


@session("metadata", setup=_THREE)
def placed_by_itself(peer: Peer, version: int) -> None:
    """A topic that names no brokers: any of them may lead it, and its leader is its only replica."""

    def placed(answer: Tree) -> Tree:
        rows = [partition for row in answer["topics"] for partition in row["partitions"]]
        for row in rows:
            leader = row["leader_id"]
            row["leader_id"] = "a broker" if leader in routed(peer).addresses else leader
            for name in ("replica_nodes", "isr_nodes"):
                row[name] = "the leader" if row[name] == [leader] else row[name]
        return answer

    rows = [{"name": peer.named("auto")}]
    peer.ask("metadata", version, "the first time", topics=rows, allow_auto_topic_creation=True)
    peer.await_partitions(peer.named("auto"), 1)
    at_each_for(peer, "metadata", version, "once it is there", placed, topics=rows, allow_auto_topic_creation=True)
    wanted = {"name": peer.named("six"), "num_partitions": 6, "replication_factor": 1}
    peer.quietly("create_topics", 5, topics=[wanted])
    peer.await_partitions(peer.named("six"), 6)
    (found,) = peer.quietly("metadata", 12, topics=[{"name": peer.named("six")}])["topics"]
    spread = sorted([row["leader_id"] for row in found["partitions"]])
    peer.collect("metadata", version, "leaders of six partitions", {"leaders": spread})
    rows = [{"name": peer.named("six")}]
    at_each_for(peer, "metadata", version, "six", placed, topics=rows, allow_auto_topic_creation=False)


@session("describe_topic_partitions", setup=_THREE)
def partitions_at_each(peer: Peer, version: int) -> None:
    name, _ = filled(peer)
    given: dict[str, Any] = {"topics": [{"name": name}], "cursor": None, "response_partition_limit": 2000}
    at_each(peer, "describe_topic_partitions", version, "one", **given)
    at_each(peer, "describe_topic_partitions", version, "two at most", **{**given, "response_partition_limit": 2})


@session("describe_quorum", setup=_THREE)
def quorum_at_each(peer: Peer, version: int) -> None:
    topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    at_each(peer, "describe_quorum", version, "the metadata", topics=topics)


@session("describe_configs", setup=_THREE)
def brokers_configs_at_each(peer: Peer, version: int) -> None:
    for name in ("1", "2", "9", ""):
        rows = [
            {"resource_type": 4, "resource_name": name, "configuration_keys": ["log.retention.ms", "message.max.bytes"]}
        ]
        at_each(peer, "describe_configs", version, f"of broker {name!r}", resources=rows)


@session("incremental_alter_configs", setup=_THREE)
def brokers_configs_altered_at_each(peer: Peer, version: int) -> None:
    configs = [{"name": "log.cleaner.threads", "config_operation": 0, "value": "1"}]
    for name in ("1", "2", "9"):
        rows = [{"resource_type": 4, "resource_name": name, "configs": configs}]
        at_each(peer, "incremental_alter_configs", version, f"of broker {name!r}", resources=rows, validate_only=True)


@session("unregister_broker", setup=_THREE)
def unknown_brokers_at_each(peer: Peer, version: int) -> None:
    for broker in (7, -1):
        at_each(peer, "unregister_broker", version, f"broker {broker}", broker_id=broker)


@session("elect_leaders", setup=_THREE)
def elections_at_each(peer: Peer, version: int) -> None:
    name, _ = filled(peer)
    for kind in (0, 1) if version >= 1 else (0,):
        for label, partitions in (("all three", [0, 1, 2]), ("an unknown one", [9, 1])):
            rows = [{"topic": name, "partitions": partitions}]
            at_each(peer, "elect_leaders", version, f"type {kind}: {label}", election_type=kind, topic_partitions=rows)


# --- assignments ------------------------------------------------------------------------------------------------------
@session("create_topics", setup=_THREE)
def assigned_to_brokers(peer: Peer, version: int) -> None:
    for number, (label, brokers) in enumerate(
        (
            ("each", [[1], [2], [3]]),
            ("the last alone", [[3], [3]]),
            ("an unknown one", [[1], [9]]),
            ("a negative one", [[-1]]),
            ("an unknown one beside a known one", [[1, 9]]),
            ("one twice", [[2, 2]]),
            ("factors that differ", [[1], [2, 3]]),
            ("none", [[1], []]),
        )
    ):
        rows = [topic(peer.named(f"t{number}"), -1, -1, **assigned(*brokers))]
        peer.ask_for("create_topics", version, f"{label}, only tried", placement, topics=rows, validate_only=True)
        peer.ask_for("create_topics", version, label, placement, topics=rows)
    for name, count in (("t0", 3), ("t1", 2)):
        peer.await_partitions(peer.named(name), count)
        rows = [{"name": peer.named(name)}]
        at_each(peer, "metadata", 12, f"{name}, then", topics=rows, allow_auto_topic_creation=False)


def placement(answer: Tree) -> Tree:
    """The answer without configs, which do not depend on the brokers."""
    return {**answer, "topics": [{**row, "configs": None} for row in answer["topics"]]}


@session("create_topics", versions=(2, 4), setup=_THREE)
def factors(peer: Peer, version: int) -> None:
    def ask(label: str, name: str, **assignments: Any) -> None:
        factor = -1 if assignments else int(label.rpartition(" ")[2])
        rows = [topic(peer.named(name), -1 if assignments else 1, factor, **assignments)]
        peer.ask_for("create_topics", version, label, placement, topics=rows, validate_only=True)

    for factor in (2, 3, 0, 4):
        ask(f"a factor of {factor}", f"f{factor}")
    ask("assigned to two", "two", **assigned([1, 2], [2, 3]))


@session("create_partitions", setup=_THREE)
def added_to_brokers(peer: Peer, version: int) -> None:
    name, _ = peer.create()

    def ask(label: str, count: int, *brokers: list[int], of: str = name, validate_only: bool = False) -> None:
        rows = [{"name": of, "count": count, "assignments": [{"broker_ids": ids} for ids in brokers]}]
        peer.ask("create_partitions", version, label, topics=rows, validate_only=validate_only)

    ask("an unknown one", 2, [9])
    ask("a negative one", 2, [-1])
    ask("one twice", 2, [2, 2])
    ask("two, where the others have one", 2, [2, 3])
    ask("none", 2, [])
    ask("too few", 4, [2], [3])
    ask("too many", 2, [2], [3])
    ask("only tried", 3, [2], [3], validate_only=True)
    ask("two and three", 3, [2], [3])
    peer.await_partitions(name, 3)
    at_each(peer, "metadata", 12, "then", topics=[{"name": name}], allow_auto_topic_creation=False)


# --- reassignments ----------------------------------------------------------------------------------------------------
@session("alter_partition_reassignments", setup=_THREE)
def refused_at_each(peer: Peer, version: int) -> None:
    name, _ = filled(peer)

    def ask(label: str, *rows: tuple[int, list[int] | None], of: str = name) -> None:
        partitions = [{"partition_index": index, "replicas": replicas} for index, replicas in rows]
        topics = [{"name": of, "partitions": partitions}]
        at_each(peer, "alter_partition_reassignments", version, label, topics=topics)

    ask("to where they are", (0, [1]), (1, [2]))
    ask("to an unknown broker", (0, [9]))
    ask("to a negative one", (0, [-1]))
    ask("to an unknown one beside a known one", (0, [2, 9]))
    ask("to one twice", (0, [2, 2]))
    ask("to none", (0, []))
    ask("taken back", (0, None), (1, None))
    ask("unknown partition", (9, [1]), (-1, [1]))
    ask("unknown partition taken back", (9, None))
    ask("unknown topic", (0, [1]), of=peer.named("nowhere"))
    ask("an empty name", (0, [1]), of="")
    ask("no partition")
    at_each(peer, "alter_partition_reassignments", version, "nothing", topics=[])
    at_each(peer, "metadata", 12, "as before", topics=[{"name": name}], allow_auto_topic_creation=False)


@session("alter_partition_reassignments", setup=_THREE)
def factors_of_reassignments(peer: Peer, version: int) -> None:
    name, _ = filled(peer)
    rows = [{"partition_index": 0, "replicas": [1, 2]}, {"partition_index": 1, "replicas": [3, 2, 1]}]
    peer.ask("alter_partition_reassignments", version, "to several", topics=[{"name": name, "partitions": rows}])


@session("list_partition_reassignments", setup=_THREE)
def none_at_each(peer: Peer, version: int) -> None:
    name, _ = filled(peer)
    for label, topics in (
        ("of one", [{"name": name, "partition_indexes": [0, 1, 2]}]),
        ("unknown partition", [{"name": name, "partition_indexes": [9, -1]}]),
        ("unknown topic", [{"name": peer.named("nowhere"), "partition_indexes": [0]}]),
        ("none", []),
    ):
        at_each(peer, "list_partition_reassignments", version, label, topics=topics)


@session("alter_partition_reassignments", setup=_THREE)
def moved(peer: Peer, version: int) -> None:
    """A partition goes to the next broker, which continues its offsets."""
    name, topic_id = routed(peer).spread()
    now_ms = time.time_ns() // 1_000_000  # an old record would expire once it is in the bucket
    peer.fill(topic_id, batch(b"x", timestamp=now_ms))
    rows = [{"partition_index": 0, "replicas": [2]}, {"partition_index": 2, "replicas": [3]}]
    peer.ask("alter_partition_reassignments", version, "to the next", topics=[{"name": name, "partitions": rows}])
    deadline = time.monotonic() + ANSWER_SECONDS
    asked = [{"name": name, "partition_indexes": [0]}]
    while peer.quietly("list_partition_reassignments", 0, topics=asked)["topics"]:
        assert time.monotonic() < deadline, "the partition never arrives"
        time.sleep(0.02)
    while leaders_shown(peer, name) != {2}:
        assert time.monotonic() < deadline, "not every broker knows the leader"
        time.sleep(0.02)
    peer.await_partitions(name, 3)

    def without_epoch(answer: Tree) -> Tree:
        for row in answer["topics"][0]["partitions"]:
            row["leader_epoch"] = min(row["leader_epoch"], 1)
        return answer

    at_each_for(peer, "metadata", 12, "then", without_epoch, topics=[{"name": name}], allow_auto_topic_creation=False)
    peer.fill(topic_id, batch(b"y", timestamp=now_ms))
    peer.collect("fetch", 13, "what it has", {"values": values(peer, name, topic_id, 2)})


def leaders_shown(peer: Peer, name: str) -> set[int]:
    """The leaders of partition 0 that the brokers show."""
    answers = peer.everywhere("metadata", 12, topics=[{"name": name}], allow_auto_topic_creation=False)
    rows = (row for answer in answers for row in answer["topics"][0]["partitions"])
    return {row["leader_id"] for row in rows if row["partition_index"] == 0}


def values(peer: Peer, name: str, topic_id: str, count: int) -> list[Any]:
    """Base offset and values of `count` batches, each of one record."""
    found: list[Any] = []
    rows = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]
    topics = [{"topic": name, "topic_id": topic_id, "partitions": rows}]
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:  # what came from the bucket may take more than one request
        answer = peer.quietly("fetch", 13, max_wait=500, min_bytes=1, topics=topics)
        batches = answer["responses"][0]["partitions"][0]["records"]
        found += [[each["base_offset"], *(record["value"] for record in each["records"])] for each in batches or ()]
        if len(found) >= count or time.monotonic() > deadline:
            return found
        rows[0]["fetch_offset"] = len(found)
