"""Fetch: start and end of reads, limits, epochs, isolation; and sessions (KIP-227)."""

from __future__ import annotations

from typing import Any

from tests.differential.batches import NOON, Batch, Record, batch
from tests.differential.judge import session
from tests.differential.peer import Peer
from tests.differential.sessions.common import UNKNOWN_ID, Topic, of

#: The broker responds at once with what it has.
NOW: dict[str, Any] = {"max_wait": 0, "min_bytes": 0}
SESSIONS = range(7, 19)


def three_batches(peer: Peer) -> Topic:
    """Offsets 0 to 6: batches of three, one and three records."""
    topic = peer.create()
    keyed = Batch([Record(b"d" * 40, b"k", [("h", b"v")]), Record(None, b"k", after=7), Record(b"", after=9)])
    peer.fill(topic[1], batch(b"a", b"b", b"c"), batch(b"x" * 300, timestamp=NOON + 1), keyed.encode())
    return topic


@session("fetch")
def offsets(peer: Peer, version: int) -> None:
    topic = three_batches(peer)
    for offset in (0, 1, 2, 3, 4, 6, 7, 8, 100, -1, -2):
        peer.ask("fetch", version, f"offset {offset}", **NOW, topics=of(topic, {0: offset}))


@session("fetch")
def limits(peer: Peer, version: int) -> None:
    topic = three_batches(peer)
    for limit in (0, 1, 61, 80, 100, 500, 1 << 20, -1):
        topics = of(topic, {0: 0}, partition_max_bytes=limit)
        peer.ask("fetch", version, f"{limit} of the partition", **NOW, topics=topics)
    for limit in (0, 1, 100, 500, -1):
        peer.ask("fetch", version, f"{limit} in all", **NOW, max_bytes=limit, topics=of(topic, {0: 0}))
    topics = of(topic, {0: 3}, partition_max_bytes=10)
    peer.ask("fetch", version, "a batch larger than the limit", **NOW, max_bytes=10, topics=topics)


@session("fetch")
def several(peer: Peer, version: int) -> None:
    """The order of partitions in the request determines their order in the response, and the partition that is served first."""
    first, second = peer.create("b", partitions=3), peer.create("a")
    for partition in range(3):
        peer.fill(first[1], batch(b"%d" % partition * 100), partition=partition)
    peer.fill(second[1], batch(b"second"))
    both = of(first, {2: 0, 0: 0, 1: 0}) + of(second, {0: 0})
    peer.ask("fetch", version, "everything", **NOW, topics=both)
    peer.ask("fetch", version, "a byte in all", **NOW, max_bytes=1, topics=both)
    peer.ask("fetch", version, "one batch in all", **NOW, max_bytes=180, topics=both)
    mixed = of(first, {2: 0, 1: 1, 0: 5, 9: 0})
    peer.ask("fetch", version, "some of them wrong", **NOW, topics=mixed)
    mixed = of(first, {2: 0, 0: 5, 9: 0, 1: 1}) + of(second, {0: 1})
    peer.ask("fetch", version, "wrong ones before right ones", **NOW, topics=mixed)
    peer.ask("fetch", version, "no topic", **NOW, topics=[])
    peer.ask("fetch", version, "no partition", **NOW, topics=of(first, {}))
    twice = of(second, {0: 0}) + of(second, {0: 1})
    peer.ask("fetch", version, "a partition twice", **NOW, topics=twice)


@session("fetch")
def unknown(peer: Peer, version: int) -> None:
    topic = three_batches(peer)
    nowhere = (peer.named("nowhere"), UNKNOWN_ID)
    peer.ask("fetch", version, "topic", **NOW, topics=of(nowhere, {0: 0}))
    peer.ask(
        "fetch", version, "topic, without waiting for it", max_wait=20_000, min_bytes=1, topics=of(nowhere, {0: 0})
    )
    peer.ask("fetch", version, "partition", **NOW, topics=of(topic, {1: 0}))
    peer.ask("fetch", version, "negative partition", **NOW, topics=of(topic, {-1: 0}))
    peer.ask("fetch", version, "topic beside a known one", **NOW, topics=of(topic, {0: 3}) + of(nowhere, {0: 0}))
    deleted = peer.create("deleted")
    peer.delete(deleted[0])
    peer.ask("fetch", version, "deleted", **NOW, topics=of(deleted, {0: 0}))


@session("fetch")
def epochs(peer: Peer, version: int) -> None:
    topic = three_batches(peer)
    for epoch in (-1, 0, 1, 100, -2):
        topics = of(topic, {0: 0}, current_leader_epoch=epoch)
        peer.ask("fetch", version, f"leader epoch {epoch}", **NOW, topics=topics)
    for epoch, offset in ((-1, 0), (0, 0), (0, 4), (0, 7), (1, 4), (7, 7), (-2, 0), (0, 50)):
        topics = of(topic, {0: offset}, last_fetched_epoch=epoch)
        peer.ask("fetch", version, f"last fetched epoch {epoch} at {offset}", **NOW, topics=topics)


@session("fetch")
def isolation(peer: Peer, version: int) -> None:
    topic = three_batches(peer)
    for level in (0, 1, 2, -1):
        peer.ask("fetch", version, f"level {level}", **NOW, isolation_level=level, topics=of(topic, {0: 0}))
        peer.ask("fetch", version, f"level {level} at the end", **NOW, isolation_level=level, topics=of(topic, {0: 7}))


