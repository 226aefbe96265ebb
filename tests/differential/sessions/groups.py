"""Consumer groups of the classic protocol: members, their rebalances, and an administrator's requests."""

from __future__ import annotations

import time
from typing import Any

from tests.differential.batches import batch
from tests.differential.judge import Setup, session
from tests.differential.message_trees import Tree
from tests.differential.peer import ANSWER_SECONDS, Peer, PeerFailed

_GROUPS = Setup.GROUPS
#: Kafka's consumer protocol, version 0: one topic, no user data.
_SUBSCRIPTION = b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\xff\xff\xff\xff"
_RANGE = {"name": "range", "metadata": _SUBSCRIPTION}
NOT_YET = ("COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR")


def coordinated(peer: Peer, name: str = "g") -> str:
    """Returns the group's name once its coordinator and all other coordinators of the broker answer."""
    group = peer.named(name)
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        (found,) = peer.quietly("find_coordinator", 4, coordinator_keys=[group])["coordinators"]
        if found["error_code"] == "NONE":
            answer = peer.quietly("offset_fetch", 8, groups=[{"group_id": group, "topics": []}])
            listed = peer.quietly("list_groups", 4)  # refused while any partition of the topic is loaded
            if answer["groups"][0]["error_code"] == listed["error_code"] == "NONE":
                return group
        if time.monotonic() > deadline:
            raise PeerFailed(f"{peer.name}: {group} has no coordinator: {found}")
        time.sleep(0.02)


def joining(group: str, member: str = "", **more: Any) -> dict[str, Any]:
    """The fields of a JoinGroup."""
    return {
        "group_id": group,
        "member_id": member,
        "session_timeout": 30_000,
        "rebalance_timeout": 30_000,
        "protocol_type": "consumer",
        "protocols": [_RANGE],
        "group_instance_id": None,
        **more,
    }


def joined(peer: Peer, group: str, **more: Any) -> tuple[str, int]:
    """Member id and generation of a group's only member, before it has an assignment."""
    answer = peer.quietly("join_group", 5, **joining(group, **more))
    if answer["error_code"] == "MEMBER_ID_REQUIRED":
        answer = peer.quietly("join_group", 5, **joining(group, answer["member_id"], **more))
    if answer["error_code"] != "NONE":
        raise PeerFailed(f"{peer.name}: a member of {group} was refused with {answer['error_code']}")
    return answer["member_id"], answer["generation_id"]


def syncing(group: str, member: str, generation: int, **more: Any) -> dict[str, Any]:
    return {
        "group_id": group,
        "member_id": member,
        "generation_id": generation,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": member, "assignment": b"assigned"}],
        **more,
    }


def stable(peer: Peer, name: str = "g", **more: Any) -> tuple[str, str, int]:
    """A group with one member that has its assignment: group, member id, generation."""
    group = coordinated(peer, name)
    member, generation = joined(peer, group, **more)
    instance = more.get("group_instance_id")
    peer.quietly("sync_group", 3, **syncing(group, member, generation, group_instance_id=instance))
    return group, member, generation


def committing(group: str, topic: str, topic_id: str, *partitions: int, **more: Any) -> dict[str, Any]:
    """The fields of an OffsetCommit from outside the group's protocol."""
    rows = [
        {
            "partition_index": number,
            "committed_offset": 10 + number,
            "committed_leader_epoch": 3,
            "committed_metadata": "note",
        }
        for number in partitions
    ]
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time": -1,
        "topics": [{"name": topic, "topic_id": topic_id, "partitions": rows}],
        **more,
    }


# --- members ----------------------------------------------------------------------------------------------------------
@session("find_coordinator", setup=_GROUPS)
def coordinator(peer: Peer, version: int) -> None:
    group = coordinated(peer)
    for label, key in (("a group", group), ("the empty name", ""), ("a long name", group + "x" * 300)):
        peer.ask("find_coordinator", version, label, key=key, key_type=0, coordinator_keys=[key])
    if version >= 1:
        peer.ask("find_coordinator", version, "an unknown type", key=group, key_type=9, coordinator_keys=[group])
    if version >= 4:
        peer.ask("find_coordinator", version, "two", key_type=0, coordinator_keys=[group, "other"])
        peer.ask("find_coordinator", version, "nothing", key_type=0, coordinator_keys=[])


