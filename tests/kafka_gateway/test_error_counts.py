"""Error codes are found wherever an answer bears them."""

from __future__ import annotations

from collections import Counter

from kafka_gateway.error_counts import count_errors
from kafka_gateway.messages import messages_of


def test_codes_at_every_depth_are_counted_and_none_is_not() -> None:
    make = messages_of("metadata", 9).make

    def partition(code: int) -> object:
        return make(
            "MetadataResponsePartition",
            error_code=code,
            partition_index=0,
            leader_id=1,
            leader_epoch=0,
            replica_nodes=(1,),
            isr_nodes=(1,),
            offline_replicas=(),
        )

    def topic(code: int, *partitions: object) -> object:
        return make(
            "MetadataResponseTopic",
            error_code=code,
            name="t",
            is_internal=False,
            partitions=partitions,
            topic_authorized_operations=-1,
        )

    counts: Counter[int] = Counter()
    topics = (topic(0, partition(0), partition(5)), topic(3), topic(0, partition(5)))
    count_errors({"error_code": 41, "topics": topics, "brokers": (), "cluster_id": "c", "numbers": (1, 2)}, counts)
    assert counts == {41: 1, 5: 2, 3: 1}
