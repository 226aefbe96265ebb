"""Requests of groups with content that their coordinator cannot read or keep: subscriptions, assignments, metadata, markers."""

from __future__ import annotations

from typing import Any

from tests.differential.judge import Setup, session
from tests.differential.peer import Peer
from tests.differential.sessions.groups import committing, coordinated, joined, joining, syncing
from tests.differential.sessions.transactions import ask, begun, ending, naming, patiently

_GROUPS = Setup.GROUPS
#: Bytes that are no subscription of a known version.
SUBSCRIPTIONS = {
    "nothing": b"",
    "one byte": b"\0",
    "a version alone": b"\0\1",
    "a negative version": b"\xff\xff\0\0\0\0\0\0\0\0",
    "a version that does not exist": b"\x7f\xff\0\0\0\1\0\1t\xff\xff\xff\xff",
    "bytes behind": b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xffbehind",
}
#: Subscriptions whose topics cannot be read. Kafka's coordinator fails on them when it ends the rebalance.
UNREADABLE = {
    "a topic that is cut off": b"\0\0\0\0\0\1\0\x05t",
    "a null topic": b"\0\0\0\0\0\1\xff\xff\xff\xff\xff\xff",
    "more topics than bytes": b"\0\0\x7f\xff\xff\xff\0\1t",
    "garbage": bytes(range(256)),
}
PATIENCE_S = 2.0


@session("join_group", versions=(0, 3), setup=_GROUPS)
def unreadable_subscriptions(peer: Peer, version: int) -> None:
    for number, (label, content) in enumerate(UNREADABLE.items()):
        group = coordinated(peer, f"g{number}")
        protocols = [{"name": "range", "metadata": content}]
        peer.ask_patiently("join_group", version, label, PATIENCE_S, **joining(group, protocols=protocols))
        peer.close_connection()


@session("join_group", versions=(0, 5, 9), setup=_GROUPS)
def subscriptions_of_no_known_version(peer: Peer, version: int) -> None:
    """A subscription is the members' own. Only the deletion of offsets reads it, for the topics in use."""
    topic, topic_id = peer.create()
    for number, (label, content) in enumerate(SUBSCRIPTIONS.items()):
        group = coordinated(peer, f"g{number}")
        peer.quietly("offset_commit", 7, **committing(group, topic, topic_id, 0))
        protocols = [{"name": "range", "metadata": content}]
        first = peer.ask("join_group", version, label, **joining(group, protocols=protocols))
        if first["error_code"] == "MEMBER_ID_REQUIRED":
            fields = joining(group, first["member_id"], protocols=protocols)
            first = peer.ask("join_group", version, f"{label}, with the id", **fields)
        member, generation = first["member_id"], first["generation_id"]
        plan = [{"member_id": member, "assignment": content}]
        peer.ask("sync_group", 3, label, **syncing(group, member, generation, assignments=plan))
        peer.ask("describe_groups", 5, label, groups=[group])
        rows = [{"name": topic, "partitions": [{"partition_index": 0}]}]
        peer.ask("offset_delete", 0, label, group_id=group, topics=rows)
        peer.ask("offset_fetch", 5, label, group_id=group, topics=None)


@session("sync_group", versions=(0, 3, 5), setup=_GROUPS)
def odd_assignments(peer: Peer, version: int) -> None:
    """Assignments to a member that does not exist, two and an empty one to the same member, and none."""
    for label, plan in (
        ("a stranger's", [{"member_id": "nobody", "assignment": b"x"}]),
        ("twice", [{"member_id": "", "assignment": b"a"}, {"member_id": "", "assignment": b"b"}]),
        ("empty", [{"member_id": "", "assignment": b""}]),
        ("none", []),
    ):
        group = coordinated(peer, label.replace("'", "").replace(" ", "-"))
        member, generation = joined(peer, group)
        rows = [{**row, "member_id": row["member_id"] or member} for row in plan]
        peer.ask("sync_group", version, label, **syncing(group, member, generation, assignments=rows))
        peer.ask("describe_groups", 5, label, groups=[group])


@session("offset_commit", setup=_GROUPS)
def long_metadata_among_others(peer: Peer, version: int) -> None:
    """Partitions whose commit is refused do not keep the others from being committed."""
    topic, topic_id = peer.create(partitions=3)
    group = coordinated(peer)
    for label, sizes in (("at the bound", (4_096, 1, 0)), ("above it", (4_097, 2, 32_767)), ("all", (5_000,) * 3)):
        fields = committing(group, topic, topic_id, 0, 1, 2, 7)
        for row, size in zip(fields["topics"][0]["partitions"], sizes, strict=False):
            row["committed_metadata"] = "x" * size
        peer.ask("offset_commit", version, label, **fields)
        peer.ask("offset_fetch", 5, f"after {label}", group_id=group, topics=None)


@session("txn_offset_commit", setup=_GROUPS)
def long_metadata_in_a_transaction(peer: Peer, version: int) -> None:
    topic, topic_id = peer.create(partitions=3)
    group, producer = coordinated(peer), begun(peer)
    patiently(peer, "add_offsets_to_txn", 3, **naming(producer), group_id=group)

    def commit(label: str, *sizes: int, name: str = topic) -> None:
        rows: list[dict[str, Any]] = committing(group, topic, topic_id, 0, 1, 2, 7)["topics"][0]["partitions"]
        for row, size in zip(rows, sizes, strict=False):
            row["committed_metadata"] = "x" * size
        topics = [{"name": name, "partitions": rows}]
        ask(peer, "txn_offset_commit", version, label, **naming(producer), group_id=group, topics=topics)

    commit("one above the bound", 4_096, 4_097, 1)
    commit("all above it", 5_000, 5_000, 32_767)
    commit("of an unknown topic", 5_000, 1, name=peer.named("nowhere"))
    peer.ask("describe_transactions", 0, "open", transactional_ids=[producer[0]])
    ask(peer, "end_txn", 4, "commit", **ending(producer))
    peer.ask("describe_groups", 5, "the group", groups=[group])


@session("write_txn_markers", setup=_GROUPS)
def of_unknown_producers(peer: Peer, version: int) -> None:
    topic, _ = peer.create(partitions=2)

    def marker(producer_id: int, *partitions: int, epoch: int = 0, name: str = topic) -> dict[str, Any]:
        return {
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "transaction_result": False,
            "topics": [{"name": name, "partition_indexes": list(partitions)}],
            "coordinator_epoch": 0,
            "transaction_version": 0,
        }

    def write(label: str, marker: dict[str, Any]) -> None:
        """Kafka answers several markers in the order of a hash table."""
        peer.ask("write_txn_markers", version, label, markers=[marker])
        topics = [{"name": topic, "partition_indexes": [0]}]
        peer.ask("describe_producers", 0, f"after {label}", topics=topics)

    nobody = begun(peer)[1] + 1_000_000
    write("an unknown producer", marker(nobody, 0))
    write("it again", marker(nobody, 0))
    write("a lower epoch", marker(nobody, 0, epoch=-1))
    write("an unknown partition", marker(nobody, 7))
    write("an unknown topic", marker(nobody, 1, name=peer.named("nowhere")))
    write("no partition", marker(nobody))
    write("no topic", {**marker(nobody), "topics": []})
