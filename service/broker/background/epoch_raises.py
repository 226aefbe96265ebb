"""Asks the controller for leader epochs above those of this node's logs, if it was started on older metadata.

`older_epochs.py` says why a partition does not lead under a lower epoch. Its log has all records, so only the epoch is missing.

Not promised: that records of partitions which have moved since the older metadata are found.
"""

from __future__ import annotations

import logging
from itertools import islice

from service.broker.partition.older_epochs import is_older
from service.broker.partition.partition import Partition
from service.metadata.commands import RaiseLeaderEpoch
from service.metadata.controller import Commands
from service.metadata.following import Metadata
from storage_tiers import events
from storage_tiers.errors import LogError
from storage_tiers.events import Troubles

log = logging.getLogger(__name__)

#: Partitions for which a node asks in one round.
RAISES_A_TICK = 1000


class EpochRaises:
    """Asks the controller for epochs above those of the logs in `outrun`, and forgets a partition once the metadata has one."""

    def __init__(self, outrun: dict[Partition, None], metadata: Metadata, commands: Commands, *, node_id: int) -> None:
        """`outrun` are the partitions whose log had a higher epoch than the metadata when this node started."""
        self._outrun = outrun
        self._metadata = metadata
        self._commands = commands
        self._node_id = node_id
        self._troubles = Troubles()

    async def tick(self) -> None:
        """Called about every second. A refusal is logged once, and the next call asks again."""
        for partition in tuple(islice(self._outrun, RAISES_A_TICK)):
            image = self._metadata.image
            broker, topic = image.brokers.get(self._node_id), image.topics.get(partition.topic_id)
            # The metadata may have become older still, and show the topic with fewer partitions.
            placed = next(iter(topic.partitions[partition.partition.partition :]), None) if topic is not None else None
            if placed is None or not is_older(partition, placed) or partition.deleted:
                self._outrun.pop(partition, None)
            elif broker is not None:
                await self._raise(partition, broker.broker_epoch)

    async def _raise(self, partition: Partition, broker_epoch: int) -> None:
        above = partition.state.leader_epoch
        command = RaiseLeaderEpoch(
            partition.topic_id, partition.partition.partition, self._node_id, broker_epoch, above
        )
        try:
            await self._commands.execute(command)
        except LogError as error:
            self._outrun[partition] = self._outrun.pop(partition)  # after those that have not been tried
            if self._troubles.begins(partition, error):
                events.error(log, "partition.epoch_not_raised", partition=partition.partition, error=error)
        else:
            events.info(log, "partition.epoch_raised", partition=partition.partition, above=above)
