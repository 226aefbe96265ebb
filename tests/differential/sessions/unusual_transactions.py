"""Transactions that time out, that begin again while they are open, or that name topics that no transaction may have."""

from __future__ import annotations

import time
from typing import Any

from tests.differential.judge import Setup, session
from tests.differential.peer import ANSWER_SECONDS, Peer, PeerFailed
from tests.differential.sessions.groups import committing, coordinated
from tests.differential.sessions.transactions import (
    Producer,
    adding,
    ask,
    beginning,
    begun,
    completed,
    ending,
    naming,
    own,
    patiently,
    producing,
    sent,
    wrong,
)

_GROUPS = Setup.GROUPS


def shown(peer: Peer, producer: Producer, label: str) -> None:
    """Records the transaction's state, as its coordinator describes it, in the transcript."""
    peer.ask("describe_transactions", 0, label, transactional_ids=[producer[0]])


def timed_out(peer: Peer, name: str, topic: str) -> Producer:
    """A producer whose transaction was aborted because it was open for too long."""
    known = begun(peer, name)
    fields = beginning(known[0], transaction_timeout=200)
    given = patiently(peer, "init_producer_id", 4, **fields)
    producer = known[0], given["producer_id"], given["producer_epoch"]
    patiently(peer, "add_partitions_to_txn", 3, **adding(producer, topic, 0))
    completed(peer, producer)
    return producer


def as_before(producer: Producer) -> dict[str, Any]:
    """The fields of an InitProducerId of a producer that continues with its id and epoch."""
    return beginning(producer[0], producer_id=producer[1], producer_epoch=producer[2])


# --- beginning again --------------------------------------------------------------------------------------------------
@session("init_producer_id", versions=(3, 4, 5), setup=_GROUPS)
def after_a_timeout(peer: Peer, version: int) -> None:
    topic, _ = peer.create()
    producer = timed_out(peer, "x", topic)
    shown(peer, producer, "aborted")
    ask(peer, "init_producer_id", version, "goes on", **as_before(producer))
    ask(peer, "init_producer_id", version, "goes on again", **as_before(producer))
    ask(peer, "init_producer_id", version, "another instance", **beginning(producer[0]))
    ask(peer, "init_producer_id", version, "goes on after it", **as_before(producer))
    producer = timed_out(peer, "y", topic)
    ask(peer, "end_txn", 5, "commits", **ending(producer))
    ask(peer, "end_txn", 5, "aborts", **ending(producer, commit=False))
    ask(peer, "init_producer_id", version, "goes on after that", **as_before(producer))


@session("init_producer_id", versions=(3, 4, 5), setup=_GROUPS)
def over_its_own_open_transaction(peer: Peer, version: int) -> None:
    topic, _ = peer.create()
    producer = begun(peer)
    patiently(peer, "add_partitions_to_txn", 3, **adding(producer, topic, 0))
    ask(peer, "init_producer_id", version, "goes on", **as_before(producer))
    shown(peer, producer, "it goes on")
    ask(peer, "end_txn", 4, "commits as before", **ending(producer))


@session("init_producer_id", setup=_GROUPS)
def without_patience(peer: Peer, version: int) -> None:
    """While markers are written, Kafka answers with an error that clients retry. Other sessions retry; this one compares it."""
    topic, _ = peer.create()
    producer = begun(peer)
    patiently(peer, "add_partitions_to_txn", 3, **adding(producer, topic, 0))
    code = "error_code"
    second = beginning(producer[0])
    peer.ask_for("init_producer_id", version, "a second instance", lambda answer: {code: answer[code]}, **second)


@session("init_producer_id", versions=(4, 5), setup=_GROUPS)
def of_a_late_producer(peer: Peer, version: int) -> None:
    """A producer continues with its old epoch while the transaction of a newer one is open."""
    topic, _ = peer.create()
    late, newer = begun(peer), begun(peer)
    patiently(peer, "add_partitions_to_txn", 3, **adding(newer, topic, 0))
    peer.ask("init_producer_id", version, "at once", **as_before(late))
    ask(peer, "init_producer_id", version, "once the markers are written", **as_before(late))
    ask(peer, "end_txn", 4, "the newer one commits", **ending(newer))


@session("list_transactions", versions=(2,), setup=_GROUPS)
def patterns_of_many_ways(peer: Peer, version: int) -> None:
    begun(peer)
    prefix = peer.named("")
    for pattern in (".*a.*b.*", "[a-z]+-[0-9]+-x", "(a+)+", "(ab)*", r"\p{L}+", r"\Qa.b\E"):
        filters = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
        peer.ask_for(
            *("list_transactions", version, pattern, lambda answer: own(prefix, answer)),
            **filters,
            transactional_id_pattern=pattern,
        )