@session("join_group", setup=_GROUPS)
def first_member(peer: Peer, version: int) -> None:
    group = coordinated(peer)
    first = peer.ask("join_group", version, "without an id", **joining(group))
    if version >= 4:
        first = peer.ask("join_group", version, "with the id", **joining(group, first["member_id"]))
    member = first["member_id"]
    peer.ask("join_group", version, "again before the assignment", **joining(group, member))
    peer.ask("join_group", version, "with another protocol", **joining(group, member, protocols=[_other()]))
    peer.ask("join_group", version, "with both", **joining(group, member, protocols=[_other(), _RANGE]))


def _also() -> dict[str, Any]:
    return {"name": "range", "metadata": _SUBSCRIPTION + b"also"}


def _other() -> dict[str, Any]:
    return {"name": "roundrobin", "metadata": _SUBSCRIPTION + b"more"}


@session("join_group", setup=_GROUPS)
def refused_joins(peer: Peer, version: int) -> None:
    group, member, _ = stable(peer)
    for label, fields in (
        ("the empty group", joining("")),
        ("a short session", joining(group, session_timeout=1)),
        ("a long session", joining(group, session_timeout=10_000_000)),
        ("no protocol", joining(group, protocols=[])),
        ("no type", joining(group, protocol_type="")),
        ("another type", joining(group, protocol_type="connect")),
        ("no common protocol", joining(group, protocols=[_other()])),
        ("an unknown member", joining(group, "nobody")),
        ("an unknown member of an unknown group", joining(peer.named("new"), "nobody")),
    ):
        peer.ask("join_group", version, label, **fields)
    if version >= 4:
        peer.ask("heartbeat", 4, "nothing has begun", group_id=group, member_id=member, generation_id=1)


@session("join_group", versions=range(5, 10), setup=_GROUPS)
def static_members(peer: Peer, version: int) -> None:
    group = coordinated(peer)
    first = peer.ask("join_group", version, "joins", **joining(group, group_instance_id="i"))
    old = first["member_id"]
    peer.quietly("sync_group", 3, **syncing(group, old, first["generation_id"], group_instance_id="i"))
    again = peer.ask("join_group", version, "returns", **joining(group, group_instance_id="i"))
    peer.ask("join_group", version, "as it was", **joining(group, old, group_instance_id="i"))
    peer.ask("join_group", version, "an id without an instance", **joining(group, "nobody", group_instance_id="j"))
    beat = {"group_id": group, "member_id": old, "generation_id": again["generation_id"], "group_instance_id": "i"}
    peer.ask("heartbeat", 3, "of the one before", **beat)
    peer.ask("heartbeat", 3, "of the new one", **{**beat, "member_id": again["member_id"]})


@session("join_group", versions=range(5, 10), setup=_GROUPS)
def a_given_id_with_an_instance(peer: Peer, version: int) -> None:
    group = coordinated(peer)
    given = peer.quietly("join_group", 5, **joining(group))["member_id"]
    peer.ask("join_group", version, "with an instance id", **joining(group, given, group_instance_id="i"))


@session("join_group", setup=_GROUPS)
def second_member(peer: Peer, version: int) -> None:
    group, member, generation = stable(peer)
    second = ""
    if version >= 4:
        second = peer.quietly("join_group", version, **joining(group))["member_id"]
    coming = peer.begin("join_group", version, **joining(group, second, protocols=[_also()]))
    beat = {"group_id": group, "member_id": member, "generation_id": generation}
    while peer.quietly("heartbeat", 0, **beat)["error_code"] == "NONE":
        time.sleep(0.02)
    peer.ask("heartbeat", 0, "the others are told", **beat)
    leader = peer.ask("join_group", version, "the first joins again", **joining(group, member))
    follower = coming.end("the second")
    waiting = peer.begin(
        "sync_group", 3, **syncing(group, follower["member_id"], follower["generation_id"], assignments=[])
    )
    plan = [
        {"member_id": member, "assignment": b"one"},
        {"member_id": follower["member_id"], "assignment": b"two"},
    ]
    peer.ask("sync_group", 3, "the leader", **syncing(group, member, leader["generation_id"], assignments=plan))
    waiting.end("the follower")


