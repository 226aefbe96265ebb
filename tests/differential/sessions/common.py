"""Requests that the sessions of several areas share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.differential.peer import Peer

#: An id that no topic has.
UNKNOWN_ID = "6a756467-652d-7465-7374-2d6e6f626f64"
#: Name and id.
Topic = tuple[str, str]


def to(topic: Topic, records: Mapping[int, bytes | None]) -> list[dict[str, Any]]:
    """Produce's `topic_data`: partition -> records."""
    partitions = [{"index": index, "records": data} for index, data in records.items()]
    return [{"name": topic[0], "topic_id": topic[1], "partition_data": partitions}]


def of(topic: Topic, offsets: Mapping[int, int], **fields: Any) -> list[dict[str, Any]]:
    """Fetch's `topics`: partition -> offset."""
    partitions = [
        {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20, **fields}
        for partition, offset in offsets.items()
    ]
    return [{"topic": topic[0], "topic_id": topic[1], "partitions": partitions}]


def ends(peer: Peer, topic: Topic, partitions: int, label: str = "") -> None:
    """Records the log start and end of each partition in the transcript."""
    for name, timestamp in (("start", -2), ("end", -1)):
        rows = [{"partition_index": index, "timestamp": timestamp} for index in range(partitions)]
        topics = [{"name": topic[0], "partitions": rows}]
        peer.ask("list_offsets", 6, f"{name} {label}".strip(), replica_id=-1, topics=topics)


def contents(peer: Peer, topic: Topic, partitions: int, label: str = "") -> None:
    """Records every batch, as consumers get it, in the transcript."""
    topics = of(topic, dict.fromkeys(range(partitions), 0))
    peer.ask("fetch", 13, f"everything {label}".strip(), max_wait=0, min_bytes=0, topics=topics)


def idempotent(peer: Peer) -> tuple[int, int]:
    """A new producer's id and epoch. Retries while a freshly started Kafka is still loading."""
    while True:
        given = peer.quietly("init_producer_id", 4, transactional_id=None)
        if given["error_code"] != "COORDINATOR_LOAD_IN_PROGRESS":
            return given["producer_id"], given["producer_epoch"]
