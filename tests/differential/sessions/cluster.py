"""Requests about the node itself: DescribeCluster, DescribeLogDirs, ElectLeaders, DescribeQuorum, UpdateFeatures."""

from __future__ import annotations

from typing import Any

from tests.differential.batches import batch
from tests.differential.judge import session
from tests.differential.peer import Peer
from tests.differential.sessions.common import UNKNOWN_ID


@session("describe_cluster")
def cluster(peer: Peer, version: int) -> None:
    for allowed in (False, True):
        label = "with what is allowed" if allowed else "plain"
        peer.ask("describe_cluster", version, label, include_cluster_authorized_operations=allowed)
    if version >= 1:
        for kind in (2, 0, 9):
            peer.ask("describe_cluster", version, f"endpoints of type {kind}", endpoint_type=kind)
    if version >= 2:
        peer.ask("describe_cluster", version, "fenced ones too", include_fenced_brokers=True)


@session("describe_log_dirs")
def log_directories(peer: Peer, version: int) -> None:
    name, topic_id = peer.create(partitions=2)
    peer.fill(topic_id, batch(b"x" * 100))

    def ask(label: str, topics: Any) -> None:
        peer.ask("describe_log_dirs", version, label, topics=topics)

    ask("one partition", [{"topic": name, "partitions": [0]}])
    ask("two partitions", [{"topic": name, "partitions": [1, 0]}])
    ask("unknown partition", [{"topic": name, "partitions": [9]}])
    ask("unknown topic", [{"topic": peer.named("nowhere"), "partitions": [0]}])
    ask("no partition", [{"topic": name, "partitions": []}])
    ask("nothing", [])


@session("elect_leaders")
def elections(peer: Peer, version: int) -> None:
    name, _ = peer.create(partitions=2)
    for kind in (0, 1) if version >= 1 else (0,):
        for label, topics in (
            ("one", [{"topic": name, "partitions": [0]}]),
            ("two", [{"topic": name, "partitions": [0, 1]}]),
            ("unknown partition", [{"topic": name, "partitions": [7, 0]}]),
            ("unknown topic", [{"topic": peer.named("nowhere"), "partitions": [0]}]),
            ("none", []),
        ):
            values: dict[str, Any] = {"election_type": kind, "topic_partitions": topics}
            peer.ask("elect_leaders", version, f"type {kind}: {label}", **values)
    if version >= 1:
        topics = [{"topic": name, "partitions": [0]}]
        peer.ask("elect_leaders", version, "unknown type", election_type=5, topic_partitions=topics)


@session("describe_quorum")
def quorum(peer: Peer, version: int) -> None:
    def ask(label: str, name: str, *partitions: int) -> None:
        topics = [{"topic_name": name, "partitions": [{"partition_index": index} for index in partitions]}]
        peer.ask("describe_quorum", version, label, topics=topics)

    ask("the metadata", "__cluster_metadata", 0)
    ask("another partition", "__cluster_metadata", 1)
    ask("another topic", peer.create()[0], 0)
    peer.ask("describe_quorum", version, "nothing", topics=[])


@session("update_features")
def features(peer: Peer, version: int) -> None:
    def ask(label: str, *updates: tuple[str, int], upgrade: int = 1, validate_only: bool = False) -> None:
        rows = [{"feature": name, "max_version_level": level, "upgrade_type": upgrade} for name, level in updates]
        peer.ask("update_features", version, label, feature_updates=rows, validate_only=validate_only)

    ask("unknown", ("no.such.feature", 1))
    ask("empty name", ("", 1))
    ask("negative level", ("metadata.version", -1))
    ask("far too high", ("metadata.version", 32767))
    ask("none")
    ask("as it is", ("transaction.version", 2))
    ask("higher than supported", ("transaction.version", 3))
    ask("lower without saying so", ("transaction.version", 1))
    ask("one of two unknown", ("transaction.version", 2), ("no.such.feature", 1))
    ask("the same twice", ("transaction.version", 2), ("transaction.version", 2))
    ask("unknown at level 0", ("no.such.feature", 0))
    if version >= 1:
        for kind in (2, 3):
            ask(f"as it is by downgrade {kind}", ("transaction.version", 2), upgrade=kind)
            ask(f"downgrade {kind}, only tried", ("transaction.version", 1), upgrade=kind, validate_only=True)
            ask(f"to 0 by downgrade {kind}, only tried", ("transaction.version", 0), upgrade=kind, validate_only=True)
            ask(f"higher than supported by downgrade {kind}", ("transaction.version", 3), upgrade=kind)
        ask("downgraded", ("transaction.version", 1), upgrade=2)
        ask("upgraded by downgrade", ("transaction.version", 2), upgrade=2)
        ask("upgraded, only tried", ("transaction.version", 2), validate_only=True)
        ask("upgraded", ("transaction.version", 2))
        ask("unknown, only tried", ("no.such.feature", 1), validate_only=True)
        ask("unknown kind of change", ("metadata.version", 20), upgrade=9)