@session("sync_group", setup=_GROUPS)
def assignments(peer: Peer, version: int) -> None:
    group = coordinated(peer)
    member, generation = joined(peer, group)
    for label, fields in (
        ("the empty group", syncing("", member, generation)),
        ("an unknown group", syncing(peer.named("nowhere"), member, generation)),
        ("an unknown member", syncing(group, "nobody", generation)),
        ("an earlier generation", syncing(group, member, generation - 1)),
        ("another type", syncing(group, member, generation, protocol_type="connect")),
        ("another protocol", syncing(group, member, generation, protocol_name="sticky")),
        ("no protocol", syncing(group, member, generation, protocol_type=None, protocol_name=None)),
        ("the leader", syncing(group, member, generation)),
        ("again", syncing(group, member, generation, assignments=[])),
    ):
        peer.ask("sync_group", version, label, **fields)


@session("heartbeat", setup=_GROUPS)
def heartbeats(peer: Peer, version: int) -> None:
    group = coordinated(peer)
    member, generation = joined(peer, group)

    def ask(label: str, **more: Any) -> None:
        fields = {"group_id": group, "member_id": member, "generation_id": generation, "group_instance_id": None}
        peer.ask("heartbeat", version, label, **{**fields, **more})

    ask("before the assignment")
    peer.quietly("sync_group", 3, **syncing(group, member, generation))
    ask("of a member")
    ask("of an unknown member", member_id="nobody")
    ask("of an earlier generation", generation_id=generation - 1)
    ask("of a later generation", generation_id=generation + 1)
    ask("of an unknown group", group_id=peer.named("nowhere"))
    ask("of the empty group", group_id="")
    ask("of an unknown instance", group_instance_id="i")


@session("leave_group", setup=_GROUPS)
def leaving(peer: Peer, version: int) -> None:
    group, member, _ = stable(peer)

    def ask(label: str, *members: dict[str, Any], of: str = group) -> None:
        peer.ask("leave_group", version, label, group_id=of, member_id=members[0]["member_id"], members=list(members))

    ask("an unknown member", {"member_id": "nobody"})
    ask("of an unknown group", {"member_id": member}, of=peer.named("nowhere"))
    ask("of the empty group", {"member_id": member}, of="")
    if version >= 3:
        ask("an unknown instance", {"member_id": "", "group_instance_id": "i"})
        ask("two", {"member_id": "nobody"}, {"member_id": member})
    else:
        ask("a member", {"member_id": member})
    ask("again", {"member_id": member})
    peer.ask("describe_groups", 5, "nobody is left", groups=[group])


@session("leave_group", versions=range(3, 6), setup=_GROUPS)
def static_members_leave(peer: Peer, version: int) -> None:
    group, _, _ = stable(peer, group_instance_id="i")
    wrong = [{"member_id": "nobody", "group_instance_id": "i"}]
    peer.ask("leave_group", version, "under another id", group_id=group, members=wrong)
    by_instance = [{"member_id": "", "group_instance_id": "i"}]
    peer.ask("leave_group", version, "by its instance", group_id=group, members=by_instance)


