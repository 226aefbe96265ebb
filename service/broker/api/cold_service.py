"""The contract's `Cold`: it answers from the manifests that this node has seen. The tier process loads their pages."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from grpc_api.contract.cold import MAX_SEGMENTS, ColdManifest, ColdRepair, ColdSegment
from service.broker.api.repairing import Repairing
from service.broker.partition.partition import Partition
from service.broker.partition.partitions import Partitions
from service.metadata.following import Metadata
from storage_tiers.cold.manifest.model import RemoteSegment
from storage_tiers.cold.manifest.summary import summary_of
from storage_tiers.cold.manifest.transitions import first_manifest
from storage_tiers.cold.process.operations import PageSegments
from storage_tiers.cold.read.fetcher import Hydrator
from storage_tiers.cold.segments.repairer import RepairReport
from storage_tiers.errors import InvalidRequest, LogError, UnknownTopicOrPartition, as_value
from storage_tiers.types import OffsetRange, TopicPartition


class ColdService:
    """`hydrator` is None on a node without a store."""

    def __init__(
        self,
        partitions: Partitions,
        metadata: Metadata,
        hydrator: Hydrator | None,
        repairing: Repairing,
    ) -> None:
        self._partitions = partitions
        self._metadata = metadata
        self._repairing = repairing
        self._hydrator = hydrator

    async def manifests(self, topic: str) -> Sequence[ColdManifest | LogError]:
        self._check()
        if self._metadata.image.topic(topic) is None:
            raise UnknownTopicOrPartition(f"there is no topic {topic!r}")
        led = sorted(self._partitions.of_topic(topic), key=lambda each: each.partition)
        return [self._manifest(partition) for partition in led]

    def _manifest(self, partition: Partition) -> ColdManifest | LogError:
        try:
            partition.check_readable()
        except LogError as error:
            return as_value(error)
        ids = partition.ids
        tier = partition.log.tier or summary_of(first_manifest(ids))
        return ColdManifest(
            partition=ids.partition,
            key=ids.manifest_key,
            commit=tier.commit,
            committed_at_ms=tier.committed_at,
            leader_epoch=tier.leader_epoch,
            log_start=tier.log_start,
            end=tier.end,
            segments=tier.segments,
            records=tier.records,
            bytes=tier.bytes,
        )

    async def segments(self, partition: TopicPartition, start_offset: int) -> Sequence[ColdSegment]:
        hydrator = self._check()
        led = self._partitions.get(partition)
        led.check_readable()
        if led.log.tier is None or led.log.cold is None:
            return ()
        manifest = await led.log.cold.manifest()
        start = max(start_offset, manifest.log_start)
        for page in manifest.live_pages:
            if page.end > start:
                segments = await hydrator.page_segments(PageSegments(manifest.ids, page, start))
                return [_segment(segment) for segment in segments[:MAX_SEGMENTS]]
        first = bisect.bisect_right(manifest.segments, start, key=lambda segment: segment.end)
        return [_segment(segment) for segment in manifest.segments[first : first + MAX_SEGMENTS]]

    async def repair(
        self, partition: TopicPartition, *, apply: bool, accept_loss: Sequence[OffsetRange] = ()
    ) -> ColdRepair:
        led = self._partitions.get(partition)
        led.check_leads()
        return _repair_answer(*await self._repairing.repair(led, apply=apply, accepted=accept_loss))

    async def repair_topic(self, topic: str, *, apply: bool) -> ColdRepair:
        return _repair_answer(*await self._repairing.repair_topic(topic, apply=apply))

    async def repair_cluster(self, *, apply: bool) -> ColdRepair:
        return _repair_answer(*await self._repairing.repair_cluster(apply=apply))

    def _check(self) -> Hydrator:
        if self._hydrator is None:
            raise InvalidRequest("this node has no store, so no topic has cold segments; start it with --store")
        return self._hydrator


def _repair_answer(report: RepairReport, commit: int) -> ColdRepair:
    return ColdRepair(report.summary, report.refused, report.checked, commit)


def _segment(segment: RemoteSegment) -> ColdSegment:
    return ColdSegment(
        segment.base,
        segment.end,
        segment.key,
        segment.position,
        segment.length,
        segment.sidecar_key,
        segment.records,
        segment.min_timestamp,
        segment.max_timestamp,
        segment.crc32c,
        segment.added.commit,
    )
