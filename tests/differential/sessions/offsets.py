"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: the positions of records in a log."""

from __future__ import annotations

from typing import Any

from tests.differential.batches import NOON, Batch, Record, batch
from tests.differential.judge import session
from tests.differential.peer import Peer
from tests.differential.sessions.common import Topic, ends


def asked(topic: str, timestamps: dict[int, int], **fields: Any) -> list[dict[str, Any]]:
    rows = [{"partition_index": index, "timestamp": moment, **fields} for index, moment in timestamps.items()]
    return [{"name": topic, "partitions": rows}]


def filled(peer: Peer, name: str = "t") -> Topic:
    """Offsets 0 to 6 at NOON +0, +10, +20; +50; +30, +30, +40 ms: timestamps go back once."""
    topic = peer.create(name)

    def at(first: int, *after: int) -> bytes:
        return Batch([Record(b"x", after=a) for a in after], timestamp=NOON + first).encode()

    peer.fill(topic[1], at(0, 0, 10, 20), at(50, 0), at(30, 0, 0, 10))
    return topic


@session("list_offsets")
def times(peer: Peer, version: int) -> None:
    topic, _ = filled(peer)
    for after in (-1000, 0, 1, 10, 15, 20, 21, 30, 35, 40, 45, 50, 51, 1000):
        peer.ask("list_offsets", version, f"noon {after:+}", replica_id=-1, topics=asked(topic, {0: NOON + after}))
    peer.ask("list_offsets", version, "0", replica_id=-1, topics=asked(topic, {0: 0}))
    peer.ask("list_offsets", version, "the highest", replica_id=-1, topics=asked(topic, {0: 2**63 - 1}))


@session("list_offsets")
def special_timestamps(peer: Peer, version: int) -> None:
    """-1 latest, -2 earliest, -3 highest timestamp, -4 earliest local, -5 latest tiered, -6 earliest pending upload."""
    full, empty = filled(peer, "full")[0], peer.create("empty")[0]
    for special in (-1, -2, -3, -4, -5, -6, -7, -100, -(2**63)):
        peer.ask("list_offsets", version, f"{special}", replica_id=-1, topics=asked(full, {0: special}))
        peer.ask("list_offsets", version, f"{special} of nothing", replica_id=-1, topics=asked(empty, {0: special}))
        committed = {"replica_id": -1, "isolation_level": 1, "topics": asked(full, {0: special})}
        peer.ask("list_offsets", version, f"{special} committed", **committed)


@session("list_offsets")
def wrong(peer: Peer, version: int) -> None:
    topic = filled(peer)[0]
    nowhere = peer.named("nowhere")
    ask = peer.ask
    ask("list_offsets", version, "topic", replica_id=-1, topics=asked(nowhere, {0: -1}))
    ask("list_offsets", version, "partition", replica_id=-1, topics=asked(topic, {5: -1}))
    ask("list_offsets", version, "negative partition", replica_id=-1, topics=asked(topic, {-1: -1}))
    mixed = asked(topic, {5: -1, 0: -1}) + asked(nowhere, {0: -1})
    ask("list_offsets", version, "among right ones", replica_id=-1, topics=mixed)
    ask("list_offsets", version, "twice", replica_id=-1, topics=asked(topic, {0: -1}) + asked(topic, {0: -2}))
    ask("list_offsets", version, "nothing", replica_id=-1, topics=[])
    ask("list_offsets", version, "no partition", replica_id=-1, topics=asked(topic, {}))
    ask("list_offsets", version, "isolation level 5", replica_id=-1, isolation_level=5, topics=asked(topic, {0: -1}))
    for replica in (-2, -3):
        ask("list_offsets", version, f"replica {replica}", replica_id=replica, topics=asked(topic, {0: -1}))
    for epoch in (-1, 0, 1, 99, -2):
        topics = asked(topic, {0: -1}, current_leader_epoch=epoch)
        ask("list_offsets", version, f"leader epoch {epoch}", replica_id=-1, topics=topics)


