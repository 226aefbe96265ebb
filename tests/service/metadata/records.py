"""Short constructors of metadata records, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from grpc_api.contract.topics import Resource, ResourceKind
from service.metadata import records_pb2 as pb
from service.metadata.image import MetadataImage
from service.metadata.parts import PartitionImage
from service.metadata.snapshot import config_record, partition_record
from storage_tiers.types import TopicId


def topic_id(number: int) -> TopicId:
    return TopicId(number.to_bytes(16, "big"))


def new_topic(name: str, number: int, partitions: int = 1, leader: int = 1) -> list[pb.MetadataRecord]:
    records = [pb.MetadataRecord(topic=pb.TopicRecord(name=name, topic_id=topic_id(number)))]
    for index in range(partitions):
        image = PartitionImage(index, leader, 0, 0, (leader,), (leader,))
        records.append(pb.MetadataRecord(partition=partition_record(topic_id(number), image)))
    return records


def elected(number: int, index: int, leader: int) -> pb.MetadataRecord:
    change = pb.PartitionChangeRecord(topic_id=topic_id(number), index=index, leader=leader)
    return pb.MetadataRecord(partition_change=change)


def deleted(number: int) -> pb.MetadataRecord:
    return pb.MetadataRecord(topic_deletion=pb.TopicDeletionRecord(topic_id=topic_id(number)))


def forgotten(number: int) -> pb.MetadataRecord:
    return pb.MetadataRecord(topic_forgotten=pb.TopicForgottenRecord(topic_id=topic_id(number)))


def configured(topic: str, key: str, value: str | None) -> pb.MetadataRecord:
    return pb.MetadataRecord(config=config_record(Resource(ResourceKind.TOPIC, topic), key, value))


def broker(node_id: int, epoch: int = 1, rack: str | None = None, *, fenced: bool = False) -> pb.MetadataRecord:
    record = pb.BrokerRecord(
        broker_id=node_id,
        broker_epoch=epoch,
        disk_identity=b"disk",
        endpoints=[
            pb.EndpointRecord(listener="INSIDE", host=f"host{node_id}", port=9092),
            pb.EndpointRecord(listener="OUTSIDE", host="example.com", port=9192),
        ],
        rack=rack,
        fenced=fenced,
    )
    return pb.MetadataRecord(broker=record)


def broker_change(
    node_id: int, epoch: int = 1, *, fenced: bool | None = None, shutting_down: bool | None = None
) -> pb.MetadataRecord:
    change = pb.BrokerChangeRecord(broker_id=node_id, broker_epoch=epoch, fenced=fenced, shutting_down=shutting_down)
    return pb.MetadataRecord(broker_change=change)


def unregistered(node_id: int, epoch: int = 1) -> pb.MetadataRecord:
    record = pb.BrokerUnregistrationRecord(broker_id=node_id, broker_epoch=epoch)
    return pb.MetadataRecord(broker_unregistration=record)


def command(node_id: int, sequence: int, *, epoch: int = 1, answered_below: int = 0) -> pb.MetadataRecord:
    """A command whose result is its sequence number."""
    record = pb.CommandRecord(
        broker_id=node_id,
        broker_epoch=epoch,
        sequence=sequence,
        answered_below=answered_below,
        result=b"%d" % sequence,
    )
    return pb.MetadataRecord(command=record)


def image_with_brokers(racks: Sequence[str | None]) -> MetadataImage:
    """An image with brokers 1, 2, ... in these racks."""
    return MetadataImage().apply_batch(broker(node_id, rack=rack) for node_id, rack in enumerate(racks, 1))