# --- offsets ----------------------------------------------------------------------------------------------------------
@session("offset_commit", setup=_GROUPS)
def commits(peer: Peer, version: int) -> None:
    group, (topic, topic_id) = coordinated(peer), peer.create(partitions=2)
    nobody = "00000000-0000-0000-0000-000000000077"

    def ask(label: str, fields: dict[str, Any]) -> None:
        peer.ask("offset_commit", version, label, **fields)

    ask("two partitions", committing(group, topic, topic_id, 0, 1))
    ask("an unknown partition", committing(group, topic, topic_id, 0, 9))
    ask("an unknown topic", committing(group, peer.named("nowhere"), nobody, 0))
    ask("no topic", {**committing(group, topic, topic_id, 0), "topics": []})
    ask("the empty group", committing("", topic, topic_id, 0))
    ask("an unknown member", committing(group, topic, topic_id, 0, member_id="nobody"))
    ask("a generation", committing(group, topic, topic_id, 0, generation_id_or_member_epoch=1))
    long = {"partition_index": 0, "committed_offset": 1, "committed_metadata": "x" * 5000}
    rows = [{"name": topic, "topic_id": topic_id, "partitions": [long]}]
    ask("long metadata", {**committing(group, topic, topic_id, 0), "topics": rows})
    without = {"partition_index": 1, "committed_offset": 5, "committed_metadata": None}
    rows = [{"name": topic, "topic_id": topic_id, "partitions": [without]}]
    ask("null metadata", {**committing(group, topic, topic_id, 0), "topics": rows})
    ask("a negative offset", _at(committing(group, topic, topic_id, 0), -5))
    peer.ask("offset_fetch", 5, "what is kept", group_id=group, topics=None)


@session("offset_commit", setup=_GROUPS)
def metadata_of_pairs(peer: Peer, version: int) -> None:
    """Java counts a character beyond U+FFFF twice."""
    group = coordinated(peer)
    topic, topic_id = peer.create()
    for label, metadata in (("as long as it may be", "\U0001f600" * 2_048), ("longer", "\U0001f600" * 2_048 + "a")):
        fields = committing(group, topic, topic_id, 0)
        fields["topics"][0]["partitions"][0]["committed_metadata"] = metadata
        peer.ask("offset_commit", version, label, **fields)


def _at(commit: dict[str, Any], offset: int) -> dict[str, Any]:
    commit["topics"][0]["partitions"][0]["committed_offset"] = offset
    return commit


@session("offset_commit", setup=_GROUPS)
def commits_of_members(peer: Peer, version: int) -> None:
    (topic, topic_id), group = peer.create(), coordinated(peer)
    member, generation = joined(peer, group)

    def ask(label: str, **more: Any) -> None:
        fields = {"member_id": member, "generation_id_or_member_epoch": generation, **more}
        peer.ask("offset_commit", version, label, **committing(group, topic, topic_id, 0, **fields))

    ask("before the assignment")
    peer.quietly("sync_group", 3, **syncing(group, member, generation))
    ask("of a member")
    ask("of an earlier generation", generation_id_or_member_epoch=generation - 1)
    ask("of an unknown member", member_id="nobody")
    ask("from outside", member_id="", generation_id_or_member_epoch=-1)
    if version >= 7:
        ask("of an unknown instance", group_instance_id="i")


@session("offset_fetch", setup=_GROUPS)
def positions(peer: Peer, version: int) -> None:
    group, (topic, topic_id) = coordinated(peer), peer.create(partitions=2)
    peer.quietly("offset_commit", 8, **committing(group, topic, topic_id, 1))

    def ask(label: str, *partitions: int, of: str = group, **more: Any) -> None:
        topics = more.pop("topics", [{"name": topic, "topic_id": topic_id, "partition_indexes": list(partitions)}])
        named = {"group_id": of, "topics": topics}
        groups = more.pop("groups", [{**named, "member_id": None, "member_epoch": -1}])
        peer.ask("offset_fetch", version, label, **named, groups=groups, **more)

    ask("one", 1)
    ask("two", 0, 1)
    ask("an unknown partition", 9)
    ask("no partition")
    ask("no topic", topics=[])
    nobody = {"name": peer.named("nowhere"), "topic_id": "00000000-0000-0000-0000-000000000077"}
    ask("an unknown topic", topics=[{**nobody, "partition_indexes": [0]}])
    ask("an unknown group", 0, of=peer.named("nobody"))
    ask("the empty group", 0, of="")
    if version >= 2:
        ask("all", topics=None)
        ask("all of an unknown group", topics=None, of=peer.named("nobody"))
    if version >= 7:
        ask("stable ones", 0, 1, require_stable=True)
    if version >= 8:
        several = [{"group_id": each, "topics": None, "member_id": None} for each in (group, peer.named("nobody"))]
        ask("several groups", groups=several)
        ask("no group", groups=[])


