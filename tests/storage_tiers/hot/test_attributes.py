"""No part of a log has a `__dict__`: it would slow the field accesses of appends, and a node has 10,000 logs."""

from __future__ import annotations

from pathlib import Path

from tests.storage_tiers.hot.support import append, batch_of, open_log


def test_no_part_of_a_log_has_an_instance_dictionary(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch_of())
    parts = [log, *(getattr(log, name) for name in log.__slots__)]
    parts += [getattr(log.appender, name) for name in log.appender.__slots__]
    ours = [part for part in parts if type(part).__module__ in {f"storage_tiers.hot.{name}" for name in PARTS}]
    assert {type(part).__name__ for part in ours} == set(PARTS.values())
    assert not [part for part in ours if hasattr(part, "__dict__")]
    log.close(clean=True)


#: The classes that an append uses, by module.
PARTS = {
    "log": "HotLog",
    "appending": "Appender",
    "durability": "Durability",
    "log_end": "LogEnd",
    "reading": "LogReader",
    "rolling": "RollLimits",
    "segment": "Segment",
    "segments": "Segments",
}
