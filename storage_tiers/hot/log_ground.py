"""The values that all parts of one log share: its partition and directory, and the files, clock and random numbers."""

from __future__ import annotations

from dataclasses import dataclass

from storage_tiers.clock import Clock, Rng
from storage_tiers.files import Files
from storage_tiers.types import TopicId, TopicPartition


@dataclass(frozen=True, slots=True)
class LogGround:
    """`directory` holds the log of `partition` and nothing else; its metadata file must name `topic_id`."""

    directory: str
    partition: TopicPartition
    topic_id: TopicId
    files: Files
    clock: Clock
    rng: Rng
