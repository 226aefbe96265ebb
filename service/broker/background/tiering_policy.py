"""The functions that tiering needs from the rest of the node, as one value, so that tiering depends on no other part of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from storage_tiers.policy.segments import Now


@dataclass(frozen=True, slots=True)
class TieringPolicy:
    """Tiering's inputs from the node: `max_lag_ms(topic)` is `tidelog.tier.max.lag.ms`; `publish(topic)` makes `topic.json`
    name the topic before the first offload, so that no reader finds segments of a topic without a name; `now` is the time for
    planners; `may_be_copy()` tells whether another node may run on the original of a copied directory."""

    max_lag_ms: Callable[[str], int]
    publish: Callable[[str], Awaitable[None]]
    now: Callable[[], Now]
    may_be_copy: Callable[[], bool]
