"""The state of a cluster's brokers, from any broker's Metadata response. Pure.

Every response leaves out fenced brokers, but not their partitions. Such a partition has a replica on a broker that is not
listed.

Not promised: to find a missing broker without partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class PlacedPartition(NamedTuple):
    """A partition and its brokers. `leader` is -1 if there is none."""

    topic: str
    partition: int
    leader: int
    replicas: Sequence[int]


class BrokerRow(NamedTuple):
    """`kafka` is HOST:PORT, None if the broker is `away`."""

    id: int
    kafka: str | None
    state: str
    controller: bool
    leads: int
    replicas: int


class ClusterStatus(NamedTuple):
    """`leaderless` are partitions without a leader, each TOPIC-PARTITION."""

    brokers: list[BrokerRow]
    leaderless: list[str]


def status_of(addresses: Mapping[int, str], controller: int, partitions: Iterable[PlacedPartition]) -> ClusterStatus:
    """`addresses` are those of the listed brokers, by id."""
    leads: Counter[int] = Counter()
    holds: Counter[int] = Counter()
    leaderless = []
    for each in partitions:
        holds.update(each.replicas)
        if each.leader < 0:
            leaderless.append((each.topic, each.partition))
        else:
            leads[each.leader] += 1
    rows = [
        BrokerRow(
            broker,
            addresses.get(broker),
            "ready" if broker in addresses else "away",
            broker == controller,
            leads[broker],
            holds[broker],
        )
        for broker in sorted({*addresses, *holds})
    ]
    return ClusterStatus(rows, [f"{topic}-{partition}" for topic, partition in sorted(leaderless)])
