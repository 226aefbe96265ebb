"""A broker's life in the metadata: registered, unfenced, shutting down, fenced, gone (KIP-631).

    registered (fenced) --its heartbeat has the registration--> unfenced --asks to stop--> shutting down
         ^                                                         |                           |
         +------------- silence, or its stream ends ---------------+---------------------------+
         |
         +--an operator removes it--> gone

Pure: planners that turn an image into records. Rules and wording follow Apache Kafka 4.2's ClusterControlManager.

Invariants: a broker that is fenced or shutting down leads nothing. A change of an older registration is refused. A partition
with one replica waits for that replica. Meanwhile it has no leader, and its replica stays in sync. A replica is on one disk. A
broker with another disk, as after a disk loss, would lead an empty log and reuse offsets, so it does not lead.

Not here: how long silence lasts (`service.controller.contacts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from grpc_api.contract.topics import Endpoint
from service.metadata import features
from service.metadata import records_pb2 as pb
from service.metadata.image import MetadataImage
from service.metadata.parts import NO_LEADER, BrokerImage, PartitionImage
from service.metadata.snapshot import broker_record, partition_record
from storage_tiers.errors import (
    BrokerNotRegistered,
    DuplicateBroker,
    InvalidRequest,
    LeaderNotAvailable,
    StaleBrokerEpoch,
    UnknownTopicOrPartition,
)
from storage_tiers.types import TopicId

#: Most registered brokers of a cluster, and most bytes of one registration: every broker has all of them in memory.
MAX_BROKERS, MAX_REGISTRATION_BYTES = 64, 16 << 10
#: Most epochs by which a log may be ahead of the metadata. A take-over skips 2^16 epochs, so several fit.
MAX_EPOCH_RISE = 1 << 20

Records = tuple[pb.MetadataRecord, ...]


class RegistrationPlan(NamedTuple):
    """The records, and the broker epoch that they assign."""

    records: Records
    broker_epoch: int


def register(
    image: MetadataImage,
    broker_id: int,
    disk_identity: bytes,
    endpoints: Iterable[Endpoint],
    rack: str | None,
    *,
    start_id: bytes = b"",
    fenced: bool = False,
    peer: str = "",
) -> RegistrationPlan:
    """Registers a starting broker with its advertised `endpoints`; its epoch rises by one. A new id's epoch is above those of
    all unregistered brokers, so that a process of an earlier registration cannot pass for it. A repeated registration of the
    same start changes nothing. Raises DuplicateBroker if a broker with that id and another disk is alive, and InvalidRequest if
    the cluster has too many brokers or the registration too many bytes.

    A broker with the same disk registers at once, because the lock on its directory proves that the former process is dead."""
    known = image.brokers.get(broker_id)
    if known is not None and start_id and known.start_id == start_id:
        return RegistrationPlan((), known.broker_epoch)
    if known is not None and fenced and not known.fenced and known.disk_identity != disk_identity:
        raise DuplicateBroker(
            f"Another broker is registered with that broker id: {broker_id} is alive with the directory "
            f"{_text(known.disk_identity)}; stop it, or choose another node.id"
        )
    if known is None and len(image.brokers) >= MAX_BROKERS:
        raise InvalidRequest(
            f"the cluster has {len(image.brokers)} registered brokers, and {MAX_BROKERS} is the maximum; remove those that are "
            "gone with `tidelog cluster unregister`"
        )
    epoch = (image.gone_broker_epoch if known is None else known.broker_epoch) + 1
    left = _led_by_none(image, broker_id) if fenced else ()
    made = BrokerImage(
        broker_id, epoch, disk_identity, tuple(endpoints), rack, start_id=start_id, fenced=fenced, peer=peer
    )
    record = broker_record(made)
    if (size := record.ByteSize()) > MAX_REGISTRATION_BYTES:
        raise InvalidRequest(
            f"the registration of broker {broker_id} has {size} bytes, and {MAX_REGISTRATION_BYTES} is the maximum; give it "
            "fewer listeners, or shorter names"
        )
    record.features.extend(features.supported_records())
    return RegistrationPlan((*left, pb.MetadataRecord(broker=record)), epoch)


def unfence(image: MetadataImage, broker_id: int, broker_epoch: int) -> Records:
    """Called once the broker's image has its registration. The broker becomes the leader of each leaderless partition whose
    replica on it is in sync and on its present disk. Does nothing if the broker is unfenced already."""
    broker = registration(image, broker_id, broker_epoch)
    if not broker.fenced:
        return ()
    change = pb.BrokerChangeRecord(broker_id=broker_id, broker_epoch=broker_epoch, fenced=False)
    elected = (
        _elected(topic_id, placed, broker_id)
        for topic_id, placed in _partitions_of(image, broker_id)
        if placed.leader == NO_LEADER and broker_id in placed.isr and is_on_disk(placed, broker)
    )
    return (pb.MetadataRecord(broker_change=change), *elected)


def fence(image: MetadataImage, broker_id: int, broker_epoch: int) -> Records:
    """Called when the broker is silent. Its partitions lose their leader. Does nothing if it is fenced already."""
    if registration(image, broker_id, broker_epoch).fenced:
        return ()
    change = pb.BrokerChangeRecord(broker_id=broker_id, broker_epoch=broker_epoch, fenced=True, shutting_down=False)
    return (pb.MetadataRecord(broker_change=change), *_led_by_none(image, broker_id))


def shut_down(image: MetadataImage, broker_id: int, broker_epoch: int) -> Records:
    """Called when the broker asks to stop. It leads nothing from now on, and is fenced once it has stopped. Does nothing if it
    has asked already."""
    broker = registration(image, broker_id, broker_epoch)
    if broker.fenced or broker.shutting_down:
        return ()
    change = pb.BrokerChangeRecord(broker_id=broker_id, broker_epoch=broker_epoch, shutting_down=True)
    return (pb.MetadataRecord(broker_change=change), *_led_by_none(image, broker_id))


def unregister(image: MetadataImage, broker_id: int) -> Records:
    """Called when an operator removes a stopped broker for good. Raises BrokerNotRegistered in Kafka's words. Raises
    InvalidRequest if the broker runs, or if it has a partition, because an empty directory with that id would then pass for the
    one with the partition's records."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise BrokerNotRegistered(f"Broker ID {broker_id} is not currently registered")
    if broker.shutting_down:
        raise InvalidRequest(f"Broker ID {broker_id} is stopping; retry in a second")
    if not broker.fenced:
        raise InvalidRequest(f"Broker ID {broker_id} is a running broker of this cluster; stop it first")
    held = [
        f"{image.topics[topic_id].name}-{placed.index}"
        for topic_id, placed in islice(_partitions_of(image, broker_id), 4)
    ]
    if held:
        named = ", ".join(held[:3]) + (", …" if len(held) > 3 else "")
        raise InvalidRequest(
            f"broker {broker_id} has partitions ({named}), and their newest records may be on its disk alone; start it, move "
            f"them with `tidelog cluster drain {broker_id} --execute`, and stop it again"
        )
    record = pb.BrokerUnregistrationRecord(broker_id=broker_id, broker_epoch=broker.broker_epoch)
    return (pb.MetadataRecord(broker_unregistration=record),)


