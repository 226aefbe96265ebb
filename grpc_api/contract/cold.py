"""A topic's manifests and segments in the bucket, for clients that read the objects themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from storage_tiers.errors import LogError
from storage_tiers.types import OffsetRange, TopicPartition

#: The most segments in one answer.
MAX_SEGMENTS = 64


class ColdManifest(NamedTuple):
    """One partition's manifest: offsets [log_start, end) are in the bucket. `commit` is 0 before the first commit.

    `key` is relative to the store's prefix. `committed_at_ms` is by the writer's clock. `bytes` is the size of the record
    batches.
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
    prefix. `added_commit` is the commit that added the segment to the manifest."""

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
    """A repair of a partition's manifest, of `topic.json` or of `cluster.json`, to the newest known state. `summary`
    describes the repair; `refused` says why none is possible. Both are empty if there is nothing to repair. `checked`
    is the number of checked objects. `commit` is the number of the new commit; for `topic.json` its revision, for
    `cluster.json` its incarnation."""

    summary: str
    refused: str
    checked: int
    commit: int = 0


class Cold(Protocol):
    """Every method raises InvalidRequest on a node without a store. Methods that take a topic or a partition raise
    UnknownTopicOrPartition if it does not exist."""

    async def manifests(self, topic: str) -> Sequence[ColdManifest | LogError]:
        """One entry for each partition of the topic, from the newest manifest that the partition's broker has seen or
        written."""

    async def segments(self, partition: TopicPartition, start_offset: int) -> Sequence[ColdSegment]:
        """Up to MAX_SEGMENTS live segments in offset order, from the first one that ends after `start_offset`; empty if there
        are no more. The next call starts at the last one's end. Raises TierUnavailable if the store is needed and does not
        answer."""

    async def repair(
        self, partition: TopicPartition, *, apply: bool, accept_loss: Sequence[OffsetRange] = ()
    ) -> ColdRepair:
        """Repairs a manifest after the store has reverted to an older state (StoreBehind). Verifies every object that the
        newest known manifest names, and with `apply` commits that manifest again. `accept_loss` are the offsets whose loss the
        caller accepts; the repair is refused unless they are exactly the lost ones. Takes one or two requests for each segment.
        Raises TierUnavailable if the store does not answer; the caller may retry."""

    async def repair_topic(self, topic: str, *, apply: bool) -> ColdRepair:
        """As `repair`, for `topic.json`: writes it again if the store has none, or an older one than this node has seen there.
        A node that does not write `topic.json` refuses."""

    async def repair_cluster(self, *, apply: bool) -> ColdRepair:
        """As `repair`, for `cluster.json`."""
