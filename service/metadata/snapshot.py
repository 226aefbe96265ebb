"""Encodes an image of the cluster's metadata as records, for snapshots, and has the record builders that several modules share.

Pure. Invariant: the records of `to_records`, applied to an empty image, make an equal image.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from grpc_api.contract.topics import Endpoint, Resource
from service.metadata import records_pb2 as pb
from service.metadata.image import MetadataImage
from service.metadata.parts import BrokerImage, PartitionImage
from storage_tiers.types import TopicId


def to_records(image: MetadataImage) -> Iterator[pb.MetadataRecord]:
    """Records that turn an empty image into `image`: the content of a snapshot."""
    if image.cluster_id:
        yield pb.MetadataRecord(cluster=pb.ClusterRecord(cluster_id=image.cluster_id))
    for each in image.terms:
        yield pb.MetadataRecord(term=pb.TermRecord(term=each.term, offset=each.offset))
    for name, level in image.features.items():
        yield pb.MetadataRecord(feature_level=pb.FeatureLevelRecord(name=name, level=level))
    for broker in image.brokers.values():
        yield pb.MetadataRecord(broker=broker_record(broker))
    if image.gone_broker_epoch:
        yield pb.MetadataRecord(gone_brokers=pb.GoneBrokersRecord(highest_epoch=image.gone_broker_epoch))
    yield from _session_records(image)
    for topic in image.topics.values():
        yield pb.MetadataRecord(topic=pb.TopicRecord(name=topic.name, topic_id=topic.topic_id))
        for partition in topic.partitions:
            yield pb.MetadataRecord(partition=partition_record(topic.topic_id, partition))
    for gone in image.deleting.values():
        yield pb.MetadataRecord(
            deleting_topic=pb.DeletingTopicRecord(
                name=gone.name, topic_id=gone.topic_id, partition_count=gone.partition_count
            )
        )
    if image.topic_files:
        yield pb.MetadataRecord(topic_files=topic_files_record(image.topic_files))
    if image.gone:
        yield pb.MetadataRecord(gone_topics=pb.GoneTopicsRecord(topic_ids=image.gone))
    for resource, values in image.configs.items():
        for key, value in values.items():
            yield pb.MetadataRecord(config=config_record(resource, key, value))
    if image.next_producer_id:
        block = pb.ProducerIdBlockRecord(broker_id=-1, broker_epoch=-1, first_producer_id=image.next_producer_id)
        yield pb.MetadataRecord(producer_id_block=block)
    yield from _start_records(image)


def _start_records(image: MetadataImage) -> Iterator[pb.MetadataRecord]:
    if image.take_over is not None:
        begun = pb.TakeOverRecord(incarnation=image.take_over.incarnation, start_id=image.take_over.start_id)
        yield pb.MetadataRecord(take_over=begun)
    if image.incarnation:
        confirmed = pb.StartConfirmedRecord(incarnation=image.incarnation, start_id=image.start_id)
        yield pb.MetadataRecord(start_confirmed=confirmed)
    for start in image.unconfirmed_starts:
        yield pb.MetadataRecord(
            start=pb.StartRecord(node_id=start.node_id, incarnation=start.incarnation, start_id=start.start_id)
        )


def _session_records(image: MetadataImage) -> Iterator[pb.MetadataRecord]:
    for broker_id, session in image.sessions.items():
        for sequence, result in session.results.items():
            command = pb.CommandRecord(
                broker_id=broker_id,
                broker_epoch=session.broker_epoch,
                sequence=sequence,
                answered_below=session.answered_below,
                result=result,
            )
            yield pb.MetadataRecord(command=command)


def broker_record(broker: BrokerImage) -> pb.BrokerRecord:
    return pb.BrokerRecord(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        disk_identity=broker.disk_identity,
        endpoints=endpoint_records(broker.endpoints),
        rack=broker.rack,
        features=[pb.SupportedFeatureRecord(**each._asdict()) for each in broker.features],
        start_id=broker.start_id,
        fenced=broker.fenced,
        shutting_down=broker.shutting_down,
        peer=broker.peer,
    )


def endpoint_records(endpoints: Iterable[Endpoint]) -> list[pb.EndpointRecord]:
    return [pb.EndpointRecord(listener=each.listener, host=each.host, port=each.port) for each in endpoints]


def topic_files_record(revisions: Mapping[TopicId, int]) -> pb.TopicFilesRecord:
    """The record of `topic.json` revisions by topic id."""
    files = (pb.TopicFileSeen(topic_id=topic_id, revision=revision) for topic_id, revision in revisions.items())
    return pb.TopicFilesRecord(files=files)


def partition_record(topic_id: TopicId, partition: PartitionImage) -> pb.PartitionRecord:
    return pb.PartitionRecord(
        topic_id=topic_id,
        index=partition.index,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        replicas=partition.replicas,
        isr=partition.isr,
        directories=partition.directories,
        adding=partition.adding,
        removing=partition.removing,
        eligible_leaders=partition.eligible_leaders,
        last_known_leaders=partition.last_known_leaders,
        recovering=partition.recovering,
        moved_end=partition.moved_end,
    )


def config_record(resource: Resource, key: str, value: str | None) -> pb.ConfigRecord:
    """Makes the record of a config's new value. If `value` is None, the config returns to its default."""
    return pb.ConfigRecord(resource_kind=resource.kind, resource_name=resource.name, key=key, value=value)
