"""The state of a cluster's brokers, from any broker's Metadata response. Pure.

A response omits fenced brokers, but not their partitions. So a broker that has a replica and is not listed is away.

A broker without partitions is not found while it is away.
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
    """`leaderless` are partitions without a leader, each TOPIC-PARTITION. `without_disk` are the ready brokers of such
    partitions: their disk was replaced, since a ready broker leads all partitions on its disk."""

    brokers: list[BrokerRow]
    leaderless: list[str]
    without_disk: list[int]


def status_of(addresses: Mapping[int, str], controller: int, partitions: Iterable[PlacedPartition]) -> ClusterStatus:
    """`addresses` has the addresses of the listed brokers, by id."""
    leads: Counter[int] = Counter()
    holds: Counter[int] = Counter()
    leaderless = []
    without_disk: set[int] = set()
    for each in partitions:
        holds.update(each.replicas)
        if each.leader < 0:
            leaderless.append((each.topic, each.partition))
            without_disk.update(broker for broker in each.replicas if broker in addresses)
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
    return ClusterStatus(
        rows, [f"{topic}-{partition}" for topic, partition in sorted(leaderless)], sorted(without_disk)
    )
