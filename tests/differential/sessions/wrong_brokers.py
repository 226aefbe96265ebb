"""Three brokers: requests that reach another broker than the partition's leader or the coordinator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.differential.batches import batch
from tests.differential.judge import SERVED, Setup, session
from tests.differential.message_trees import Tree
from tests.differential.peer import Peer
from tests.differential.routed_peer import RoutedPeer
from tests.differential.sessions.common import Topic, idempotent, of, to
from tests.differential.sessions.groups import committing, coordinated, joining, stable, syncing
from tests.differential.sessions.transactions import adding, beginning, begun, ending, naming, patiently

_THREE = Setup.THREE
#: Versions without the leader's address, the first with it (KIP-951), and versions with topic ids.
_PRODUCE = (3, 9, 10, 12, 13)
_FETCH = (4, 11, 12, 13, 15, 16, 18)


def routed(peer: Peer) -> RoutedPeer:
    assert isinstance(peer, RoutedPeer)
    return peer


def at_each(peer: Peer, api: str, version: int, label: str, /, **values: Any) -> None:
    """Sends every broker the same request."""
    for broker in routed(peer).addresses:
        with routed(peer).only(broker):
            peer.ask(api, version, f"{label}, at broker {broker}", **values)


def at_each_for(peer: Peer, api: str, version: int, label: str, keep: Callable[[Tree], Tree], /, **values: Any) -> None:
    for broker in routed(peer).addresses:
        with routed(peer).only(broker):
            peer.ask_for(api, version, f"{label}, at broker {broker}", keep, **values)


def ends_of(api: str) -> tuple[int, ...]:
    """The lowest and the highest version that we serve."""
    _, low, high = SERVED[api]
    return tuple(sorted({low, high}))


def filled(peer: Peer) -> Topic:
    """A topic with a partition on each broker, and a record in each."""
    topic = routed(peer).spread()
    for partition in range(3):
        peer.fill(topic[1], batch(b"x"), partition=partition)
    return topic


# --- leaders ----------------------------------------------------------------------------------------------------------
@session("produce", versions=_PRODUCE, setup=_THREE)
def at_brokers_that_do_not_lead(peer: Peer, version: int) -> None:
    topic = filled(peer)
    for partition in range(3):
        at_each(peer, "produce", version, f"to {partition}", acks=-1, topic_data=to(topic, {partition: batch(b"a")}))
    everywhere: dict[int, bytes | None] = {partition: batch(b"b") for partition in range(3)}
    at_each(peer, "produce", version, "to all", acks=1, topic_data=to(topic, everywhere))
    unknown: dict[int, bytes | None] = {2: batch(b"c"), 9: batch(b"c")}
    at_each(peer, "produce", version, "to one and an unknown one", acks=-1, topic_data=to(topic, unknown))
    damaged: dict[int, bytes | None] = {1: batch(b"d", flip=-1)}
    at_each(peer, "produce", version, "damaged", acks=-1, topic_data=to(topic, damaged))
    at_each(peer, "produce", version, "acks of 5", acks=5, topic_data=to(topic, everywhere))
    with routed(peer).only(1):
        peer.tell("produce", version, "without an answer", acks=0, topic_data=to(topic, {1: batch(b"e")}))


@session("fetch", versions=_FETCH, setup=_THREE)
def from_brokers_that_do_not_lead(peer: Peer, version: int) -> None:
    topic = filled(peer)
    now: dict[str, Any] = {"max_wait": 0, "min_bytes": 0}
    at_each(peer, "fetch", version, "all", **now, topics=of(topic, {0: 0, 1: 0, 2: 0}))
    at_each(peer, "fetch", version, "one and an unknown one", **now, topics=of(topic, {1: 0, 9: 0}))
    at_each(peer, "fetch", version, "out of range", **now, topics=of(topic, {2: 99}))
    at_each(peer, "fetch", version, "does not wait", max_wait=20_000, min_bytes=1, topics=of(topic, {1: 1, 2: 1, 0: 1}))
    for epoch in (0, 1, 9):
        rows = of(topic, {0: 0, 1: 0, 2: 0}, current_leader_epoch=epoch)
        at_each(peer, "fetch", version, f"in epoch {epoch}", **now, topics=rows)


@session("fetch", versions=(7, 12, 13, 17), setup=_THREE)
def sessions_at_brokers_that_do_not_lead(peer: Peer, version: int) -> None:
    topic = filled(peer)
    now: dict[str, Any] = {"max_wait": 0, "min_bytes": 0}
    with routed(peer).only(2):
        opened = peer.ask("fetch", version, "opened", **now, session_epoch=0, topics=of(topic, {0: 0, 1: 0}))
        within = {**now, "session_id": opened["session_id"]}
        peer.ask("fetch", version, "again", **within, session_epoch=1, topics=[])
        peer.ask("fetch", version, "a third", **within, session_epoch=2, topics=of(topic, {2: 0}))
    with routed(peer).only(3):
        peer.ask("fetch", version, "the session of another broker", **within, session_epoch=3, topics=[])


@session("list_offsets", setup=_THREE)
def offsets_at_each(peer: Peer, version: int) -> None:
    name, _ = filled(peer)
    for timestamp in (-1, -2, 0):
        for epoch in (-1, 0, 9):
            rows = [
                {"partition_index": index, "timestamp": timestamp, "current_leader_epoch": epoch} for index in (0, 1, 9)
            ]
            topics = [{"name": name, "partitions": rows}]
            at_each(peer, "list_offsets", version, f"{timestamp} in epoch {epoch}", replica_id=-1, topics=topics)


@session("offset_for_leader_epoch", setup=_THREE)
def epochs_at_each(peer: Peer, version: int) -> None:
    name, _ = filled(peer)
    for current in (-1, 0, 9):
        rows = [{"partition": index, "current_leader_epoch": current, "leader_epoch": 0} for index in (0, 1, 9)]
        topics = [{"topic": name, "partitions": rows}]
        at_each(peer, "offset_for_leader_epoch", version, f"in epoch {current}", replica_id=-1, topics=topics)


@session("delete_records", setup=_THREE)
def deletions_at_each(peer: Peer, version: int) -> None:
    name, _ = filled(peer)
    rows = [{"partition_index": index, "offset": 1} for index in (0, 1, 9)]
    at_each(peer, "delete_records", version, "some", topics=[{"name": name, "partitions": rows}])


@session("describe_producers", setup=_THREE)
def producers_at_each(peer: Peer, version: int) -> None:
    name, topic_id = filled(peer)
    peer.fill(topic_id, batch(b"y", producer=(4_000_000, 0, 0)), partition=1)
    topics = [{"name": name, "partition_indexes": [0, 1, 9]}]
    at_each(peer, "describe_producers", version, "some", topics=topics)


@session("write_txn_markers", setup=_THREE)
def markers_at_each(peer: Peer, version: int) -> None:
    name, _ = filled(peer)
    marker = {
        "producer_id": 4_000_000,
        "producer_epoch": 0,
        "transaction_result": False,
        "topics": [{"name": name, "partition_indexes": [0, 1, 9]}],
        "coordinator_epoch": 0,
        "transaction_version": 0,
    }
    at_each(peer, "write_txn_markers", version, "some", markers=[marker])


@session("alter_replica_log_dirs", setup=_THREE)
def disks_at_each(peer: Peer, version: int) -> None:
    name, _ = filled(peer)
    for broker in routed(peer).addresses:
        found = routed(peer).quietly_at(broker, "describe_log_dirs", 1, topics=None)
        (there,) = {row["log_dir"] for row in found["results"]}
        for label, topic in (("a topic", name), ("no topic", peer.named("nowhere"))):
            dirs = [{"path": there, "topics": [{"name": topic, "partitions": [0, 1, 9]}]}]
            with routed(peer).only(broker):
                peer.ask("alter_replica_log_dirs", version, f"{label}, at broker {broker}", dirs=dirs)


@session("describe_log_dirs", setup=_THREE)
def logs_at_each(peer: Peer, version: int) -> None:
    name, _ = filled(peer)
    at_each(peer, "describe_log_dirs", version, "its own", topics=[{"topic": name, "partitions": [0, 1, 2, 9]}])


# --- coordinators of groups -------------------------------------------------------------------------------------------
@session("find_coordinator", setup=_THREE)
def found_at_each(peer: Peer, version: int) -> None:
    for name in ("a", "b", "c", "d"):
        key = peer.named(name)
        for kind in (0, 1) if version >= 1 else (0,):
            at_each(
                peer, "find_coordinator", version, f"{name} of {kind}", key=key, key_type=kind, coordinator_keys=[key]
            )
    if version >= 4:
        keys = [peer.named(name) for name in "abcd"]
        at_each(peer, "find_coordinator", version, "several", key_type=0, coordinator_keys=keys)


def group_requests(peer: Peer, of_topic: Topic, group: str, member: str, generation: int) -> dict[str, dict[str, Any]]:
    topic, topic_id = of_topic
    rows = [{"name": topic, "partitions": [{"partition_index": 0}]}]
    committed = committing(group, topic, topic_id, 0)
    inside = {"group_id": group, "member_id": member, "generation_id": generation, "group_instance_id": None}
    offsets = [{"name": topic, "partitions": committed["topics"][0]["partitions"]}]
    asked = [{"name": topic, "topic_id": topic_id, "partition_indexes": [0]}]
    return {
        "join_group": joining(group, member),
        "sync_group": syncing(group, member, generation),
        "heartbeat": inside,
        "leave_group": {"group_id": group, "member_id": "nobody", "members": [{"member_id": "nobody"}]},
        "offset_commit": committed,
        "offset_fetch": {"group_id": group, "topics": asked, "groups": [{"group_id": group, "topics": asked}]},
        "offset_delete": {"group_id": group, "topics": rows},
        "describe_groups": {"groups": [group]},
        "delete_groups": {"groups_names": [group]},
        "txn_offset_commit": {
            "transactional_id": peer.named("x"),
            "producer_id": 4_000_000,
            "producer_epoch": 0,
            **inside,
            "topics": offsets,
        },
    }


@session("heartbeat", versions=(4,), setup=_THREE)
def groups_at_brokers_that_do_not_coordinate(peer: Peer, version: int) -> None:
    topic = peer.create()
    group, member, generation = stable(peer)
    for label, name, who in (
        ("a group", group, member),
        ("the empty name", "", ""),
        ("no group", peer.named("none"), ""),
    ):
        for api, values in group_requests(peer, topic, name, who, generation).items():
            _, low, high = SERVED[api]
            for at in sorted({low, high}):
                if api != "leave_group" or at == high:
                    at_each(peer, api, at, f"{label}: {api} v{at}", **values)
    for name in ("g", "h"):
        coordinated(peer, name)
    both = [peer.named("g"), peer.named("h"), peer.named("i"), peer.named("j")]
    at_each(peer, "describe_groups", 5, "several", groups=both)
    at_each(peer, "delete_groups", 2, "several", groups_names=both[1:])
    several = [{"group_id": each, "topics": None, "member_id": None} for each in both]
    at_each(peer, "offset_fetch", 8, "several", groups=several)


@session("list_groups", setup=_THREE)
def groups_of_each(peer: Peer, version: int) -> None:
    groups = [stable(peer, name)[0] for name in "abcd"]

    def own(answer: Tree) -> Tree:
        return {**answer, "groups": [each for each in answer["groups"] if each["group_id"] in groups]}

    at_each_for(peer, "list_groups", version, "its own", own, states_filter=[], types_filter=[])


# --- coordinators of transactions -------------------------------------------------------------------------------------
@session("end_txn", versions=(5,), setup=_THREE)
def transactions_at_brokers_that_do_not_coordinate(peer: Peer, version: int) -> None:
    topic, _ = peer.create()
    producer = begun(peer)
    patiently(peer, "add_partitions_to_txn", 3, **adding(producer, topic, 0))
    group = coordinated(peer)
    for label, who in (
        ("a producer", producer),
        ("the empty id", ("", producer[1], producer[2])),
        ("an unknown id", (peer.named("nobody"), producer[1], producer[2])),
    ):
        for at in (0, 3):
            at_each(peer, "add_partitions_to_txn", at, f"{label}: add v{at}", **adding(who, topic, 0))
        added = adding(who, topic, 0, version=4)
        at_each(peer, "add_partitions_to_txn", 5, f"{label}: add v5", **added)
        for at in ends_of("add_offsets_to_txn"):
            at_each(peer, "add_offsets_to_txn", at, f"{label}: offsets v{at}", **naming(who), group_id=group)
        at_each(peer, "describe_transactions", 0, f"{label}: describe", transactional_ids=[who[0]])
        if label != "a producer":
            for at in ends_of("end_txn"):
                at_each(peer, "end_txn", at, f"{label}: end v{at}", **ending(who))
    names = [peer.named(name) for name in "abcdx"]
    at_each(peer, "describe_transactions", 0, "several", transactional_ids=names)
    coordinator = peer.quietly("find_coordinator", 4, key_type=1, coordinator_keys=[producer[0]])["coordinators"][0]
    for broker in routed(peer).addresses:
        if broker != coordinator["node_id"]:
            with routed(peer).only(broker):
                for at in ends_of("end_txn"):
                    peer.ask("end_txn", at, f"a producer: end v{at}, at broker {broker}", **ending(producer))
                for at in ends_of("init_producer_id"):
                    label = f"a producer: begin v{at}, at broker {broker}"
                    peer.ask("init_producer_id", at, label, **beginning(producer[0]))
    for at in ends_of("init_producer_id"):
        at_each(peer, "init_producer_id", at, f"the empty id: begin v{at}", **beginning(""))
    for broker in routed(peer).addresses:
        with routed(peer).only(broker):
            for at in ends_of("init_producer_id"):
                idempotent(peer)  # returns once the broker may give out ids
                peer.ask("init_producer_id", at, f"without an id: v{at}, at broker {broker}", **beginning(None))


@session("list_transactions", setup=_THREE)
def transactions_of_each(peer: Peer, version: int) -> None:
    for name in "abcd":
        begun(peer, name)

    def own(answer: Tree) -> Tree:
        rows = [row for row in answer["transaction_states"] if row["transactional_id"].startswith(peer.prefix)]
        return {**answer, "transaction_states": rows}

    fields = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
    at_each_for(peer, "list_transactions", version, "its own", own, **fields)