@session("alter_partition_reassignments")
def reassignments(peer: Peer, version: int) -> None:
    name, _ = peer.create(partitions=2)

    def ask(label: str, *rows: tuple[int, list[int] | None], of: str = name, **values: Any) -> None:
        partitions = [{"partition_index": index, "replicas": replicas} for index, replicas in rows]
        topics = [{"name": of, "partitions": partitions}]
        peer.ask("alter_partition_reassignments", version, label, topics=topics, **values)

    ask("to where it is", (0, [1]))
    ask("to an unknown broker", (0, [9]))
    ask("to a broker twice", (0, [1, 1]))
    ask("to nobody", (0, []))
    ask("to more brokers than there are", (0, [1, 2]))
    ask("taken back", (0, None))
    ask("unknown partition", (9, [1]))
    ask("unknown partition among known ones", (9, [1]), (1, [1]))
    ask("unknown topic", (0, [1]), of=peer.named("nowhere"))
    ask("a partition twice", (0, [1]), (0, [1]))
    ask("no partition")
    peer.ask("alter_partition_reassignments", version, "nothing", topics=[])
    if version >= 1:
        ask("the replication factor must stay", (0, [1]), allow_replication_factor_change=False)


@session("list_partition_reassignments")
def reassignments_listed(peer: Peer, version: int) -> None:
    name, _ = peer.create(partitions=2)
    for label, topics in (
        ("all", None),
        ("of one", [{"name": name, "partition_indexes": [0, 1]}]),
        ("unknown partition", [{"name": name, "partition_indexes": [9]}]),
        ("unknown topic", [{"name": peer.named("nowhere"), "partition_indexes": [0]}]),
        ("none", []),
    ):
        peer.ask("list_partition_reassignments", version, label, topics=topics)


@session("alter_replica_log_dirs")
def moves_between_disks(peer: Peer, version: int) -> None:
    name, _ = peer.create(partitions=2)
    (there,) = {row["log_dir"] for row in peer.quietly("describe_log_dirs", 1, topics=None)["results"]}

    def ask(label: str, path: str, *partitions: int, of: str = name) -> None:
        topics = [{"name": of, "partitions": list(partitions)}]
        peer.ask("alter_replica_log_dirs", version, label, dirs=[{"path": path, "topics": topics}])

    ask("to where it is", there, 0, 1)
    ask("to no directory of the node", "/nowhere", 0)
    ask("to no absolute path", "nowhere", 0)
    ask("unknown partition", there, 9)
    ask("unknown topic", there, 0, of=peer.named("nowhere"))
    ask("no partition", there)
    peer.ask("alter_replica_log_dirs", version, "nothing", dirs=[])


@session("unregister_broker")
def brokers_that_are_not_there(peer: Peer, version: int) -> None:
    for broker in (7, -1):
        peer.ask("unregister_broker", version, f"broker {broker}", broker_id=broker)


@session("add_raft_voter")
def voters_added(peer: Peer, version: int) -> None:
    cluster_id = peer.quietly("describe_cluster", 0)["cluster_id"]
    listeners = [{"name": "CONTROLLER", "host": "127.0.0.1", "port": 9}]

    def ask(label: str, **values: Any) -> None:
        given: dict[str, Any] = {"cluster_id": cluster_id, "voter_id": 2, "voter_directory_id": UNKNOWN_ID}
        peer.ask("add_raft_voter", version, label, **{**given, "listeners": listeners, **values})

    ask("another voter")
    ask("itself", voter_id=1)
    ask("a negative voter", voter_id=-1)
    ask("no directory", voter_directory_id=None)
    ask("no cluster", cluster_id=None)
    ask("another cluster", cluster_id="another")
    ask("an empty cluster", cluster_id="")
    ask("no address", listeners=[])
    ask("only a client's address", listeners=[{"name": "PLAINTEXT", "host": "127.0.0.1", "port": 9}])
    ask("two addresses", listeners=[*listeners, {"name": "PLAINTEXT", "host": "127.0.0.1", "port": 9}])
    ask("an address twice", listeners=[*listeners, *listeners])
    ask("another cluster and no address", cluster_id="another", listeners=[])
    ask("no directory and no address", voter_directory_id=None, listeners=[])
    ask("another cluster and no directory", cluster_id="another", voter_directory_id=None)
    ask("no time", timeout=0)


@session("remove_raft_voter")
def voters_removed(peer: Peer, version: int) -> None:
    cluster_id = peer.quietly("describe_cluster", 0)["cluster_id"]

    def ask(label: str, **values: Any) -> None:
        given: dict[str, Any] = {"cluster_id": cluster_id, "voter_id": 2, "voter_directory_id": UNKNOWN_ID}
        peer.ask("remove_raft_voter", version, label, **{**given, **values})

    ask("another voter")
    ask("itself", voter_id=1)
    ask("a negative voter", voter_id=-1)
    ask("no directory", voter_directory_id=None)
    ask("no cluster", cluster_id=None)
    ask("another cluster", cluster_id="another")
