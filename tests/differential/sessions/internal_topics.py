"""The coordinators' topics: how they are created, what they are, and who may write into them."""

from __future__ import annotations

import time

from tests.differential.batches import batch
from tests.differential.judge import Setup, session
from tests.differential.peer import Peer
from tests.differential.sessions.groups import coordinated, joining
from tests.differential.sessions.transactions import begun

_TOPICS = ("__consumer_offsets", "__transaction_state")
_BY_A_CLIENT = "__share_group_state"
#: Seconds within which a broker that can create a coordinator's topic has created it.
_CREATED_SECONDS = 3.0
#: Seconds after which a request counts as one that is never answered.
_NEVER_SECONDS = 2.0
_TOPIC = 2


def both_exist(peer: Peer) -> None:
    coordinated(peer)
    begun(peer)


def all_exist(peer: Peer) -> tuple[str, ...]:
    """Creates all internal topics; returns their names. No coordinator uses the topic that a client creates."""
    both_exist(peer)
    wanted = {"name": _BY_A_CLIENT, "num_partitions": 1, "replication_factor": 1}
    peer.quietly("create_topics", 7, topics=[wanted])
    peer.await_partitions(_BY_A_CLIENT, 1)
    return (*_TOPICS, _BY_A_CLIENT)


@session("metadata", setup=Setup.GROUPS)
def internal_topics(peer: Peer, version: int) -> None:
    both_exist(peer)
    for topic in _TOPICS:
        peer.ask("metadata", version, topic, topics=[{"name": topic}], allow_auto_topic_creation=False)


@session("describe_configs", setup=Setup.GROUPS)
def internal_topics_configs(peer: Peer, version: int) -> None:
    both_exist(peer)
    for topic in _TOPICS:
        resource = {"resource_type": _TOPIC, "resource_name": topic, "configuration_keys": None}
        peer.ask("describe_configs", version, topic, resources=[resource], include_synonyms=True)


@session("find_coordinator", setup=Setup.REPLICAS, versions=(4,))
def with_more_replicas_than_brokers(peer: Peer, version: int) -> None:
    """The topic's replication factor is above the number of brokers."""
    for kind, name in enumerate(("group", "transactional id")):
        deadline = time.monotonic() + _CREATED_SECONDS
        while True:
            answer = peer.quietly("find_coordinator", version, key_type=kind, coordinator_keys=[peer.named("x")])
            if answer["coordinators"][0]["error_code"] == "NONE" or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        peer.collect("find_coordinator", version, f"of a {name}, in the end", answer)


@session("produce", versions=(3, 12), setup=Setup.GROUPS)
def to_internal_topics(peer: Peer, version: int) -> None:
    for topic in all_exist(peer):
        rows = [{"name": topic, "partition_data": [{"index": 0, "records": batch(b"x")}]}]
        peer.ask("produce", version, topic, transactional_id=None, acks=-1, topic_data=rows)


@session("delete_records", setup=Setup.GROUPS)
def of_internal_topics(peer: Peer, version: int) -> None:
    for topic in all_exist(peer):
        rows = [{"name": topic, "partitions": [{"partition_index": 0, "offset": 0}]}]
        peer.ask("delete_records", version, topic, topics=rows)


@session("produce", versions=(3,), setup=Setup.GROUPS)
def internal_as_an_administrator(peer: Peer, version: int) -> None:
    """For this client id Kafka appends records, which its coordinator has to load, so each needs a key: this one has none."""
    coordinated(peer)
    rows = [{"name": "__consumer_offsets", "partition_data": [{"index": 0, "records": batch(b"x")}]}]
    peer.client_id = "__admin_client"
    peer.ask("produce", version, "as __admin_client", transactional_id=None, acks=-1, topic_data=rows)


@session("join_group", setup=Setup.GROUPS, versions=(4, 9))
def malformed_subscriptions(peer: Peer, version: int) -> None:
    for label, metadata in (
        ("no bytes", b""),
        ("a version alone", b"\0\0"),
        ("more topics than bytes", b"\0\0\x7f\xff\xff\xff"),
    ):
        group = coordinated(peer, label.replace(" ", "-"))
        fields = joining(group, protocols=[{"name": "range", "metadata": metadata}])
        member = peer.quietly("join_group", version, **fields)["member_id"]
        peer.ask_patiently("join_group", version, label, _NEVER_SECONDS, **{**fields, "member_id": member})
