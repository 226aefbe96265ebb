"""The wall clock of one node, which a test steps while the node runs. `stepped/sitecustomize.py` applies it in all its
processes.

clock = SteppedClock(tmp_path / "clock")
with Node(tmp_path, environment=clock.environment):
    clock.step_hours(-5)
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from tests.support.node import ROOT

HOOK = Path(__file__).with_name("stepped")
HOUR_NS = 3600 * 10**9


class SteppedClock:
    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(8))
        self._path = path

    @property
    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": f"{HOOK}{os.pathsep}{ROOT}", "STEPPED_CLOCK": str(self._path)}

    def step_hours(self, hours: float) -> None:
        """Sets the clock to the real time plus `hours`; 0 sets it right."""
        with self._path.open("r+b") as file:
            file.write(struct.pack("<q", int(hours * HOUR_NS)))
