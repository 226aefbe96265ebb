"""Callbacks for the end of a partition's leadership, or for the replacement of its log. Each is called once, with the error."""

from __future__ import annotations

import logging
from collections.abc import Callable

from storage_tiers import events
from storage_tiers.errors import LogError
from storage_tiers.types import TopicPartition

log = logging.getLogger(__name__)

#: Called with the error that tells why the leadership or the log has ended.
EndWith = Callable[[LogError], None]


class Resignations:
    """The callbacks of one partition."""

    __slots__ = ("_ends", "_partition")

    def __init__(self, partition: TopicPartition) -> None:
        self._partition = partition
        self._ends: dict[object, EndWith] = {}

    def add(self, end: EndWith) -> Callable[[], None]:
        """Returns a function that removes the callback."""
        token = object()
        self._ends[token] = end

        def forget() -> None:
            self._ends.pop(token, None)

        return forget

    def end_all(self, error: LogError) -> None:
        """Calls and removes every callback. Callbacks added meanwhile stay for the next end. A callback that fails is logged,
        and the others are still called."""
        ended, self._ends = self._ends, {}
        for end in ended.values():
            try:
                end(error)
            except Exception as defect:  # noqa: BLE001 - see above
                events.error(
                    log, "partition.defect", partition=self._partition, work="losing leadership", defect=defect
                )
