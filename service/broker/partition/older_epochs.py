"""Refuses to lead, or to follow, under a leader epoch below one that the partition has had in this process.

A controller that is started with an older data directory shows lower epochs. Batches of the higher epochs are in the log, and
perhaps in the bucket. A leader under a lower epoch would contradict them, because clients and followers find the offset where
two logs diverge by epochs that rise with offsets. So the partition serves no client until the metadata has reached the
partition's epoch again. All other partitions continue.

A node that starts on such metadata finds the higher epoch in its log, and refuses in the same way. It has no newer metadata to
wait for: its operator has accepted the older one, or restored it. So it asks the controller for a higher epoch, once a second
until it has one (`epoch_raises.py`), and then leads with all records of its log. If it led under the lower epoch instead, the
recovery after an unclean stop would cut the records that it then accepts, because the epochs of a log never fall.
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
    """Whether the metadata is older than the partition's leader epoch."""
    return placed.leader_epoch < partition.state.leader_epoch


def newest_epoch(partition: Partition) -> int:
    """The highest leader epoch that the metadata or the log has shown."""
    return max(partition.state.leader_epoch, partition.log.hot.end.epochs.latest)


def refuses(partition: Partition, placed: PartitionImage, troubles: Troubles) -> bool:
    """Whether the partition has to wait for newer metadata. Meanwhile this node does not lead the partition and refuses its
    clients, which is logged once. Once the metadata is no longer older, clients of a partition that this node does not lead are
    sent to its leader again."""
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
