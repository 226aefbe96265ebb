"""Fetch sessions (KIP-227) while topics come and go, and when clients use wrong session epochs."""

from __future__ import annotations

from typing import Any

from tests.differential.batches import batch
from tests.differential.judge import session
from tests.differential.message_trees import Tree
from tests.differential.peer import Peer
from tests.differential.sessions.common import UNKNOWN_ID, Topic, of

NOW: dict[str, Any] = {"max_wait": 0, "min_bytes": 0}
SESSIONS = range(7, 19)
SOME = (7, 12, 13, 18)


class Reader:
    """One fetch session of a peer, which counts its epoch."""

    def __init__(self, peer: Peer, version: int, label: str, topics: Any) -> None:
        self._peer = peer
        self._version = version
        opened = peer.ask("fetch", version, label, **NOW, session_id=0, session_epoch=0, topics=topics)
        self.session_id = opened["session_id"]
        self.epoch = 0

    def ask(self, label: str, topics: Any = (), **values: Any) -> Tree:
        self.epoch += 1
        return self.ask_at(self.epoch, label, topics, **values)

    def ask_at(self, epoch: int, label: str, topics: Any = (), **values: Any) -> Tree:
        given = {**NOW, "session_id": self.session_id, "session_epoch": epoch, "topics": list(topics), **values}
        return self._peer.ask("fetch", self._version, label, **given)


@session("fetch", versions=SESSIONS)
def a_topic_that_comes_and_goes(peer: Peer, version: int) -> None:
    """Below version 13 a session names topics, and continues with the next topic of the same name."""
    other, name = peer.create("other"), peer.named("t")
    first = (name, UNKNOWN_ID)
    reader = Reader(peer, version, "before it is there", of(other, {0: 0}) + of(first, {0: 0}))
    reader.ask("still not there")
    topic = peer.create()
    peer.fill(topic[1], batch(b"x"))
    reader.ask("it is there", of(topic, {0: 0}) if version >= 13 else ())
    reader.ask("told again", of(topic, {0: 1}))
    peer.delete(topic[0])
    reader.ask("it is gone")
    reader.ask("still gone")
    again = peer.create()
    peer.fill(again[1], batch(b"y"))
    reader.ask("another of its name", of(again, {0: 0}))
    if version >= 13:
        reader.ask("and the old one by its id", of(topic, {0: 0}))


@session("fetch", versions=SESSIONS)
def forgetting(peer: Peer, version: int) -> None:
    topic = peer.create(partitions=3)
    for partition in range(3):
        peer.fill(topic[1], batch(b"%d" % partition), partition=partition)

    def forgotten(*partitions: int, of_id: str = topic[1], named: str = topic[0]) -> dict[str, Any]:
        return {"forgotten_topics_data": [{"topic": named, "topic_id": of_id, "partitions": list(partitions)}]}

    reader = Reader(peer, version, "three", of(topic, {0: 0, 1: 0, 2: 0}))
    reader.ask("one forgotten", **forgotten(1))
    reader.ask("forgotten twice", **forgotten(1, 1))
    reader.ask("an unknown partition forgotten", **forgotten(9))
    reader.ask("an unknown topic forgotten", **forgotten(0, of_id=UNKNOWN_ID, named=peer.named("nowhere")))
    reader.ask("forgotten and asked for", of(topic, {0: 0}), **forgotten(0))
    reader.ask("asked for with another limit", of(topic, {2: 0}, partition_max_bytes=1))
    reader.ask("order of what is left")
    reader.ask("the last ones forgotten", **forgotten(0, 2))
    reader.ask("nothing is left")


@session("fetch", versions=SESSIONS)
def lost_count(peer: Peer, version: int) -> None:
    topic = peer.create()
    peer.fill(topic[1], batch(b"x"))
    reader = Reader(peer, version, "opened", of(topic, {0: 0}))
    reader.ask("first")
    reader.ask_at(1, "the same epoch again")
    reader.ask_at(3, "an epoch left out")
    reader.ask_at(2, "the right one")
    reader.ask_at(0, "opened anew with its id", of(topic, {0: 0}))
    reader.ask_at(3, "the old one after that")
    reader.ask_at(-1, "closed", of(topic, {0: 0}))
    reader.ask_at(3, "after it was closed")
    reader.ask_at(-1, "closed again", of(topic, {0: 0}))


@session("fetch", versions=SOME)
def on_two_connections(peer: Peer, version: int) -> None:
    """A session is not bound to the connection that opened it."""
    topic = peer.create()
    peer.fill(topic[1], batch(b"x"))
    reader = Reader(peer, version, "opened", of(topic, {0: 0}))
    peer.close_connection()
    reader.ask("on another connection")
    peer.close_connection()
    reader.ask("on a third", of(topic, {0: 1}))


@session("fetch", versions=(12, 13))
def another_version_within(peer: Peer, version: int) -> None:
    """The session changes from topic names to ids, or the other way round."""
    topic = peer.create()
    peer.fill(topic[1], batch(b"x"))
    reader = Reader(peer, version, "opened", of(topic, {0: 0}))
    other: Topic = (topic[0], topic[1])
    values = {**NOW, "session_id": reader.session_id, "session_epoch": 1}
    peer.ask("fetch", 25 - version, "the other kind", **values, topics=of(other, {0: 0}))
    peer.ask("fetch", version, "the first kind again", **{**values, "session_epoch": 2}, topics=[])


@session("fetch", versions=SOME)
def waiting_in_a_session(peer: Peer, version: int) -> None:
    topic = peer.create(partitions=2)
    reader = Reader(peer, version, "opened", of(topic, {0: 0, 1: 0}))
    values: dict[str, Any] = {"session_id": reader.session_id, "session_epoch": 1, "topics": []}
    waiting = peer.begin("fetch", version, max_wait=60_000, min_bytes=1, **values)
    peer.fill(topic[1], batch(b"x"), partition=1)
    waiting.end("what came")
    peer.ask("fetch", version, "for nothing", **{**values, "session_epoch": 2}, max_wait=50, min_bytes=1 << 20)
