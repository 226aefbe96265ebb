"""What of a topic lies in the bucket, as its manifests say: for those who read the objects themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from storage_tiers.errors import LogError
from storage_tiers.types import OffsetRange, TopicPartition

#: Segments in one answer.
MAX_SEGMENTS = 64


class ColdManifest(NamedTuple):
    """One partition's manifest: offsets [log_start, end) are in the bucket. `commit` 0: nothing was committed yet.

    `key` is relative to the store's prefix, `committed_at_ms` by the writer's clock; `bytes` counts record batches.
    """

    partition: int
    key: str
    commit: int
    committed_at_ms: int
    leader_epoch: int
    log_start: int
    end: int
    segments: int
    records: int
    bytes: int


class ColdSegment(NamedTuple):
    """Offsets [base, end) in bytes [position, position + length) of the object `key`; keys are relative to the store's
    prefix. `added_commit` is the commit that brought it."""

    base: int
    end: int
    key: str
    position: int
    length: int
    sidecar_key: str
    records: int
    min_timestamp: int
    max_timestamp: int
    crc32c: int
    added_commit: int


class ColdRepair(NamedTuple):
    """What would make a partition's manifest, a topic's file or the cluster's show again what was seen of it (`summary`), or
    why nothing can (`refused`); both empty: there is nothing to repair. `checked` counts the objects that were looked at.
    `commit` is the one that was made: of `topic.json` its revision, of `cluster.json` its incarnation."""

    summary: str
    refused: str
    checked: int
    commit: int = 0


class Cold(Protocol):
    """Every method raises UnknownTopicOrPartition, and InvalidRequest on a node without a store."""

    async def manifests(self, topic: str) -> Sequence[ColdManifest | LogError]:
        """One for each partition, from the newest manifest that this node has seen or written."""

    async def segments(self, partition: TopicPartition, start_offset: int) -> Sequence[ColdSegment]:
        """Up to MAX_SEGMENTS live segments in offset order, the first one that ends after `start_offset`; none: there are no
        more. Ask on from the last one's end. Raises TierUnavailable where the store must be asked and does not answer."""

    async def repair(
        self, partition: TopicPartition, *, apply: bool, accept_loss: Sequence[OffsetRange] = ()
    ) -> ColdRepair:
        """Of a store that has gone backwards (StoreBehind): proves every object that the newest manifest seen names, and with
        `apply` commits it again. `accept_loss` are offsets to be given up for ever: exactly those that are lost, or it is
        refused. Takes a request or two for each segment. Raises TierUnavailable where the store does not answer: ask again."""

    async def repair_topic(self, topic: str, *, apply: bool) -> ColdRepair:
        """As `repair`, of `topic.json`: written again where the store shows an older one than was written, or none."""

    async def repair_cluster(self, *, apply: bool) -> ColdRepair:
        """As `repair`, of `cluster.json`."""
