"""What `tidelog cold repair` is given and answers, through a node or without one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Loss:
    """Offsets [base, end) of a partition, to be given up."""

    partition: int
    base: int
    end: int

    @classmethod
    def parse(cls, text: str) -> Loss:
        """ValueError unless it is PARTITION:START-END."""
        found = re.fullmatch(r"(\d+):(\d+)-(\d+)", text)
        if found is None or int(found[2]) >= int(found[3]):
            raise ValueError(
                f"{text!r} names no offsets: write PARTITION:START-END, END being the first offset that is kept"
            )
        return cls(*map(int, found.groups()))


@dataclass(frozen=True, slots=True)
class PartitionRepair:
    """One answer. `commit` is the one that was made, 0 if none. Of `topic.json` the partition is -1, of `cluster.json` the
    topic is empty as well."""

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
        checked = f"; {self.checked} objects were checked" if self.partition >= 0 else ""
        return f"{name}: {self.summary}{checked}{done}"

    @property
    def _numbered(self) -> str:
        if self.partition >= 0:
            return "commit"
        return "revision" if self.topic else "incarnation"

    def as_json(self) -> Mapping[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}
