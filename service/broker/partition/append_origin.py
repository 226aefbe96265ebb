"""The origin of an append, which decides the partition's checks."""

from __future__ import annotations

from enum import Enum


class AppendOrigin(Enum):
    """The source of a batch."""

    #: A producer: its epoch, sequence and transaction are checked, and a batch that is already here is not appended again.
    CLIENT = "client"
    #: A coordinator of this node, for its own records and for the markers of transactions: it has checked them.
    COORDINATOR = "coordinator"
    #: The leader, for a partition that this node follows: the batch keeps its offsets and its leader epoch.
    REPLICA = "replica"


# Reading a member of an enum's class costs a tenth of a microsecond in Python 3.11, and each append reads some.
CLIENT, COORDINATOR, REPLICA = AppendOrigin.CLIENT, AppendOrigin.COORDINATOR, AppendOrigin.REPLICA
