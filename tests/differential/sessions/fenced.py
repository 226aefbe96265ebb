"""A static member whose instance returned under another id: the requests that its former id may still make."""

from __future__ import annotations

from typing import Any

from tests.differential.judge import Setup, session
from tests.differential.peer import Peer
from tests.differential.sessions.groups import committing, joining, stable, syncing
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
