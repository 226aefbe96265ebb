"""Produce: what is appended, how batches are refused, and the answers to idempotent producers."""

from __future__ import annotations

from typing import Any

from tests.differential.batches import HEAD_BYTES, NOON, Batch, Record, batch
from tests.differential.judge import session
from tests.differential.peer import Peer
from tests.differential.sessions.common import UNKNOWN_ID, contents, ends, idempotent, to

HOUR = 3_600_000


@session("produce")
def appended(peer: Peer, version: int) -> None:
    topic = peer.create(partitions=3)
    one = batch(b"one")
    peer.ask("produce", version, "first", acks=-1, topic_data=to(topic, {0: one}))
    peer.ask("produce", version, "second, acks=1", acks=1, topic_data=to(topic, {0: batch(b"two", b"three")}))
    peer.ask("produce", version, "three partitions", acks=-1, topic_data=to(topic, {2: one, 0: one, 1: one}))
    peer.ask("produce", version, "no partition", acks=-1, topic_data=to(topic, {}))
    peer.ask("produce", version, "no topic", acks=-1, topic_data=[])
    keyed = Batch([Record(b"v", b"k", [("h", b"1"), ("h", None)]), Record(None, b"k", after=5)], timestamp=NOON + 1)
    peer.ask("produce", version, "keys, headers, nulls", acks=-1, topic_data=to(topic, {1: keyed.encode()}))
    peer.ask(
        "produce",
        version,
        "base offset and epoch of its own",
        acks=-1,
        topic_data=to(topic, {1: batch(b"x", base_offset=4711, leader_epoch=17)}),
    )
    peer.ask("produce", version, "timeout of 0", acks=-1, timeout=0, topic_data=to(topic, {0: one}))
    ends(peer, topic, 3)
    contents(peer, topic, 3)


@session("produce")
def two_topics(peer: Peer, version: int) -> None:
    first, second = peer.create("b"), peer.create("a", partitions=2)
    data = to(first, {0: batch(b"x")}) + to(second, {1: batch(b"y"), 0: batch(b"z")})
    peer.ask("produce", version, "in the order of the request", acks=-1, topic_data=data)
    peer.ask("produce", version, "again", acks=-1, topic_data=data)


@session("produce")
def unknown(peer: Peer, version: int) -> None:
    topic = peer.create(partitions=2)
    nowhere = (peer.named("nowhere"), UNKNOWN_ID)
    good = batch(b"x")
    for acks in (1, -1):
        peer.ask("produce", version, f"topic, acks={acks}", acks=acks, topic_data=to(nowhere, {0: good}))
        peer.ask("produce", version, f"partition, acks={acks}", acks=acks, topic_data=to(topic, {2: good}))
        peer.ask("produce", version, f"negative partition, acks={acks}", acks=acks, topic_data=to(topic, {-1: good}))
        mixed = to(topic, {9: good, 1: good}) + to(nowhere, {0: good})
        peer.ask("produce", version, f"among known ones, acks={acks}", acks=acks, topic_data=mixed)
    ends(peer, topic, 2)


@session("produce")
def acks(peer: Peer, version: int) -> None:
    topic = peer.create()
    for number in (2, -2, 127, 32767):
        peer.ask("produce", version, f"acks={number}", acks=number, topic_data=to(topic, {0: batch(b"x")}))
    ends(peer, topic, 1)
    peer.tell("produce", version, "acks=0", acks=0, topic_data=to(topic, {0: batch(b"x")}))
    peer.tell("produce", version, "acks=0 again", acks=0, topic_data=to(topic, {0: batch(b"y")}))
    peer.tell("produce", version, "acks=0, no partition", acks=0, topic_data=[])
    peer.tell("produce", version, "acks=0, unknown partition", acks=0, topic_data=to(topic, {7: batch(b"z")}))
    peer.tell("produce", version, "acks=0, damaged", acks=0, topic_data=to(topic, {0: batch(b"z", flip=-1)}))
    ends(peer, topic, 1, "after acks=0")


@session("produce")
def damaged(peer: Peer, version: int) -> None:
    topic = peer.create()
    whole = batch(b"some value", b"another")
    cases = {
        "empty": b"",
        "checksum": batch(b"x", flip=HEAD_BYTES + 3),
        "magic 1": batch(b"x", magic=1),
        "magic 0": batch(b"x", magic=0),
        "magic 3": batch(b"x", magic=3),
        "no records": batch(),
        "count too high": batch(b"x", count=2),
        "count too low": batch(b"x", b"y", count=1),
        "negative count": batch(b"x", count=-1),
        "last offset delta too high": batch(b"x", last_offset_delta=5),
        "last offset delta negative": batch(b"x", last_offset_delta=-1),
        "cut off": whole[:-3],
        "head cut off": whole[: HEAD_BYTES - 10],
        "two batches": whole + whole,
        "length negative": whole[:8] + b"\xff\xff\xff\xff" + whole[12:],
        "length too high": whole[:8] + b"\x7f\xff\xff\xff" + whole[12:],
        "codec 5": batch(b"x", attributes=5),
        "codec 7": batch(b"x", attributes=7),
        "control batch": batch(b"x", attributes=0x20),
        "transactional without producer": batch(b"x", attributes=0x10),
    }
    for label, records in cases.items():
        peer.ask("produce", version, label, acks=-1, topic_data=to(topic, {0: records}))
    ends(peer, topic, 1)
    peer.ask("produce", version, "beside a good one", acks=-1, topic_data=to(topic, {0: whole}))