def elect_unclean(image: MetadataImage, name: str, index: int, moved_end: int = 0) -> Records:
    """Called when an operator accepts the loss of a lost disk's records (KIP-460's unclean election). The first replica whose
    broker is alive leads, on that broker's present disk. If the partition has a leader, nothing is done, unless that leader
    waits for the records below `moved_end`: then it is elected again, and no longer waits. Raises, in Kafka's words,
    UnknownTopicOrPartition, or LeaderNotAvailable if no replica's broker is alive."""
    topic = image.topic(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        raise UnknownTopicOrPartition(f"No such partition as {name}-{index}")
    placed = topic.partitions[index]
    if placed.leader != NO_LEADER:
        if not 0 < moved_end == placed.moved_end:
            return ()
        again = _elected(topic.topic_id, placed, placed.leader)
        again.partition_change.moved_end = 0
        return (again,)
    for position, broker_id in enumerate(placed.replicas):
        broker = image.brokers.get(broker_id)
        if broker is None or not broker.may_lead or broker_id in placed.adding:
            continue
        change = _elected(topic.topic_id, placed, broker_id)
        change.partition_change.moved_end = 0  # a shorter log has lost records
        if placed.directories:
            ids = (*placed.directories[:position], broker.disk_identity, *placed.directories[position + 1 :])
            change.partition_change.directories.CopyFrom(pb.DirectoryList(ids=ids))
        return (change,)
    raise LeaderNotAvailable("Eligible topic partition leaders are not available.")


def raise_leader_epoch(
    image: MetadataImage, topic_id: TopicId, index: int, broker_id: int, broker_epoch: int, above: int
) -> Records:
    """Called when a replica's log has batches of the leader epoch `above`. The present leader, or the absence of one, gets a
    higher epoch. Does nothing if the metadata has a higher one. Raises InvalidRequest if the broker has no replica of the
    partition, or if the epoch is implausible: it could use all epochs up."""
    registration(image, broker_id, broker_epoch)
    topic = image.topics.get(topic_id)
    if topic is None or not 0 <= index < len(topic.partitions) or broker_id not in topic.partitions[index].replicas:
        raise InvalidRequest(f"broker {broker_id} has no replica of the partition {index} of the topic id {topic_id}")
    placed = topic.partitions[index]
    if placed.leader_epoch > above:
        return ()
    if above - placed.leader_epoch > MAX_EPOCH_RISE:
        raise InvalidRequest(
            f"{topic.name}-{index} has the leader epoch {placed.leader_epoch}; a log with batches of epoch {above} is damaged, "
            "or belongs to another cluster"
        )
    raised = replace(placed, leader_epoch=above + 1, partition_epoch=placed.partition_epoch + 1)
    return (pb.MetadataRecord(partition=partition_record(topic_id, raised)),)


def is_on_disk(placed: PartitionImage, broker: BrokerImage) -> bool:
    """Whether the broker's replica is in its directory, as far as is known."""
    if not placed.directories:
        return True
    return placed.directories[placed.replicas.index(broker.broker_id)] == broker.disk_identity


def elsewhere(image: MetadataImage, broker_id: int) -> int:
    """The number of the broker's partitions that are on a disk other than its registered one."""
    broker = image.brokers[broker_id]
    return sum(not is_on_disk(placed, broker) for _, placed in _partitions_of(image, broker_id))


def registration(image: MetadataImage, broker_id: int, broker_epoch: int) -> BrokerImage:
    """The broker's registration. Raises BrokerNotRegistered if there is none, StaleBrokerEpoch if the broker has registered
    again since."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise BrokerNotRegistered(f"broker {broker_id} is not registered with this controller; start it again")
    if broker.broker_epoch != broker_epoch:
        why = "a newer start has registered"
        if broker.broker_epoch < broker_epoch:
            why = "the controller has older metadata than this broker; start the controller with its newest directory"
        raise StaleBrokerEpoch(f"broker {broker_id} has the epoch {broker.broker_epoch}, not {broker_epoch}: {why}")
    return broker


def _led_by_none(image: MetadataImage, broker_id: int) -> Records:
    return tuple(
        _elected(topic_id, placed, NO_LEADER)
        for topic_id, placed in _partitions_of(image, broker_id)
        if placed.leader == broker_id
    )


def _partitions_of(image: MetadataImage, broker_id: int) -> Iterator[tuple[TopicId, PartitionImage]]:
    for topic in image.topics.values():
        for placed in topic.partitions:
            if broker_id in placed.replicas:
                yield topic.topic_id, placed


def _elected(topic_id: TopicId, placed: PartitionImage, leader: int) -> pb.MetadataRecord:
    change = pb.PartitionChangeRecord(topic_id=topic_id, index=placed.index, leader=leader)
    return pb.MetadataRecord(partition_change=change)


def _text(disk_identity: bytes) -> str:
    return disk_identity.decode("utf-8", "replace")
