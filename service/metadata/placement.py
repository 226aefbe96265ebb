"""Places the replicas of new partitions: leaders spread evenly, replicas of one partition over as many racks as possible.

Pure and deterministic. The broker of partition 0 depends on the topic's id, so that topics with a single partition do not all
get the same broker. Load and free space are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence

from service.metadata.parts import BrokerImage
from storage_tiers.errors import InvalidReplicationFactor
from storage_tiers.types import TopicId


def place(
    brokers: Sequence[BrokerImage], first_partition: int, count: int, replication_factor: int, topic_id: TopicId
) -> list[tuple[int, ...]]:
    """Returns the replicas of each of `count` partitions from `first_partition` on, the preferred leader first. Brokers that
    may not lead get no replicas.

    Raises InvalidReplicationFactor, in Kafka's words, if no broker may lead, or there are fewer brokers than replicas.
    """
    registered, brokers = len(brokers), [broker for broker in brokers if broker.may_lead]
    if not brokers:
        raise InvalidReplicationFactor(
            f"Unable to replicate the partition {replication_factor} time(s): All brokers are currently fenced."
        )
    if replication_factor > registered:
        raise InvalidReplicationFactor(
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only {registered} broker(s) are registered."
        )
    ring = _alternating_racks(brokers)
    start = int.from_bytes(topic_id[:8], "big")
    partitions = range(first_partition, first_partition + count)
    if replication_factor == 1:
        return [(ring[(start + partition) % len(ring)].broker_id,) for partition in partitions]
    placed = []
    for partition in partitions:
        # The followers shift by one more in each round of the ring, so that two brokers do not share all their partitions.
        leader = (start + partition) % len(ring)
        shift = (partition // len(ring)) % max(1, len(ring) - 1)
        followers = [ring[(leader + 1 + (shift + step) % (len(ring) - 1)) % len(ring)] for step in range(len(ring) - 1)]
        placed.append(_pick(ring[leader], followers, replication_factor))
    return placed


def _alternating_racks(brokers: Sequence[BrokerImage]) -> list[BrokerImage]:
    """Orders the brokers so that neighbours are in different racks as far as possible."""
    racks: dict[str | None, list[BrokerImage]] = {}
    for broker in sorted(brokers, key=lambda b: b.broker_id):
        racks.setdefault(broker.rack, []).append(broker)
    ring = []
    for row in range(max(map(len, racks.values()))):
        ring += [members[row] for members in racks.values() if row < len(members)]
    return ring


def _pick(leader: BrokerImage, followers: Sequence[BrokerImage], replication_factor: int) -> tuple[int, ...]:
    """Picks the leader, then followers in racks not used yet, then the other followers in order."""
    chosen, racks = [leader], {leader.rack}
    spare = []
    for follower in followers:
        if follower.rack in racks:
            spare.append(follower)
        else:
            racks.add(follower.rack)
            chosen.append(follower)
    return tuple(broker.broker_id for broker in (chosen + spare)[:replication_factor])
