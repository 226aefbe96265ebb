"""The broker's internal topics: their names, and the configs with which Kafka 4.2.1 creates them.

Pure. Their partitions have one replica, because tidelog does not replicate.
"""

from __future__ import annotations

from collections.abc import Mapping

CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
SHARE_GROUP_STATE = "__share_group_state"
INTERNAL_TOPICS = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE})
#: Topics for which brokers run coordinators. Their local log is never evicted, so that a coordinator loads without the store.
COORDINATED_TOPICS = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE})


def consumer_offsets_configs(segment_bytes: int) -> Mapping[str, str]:
    return {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": str(segment_bytes)}


def transaction_state_configs(segment_bytes: int, min_isr: int) -> Mapping[str, str]:
    return {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": str(min_isr),
        "segment.bytes": str(segment_bytes),
        "unclean.leader.election.enable": "false",
    }
