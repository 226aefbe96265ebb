"""Records that have left the local disk: segments that rolled and are read from the tier; and a broker restart.

Kafka's tier is its own LocalTieredStorage. Both brokers roll at the same batches and keep only the active segment locally.
"""

from __future__ import annotations

import time

from tests.differential.batches import NOON, Batch, Record, batch
from tests.differential.judge import Setup, session
from tests.differential.message_trees import Tree
from tests.differential.peer import ANSWER_SECONDS, Peer, PeerFailed
from tests.differential.sessions.common import Topic, ends, idempotent, of, to

BATCHES = 20
_PAUSE_S = 0.05
#: Seconds to wait until a segment is closed, offloaded and gone from the local disk.
TIER_SECONDS = 4 * ANSWER_SECONDS
ROLLING = {"internal_segment_bytes": "2000", "retention_ms": "-1"}
TIERED = {**ROLLING, "remote_storage_enable": "true", "local_retention_bytes": "1"}


def rolled(peer: Peer, name: str, **configs: str) -> Topic:
    """A topic of batches of two records with rising timestamps, four batches per segment."""
    topic = peer.create(name, 1, **configs)
    for number in range(BATCHES):
        records = [Record(b"%03d" % number * 60, b"k"), Record(b"%03d" % number * 60, after=5)]
        peer.fill(topic[1], Batch(records, timestamp=NOON + 10 * number).encode())
    return topic


def listed(peer: Peer, topic: Topic, timestamp: int) -> int:
    rows = [{"partition_index": 0, "timestamp": timestamp}]
    (found,) = peer.quietly("list_offsets", 9, replica_id=-1, topics=[{"name": topic[0], "partitions": rows}])["topics"]
    return int(found["partitions"][0]["offset"])


def cold(peer: Peer, name: str = "t") -> Topic:
    """A rolled topic with only the active segment on the local disk."""
    topic = rolled(peer, name, **TIERED)
    deadline = time.monotonic() + TIER_SECONDS
    while (local := listed(peer, topic, -4)) <= 2 * BATCHES - 12 or listed(peer, topic, -5) != local - 1:
        if time.monotonic() > deadline:
            raise PeerFailed(
                f"{peer.name}: {topic[0]} is local from {local} on, tiered up to {listed(peer, topic, -5)}"
            )
        time.sleep(_PAUSE_S)
    return topic


def batches_from(peer: Peer, version: int, topic: Topic, offset: int) -> list[Tree]:
    """The batches of the first nonempty response: both brokers may answer with none while they fetch from the tier."""
    deadline = time.monotonic() + TIER_SECONDS
    while True:
        answer = peer.quietly("fetch", version, max_wait=1000, min_bytes=1, topics=of(topic, {0: offset}))
        partition = answer["responses"][0]["partitions"][0]
        if partition["error_code"] not in ("NONE", "REPLICA_NOT_AVAILABLE"):  # Kafka still loads tier metadata
            raise PeerFailed(f"{peer.name}: {topic[0]} from {offset} on: {partition['error_code']}")
        if whole := [found for found in partition["records"] or () if "base_offset" in found]:
            return whole
        if time.monotonic() > deadline:
            raise PeerFailed(f"{peer.name}: nothing comes of {topic[0]} from {offset} on")


def everything(peer: Peer, version: int, label: str, topic: Topic) -> None:
    """Records all batches from log start to log end, however they are split over responses."""
    found: list[Tree] = []
    offset, end = listed(peer, topic, -2), listed(peer, topic, -1)
    while offset < end:
        found += batches_from(peer, version, topic, offset)
        offset = found[-1]["base_offset"] + found[-1]["last_offset_delta"] + 1
    peer.collect("fetch", version, label, {"records": found})


@session("fetch", setup=Setup.TIERED)
def cold_reads(peer: Peer, version: int) -> None:
    topic = cold(peer)
    for offset in (0, 1, 6, 9, 25):
        peer.collect("fetch", version, f"from {offset}", {"records": batches_from(peer, version, topic, offset)[:1]})
    everything(peer, version, "all of it", topic)


@session("fetch", versions=(4, 11, 17))
def segments_that_rolled(peer: Peer, version: int) -> None:
    everything(peer, version, "all of it", rolled(peer, "t", **ROLLING, remote_storage_enable="false"))


@session("list_offsets", setup=Setup.TIERED)
def of_two_tiers(peer: Peer, version: int) -> None:
    topic, _ = cold(peer)

    def ask(timestamp: int) -> None:
        topics = [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": timestamp}]}]
        deadline = time.monotonic() + TIER_SECONDS
        while True:
            answer = peer.quietly("list_offsets", version, replica_id=-1, topics=topics)
            late = answer["topics"][0]["partitions"][0]["error_code"] == "REQUEST_TIMED_OUT"
            if not late or time.monotonic() > deadline:  # Kafka times out on a slow tier
                peer.collect("list_offsets", version, f"{timestamp}", answer)
                return

    for special in (-1, -2, -3, -4, -5, -6):
        ask(special)
    for after in (-1, 0, 1, 5, 6, 10, 55, 100, 185, 190, 195, 196):
        ask(NOON + after)


@session("delete_records", setup=Setup.TIERED)
def of_the_tier(peer: Peer, version: int) -> None:
    topic = cold(peer)

    def delete(label: str, offset: int) -> None:
        topics = [{"name": topic[0], "partitions": [{"partition_index": 0, "offset": offset}]}]
        peer.ask("delete_records", version, label, topics=topics)

    delete("within a segment of the tier", 11)
    ends(peer, topic, 1, "within a segment")
    below = of(topic, {0: 10})
    peer.ask("fetch", 13, "below the log start", max_wait=0, min_bytes=0, topics=below)
    peer.collect("fetch", 13, "at the log start", {"records": batches_from(peer, 13, topic, 11)[:1]})
    delete("backwards", 3)
    delete("beyond the end", 2 * BATCHES + 1)
    delete("everything", -1)
    ends(peer, topic, 1, "everything")


@session("offset_for_leader_epoch", setup=Setup.TIERED)
def epochs_of_the_tier(peer: Peer, version: int) -> None:
    topic, _ = cold(peer)
    for epoch in (0, 1, -1):
        rows = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}]
        topics = [{"topic": topic, "partitions": rows}]
        peer.ask("offset_for_leader_epoch", version, f"epoch {epoch}", replica_id=-1, topics=topics)


@session("produce", versions=(13,), setup=Setup.TIERED)
def over_a_restart(peer: Peer, version: int) -> None:
    """A clean stop and a start: records, producers and the tier are unchanged."""
    producer, epoch = idempotent(peer)  # Kafka forgets a producer whose last record is older than a day
    topic, gone = peer.create("hot", 2, retention_ms="-1"), cold(peer, "cold")

    def send(label: str, sequence: int, value: bytes) -> None:
        records = batch(value, producer=(producer, epoch, sequence), timestamp=peer.started_ms)
        peer.ask("produce", version, label, acks=-1, topic_data=to(topic, {0: records}))

    send("before", 0, b"a")
    send("before, twice", 0, b"a")
    peer.restart((topic[0], 2), (gone[0], 1))
    send("the last one again", 0, b"a")
    send("the next", 1, b"b")
    send("a gap", 7, b"c")
    ends(peer, topic, 2, "hot")
    ends(peer, gone, 1, "cold")
    everything(peer, 13, "cold", gone)
