"""Restores transaction markers that partitions of this node lost with a disk, while the coordinator still knows the outcome.

After the loss of its newest records, a partition may have an open transaction that its coordinator has completed. No marker
follows, and readers of committed records stop there. Until the marker is restored, the producer's next transaction cannot write
to the partition (`ProducerStateManager.check_decided`).

Invariant: a marker is written only for the transaction that it ended. `LastOutcomes` names the transaction, and a partition
refuses the marker of an earlier one. Markers of transactions whose outcome `LastOutcomes` does not know are not restored.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from grpc_api.contract.transactions import Markers, ProducerIdAndEpoch
from service.broker.background.turns import GLANCES_A_TURN, slices
from service.broker.coordinators.transaction_markers import TransactionMarkers
from service.broker.partition.partitions import Partitions
from service.coordination.coordinator_runtime import CoordinatorRuntime
from service.coordination.runtime import ShardHost
from service.coordination.transactions.shard import TransactionShard
from service.coordination.transactions.transaction import OpenTransactions
from storage_tiers import events
from storage_tiers.errors import LogError
from storage_tiers.types import TopicPartition

log = logging.getLogger(__name__)


class LostMarkers:
    """`tick` finds and restores lost markers. `epoch_of` returns the leader epoch of a coordinator's partition."""

    def __init__(
        self, partitions: Partitions, markers: TransactionMarkers, epoch_of: Callable[[TopicPartition], int]
    ) -> None:
        self._partitions = partitions
        self._markers = markers
        self._epoch_of = epoch_of

    async def tick(self, runtime: CoordinatorRuntime[TransactionShard]) -> None:
        opened = await self._open()
        async for (host,) in slices(tuple(runtime.hosts.values()) if opened else (), 1):
            with contextlib.suppress(LogError):  # the shard is being loaded again, or another node leads its partition
                await self._restore(host, opened)

    async def _restore(self, host: ShardHost[TransactionShard], opened: OpenTransactions) -> None:
        """Restores the lost markers of one shard. If a partition refuses its marker, the next round tries again. A transaction
        that has ended since the round began has lost no marker, because the coordinator completes a transaction only after all
        its markers are committed."""
        for found in host.look(lambda shard: shard.outcomes.lost(opened)):
            markers = found._replace(partitions=[each for each in found.partitions if self._is_open(each, found)])
            refused = {each for each, _ in await self._markers.write_once(markers, self._epoch_of(host.partition))}
            for partition in markers.partitions:
                if partition not in refused:
                    events.warning(
                        log,
                        "transaction.marker_restored",
                        partition=partition,
                        transactional_id=markers.transactional_id,
                        producer_id=markers.producer.id,
                        commit=markers.commit,
                    )

    def _is_open(self, partition: TopicPartition, markers: Markers) -> bool:
        try:
            return self._partitions.get(partition).is_in_transaction(markers.producer.id, markers.producer.epoch - 1)
        except LogError:
            return False  # this node no longer leads it

    async def _open(self) -> OpenTransactions:
        found: dict[ProducerIdAndEpoch, list[TopicPartition]] = {}
        async for some in slices(self._partitions, GLANCES_A_TURN):
            for each in some:
                producers = each.log.hot.end.producers
                for producer_id in producers.in_transaction if each.leads else ():
                    producer = ProducerIdAndEpoch(producer_id, producers.producers[producer_id].epoch)
                    found.setdefault(producer, []).append(each.partition)
        return found
