"""InitProducerId, without transactions, and DescribeProducers."""

from __future__ import annotations

from tests.differential.batches import batch
from tests.differential.judge import session
from tests.differential.peer import Peer
from tests.differential.sessions.common import idempotent


@session("init_producer_id")
def idempotent_producers(peer: Peer, version: int) -> None:
    idempotent(peer)
    peer.ask("init_producer_id", version, "first", transactional_id=None)
    peer.ask("init_producer_id", version, "second", transactional_id=None)
    peer.ask("init_producer_id", version, "timeout of 0", transactional_id=None, transaction_timeout=0)
    peer.ask("init_producer_id", version, "negative timeout", transactional_id=None, transaction_timeout=-1)
    peer.ask("init_producer_id", version, "timeout of a day", transactional_id=None, transaction_timeout=86_400_000)
    peer.ask("init_producer_id", version, "empty transactional id", transactional_id="")


@session("init_producer_id", versions=(3, 4, 5))
def with_what_it_had(peer: Peer, version: int) -> None:
    producer, epoch = idempotent(peer)
    for label, given, at in (
        ("its id and epoch", producer, epoch),
        ("a later epoch", producer, epoch + 1),
        ("the last epoch", producer, 32767),
        ("an id nobody has", producer + 1_000_000, 0),
        ("an id alone", producer, -1),
        ("an epoch alone", -1, 0),
        ("neither", -1, -1),
    ):
        peer.ask("init_producer_id", version, label, transactional_id=None, producer_id=given, producer_epoch=at)


@session("describe_producers")
def active_producers(peer: Peer, version: int) -> None:
    topic, topic_id = peer.create(partitions=2)
    producer, epoch = idempotent(peer)

    def ask(label: str, *partitions: int, name: str = topic) -> None:
        topics = [{"name": name, "partition_indexes": list(partitions)}]
        peer.ask("describe_producers", version, label, topics=topics)

    ask("none", 0, 1)
    peer.fill(topic_id, batch(b"x", b"y", producer=(producer, epoch, 0)), batch(b"plain"))
    ask("one", 0, 1)
    peer.fill(topic_id, batch(b"z", producer=(producer, epoch, 2)))
    ask("further on", 0)
    ask("unknown partition", 7)
    ask("negative partition", -1)
    ask("unknown topic", 0, name=peer.named("nowhere"))
    ask("no partition")
    peer.ask("describe_producers", version, "nothing", topics=[])
