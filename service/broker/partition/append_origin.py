"""The origin of an append, which decides the partition's checks."""

from __future__ import annotations

from enum import Enum


class AppendOrigin(Enum):
    """The source of a batch."""

    #: A producer. Its epoch, sequence and transaction are checked, and a duplicate batch is not appended again.
    CLIENT = "client"
    #: A coordinator of this node. It has already checked its own records and its transaction markers.
    COORDINATOR = "coordinator"
    #: The leader of a partition that this node follows. The batch keeps its offsets and its leader epoch.
    REPLICA = "replica"


# Looking up an enum member takes 0.1 µs in Python 3.11, and each append needs several.
CLIENT, COORDINATOR, REPLICA = AppendOrigin.CLIENT, AppendOrigin.COORDINATOR, AppendOrigin.REPLICA
