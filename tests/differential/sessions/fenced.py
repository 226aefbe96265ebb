"""A static member whose instance returned under another id: the requests that its former id may still make."""

from __future__ import annotations

from typing import Any

from tests.differential.judge import Setup, session
from tests.differential.peer import Peer
from tests.differential.sessions.groups import committing, coordinated, joined, joining, stable, syncing
from tests.differential.sessions.transactions import begun, naming, patiently

_GROUPS = Setup.GROUPS
Returned = tuple[str, str, str, int]


def returned(peer: Peer) -> Returned:
    """A group of the instance "i": its name, the ids before and after the return, and the generation."""
    group, old, generation = stable(peer, group_instance_id="i")
    new = peer.quietly("join_group", 5, **joining(group, group_instance_id="i"))["member_id"]
    return group, old, new, generation


def wrong_members(old: str, new: str) -> list[tuple[str, str, str | None]]:
    """Rows of label, member id and instance id."""
    return [
        ("the id before", old, "i"),
        ("the id before without its instance", old, None),
        ("the new id under another instance", new, "j"),
        ("the new id without its instance", new, None),
        ("an unknown id", "nobody", "i"),
    ]


@session("join_group", versions=range(5, 10), setup=_GROUPS)
def fenced_members_join(peer: Peer, version: int) -> None:
    """The new id is asked last, because it joins."""
    group, old, new, generation = returned(peer)
    for label, member, instance in (*wrong_members(old, new), ("the new id", new, "i")):
        if label != "the new id without its instance":  # its answer waits for a rebalance that no other member joins
            peer.ask("join_group", version, label, **joining(group, member, group_instance_id=instance))
    beat = {"group_id": group, "member_id": new, "generation_id": generation, "group_instance_id": "i"}
    peer.ask("heartbeat", 3, "of the new id", **beat)
    peer.ask("describe_groups", 5, "in the end", groups=[group])


@session("heartbeat", versions=(3, 4), setup=_GROUPS)
def of_fenced_heartbeats(peer: Peer, version: int) -> None:
    group, old, new, generation = returned(peer)
    for label, member, instance in (*wrong_members(old, new), ("the new id", new, "i")):
        for when in (generation, generation - 1):
            fields = {"member_id": member, "generation_id": when, "group_instance_id": instance}
            peer.ask("heartbeat", version, f"{label} in generation {when}", group_id=group, **fields)


@session("join_group", versions=range(5, 10), setup=_GROUPS)
def returns_before_the_assignment(peer: Peer, version: int) -> None:
    """The instance returns while its group waits for the leader's assignment, and its former id asks for it."""
    group = coordinated(peer)
    old, generation = joined(peer, group, group_instance_id="i")
    again = peer.ask("join_group", version, "returns", **joining(group, group_instance_id="i"))
    new = again["member_id"]
    for label, member, instance in wrong_members(old, new):
        fields = {"member_id": member, "generation_id": generation, "group_instance_id": instance}
        peer.ask("heartbeat", 3, f"heartbeat of {label}", group_id=group, **fields)
        fields = syncing(group, member, generation, group_instance_id=instance, assignments=[])
        peer.ask("sync_group", 3, f"assignment for {label}", **fields)
    for label, member in (("the id before", old), ("the new id", new)):
        fields = syncing(group, member, again["generation_id"], group_instance_id="i")
        peer.ask("sync_group", 3, f"{label} as the leader", **fields)


@session("sync_group", versions=range(3, 6), setup=_GROUPS)
def of_fenced_members(peer: Peer, version: int) -> None:
    group, old, new, generation = returned(peer)
    for label, member, instance in wrong_members(old, new):
        fields = syncing(group, member, generation, group_instance_id=instance, assignments=[])
        peer.ask("sync_group", version, label, **fields)


@session("offset_commit", versions=range(7, 10), setup=_GROUPS)
def of_fenced_instances(peer: Peer, version: int) -> None:
    topic, topic_id = peer.create()
    group, old, new, generation = returned(peer)
    for label, member, instance in wrong_members(old, new):
        who = {"member_id": member, "generation_id_or_member_epoch": generation, "group_instance_id": instance}
        peer.ask("offset_commit", version, label, **committing(group, topic, topic_id, 0, **who))
    peer.ask("offset_fetch", 5, "what is kept", group_id=group, topics=None)


@session("txn_offset_commit", versions=(3, 4), setup=_GROUPS)
def in_a_transaction_of_fenced_instances(peer: Peer, version: int) -> None:
    topic, topic_id = peer.create()
    group, old, new, generation = returned(peer)
    producer = begun(peer)
    patiently(peer, "add_offsets_to_txn", 3, **naming(producer), group_id=group)
    rows: list[dict[str, Any]] = [
        {"name": topic, "partitions": committing(group, topic, topic_id, 0)["topics"][0]["partitions"]}
    ]
    fields = {**naming(producer), "group_id": group, "topics": rows, "generation_id": generation}
    for label, member, instance in wrong_members(old, new):
        who = {"member_id": member, "group_instance_id": instance}
        peer.ask("txn_offset_commit", version, label, **fields, **who)
    now = {"member_id": new, "group_instance_id": "i", "generation_id": generation - 1}
    peer.ask("txn_offset_commit", version, "an earlier generation", **{**fields, **now})


@session("leave_group", versions=range(3, 6), setup=_GROUPS)
def fenced_instances_leave(peer: Peer, version: int) -> None:
    group, old, new, _ = returned(peer)
    for label, member, instance in wrong_members(old, new)[:3]:
        asked = [{"member_id": member, "group_instance_id": instance}]
        peer.ask("leave_group", version, label, group_id=group, members=asked)


@session("leave_group", versions=range(3, 6), setup=_GROUPS)
def several_leave_of_which_some_are_fenced(peer: Peer, version: int) -> None:
    group, old, new, _ = returned(peer)
    rows = [{"member_id": member, "group_instance_id": instance} for _, member, instance in wrong_members(old, new)]
    peer.ask("leave_group", version, "fenced ones and strangers", group_id=group, members=[*rows[:3], rows[4]])
    peer.ask("describe_groups", 5, "after them", groups=[group])
    peer.ask("leave_group", version, "its own id too", group_id=group, members=[*rows[:3], rows[4], rows[3]])
    peer.ask("describe_groups", 5, "in the end", groups=[group])
