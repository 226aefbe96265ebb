"""CreateTopics, DeleteTopics, CreatePartitions, Metadata and DescribeTopicPartitions."""

from __future__ import annotations

import itertools
from typing import Any

from tests.differential.judge import session
from tests.differential.message_trees import Tree
from tests.differential.peer import Peer
from tests.differential.sessions.common import UNKNOWN_ID


def topic(name: str, partitions: int = 1, replicas: int = 1, **fields: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": replicas, **fields}


def configs(**values: str | None) -> list[dict[str, str | None]]:
    return [{"name": name.replace("_", "."), "value": value} for name, value in values.items()]


def assigned(*brokers: list[int]) -> dict[str, Any]:
    rows = [{"partition_index": index, "broker_ids": ids} for index, ids in enumerate(brokers)]
    return {"assignments": rows}


@session("create_topics")
def created(peer: Peer, version: int) -> None:
    def ask(label: str, *topics: dict[str, Any], **values: Any) -> None:
        peer.ask("create_topics", version, label, topics=list(topics), **values)

    ask("one", topic(peer.named("one")))
    ask("one, again", topic(peer.named("one")))
    ask("three partitions", topic(peer.named("three"), 3))
    if version >= 4:
        ask("the node's defaults", topic(peer.named("default"), -1, -1))
    ask("with configs", topic(peer.named("configs"), configs=configs(retention_ms="1000", cleanup_policy="compact")))
    ask("assigned", topic(peer.named("assigned"), -1, -1, **assigned([1], [1])))
    ask("only tried", topic(peer.named("tried"), 2), validate_only=True)
    ask("only tried, and there", topic(peer.named("one")), validate_only=True)
    ask("two", topic(peer.named("b")), topic(peer.named("a"), 2))
    ask("one of three is there", topic(peer.named("c")), topic(peer.named("one")), topic(peer.named("d")))
    ask("none")
    ask("dots, dashes, underscores", topic(peer.named("x.y_z-1")))


@session("create_topics")
def refused(peer: Peer, version: int) -> None:
    def ask(label: str, *topics: dict[str, Any], **values: Any) -> None:
        peer.ask("create_topics", version, label, topics=list(topics), **values)

    names = (peer.named(f"t{number}") for number in itertools.count())
    for label, bad in (
        ("empty", ""),
        ("a dot", "."),
        ("two dots", ".."),
        ("a slash", "a/b"),
        ("a space", "a b"),
        ("not ASCII", "thé"),
        ("a null byte", "a\0b"),
        ("250 letters", "x" * 250),
        ("internal", "__cluster_metadata"),
    ):
        ask(f"name: {label}", topic(bad))
    for count in (0, -2):
        ask(f"{count} partitions", topic(next(names), count))
    for count in (0, 2, -2):
        ask(f"{count} replicas", topic(next(names), 1, count))
    for label, wanted in (
        ("unknown config", configs(no_such_config="1")),
        ("a config that is no number", configs(retention_ms="soon")),
        ("a config out of range", configs(retention_ms="-2")),
        ("a small segment", configs(segment_bytes="1")),
        ("a config that is none of its words", configs(cleanup_policy="maybe")),
        ("a config without value", configs(retention_ms=None)),
        ("a config twice", configs(retention_ms="1") + configs(retention_ms="2")),
    ):
        ask(label, topic(next(names), configs=wanted))
    both = next(names)
    ask("twice", topic(both), topic(both))
    ask("assigned to an unknown broker", topic(next(names), -1, -1, **assigned([9])))
    ask("assigned to one broker twice", topic(next(names), -1, -1, **assigned([1, 1])))
    ask("assigned to nobody", topic(next(names), -1, -1, **assigned([])))
    ask("assigned and counted", topic(next(names), 1, 1, **assigned([1])))
    gap = [{"partition_index": 0, "broker_ids": [1]}, {"partition_index": 2, "broker_ids": [1]}]
    ask("assigned with a gap", topic(next(names), -1, -1, assignments=gap))
    ask("only tried and wrong", topic(next(names), 0), validate_only=True)
    ask("a right one beside a wrong one", topic(next(names)), topic(peer.named("u"), 0))


@session("create_topics")
def names_that_collide(peer: Peer, version: int) -> None:
    """A dot and an underscore are the same character in metric names."""
    peer.create("a.b")
    peer.ask("create_topics", version, "a_b beside a.b", topics=[topic(peer.named("a_b"))])
    both = [topic(peer.named("c.d")), topic(peer.named("c_d"))]
    peer.ask("create_topics", version, "both at once", topics=both)


@session("delete_topics")
def deleted(peer: Peer, version: int) -> None:
    for name in ("a", "b", "c", "d"):
        peer.create(name)

    def ask(label: str, *names: str) -> None:
        rows = [{"name": name} for name in names]
        peer.ask("delete_topics", version, label, topic_names=list(names), topics=rows)

    ask("one", peer.named("a"))
    ask("one, again", peer.named("a"))
    ask("unknown", peer.named("nowhere"))
    ask("two", peer.named("c"), peer.named("b"))
    ask("twice", peer.named("d"), peer.named("d"))
    ask("illegal", "a/b", "")
    ask("none")


@session("delete_topics", versions=(6,))
def deleted_by_id(peer: Peer, version: int) -> None:
    a, b, c = (peer.create(name) for name in "abc")

    def ask(label: str, *rows: dict[str, Any]) -> None:
        peer.ask("delete_topics", version, label, topics=list(rows))

    ask("by id", {"name": None, "topic_id": a[1]})
    ask("by id, again", {"name": None, "topic_id": a[1]})
    ask("unknown id", {"name": None, "topic_id": UNKNOWN_ID})
    ask("neither", {"name": None})
    ask("both", {"name": b[0], "topic_id": b[1]})
    ask("by name and by id", {"name": b[0]}, {"name": None, "topic_id": b[1]})
    ask("an id twice", {"name": None, "topic_id": c[1]}, {"name": None, "topic_id": c[1]})


@session("create_partitions")
def more_partitions(peer: Peer, version: int) -> None:
    name, _ = peer.create()
    other, _ = peer.create("other")

    def ask(label: str, *rows: tuple[str, int, list[list[int]] | None], validate_only: bool = False) -> None:
        topics = [
            {"name": n, "count": c, "assignments": None if a is None else [{"broker_ids": ids} for ids in a]}
            for n, c, a in rows
        ]
        peer.ask("create_partitions", version, label, topics=topics, validate_only=validate_only)

    ask("to 3", (name, 3, None))
    peer.await_partitions(name, 3)
    ask("to 3, again", (name, 3, None))
    ask("fewer", (name, 2, None))
    ask("0", (name, 0, None))
    ask("-1", (name, -1, None))
    ask("only tried", (name, 5, None), validate_only=True)
    ask("only tried and wrong", (name, 1, None), validate_only=True)
    ask("assigned", (name, 5, [[1], [1]]))
    ask("assigned too few", (name, 8, [[1]]))
    ask("assigned too many", (name, 6, [[1], [1]]))
    ask("assigned to an unknown broker", (name, 6, [[9]]))
    ask("assigned to one broker twice", (name, 6, [[1, 1]]))
    ask("assigned to nobody", (name, 6, [[]]))
    ask("unknown topic", (peer.named("nowhere"), 3, None))
    ask("twice", (name, 7, None), (name, 8, None))
    ask("one of two is unknown", (peer.named("nowhere"), 3, None), (other, 2, None))
    ask("none")


@session("metadata")
def known(peer: Peer, version: int) -> None:
    one, first_id = peer.create("one")
    three, second_id = peer.create("three", partitions=3)
    quiet: dict[str, Any] = {"allow_auto_topic_creation": False}

    def ask(label: str, *rows: dict[str, Any], **values: Any) -> None:
        peer.ask("metadata", version, label, topics=list(rows), **{**quiet, **values})

    ask("one", {"name": one})
    ask("two", {"name": three}, {"name": one})
    ask("twice", {"name": one}, {"name": one})
    if version >= 4:
        ask("unknown", {"name": peer.named("nowhere")})
        ask("unknown among known", {"name": peer.named("nowhere")}, {"name": one})
        for label, bad in (("empty", ""), ("a slash", "a/b"), ("250 letters", "x" * 250)):
            ask(f"name: {label}", {"name": bad})
    operations = {
        "include_topic_authorized_operations": True,
        "include_cluster_authorized_operations": True,
    }
    ask("with what is allowed", {"name": one}, **operations)
    if version >= 4:
        ask("what is allowed of an unknown one", {"name": peer.named("nowhere")}, **operations)
    if version >= 1:
        ask("none")
    if version >= 10:
        ask("by id" if version >= 12 else "by id, too early", {"name": None, "topic_id": first_id})
        ask("unknown id", {"name": None, "topic_id": UNKNOWN_ID})
        ask("name and id", {"name": three, "topic_id": second_id})
        ask("neither", {"name": None})


@session("metadata")
def every_topic(peer: Peer, version: int) -> None:
    """Asks for all topics and keeps only this session's."""
    peer.create("one")
    peer.create("two", partitions=2)

    def own(answer: Tree) -> Tree:
        kept = [row for row in answer["topics"] if row["name"].startswith(f"{peer.prefix}-")]
        return {**answer, "topics": kept}

    everything: list[str] | None = [] if version == 0 else None
    peer.ask_for("metadata", version, "all", own, topics=everything)


@session("metadata")
def made_by_asking(peer: Peer, version: int) -> None:
    names = [{"name": peer.named("auto")}]
    peer.ask("metadata", version, "the first time", topics=names, allow_auto_topic_creation=True)
    peer.await_partitions(peer.named("auto"), 1)
    peer.ask("metadata", version, "once it is there", topics=names, allow_auto_topic_creation=True)
    for label, bad in (("a slash", "a/b"), ("250 letters", "x" * 250), ("empty", "")):
        peer.ask("metadata", version, f"name: {label}", topics=[{"name": bad}], allow_auto_topic_creation=True)


@session("describe_topic_partitions")
def partitions_page_by_page(peer: Peer, version: int) -> None:
    one, three = peer.create("a")[0], peer.create("b", partitions=3)[0]

    def ask(label: str, *names: str, limit: int = 2000, cursor: dict[str, Any] | None = None) -> Tree:
        rows = [{"name": name} for name in names]
        values: dict[str, Any] = {"topics": rows, "response_partition_limit": limit, "cursor": cursor}
        return peer.ask("describe_topic_partitions", version, label, **values)

    ask("both", one, three)
    ask("in the other order", three, one)
    ask("two at most", one, three, limit=2)
    ask("gone on", one, three, limit=2, cursor={"topic_name": three, "partition_index": 1})
    ask("from behind the end", one, three, cursor={"topic_name": three, "partition_index": 9})
    ask("from a negative partition", one, three, cursor={"topic_name": three, "partition_index": -1})
    ask("from an unknown topic", one, three, cursor={"topic_name": peer.named("nowhere"), "partition_index": 0})
    ask("unknown", peer.named("nowhere"))
    ask("unknown among known", peer.named("nowhere"), one)
    ask("twice", one, one)
    ask("illegal", "a/b")
    for limit in (0, -1):
        ask(f"a limit of {limit}", three, limit=limit)