@session("offset_delete", setup=_GROUPS)
def removed_offsets(peer: Peer, version: int) -> None:
    group, (topic, topic_id) = coordinated(peer), peer.create(partitions=2)
    peer.quietly("offset_commit", 8, **committing(group, topic, topic_id, 0, 1))

    def ask(label: str, *partitions: int, of: str = group, name: str = topic) -> None:
        rows = [{"name": name, "partitions": [{"partition_index": number} for number in partitions]}]
        peer.ask("offset_delete", version, label, group_id=of, topics=rows)

    ask("of an unknown group", 0, of=peer.named("nobody"))
    ask("of an unknown topic", 0, name=peer.named("nowhere"))
    ask("of an unknown partition", 9)
    ask("one", 0)
    ask("one that is gone", 0)
    peer.ask("offset_delete", version, "nothing", group_id=group, topics=[])
    peer.ask("offset_fetch", 5, "what is left", group_id=group, topics=None)


@session("produce", versions=range(3, 13), setup=_GROUPS)
def to_an_internal_topic(peer: Peer, version: int) -> None:
    coordinated(peer)
    rows = [{"name": "__consumer_offsets", "partition_data": [{"index": 0, "records": batch(b"x")}]}]
    peer.ask("produce", version, "one batch", transactional_id=None, acks=-1, topic_data=rows)


@session("delete_records", setup=_GROUPS)
def of_an_internal_topic(peer: Peer, version: int) -> None:
    coordinated(peer)
    rows = [{"name": "__consumer_offsets", "partitions": [{"partition_index": 0, "offset": 0}]}]
    peer.ask("delete_records", version, "up to the beginning", topics=rows)


# --- administration ---------------------------------------------------------------------------------------------------
@session("list_groups", setup=_GROUPS)
def listed(peer: Peer, version: int) -> None:
    group, (topic, topic_id) = stable(peer, "stable")[0], peer.create()
    empty = coordinated(peer, "empty")
    peer.quietly("offset_commit", 8, **committing(empty, topic, topic_id, 0))

    def ask(label: str, states: list[str], types: list[str]) -> None:
        def own(answer: Tree) -> Tree:
            return {**answer, "groups": [each for each in answer["groups"] if each["group_id"] in (group, empty)]}

        peer.ask_for("list_groups", version, label, own, states_filter=states, types_filter=types)

    ask("all", [], [])
    if version >= 4:
        for states in (["Stable"], ["stable"], ["Empty", "Dead"], ["Nonsense"]):
            ask(f"in {states}", states, [])
    if version >= 5:
        for types in (["Classic"], ["classic"], ["Consumer"], ["Nonsense"]):
            ask(f"of {types}", [], types)


@session("describe_groups", setup=_GROUPS)
def described(peer: Peer, version: int) -> None:
    group = coordinated(peer)
    topic, topic_id = peer.create()

    def ask(label: str, *groups: str, **more: Any) -> None:
        peer.ask("describe_groups", version, label, groups=list(groups), **more)

    ask("unknown", group)
    peer.quietly("offset_commit", 8, **committing(group, topic, topic_id, 0))
    ask("offsets alone", group)
    member, generation = joined(peer, group, group_instance_id="i")
    ask("rebalancing", group)
    peer.quietly("sync_group", 3, **syncing(group, member, generation, group_instance_id="i"))
    ask("stable", group)
    ask("two", group, peer.named("nobody"))
    ask("the empty name", "")
    ask("nothing")
    if version >= 3:
        ask("with what is allowed", group, include_authorized_operations=True)


@session("delete_groups", setup=_GROUPS)
def deleted(peer: Peer, version: int) -> None:
    topic, topic_id = peer.create()
    busy, empty = stable(peer, "busy")[0], coordinated(peer, "empty")
    peer.quietly("offset_commit", 8, **committing(empty, topic, topic_id, 0))

    def ask(label: str, *groups: str) -> None:
        peer.ask("delete_groups", version, label, groups_names=list(groups))

    ask("unknown", peer.named("nobody"))
    ask("with members", busy)
    ask("the empty name", "")
    ask("nothing")
    ask("two", empty, busy)
    ask("again", empty)
    peer.ask("offset_fetch", 5, "its offsets", group_id=empty, topics=None)
