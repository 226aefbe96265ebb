"""The functions that tiering needs from the rest of the node, as one value, so that tiering depends on no other part of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from service.broker.background.offload_quotas import OffloadQuotas
from service.broker.partition.partition import Partition
from storage_tiers.policy.segments import Now
from storage_tiers.types import TopicPartition

#: Bounds of the pause between two checks of an idle partition, in ms.
SHORTEST_PAUSE_MS = 100
LONGEST_PAUSE_MS = 30_000


@dataclass(frozen=True, slots=True)
class TieringPolicy:
    """Tiering's inputs from the node: `max_lag_ms(topic)` is `tidelog.tier.max.lag.ms`; `publish(topic)` makes `topic.json`
    name the topic before the first offload, so that no reader finds segments of a topic without a name; `now` is the time for
    planners; `may_be_copy()` tells whether another node may run on the original of a copied directory. `quotas` limit the bytes
    of offloads, and `is_throttled_move` tells whether the quota of moves applies to a partition."""

    max_lag_ms: Callable[[str], int]
    publish: Callable[[str], Awaitable[None]]
    now: Callable[[], Now]
    may_be_copy: Callable[[], bool]
    quotas: OffloadQuotas
    is_throttled_move: Callable[[TopicPartition], bool]

    def pause_ms(self, partition: Partition) -> int:
        """The pause between two checks of an idle partition, for which only time passes: a tenth of the shortest relevant
        age."""
        settings = partition.log.hot.settings
        ages = [settings.segment_ms, self.max_lag_ms(partition.partition.topic)]
        if settings.local_retention_ms >= 0:
            ages.append(settings.local_retention_ms)
        return max(SHORTEST_PAUSE_MS, min(LONGEST_PAUSE_MS, min(ages) // 10))
