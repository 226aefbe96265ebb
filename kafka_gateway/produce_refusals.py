"""Refusals of Produce partitions that do not depend on the records.

One cached error answers many rows, because making an error for each of 25,000 rows takes 35 ms.
"""

from __future__ import annotations

import functools

from storage_tiers.errors import InvalidRecord, LogError, UnknownTopicId, UnsupportedCompression
from storage_tiers.types import TopicId, TopicPartition

NO_BATCH = InvalidRecord("the request has no record batch for this partition; send exactly one")


@functools.lru_cache(maxsize=16)
def unknown_id(topic_id: bytes) -> LogError:
    return UnknownTopicId(f"no topic has the id {TopicId(topic_id)}; refresh the metadata")


@functools.lru_cache(maxsize=16)
def no_zstd(version: int) -> LogError:
    return UnsupportedCompression(f"zstd needs Produce 7, this is version {version}")


@functools.lru_cache(maxsize=16)
def second_batch(partition: TopicPartition) -> LogError:
    return InvalidRecord(f"the request names {partition} more than once; send exactly one batch")
