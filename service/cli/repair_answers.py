"""Arguments and results of `tidelog cold repair`, through a node or without one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Kafka's partition numbers have 32 bits, and its offsets 64.
_MOST_PARTITION, _MOST_OFFSET = (1 << 31) - 1, (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Loss:
    """Offsets [base, end) of a partition whose loss the user accepts."""

    partition: int
    base: int
    end: int

    @classmethod
    def parse(cls, text: str) -> Loss:
        """Parses PARTITION:START-END. Raises ValueError for anything else."""
        found = re.fullmatch(r"(\d+):(\d+)-(\d+)", text)
        numbers = [int(each) for each in found.groups()] if found is not None else []
        if not numbers or numbers[0] > _MOST_PARTITION or not numbers[1] < numbers[2] <= _MOST_OFFSET:
            raise ValueError(
                f"{text!r} is not a range of offsets: write PARTITION:START-END, where END is the first offset to keep"
            )
        return cls(*numbers)


@dataclass(frozen=True, slots=True)
class PartitionRepair:
    """The result for one manifest or file. `commit` is the number of the new commit, 0 if there is none. For `topic.json` the
    partition is -1. For `cluster.json` the topic is also empty."""

    topic: str
    partition: int
    summary: str
    refused: str
    checked: int
    commit: int

    @property
    def line(self) -> str:
        name = f"{self.topic}-{self.partition}"
        if self.partition < 0:
            name = f"topic.json of {self.topic}" if self.topic else "cluster.json"
        if self.refused:
            return f"{name}: cannot be repaired: {self.refused}"
        if not self.summary:
            return f"{name}: nothing to repair"
        done = f" (done: {self._numbered} {self.commit})" if self.commit else ""
        checked = f"; {self.checked} objects verified" if self.partition >= 0 else ""
        return f"{name}: {self.summary}{checked}{done}"

    @property
    def _numbered(self) -> str:
        if self.partition >= 0:
            return "commit"
        return "revision" if self.topic else "incarnation"

    def as_json(self) -> Mapping[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}