@session("produce", versions=(3, 8, 13))
def odd(peer: Peer, version: int) -> None:
    """Odd batches that Kafka accepts, each in a topic of its own."""
    behind, bits = peer.create("behind"), peer.create("bits")
    records = batch(b"x") + b"\0\0\0"
    peer.ask("produce", version, "bytes behind", acks=-1, topic_data=to(behind, {0: records}))
    records = batch(b"x", attributes=0x100)
    peer.ask("produce", version, "unknown attributes", acks=-1, topic_data=to(bits, {0: records}))


@session("produce", versions=(13,))
def null_records(peer: Peer, version: int) -> None:
    topic = peer.create()
    peer.ask_patiently("produce", version, "null", 2.0, acks=-1, topic_data=to(topic, {0: None}))


@session("produce")
def too_large(peer: Peer, version: int) -> None:
    topic = peer.create(max_message_bytes="1000")
    for label, size in (("just small enough", 1000), ("one byte over", 1001), ("far over", 100_000)):
        overhead = len(batch(b"x" * 800)) - 800
        peer.ask("produce", version, label, acks=-1, topic_data=to(topic, {0: batch(b"x" * (size - overhead))}))
    both = batch(b"x" * 500) + batch(b"y" * 800)
    peer.ask("produce", version, "one of two", acks=-1, topic_data=to(topic, {0: both}))
    ends(peer, topic, 1)