@session("list_offsets")
def after_deleting_records(peer: Peer, version: int) -> None:
    topic = filled(peer)[0]
    rows = [{"name": topic, "partitions": [{"partition_index": 0, "offset": 4}]}]
    peer.ask("delete_records", 2, "up to 4", topics=rows)
    for timestamp in (-1, -2, -3, -4, NOON, NOON + 35, NOON + 45, NOON + 50):
        label = str(timestamp) if timestamp < 0 else f"noon {timestamp - NOON:+}"
        peer.ask("list_offsets", version, label, replica_id=-1, topics=asked(topic, {0: timestamp}))


@session("offset_for_leader_epoch")
def ends_of_epochs(peer: Peer, version: int) -> None:
    topic, empty = filled(peer)[0], peer.create("empty")[0]

    def ask(label: str, *rows: dict[str, int], name: str = topic, replica: int = -1) -> None:
        topics = [{"topic": name, "partitions": list(rows)}]
        peer.ask("offset_for_leader_epoch", version, label, replica_id=replica, topics=topics)

    for epoch in (0, 1, 99, -1, -2):
        ask(f"epoch {epoch}", {"partition": 0, "leader_epoch": epoch})
        ask(f"epoch {epoch} of nothing", {"partition": 0, "leader_epoch": epoch}, name=empty)
        ask(f"as of epoch {epoch}", {"partition": 0, "leader_epoch": 0, "current_leader_epoch": epoch})
    ask("unknown partition", {"partition": 7, "leader_epoch": 0})
    ask("negative partition", {"partition": -1, "leader_epoch": 0})
    ask("unknown topic", {"partition": 0, "leader_epoch": 0}, name=peer.named("nowhere"))
    ask("among right ones", {"partition": 7, "leader_epoch": 0}, {"partition": 0, "leader_epoch": 0})
    ask("twice", {"partition": 0, "leader_epoch": 0}, {"partition": 0, "leader_epoch": 1})
    ask("for a debugger", {"partition": 0, "leader_epoch": 0}, replica=-2)
    ask("no partition")
    peer.ask("offset_for_leader_epoch", version, "nothing", replica_id=-1, topics=[])


@session("delete_records")
def log_starts(peer: Peer, version: int) -> None:
    topic = filled(peer)
    nowhere = peer.named("nowhere")

    def ask(label: str, *offsets: tuple[int, int], name: str = topic[0]) -> None:
        rows = [{"partition_index": index, "offset": offset} for index, offset in offsets]
        peer.ask("delete_records", version, label, topics=[{"name": name, "partitions": rows}])

    ask("nothing yet", (0, 0))
    ask("within a batch", (0, 2))
    ask("to a batch", (0, 3))
    ask("the same again", (0, 3))
    ask("below the start", (0, 1))
    ask("beyond the end", (0, 8))
    ask("far beyond", (0, 2**63 - 1))
    ask("negative", (0, -2))
    ask("unknown partition", (4, 0))
    ask("negative partition", (-1, 0))
    ask("unknown topic", (0, 0), name=nowhere)
    ask("among right ones", (4, 0), (0, 4))
    ask("twice", (0, 5), (0, 4))
    ends(peer, topic, 1, "before the end")
    ask("everything", (0, -1))
    ask("everything, again", (0, -1))
    ends(peer, topic, 1, "after it")
    peer.fill(topic[1], batch(b"next"))
    ends(peer, topic, 1, "and one more")
    ask("no partition")
    peer.ask("delete_records", version, "nothing", topics=[])


@session("delete_records")
def of_a_compacted_topic(peer: Peer, version: int) -> None:
    for policy in ("compact", "compact,delete"):
        topic = peer.create(policy.replace(",", "-"), cleanup_policy=policy)
        peer.fill(topic[1], Batch([Record(b"v", b"k")]).encode())
        rows = [{"name": topic[0], "partitions": [{"partition_index": 0, "offset": 1}]}]
        peer.ask("delete_records", version, policy, topics=rows)