@session("fetch")
def waiting(peer: Peer, version: int) -> None:
    """The comparison covers the end and the result of a wait, not its length."""
    topic = three_batches(peer)
    peer.ask("fetch", version, "for nothing", max_wait=50, min_bytes=1, topics=of(topic, {0: 7}))
    peer.ask("fetch", version, "for more than there is", max_wait=50, min_bytes=1 << 20, topics=of(topic, {0: 0}))
    wrong = of(topic, {0: 99})
    peer.ask("fetch", version, "not for an error", max_wait=20_000, min_bytes=1, topics=wrong)
    peer.ask("fetch", version, "not for no partition", max_wait=20_000, min_bytes=1, topics=[])
    peer.ask("fetch", version, "negative wait", max_wait=-1, min_bytes=1, topics=of(topic, {0: 7}))


@session("fetch")
def followers(peer: Peer, version: int) -> None:
    topic = three_batches(peer)
    for replica in (-2, -3, 5):
        state = {"replica_id": replica, "replica_epoch": -1}
        label = f"replica {replica}"
        peer.ask("fetch", version, label, **NOW, replica_id=replica, replica_state=state, topics=of(topic, {0: 0}))


@session("fetch")
def after_deleting_records(peer: Peer, version: int) -> None:
    topic = three_batches(peer)
    rows = [{"name": topic[0], "partitions": [{"partition_index": 0, "offset": 4}]}]
    peer.ask("delete_records", 2, "up to 4", topics=rows)
    for offset in (0, 3, 4, 5, 7):
        peer.ask("fetch", version, f"offset {offset}", **NOW, topics=of(topic, {0: offset}))


@session("fetch", versions=SESSIONS)
def incremental(peer: Peer, version: int) -> None:
    topic = peer.create(partitions=3)
    peer.fill(topic[1], batch(b"a"))

    def ask(label: str, session_id: int, epoch: int, topics: Any, **more: Any) -> Any:
        values = {**NOW, "session_id": session_id, "session_epoch": epoch, "topics": topics, **more}
        return peer.ask("fetch", version, label, **values)

    opened = ask("a new one", 0, 0, of(topic, {0: 0, 1: 0, 2: 0}))
    ours = opened["session_id"]
    ask("again, nothing asked", ours, 1, [])
    ask("gone on", ours, 2, of(topic, {0: 1}))
    ask("nothing new", ours, 3, [])
    peer.fill(topic[1], batch(b"b"), partition=2)
    ask("what is new", ours, 4, [])
    ask("still there", ours, 5, [])
    ask("taken", ours, 6, of(topic, {2: 1}))
    forgotten = [{"topic": topic[0], "topic_id": topic[1], "partitions": [2]}]
    ask("one forgotten", ours, 7, [], forgotten_topics_data=forgotten)
    peer.fill(topic[1], batch(b"c"), partition=2)
    ask("what was forgotten is not told", ours, 8, [])
    ask("put in again", ours, 9, of(topic, {2: 1}))
    ask("out of range within", ours, 10, of(topic, {1: 99}))
    ask("an error is told again", ours, 11, [])
    ask("an old epoch", ours, 3, [])
    ask("an epoch too far", ours, 99, [])
    ask("the right one after that", ours, 12, [])
    ask("ended", ours, -1, [])
    ask("after its end", ours, 13, [])


@session("fetch", versions=SESSIONS)
def sessions_that_do_not_exist(peer: Peer, version: int) -> None:
    topic = three_batches(peer)
    for session_id, epoch in (
        (0, 0),
        (0, -1),
        (0, 1),
        (123456, 0),
        (123456, -1),
        (123456, 5),
        (-7, 1),
        (0, -2),
        (5, -2),
    ):
        label = f"session {session_id}, epoch {epoch}"
        values: dict[str, Any] = {"session_id": session_id, "session_epoch": epoch}
        peer.ask("fetch", version, label, **NOW, **values, topics=of(topic, {0: 0}))


@session("fetch", versions=SESSIONS)
def sessions_of_unknown_topics(peer: Peer, version: int) -> None:
    topic = three_batches(peer)
    nowhere = (peer.named("nowhere"), UNKNOWN_ID)
    values: dict[str, Any] = {**NOW, "session_epoch": 0}
    opened = peer.ask("fetch", version, "beside a known one", **values, topics=of(topic, {0: 0}) + of(nowhere, {0: 0}))
    follow = {**NOW, "session_id": opened["session_id"], "session_epoch": 1}
    peer.ask("fetch", version, "told again", **follow, topics=[])


@session("fetch", versions=SESSIONS)
def empty_sessions(peer: Peer, version: int) -> None:
    topic = peer.create()
    opened = peer.ask("fetch", version, "of nothing", **NOW, session_epoch=0, topics=[])
    follow = {**NOW, "session_id": opened["session_id"]}
    peer.ask("fetch", version, "filled later", **follow, session_epoch=1, topics=of(topic, {0: 0}))


@session("fetch")
def a_topic_made_again(peer: Peer, version: int) -> None:
    old = three_batches(peer)
    peer.delete(old[0])
    new = peer.create()
    peer.fill(new[1], batch(b"new"))
    peer.ask("fetch", version, "old", **NOW, topics=of(old, {0: 0}))
    peer.ask("fetch", version, "new", **NOW, topics=of(new, {0: 0}))