@session("produce")
def codecs(peer: Peer, version: int) -> None:
    topic = peer.create()
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        records = batch(b"a" * 300, b"b", codec=codec)
        peer.ask("produce", version, codec, acks=-1, topic_data=to(topic, {0: records}))
        lying = Batch([Record(b"not compressed")], attributes={"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}[codec])
        peer.ask("produce", version, f"{codec} in name only", acks=-1, topic_data=to(topic, {0: lying.encode()}))
        short = batch(b"a", b"b", codec=codec, count=3, last_offset_delta=2)
        peer.ask("produce", version, f"{codec} with a record too few", acks=-1, topic_data=to(topic, {0: short}))
    ends(peer, topic, 1)
    contents(peer, topic, 1)


@session("produce", versions=(9, 13))
def compression_of_the_topic(peer: Peer, version: int) -> None:
    for codec in ("uncompressed", "gzip", "snappy", "lz4", "zstd", "producer"):
        topic = peer.create(codec, compression_type=codec)
        for sent in ("none", "gzip", "zstd"):
            records = batch(b"a" * 300, b"b", codec=sent)
            peer.ask("produce", version, f"{sent} to {codec}", acks=-1, topic_data=to(topic, {0: records}))
        contents(peer, topic, 1, codec)


@session("produce")
def timestamps(peer: Peer, version: int) -> None:
    now = peer.started_ms
    plain = peer.create("plain")
    for label, moment in (("none", -1), ("0", 0), ("of 1970", 1), ("now", now), ("far ahead", now + 48 * HOUR)):
        peer.ask("produce", version, label, acks=-1, topic_data=to(plain, {0: batch(b"x", timestamp=moment)}))
    narrow = peer.create("narrow", message_timestamp_before_max_ms="3600000", message_timestamp_after_max_ms="3600000")
    for label, moment in (("two hours ago", now - 2 * HOUR), ("in two hours", now + 2 * HOUR), ("just now", now)):
        peer.ask("produce", version, label, acks=-1, topic_data=to(narrow, {0: batch(b"x", timestamp=moment)}))
    some = Batch([Record(b"a"), Record(b"b", after=2 * HOUR), Record(b"c", after=3 * HOUR)], timestamp=now)
    peer.ask("produce", version, "two of three ahead", acks=-1, topic_data=to(narrow, {0: some.encode()}))
    stamped = peer.create("stamped", message_timestamp_type="LogAppendTime")
    peer.ask("produce", version, "log append time", acks=-1, topic_data=to(stamped, {0: batch(b"x")}))
    peer.ask("produce", version, "and again", acks=-1, topic_data=to(stamped, {0: batch(b"y", b"z", codec="gzip")}))
    for name, topic in (("plain", plain), ("narrow", narrow), ("stamped", stamped)):
        ends(peer, topic, 1, name)
    contents(peer, stamped, 1)


@session("produce")
def compacted(peer: Peer, version: int) -> None:
    """A compacted topic requires keys; the response names each record without one."""
    topic = peer.create(cleanup_policy="compact")
    keyed, bare = Record(b"v", b"k"), Record(b"v")
    for label, records in (
        ("keyed", [keyed]),
        ("without key", [bare]),
        ("second of three without", [keyed, bare, keyed]),
        ("all without", [bare, bare]),
        ("a tombstone", [Record(None, b"k")]),
    ):
        for codec in ("none", "zstd") if version >= 7 else ("none", "gzip"):
            sent = Batch(records, codec=codec).encode()
            peer.ask("produce", version, f"{label}, {codec}", acks=-1, topic_data=to(topic, {0: sent}))
    ends(peer, topic, 1)


@session("produce")
def in_flight(peer: Peer, version: int) -> None:
    topic = peer.create(partitions=2)
    requests: list[tuple[str, dict[str, Any]]] = [
        (f"number {n}", {"acks": -1, "topic_data": to(topic, {n % 2: batch(b"%d" % n)})}) for n in range(6)
    ]
    requests.insert(3, ("a bad one among them", {"acks": -1, "topic_data": to(topic, {0: batch(b"x", flip=-1)})}))
    peer.pipeline("produce", version, requests)
    contents(peer, topic, 2)


@session("produce")
def sequences(peer: Peer, version: int) -> None:
    topic = peer.create(partitions=2)
    producer, epoch = idempotent(peer)

    def send(
        label: str, sequence: int, *values: bytes, of: int = producer, at: int = epoch, partition: int = 0
    ) -> None:
        records = batch(*(values or (b"x",)), producer=(of, at, sequence))
        peer.ask("produce", version, label, acks=-1, topic_data=to(topic, {partition: records}))

    send("first", 0, b"a", b"b")
    send("first, twice", 0, b"a", b"b")
    send("a part of it", 0, b"a")
    send("next", 2)
    send("a gap", 5)
    send("overlapping", 1, b"p", b"q", b"r")
    for sequence in range(3, 9):
        send(f"sequence {sequence}", sequence)
    send("the first, long after", 0, b"a", b"b")
    send("the fourth newest, twice", 5)
    send("sequence below zero", -5)
    send("no sequence", -1)
    send("a new epoch that does not begin at 0", 3, at=epoch + 1)
    send("a new epoch", 0, at=epoch + 1)
    send("the old epoch", 9, at=epoch)
    send("epoch of -1", 1, at=-1)
    send("another partition, not at 0", 4, partition=1)
    send("another partition, at 0", 0, partition=1, at=epoch + 1)
    send("a producer nobody knows, at 0", 0, of=producer + 1_000_000)
    send("a producer nobody knows, at 7", 7, of=producer + 2_000_000)
    ends(peer, topic, 2)


@session("produce")
def sequences_at_the_end(peer: Peer, version: int) -> None:
    """Sequence numbers wrap to 0 after the highest."""
    topic = peer.create()
    producer, epoch = idempotent(peer)
    top = 2**31 - 1
    for label, sequence, count in (
        ("far from 0, unknown", top - 1, 1),
        ("over the end", top, 3),
        ("behind it", 2, 1),
        ("the same again", 2, 1),
    ):
        records = batch(*[b"x"] * count, producer=(producer, epoch, sequence))
        peer.ask("produce", version, label, acks=-1, topic_data=to(topic, {0: records}))


@session("produce")
def two_batches_of_a_producer(peer: Peer, version: int) -> None:
    topic = peer.create()
    producer, epoch = idempotent(peer)
    first, second = (batch(b"x", producer=(producer, epoch, sequence)) for sequence in (0, 1))
    peer.ask("produce", version, "at once", acks=-1, topic_data=to(topic, {0: first + second}))
    peer.ask("produce", version, "one by one", acks=-1, topic_data=to(topic, {0: first}))
    peer.ask("produce", version, "the second", acks=-1, topic_data=to(topic, {0: second}))
    ends(peer, topic, 1)


@session("produce")
def a_topic_made_again(peer: Peer, version: int) -> None:
    """Requests with the old topic's id, or to a name that now belongs to another topic."""
    topic = peer.create()
    producer, epoch = idempotent(peer)
    peer.fill(topic[1], batch(b"x", producer=(producer, epoch, 0)))
    peer.delete(topic[0])
    peer.ask("produce", version, "deleted", acks=-1, topic_data=to(topic, {0: batch(b"x")}))
    again = peer.create()
    peer.ask("produce", version, "the old one", acks=-1, topic_data=to(topic, {0: batch(b"x")}))
    peer.ask("produce", version, "the new one", acks=-1, topic_data=to(again, {0: batch(b"x")}))
    records = batch(b"x", producer=(producer, epoch, 1))
    peer.ask("produce", version, "the producer's next", acks=-1, topic_data=to(again, {0: records}))