# --- what a transaction may not have ----------------------------------------------------------------------------------
@session("add_partitions_to_txn", versions=range(4), setup=_GROUPS)
def internal_topics(peer: Peer, version: int) -> None:
    topic, _ = peer.create()
    coordinated(peer)
    producer = begun(peer)
    for label, names in (
        ("offsets", ["__consumer_offsets"]),
        ("decisions", ["__transaction_state"]),
        ("one of several", [topic, "__consumer_offsets", peer.named("nowhere")]),
    ):
        fields = adding(producer, topic, 0)
        fields["v3_and_below_topics"] = [{"name": name, "partitions": [0]} for name in names]
        ask(peer, "add_partitions_to_txn", version, label, **fields)
        shown(peer, producer, f"after {label}")


@session("txn_offset_commit", setup=_GROUPS)
def of_topics_that_do_not_exist(peer: Peer, version: int) -> None:
    topic, topic_id = peer.create()
    group, producer = coordinated(peer), begun(peer)
    rows = committing(group, topic, topic_id, 0)["topics"][0]["partitions"]
    for label, who in (("its own", producer), *wrong(producer)):
        fields = {"group_id": group, "topics": [{"name": peer.named("nowhere"), "partitions": rows}]}
        ask(peer, "txn_offset_commit", version, label, **naming(who), **fields)
    shown(peer, producer, "after them")
    peer.ask("describe_groups", 5, "no group is made", groups=[group])


# --- deleting what is open --------------------------------------------------------------------------------------------
@session("offset_delete", setup=_GROUPS)
def offsets_of_an_open_transaction(peer: Peer, version: int) -> None:
    topic, topic_id = peer.create(partitions=2)
    group, producer = coordinated(peer), begun(peer)

    def fetched(label: str) -> None:
        topics = [{"name": topic, "partition_indexes": [0, 1]}]
        groups = [{"group_id": group, "topics": topics}]
        peer.ask("offset_fetch", 8, label, groups=groups, require_stable=True)

    patiently(peer, "add_offsets_to_txn", 3, **naming(producer), group_id=group)
    rows = committing(group, topic, topic_id, 0, 1)["topics"][0]["partitions"]
    patiently(
        *(peer, "txn_offset_commit", 3),
        **naming(producer),
        group_id=group,
        topics=[{"name": topic, "partitions": rows}],
    )
    fetched("open")
    for label in ("one", "it again"):
        topics = [{"name": topic, "partitions": [{"partition_index": 0}]}]
        peer.ask("offset_delete", version, label, group_id=group, topics=topics)
    fetched("one is deleted")
    patiently(peer, "end_txn", 3, **ending(producer))
    completed(peer, producer)
    deadline = time.monotonic() + ANSWER_SECONDS
    while "UNSTABLE" in repr(
        peer.quietly(
            *("offset_fetch", 8),
            groups=[{"group_id": group, "topics": [{"name": topic, "partition_indexes": [1]}]}],
            require_stable=True,
        )
    ):
        if time.monotonic() > deadline:
            raise PeerFailed(f"{peer.name}: the offset never becomes stable")
        time.sleep(0.02)
    fetched("committed")


# --- markers ----------------------------------------------------------------------------------------------------------
@session("write_txn_markers", versions=(2,), setup=_GROUPS)
def markers_of_version_2(peer: Peer, version: int) -> None:
    """A marker of version 2 has a higher epoch than its transaction, unless the marker is repeated."""
    topic, topic_id = peer.create(partitions=2)
    producer = begun(peer)
    _, producer_id, epoch = producer

    def write(label: str, epoch: int, partition: int = 0) -> None:
        marker = {
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "transaction_result": False,
            "topics": [{"name": topic, "partition_indexes": [partition]}],
            "coordinator_epoch": 0,
            "transaction_version": 2,
        }
        peer.ask("write_txn_markers", version, label, markers=[marker])
        topics = [{"name": topic, "partition_indexes": [partition]}]
        peer.ask("describe_producers", 0, f"after {label}", topics=topics)

    patiently(peer, "add_partitions_to_txn", 3, **adding(producer, topic, 0))
    patiently(peer, "produce", 9, **producing(producer, (topic, topic_id), {0: sent(producer, 0, b"open")}))
    write("the open transaction's epoch", epoch)
    write("an older epoch", epoch - 1)
    write("a later epoch", epoch + 1)
    write("it again", epoch + 1)
    write("the transaction's epoch, once it is over", epoch)
    write("an epoch later still", epoch + 2)
    write("where it never was", epoch, partition=1)
