"""Refuses to lead, or to follow, under a leader epoch below one that the partition has had in this process.

A controller that is started with an older data directory shows lower epochs. Batches of the higher ones are in the log, and
perhaps in the bucket. A leader under a lower epoch would contradict them: clients and followers find the place where logs part
by epochs that rise with offsets. So the partition serves no client until the metadata have reached its epoch again, as the
newest metadata do. All other partitions continue.

Not promised: that a node which starts with the older metadata notices it.
"""

from __future__ import annotations

import logging

from service.broker.partition.partition import Partition
from service.metadata.parts import PartitionImage
from storage_tiers import events
from storage_tiers.errors import NotLeader
from storage_tiers.events import Troubles

log = logging.getLogger(__name__)


def is_older(partition: Partition, placed: PartitionImage) -> bool:
    """Whether the metadata are older than the partition's leader epoch."""
    return placed.leader_epoch < partition.state.leader_epoch


def refuses(partition: Partition, placed: PartitionImage, troubles: Troubles) -> bool:
    """Whether the partition has to wait for newer metadata. Then it leads nothing and refuses clients, which is logged once.
    With metadata that are not older, clients of a refused partition are sent to its leader again."""
    identity, known, shown = (partition.topic_id, placed.index), partition.state.leader_epoch, placed.leader_epoch
    if not is_older(partition, placed):
        if troubles.ends(identity) is not None and not partition.leads:
            partition.follow(shown, placed.leader)
        return False
    why = NotLeader(f"{partition.partition}: leader epoch {shown} of the metadata is below {known}, which it has had")
    if troubles.begins(identity, why):
        events.error(log, "partition.older_epoch", partition=partition.partition, known=known, shown=shown)
    partition.resign(why)
    return True
