"""The load of the part `changes`: each measurement gives its three figures, and leaves none of its topics."""

from __future__ import annotations

from pathlib import Path

from benchmarks import changes
from benchmarks.table import WANTED, Table


def test_a_measurement_gives_its_figures(tmp_path: Path) -> None:
    table = Table()
    changes.measure(table, tmp_path, rounds=1, seconds=0.3, topics=4)
    assert {unit for _, unit in table.rows} == {"changes/s", "% of a core", "ms"}
    assert all(row.medians["tidelog"] > 0 for row in table.rows.values())
    assert sum(name in WANTED for name, _ in table.rows) == 2
    left = {path.name for path in (tmp_path / "tidelog").glob("*/data/*") if not path.name.endswith("-delete")}
    assert "small-0" in left
    assert not [name for name in left if name.startswith(("changed", "probed"))]
