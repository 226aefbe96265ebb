"""The contract's feature levels (KIP-584): those that a broker supports, and those that clients and brokers use now.

Not served across a channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol


class Feature(NamedTuple):
    """A feature: the lowest and highest level that this broker supports, and the cluster's level (0 for none)."""

    name: str
    lowest: int
    highest: int
    finalized: int


class FeatureChange(Enum):
    """The direction in which an update may change a level. A level may always be set to its present value."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """`change` is None for an unknown kind of change."""

    name: str
    level: int
    change: FeatureChange | None


class Features(Protocol):
    """The cluster's feature levels (KIP-584)."""

    def list(self) -> Sequence[Feature]:
        """All features that this broker knows, in Kafka's order."""

    async def update(self, updates: Sequence[FeatureUpdate], *, validate_only: bool) -> None:
        """Sets all of these levels; with `validate_only` only checks them. If one cannot be set, sets none and raises
        InvalidUpdateVersion."""
