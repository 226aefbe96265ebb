"""The feature levels of this node (KIP-584), by Kafka's names: ApiVersions advertises them, UpdateFeatures checks them.

`metadata.version` names the Kafka release whose requests are answered (29 is 4.2-IV1), not a format of this node.
`transaction.version` 2 is KIP-890: clients that know it get an epoch for each transaction. All other features of that release
are known and off; none can be raised, because nothing here implements them.
"""

from __future__ import annotations

from typing import NamedTuple


class Level(NamedTuple):
    """The lowest and highest level that can be set, and the current one."""

    lowest: int
    highest: int
    finalized: int


#: In Kafka's order.
FEATURES: dict[str, Level] = {
    "group.version": Level(0, 0, 0),
    "kraft.version": Level(0, 0, 0),
    "metadata.version": Level(29, 29, 29),
    "share.version": Level(0, 0, 0),
    "streams.version": Level(0, 0, 0),
    "transaction.version": Level(2, 2, 2),
    "eligible.leader.replicas.version": Level(0, 0, 0),
}
